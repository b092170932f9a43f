"""What a broker counts, asked over a socket as tools do."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.broker_peer import Peer, connect, create_topic
from tests.cluster.sinks import SinkWriter, seen, shown
from tests.cluster.test_broker_queries import runtime_info

from pymq.broker.broker import Broker
from pymq.broker.config import BrokerConfig
from pymq.broker.sinks.journal import SinkJournal
from pymq.broker.sinks.publishing import Publishing
from pymq.clock import Clock
from pymq.errors import StoreError
from pymq.protocol.admin_bodies import BrokerStats
from pymq.protocol.bodies import ConsumeStats, TopicStats
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.sink_bodies import StagedRun
from pymq.protocol.staged_records import StagedCopies
from pymq.store import FlushMode, StoreConfig

DEADLINE_S = 60.0


class MovedClock(Clock):
    """Runs ahead, but for the time of day."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s


async def _stats(peer: Peer, name: str, key: str) -> BrokerStats:
    answer = await peer.ask(RequestCode.VIEW_BROKER_STATS_DATA, statsName=name, statsKey=key)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return BrokerStats.decode(answer.body)


async def _check(peer: Peer, clock: MovedClock) -> None:
    view = RequestCode.VIEW_BROKER_STATS_DATA
    answer = await peer.ask(view, statsName="TOPIC_PUT_NUMS", statsKey="T")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "The stats <TOPIC_PUT_NUMS> <T> not exist"
    assert (await peer.ask(view, statsName="TOPIC_PUT_NUMS")).code == ResponseCode.SYSTEM_ERROR
    for number in range(6):
        await peer.send("T", b"%d" % number)
    assert (await peer.pull("T", 0)).code == ResponseCode.SUCCESS
    clock.ahead_s += 10
    async with asyncio.timeout(DEADLINE_S):
        while not (await _stats(peer, "GROUP_GET_NUMS", "T@g")).minute.total:
            await asyncio.sleep(0.02)
    puts = await _stats(peer, "TOPIC_PUT_NUMS", "T")
    assert (puts.minute.total, puts.minute.average) == (6, 1.0)
    assert puts.minute.per_s > 0
    assert puts.hour.total == puts.day.total == 0  # there was no sample since
    read = await _stats(peer, "GROUP_GET_NUMS", "T@g")
    assert (read.minute.total, read.minute.average) == (6, 6.0)
    sizes = await _stats(peer, "TOPIC_PUT_SIZE", "T")
    assert (await _stats(peer, "GROUP_GET_SIZE", "T@g")).minute.total == sizes.minute.total
    answer = await peer.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="g", topic="T")
    assert ConsumeStats.decode(answer.body).consumed_per_s == read.minute.per_s
    answer = await peer.ask(RequestCode.GET_TOPIC_STATS_INFO, topic="T")
    assert TopicStats.decode(answer.body).put_per_s == puts.minute.per_s
    assert (await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")).code == 0
    answer = await peer.ask(view, statsName="TOPIC_PUT_NUMS", statsKey="T")
    assert answer.code == ResponseCode.SYSTEM_ERROR


def serve_with(
    path: Path, check: Callable[[Peer, MovedClock], Awaitable[None]], flush: FlushMode
) -> None:
    """Run ``check`` against a broker on ``path`` whose clock it moves."""

    async def run() -> None:
        clock = MovedClock()
        broker = Broker(
            # However slow this machine's disk is, sends are acknowledged and not refused.
            BrokerConfig(
                listen_port=0,
                page_cache_busy_ms=600_000,
                sync_flush_timeout_ms=600_000,
                fast_failure=False,
            ),
            StoreConfig(
                root_path=path,
                flush_mode=flush,
                segment_bytes=1 << 20,
                disk_free_enough_bytes=1,
            ),
            clock,
        )
        await broker.start()
        peer = await connect(broker)
        try:
            await asyncio.wait_for(check(peer, clock), 2 * DEADLINE_S)
        finally:
            peer.channel.close()
            await broker.close()

    asyncio.run(run())


def test_messages_are_counted_by_topic_and_group(tmp_path: Path) -> None:
    serve_with(tmp_path, _check, FlushMode.ASYNC)


# ----------------------------------------------------------------------------------- sinks

#: What a sink publishes: bodies for queues of T.
ROWS = {0: [b"a", b"bb"], 1: [b"ccc"] * 3}


async def _puts(peer: Peer, clock: MovedClock, count: int) -> dict[str, tuple[int, int]]:
    """Return messages and bytes of the topic and its queues, once so many are counted.

    Some may have been counted before: on a slow machine ten seconds pass by themselves, too.
    """
    clock.ahead_s += 10
    found = {}
    async with asyncio.timeout(DEADLINE_S):
        while (await _stats(peer, "TOPIC_PUT_NUMS", "T")).minute.total < count:
            await asyncio.sleep(0.02)
    for name, key in (("TOPIC", "T"), ("QUEUE", "T@0"), ("QUEUE", "T@1")):
        numbers = []
        for what in ("NUMS", "SIZE"):
            asked = {"statsName": f"{name}_PUT_{what}", "statsKey": key}
            answer = await peer.ask(RequestCode.VIEW_BROKER_STATS_DATA, **asked)
            is_there = answer.code == ResponseCode.SUCCESS
            numbers.append(BrokerStats.decode(answer.body).minute.total if is_there else 0)
        found[key] = numbers[0], numbers[1]
    return found


async def _stored(peer: Peer) -> dict[str, tuple[int, int]]:
    """Return messages and bytes of the topic and its queues, as a consumer reads them."""
    sizes = [[record.size for record in await seen(peer, queue_id=number)] for number in ROWS]
    found = {f"T@{number}": (len(some), sum(some)) for number, some in enumerate(sizes)}
    return found | {"T": (sum(map(len, sizes)), sum(map(sum, sizes)))}


async def _stage(peer: Peer) -> tuple[SinkWriter, list[StagedRun]]:
    await create_topic(peer, "T", queues=2)
    writer = SinkWriter(peer)
    return writer, [await writer.stage(rows, queue_id=number) for number, rows in ROWS.items()]


@pytest.mark.parametrize("flush", list(FlushMode))
def test_what_a_sink_publishes_is_counted_once(tmp_path: Path, flush: FlushMode) -> None:
    async def check(peer: Peer, clock: MovedClock) -> None:
        writer, runs = await _stage(peer)
        await writer.stage([b"never published"])
        before = await runtime_info(peer)
        assert before["msgPutTotalTodayNow"] == before["putMessageTimesTotal"] == "0"
        assert before["putMessageSizeTotal"] == before["putMessageFailedTimes"] == "0"
        for number in range(2):  # The second time it is published already.
            assert (await writer.publish(0, *runs)).code == ResponseCode.SUCCESS, number
        await peer.send("T", b"sent")
        assert await _puts(peer, clock, 6) == await _stored(peer)
        after = await runtime_info(peer)
        assert after["msgPutTotalTodayNow"] == "6"
        # Two messages of the journal say that it was decided, and that it is published.
        assert after["putMessageTimesTotal"] == "8"

    serve_with(tmp_path, check, flush)


@pytest.mark.parametrize("flush", list(FlushMode))
@pytest.mark.parametrize(("copied", "counted"), [(0, 5), (1, 6), (2, 0)])
def test_what_a_start_publishes_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied: int, counted: int, flush: FlushMode
) -> None:
    """A batch of two runs was decided before the broker stopped; some of it was copied.

    A message that somebody sent behind the first copy becomes visible with the batch. What was
    visible when the store was opened, as a batch is that is copied wholly, was not put since then.
    """
    put, show = SinkJournal.put, Publishing._show
    done: list[Any] = []

    async def put_some(journal: SinkJournal, what: Any, entry: Any = None) -> int:
        if isinstance(what, StagedCopies):
            if len(done) == copied:
                raise StoreError("no more")
            done.append(what)
        return await put(journal, what, entry)

    async def begin(peer: Peer, clock: MovedClock) -> None:
        writer, runs = await _stage(peer)
        published = asyncio.ensure_future(writer.publish(0, *runs))
        async with asyncio.timeout(DEADLINE_S):
            while not (await shown(peer) and len(done) == copied):
                await asyncio.sleep(0.01)
        await peer.send("T", b"hidden until then")
        published.cancel()

    async def go_on(peer: Peer, clock: MovedClock) -> None:
        assert len(await seen(peer)) == 3 and len(await seen(peer, queue_id=1)) == 3
        before = await runtime_info(peer)
        assert before["msgPutTotalTodayNow"] == str(counted)
        await peer.send("T", b"sent")
        found, stored = await _puts(peer, clock, counted + 1), await _stored(peer)
        assert found["T"][0] == counted + 1
        if counted == 6:
            assert found == stored
        elif counted == 5:
            assert found["T@1"] == stored["T@1"] and found["T@0"][0] == stored["T@0"][0] - 1

    async def rest(peer: Peer, clock: MovedClock) -> None:
        await peer.send("T", b"another")
        assert (await _puts(peer, clock, 1))["T"][0] == 1

    monkeypatch.setattr(SinkJournal, "put", put_some)
    monkeypatch.setattr(Publishing, "_show", lambda publishing, one: False)
    serve_with(tmp_path, begin, flush)
    monkeypatch.setattr(SinkJournal, "put", put)
    monkeypatch.setattr(Publishing, "_show", show)
    serve_with(tmp_path, go_on, flush)
    serve_with(tmp_path, rest, flush)
