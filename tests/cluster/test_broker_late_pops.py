"""Pops that nobody waits for any more: what they took would come to nobody for a long time."""

import asyncio
import time
from pathlib import Path
from typing import cast

import pytest
from tests.cluster.broker_peer import Peer, connect, create_topic, serve
from tests.cluster.pops import PopConsumer

from pymq.broker.pop.sent_times import SentTimes
from pymq.clock import Clock
from pymq.net.server import Server, ServerConnection
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.framing import encode_frame

POLL_MS = 2000
#: Longer than who pops waits for its answer.
LATE_MS = 20_000


class LateClock(Clock):
    """Time passes at once when a test says so, as for a process that is frozen."""

    late_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.late_s


class Connection:
    """What counts of a connection here."""

    packed_host = b"\x7f\x00\x00\x01\x00\x00\x00\x01"
    input_at = 0.0


def now_ms(late_ms: int = 0, ahead_ms: int = 0) -> int:
    """Return when a request was sent that waited unread, by a clock that may be wrong."""
    return int(time.time() * 1000) - late_ms + ahead_ms


def is_too_late(answer: Command) -> bool:
    if answer.code == ResponseCode.SUCCESS:
        return False
    assert answer.code == ResponseCode.POLLING_TIMEOUT
    return "timeout too much" in (answer.remark or "")


@pytest.mark.parametrize("ahead_ms", [-3_600_000, 0, 3_600_000])
def test_a_pop_that_was_read_late_takes_nothing(tmp_path: Path, ahead_ms: int) -> None:
    async def check(peer: Peer) -> None:
        await create_topic(peer, "T")
        consumer = PopConsumer(peer)
        first = {"pollTime": 1, "bornTime": now_ms(ahead_ms=ahead_ms)}
        assert not is_too_late(await consumer.ask(**first))
        await peer.send("T", b"x")
        late = {"pollTime": POLL_MS, "bornTime": now_ms(LATE_MS, ahead_ms)}
        assert is_too_late(await consumer.ask(**late))
        other = await connect(peer.broker)  # of the same host, which gave the first one up
        try:
            assert is_too_late(await PopConsumer(other).ask(**late))
            in_time = {"pollTime": POLL_MS, "bornTime": now_ms(ahead_ms=ahead_ms)}
            (message,) = await PopConsumer(other).pop(**in_time)
        finally:
            other.channel.close()
        assert message.body == b"x"

    serve(tmp_path, check)


def test_requests_that_waited_together_are_all_late() -> None:
    times, connection = SentTimes(), cast(ServerConnection, Connection())
    assert times.late_ms(connection, 0) == 0
    connection.input_at = 100.0
    waited = (3 * LATE_MS, 2 * LATE_MS, 2 * LATE_MS, LATE_MS)
    assert [times.late_ms(connection, 100_000 - late_ms) for late_ms in waited] == [*waited]
    assert times.late_ms(connection, 100_000) == 0


def test_a_pop_takes_nothing_for_a_client_that_has_gone_while_it_was_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is not late: there is nobody any more to give it to."""
    ended = asyncio.Event()
    end = Server.ended

    def ended_too(server: Server, connection: ServerConnection) -> None:
        end(server, connection)
        ended.set()

    monkeypatch.setattr(Server, "ended", ended_too)

    async def check(peer: Peer) -> None:
        await create_topic(peer, "T")
        consumer = PopConsumer(peer)
        await consumer.ask(pollTime=1, bornTime=now_ms())
        await peer.send("T", b"x")
        fields = consumer.pop_fields(pollTime=2 * LATE_MS, bornTime=now_ms(LATE_MS))
        texts = {name: str(value) for name, value in fields.items()}
        _, writer = await asyncio.open_connection("127.0.0.1", peer.broker.port)
        writer.write(encode_frame(Command(RequestCode.POP_MESSAGE, texts)))
        writer.close()
        await ended.wait()
        (message,) = await consumer.pop(pollTime=POLL_MS, bornTime=now_ms())
        assert message.body == b"x"

    serve(tmp_path, check)


def test_who_has_set_back_its_clock_loses_one_pop(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await create_topic(peer, "T")
        consumer = PopConsumer(peer)
        await consumer.ask(pollTime=1, bornTime=now_ms())
        await peer.send("T", b"x")
        verdicts = [
            is_too_late(await consumer.ask(pollTime=POLL_MS, bornTime=now_ms(LATE_MS)))
            for _ in range(2)
        ]
        assert verdicts == [True, False]

    serve(tmp_path, check)


def test_a_held_pop_whose_time_is_over_takes_nothing(tmp_path: Path) -> None:
    clock = LateClock()

    async def check(peer: Peer) -> None:
        await create_topic(peer, "T")
        consumer = PopConsumer(peer)
        held = asyncio.ensure_future(consumer.ask(pollTime=60_000, bornTime=0))
        while True:
            counted = await peer.ask(
                RequestCode.POLLING_INFO, topic="T", consumerGroup="g", queueId=-1
            )
            if (counted.fields or {})["pollingNum"] == "1":
                break
        clock.late_s = 61.0
        await peer.send("T", b"x")
        assert is_too_late(await held)
        (message,) = await consumer.pop(pollTime=POLL_MS)
        assert message.body == b"x"

    serve(tmp_path, check, clock=clock)


def test_held_pops_that_are_all_too_late_do_not_wake_each_other_in_depth(tmp_path: Path) -> None:
    """As many as wait for one topic: each wakes the next one, which may be the one in time."""
    clock, count = LateClock(), 300

    async def check(peer: Peer) -> None:
        await create_topic(peer, "T")
        consumer = PopConsumer(peer)
        held = [
            asyncio.ensure_future(consumer.ask(pollTime=60_000, bornTime=0)) for _ in range(count)
        ]
        while True:
            counted = await peer.ask(
                RequestCode.POLLING_INFO, topic="T", consumerGroup="g", queueId=-1
            )
            if (counted.fields or {})["pollingNum"] == str(count):
                break
        clock.late_s = 61.0
        in_time = asyncio.ensure_future(consumer.pop(pollTime=60_000, bornTime=0))
        await peer.send("T", b"x")
        assert all(map(is_too_late, await asyncio.gather(*held)))
        (message,) = await in_time
        assert message.body == b"x"

    serve(tmp_path, check, clock=clock)


def test_one_that_connects_for_each_pop_is_not_judged_by_the_clock_of_a_neighbour() -> None:
    """Many clients may come from one address; the first over a connection has no other measure."""
    times, ahead = SentTimes(), 20_000
    found = []
    for number in range(3):
        other, own = Connection(), Connection()
        other.input_at = own.input_at = 100.0 + 2 * number
        sent_ms = int(own.input_at * 1000)
        assert times.late_ms(cast(ServerConnection, other), sent_ms + ahead) == 0
        found.append(times.late_ms(cast(ServerConnection, own), sent_ms))
    assert found == [ahead, 0, 0]


def test_a_pop_that_was_read_late_waits_for_the_rest_of_its_time(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await create_topic(peer, "T")
        consumer = PopConsumer(peer)
        await consumer.ask(pollTime=1, bornTime=now_ms())
        begun_s = time.monotonic()
        await consumer.ask(pollTime=LATE_MS + 300, bornTime=now_ms(LATE_MS))
        assert time.monotonic() - begun_s < LATE_MS / 1000

    serve(tmp_path, check)
