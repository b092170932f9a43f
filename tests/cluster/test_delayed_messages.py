"""Delayed messages in a running broker: when they come, what they are, and what a restart keeps."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.broker_peer import Peer, create_topic, fields, properties_sent, records, serve

from pymq.broker.ha.offset_followers import OffsetFollowers, offset_followers_of
from pymq.clock import Clock
from pymq.protocol.bodies import DelayOffsetTable, KVTable
from pymq.protocol.codes import PullFlag, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.names import SCHEDULE_TOPIC
from pymq.protocol.record import parse_offset_message_id
from pymq.store import FlushMode

#: The last one is longer than any test takes.
LEVELS_MS = (300, 1000, 3_600_000)
STORE: dict[str, Any] = {"delay_levels_ms": LEVELS_MS}
HELD = int(PullFlag.SUBSCRIPTION | PullFlag.SUSPEND)
#: What a test waits for comes sooner, however slow the machine; then the pull is answered.
HELD_S = 60.0


class Later:
    """The time of the brokers in this process: goes on as the machine's, and can be advanced.

    So what waits for minutes certainly waits still, and need not be waited for.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ahead_ms = 0
        monkeypatch.setattr(Clock, "wall_ms", lambda _: self.now_ms)

    @property
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._ahead_ms

    async def advance(self, peer: Peer, by_ms: int) -> None:
        """Let time pass, or set the clock back."""
        self._ahead_ms += by_ms
        await peer.broker.look_again()


async def held_pull(peer: Peer, topic: str, offset: int = 0, **changes: Any) -> Command:
    held = {"sysFlag": HELD, "suspendTimeoutMillis": int(HELD_S * 1000)}
    texts = {
        name: str(value)
        for name, value in peer.pull_fields(topic, offset, **held, **changes).items()
    }
    return await peer.channel.request(Command(RequestCode.PULL_MESSAGE, texts), 2 * HELD_S)


@pytest.mark.parametrize("flush", FlushMode)
def test_a_delayed_message_wakes_a_pull_when_it_is_due(tmp_path: Path, flush: FlushMode) -> None:
    async def check(peer: Peer) -> None:
        await create_topic(peer, "T")
        pull = asyncio.ensure_future(held_pull(peer, "T", queueId=2))
        sent = await peer.send("T", b"other", queue_id=1, properties="DELAY\x011")
        begun = time.time()
        sent = await peer.send(
            "T", b"body", queue_id=2, flag=7, properties="TAGS\x01t\x02DELAY\x011\x02"
        )
        assert sent.code == ResponseCode.SUCCESS
        assert (fields(sent)["queueId"], fields(sent)["queueOffset"]) == ("2", "1")
        (waiting,) = records(await peer.pull(SCHEDULE_TOPIC, 1))
        assert parse_offset_message_id(fields(sent)["msgId"])[1] == waiting.physical_offset
        (record,) = records(await pull)
        assert time.time() - begun >= LEVELS_MS[0] / 1000 - 0.002  # times are cut to ms
        assert record.store_timestamp - waiting.store_timestamp >= LEVELS_MS[0]
        assert (record.body, record.flag, record.queue_id) == (b"body", 7, 2)
        assert properties_sent(record) == {
            "TAGS": "t",
            "DELAY": "1",
            "REAL_TOPIC": "T",
            "REAL_QID": "2",
        }
        assert not records(await peer.pull("T", 0, queueId=3))
        report = KVTable.decode((await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table
        assert report["scheduleMessageOffset_1"] == "2,2"
        assert "scheduleMessageOffset_2" not in report

    serve(tmp_path, check, store=STORE, flush=flush)


def test_a_restart_delivers_what_waits_and_nothing_twice(tmp_path: Path) -> None:
    async def fill(peer: Peer) -> None:
        await create_topic(peer, "T")
        for number in range(20):
            await peer.send("T", b"first %d" % number, properties="DELAY\x011")
        while len(records(await held_pull(peer, "T"))) < 20:
            await asyncio.sleep(0.02)
        for number in range(20):
            await peer.send("T", b"second %d" % number, properties="DELAY\x012")
        await peer.send("T", b"much later", properties="DELAY\x0118")

    async def look(peer: Peer) -> None:
        while len(found := records(await held_pull(peer, "T", maxMsgNums=50))) < 20:
            await asyncio.sleep(0.02)
        offset = len(found)
        while offset < 40:
            found += records(await held_pull(peer, "T", offset))
            offset = len(found)
        assert [record.body for record in found] == [
            b"%b %d" % (name, number) for name in (b"first", b"second") for number in range(20)
        ]

    serve(tmp_path, fill, store=STORE)
    assert '"1":20' in (tmp_path / "config" / "delayOffset.json").read_text()
    serve(tmp_path, look, store=STORE)

    async def nothing_more(peer: Peer) -> None:
        await peer.send("T", b"last", properties="DELAY\x011")
        (record,) = records(await held_pull(peer, "T", 40))
        assert record.body == b"last"

    serve(tmp_path, nothing_more, store=STORE)


def test_what_a_slave_has_delivered_is_saved_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash before the master's first delivery would have it delivered again."""
    made: list[OffsetFollowers] = []

    def making(*parts: Any) -> OffsetFollowers:
        made.append(offset_followers_of(*parts))
        return made[-1]

    monkeypatch.setattr("pymq.broker.assembly.offset_followers_of", making)

    async def check(peer: Peer) -> None:
        (followers,) = made
        followers.take_delays(DelayOffsetTable(offsets={2: 9}))
        path = tmp_path / "config" / "delayOffset.json"
        async with asyncio.timeout(60):
            while not path.exists() or '"2":9' not in path.read_text():
                await asyncio.sleep(0.02)

    serve(tmp_path, check, store=STORE)


def test_many_due_at_once_do_not_keep_producers_waiting(tmp_path: Path) -> None:
    count = 3000

    async def check(peer: Peer) -> None:
        await create_topic(peer, "T")
        for first in range(0, count, 500):
            await asyncio.gather(
                *(peer.send("T", b"x", properties="DELAY\x012") for _ in range(first, first + 500))
            )
        offset = slowest_s = 0
        while offset < count:
            begun = time.monotonic()
            assert (await peer.send("Other", b"x")).code == ResponseCode.SUCCESS
            slowest_s = max(slowest_s, time.monotonic() - begun)
            found = await peer.pull("T", 0, queueId=0)
            offset = int(fields(found)["maxOffset"])
        print(f"slowest send {1000 * slowest_s:.1f} ms")

    serve(tmp_path, check, store=STORE)


def test_a_clock_that_was_set_back_neither_delivers_early_nor_keeps_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = Later(monkeypatch)

    async def check(peer: Peer) -> None:
        await create_topic(peer, "T", queues=1)
        await peer.send("Before", b"before", properties="DELAY\x013")
        await later.advance(peer, -8 * 3_600_000)
        sent_s = []
        for number in range(4):
            sent_s.append(time.monotonic())
            await peer.send("T", b"%d" % number, queue_id=0, properties="DELAY\x012")
            await asyncio.sleep(0.3)
        for number in range(4):
            answer = await held_pull(peer, "T", offset=number, maxMsgNums=1)
            assert [one.body for one in records(answer)] == [b"%d" % number]
            assert time.monotonic() - sent_s[number] >= 1.0

    serve(tmp_path, check, store=STORE)
