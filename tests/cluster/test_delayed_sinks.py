"""Delayed messages of exactly-once sinks: parked with their batch, delivered once and not early."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.broker_peer import Peer, create_topic, fields, records, serve
from tests.cluster.sinks import SinkWriter, bodies, seen
from tests.cluster.test_delayed_messages import Later, held_pull

from pymq.broker.sinks.staged_layouts import StagedLayouts
from pymq.protocol.codes import RequestCode, ResponseCode, SinkCode
from pymq.protocol.message import decode_properties
from pymq.protocol.names import SCHEDULE_TOPIC, SINK_TOPIC, TIMER_TOPIC
from pymq.protocol.record import Record
from pymq.protocol.sink_bodies import StagedRun
from pymq.protocol.timer_metrics_body import TimerMetricsTable
from pymq.store import FlushMode, StoreConfig
from pymq.store.inspection import check_store

#: The last one is longer than any test takes.
LEVELS_MS = (400, 1500, 3_600_000)
STORE: dict[str, Any] = {"delay_levels_ms": LEVELS_MS, "timer_precision_ms": 100}
#: Far less than the last level, far more than what is due at once needs on a slow machine.
LATE_MS_MAX = 60_000
#: A time that does not come while a test lasts.
FAR_MS = 1_200_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def wait_seen(peer: Peer, count: int, topic: str = "T", queue_id: int = 0) -> list[Record]:
    """Return what consumers see of a queue, once it is so many messages."""
    found: list[Record] = []
    while len(found) < count:
        found += records(await held_pull(peer, topic, len(found), queueId=queue_id))
    return found


def level(number: object) -> bytes:
    return b"TAGS\x01tag\x02DELAY\x01%s\x02" % str(number).encode()


def at(time_ms: int) -> bytes:
    return b"TIMER_DELIVER_MS\x01%d\x02" % time_ms


@pytest.mark.parametrize("knows_layouts", [True, False])
@pytest.mark.parametrize("flush", list(FlushMode))
@pytest.mark.parametrize("store", [{}, {"append_record_crc": True}], ids=["", "checksums"])
def test_delayed_rows_of_a_batch(
    tmp_path: Path,
    flush: FlushMode,
    store: dict[str, Any],
    knows_layouts: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not knows_layouts:  # as what an earlier process has staged
        monkeypatch.setattr(StagedLayouts, "find", lambda self, run: None)

    async def check(peer: Peer) -> None:
        await create_topic(peer, "T", queues=2)
        writer = SinkWriter(peer)
        plain = await writer.stage([b"at once"], queue_id=1)
        delayed = await writer.stage([b"a", b""], queue_id=1, properties=level(2))
        last = await writer.stage([b"far"], queue_id=1, properties=level(25))
        time_ms = now_ms() + 1300
        timed = await writer.stage([b"t"], queue_id=1, properties=at(time_ms))
        orphan = await writer.stage([b"never"], queue_id=1, properties=level(1))
        assert (delayed.topic, delayed.queue_id) == (SCHEDULE_TOPIC, 1)
        assert (last.topic, last.queue_id, orphan.queue_id) == (SCHEDULE_TOPIC, 2, 0)
        assert (timed.topic, timed.queue_id) == (TIMER_TOPIC, 0)
        begun_ms = now_ms()
        answer = await writer.publish(0, plain, delayed, timed, last)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        # The others follow when they are due; on a slow machine they are by now.
        assert (await bodies(peer, queue_id=1))[0] == b"at once"
        assert await bodies(peer, SCHEDULE_TOPIC, queue_id=0) == []
        waiting = await seen(peer, SCHEDULE_TOPIC, queue_id=1)
        assert [one.body for one in waiting] == [b"a", b""]
        assert {one.prepared_transaction_offset - delayed.physical_offset for one in waiting} == {
            0,
            waiting[0].size,
        }
        assert decode_properties(waiting[0].properties) | {"__CRC32#": ""} == {
            "TAGS": "tag",
            "DELAY": "2",
            "REAL_TOPIC": "T",
            "REAL_QID": "1",
            "__CRC32#": "",
        }
        (far,) = await seen(peer, SCHEDULE_TOPIC, queue_id=2)
        assert decode_properties(far.properties)["DELAY"] == "3"  # the last there is
        found = (await wait_seen(peer, 4, queue_id=1))[1:]
        by_body = {one.body: one for one in found}
        assert by_body.keys() == {b"a", b"", b"t"} and len(found) == 3
        for body in (b"a", b""):
            late_ms = by_body[body].store_timestamp - waiting[0].store_timestamp - LEVELS_MS[1]
            assert 0 <= late_ms < LATE_MS_MAX and by_body[body].store_timestamp >= begun_ms + 1500
        assert time_ms <= by_body[b"t"].store_timestamp < time_ms + LATE_MS_MAX
        tagged = await peer.pull("T", 0, queueId=1, subscription="tag")
        assert sorted(one.body for one in records(tagged)) == [b"", b"a"]
        # Once more, which writes nothing.
        answer = await writer.publish(0, plain, delayed, timed, last)
        assert fields(answer)["new"] == "false"
        assert len(await seen(peer, SCHEDULE_TOPIC, queue_id=1)) == 2
        assert len(await seen(peer, TIMER_TOPIC)) == 1

    serve(tmp_path, check, store=STORE | store, flush=flush)


def test_a_level_counts_from_when_its_batch_is_published(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await create_topic(peer, "T", queues=1)
        writer = SinkWriter(peer)
        run = await writer.stage([b"a"], properties=level(1))
        timed = await writer.stage([b"t"], properties=at(now_ms() + 100))
        past = await writer.stage([b"p"], properties=at(-5))
        await asyncio.sleep(0.6)
        assert await bodies(peer) == []
        begun_ms = now_ms()
        await writer.publish(0, run, timed, past)
        found = {one.body: one for one in await wait_seen(peer, 3)}
        assert found.keys() == {b"a", b"p", b"t"}  # the time of p and t has come
        assert found[b"a"].store_timestamp >= begun_ms + LEVELS_MS[0]

    serve(tmp_path, check, store=STORE)


def test_a_restart_between_staging_publishing_and_delivery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[StagedRun] = []
    time_now = Later(monkeypatch)

    async def stage(peer: Peer) -> None:
        await create_topic(peer, "T", queues=1)
        writer = SinkWriter(peer)
        runs.append(await writer.stage([b"a", b"b"], properties=level(3)))
        runs.append(await writer.stage([b"t"], properties=at(time_now.now_ms + FAR_MS)))

    async def publish(peer: Peer) -> None:
        answer = await SinkWriter(peer).publish(0, *runs)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert await bodies(peer) == []

    async def look(peer: Peer) -> None:
        await time_now.advance(peer, LEVELS_MS[2] + FAR_MS)
        assert sorted(one.body for one in await wait_seen(peer, 3)) == [b"a", b"b", b"t"]
        answer = await SinkWriter(peer).publish(0, *runs)
        assert fields(answer)["new"] == "false"
        await asyncio.sleep(0.3)
        assert len(await seen(peer)) == 3

    for step in (stage, publish, look, look):
        serve(tmp_path, step, store=STORE)


async def refusal_of(peer: Peer, properties: Sequence[bytes], topic: str = "T") -> tuple[int, str]:
    answer = await SinkWriter(peer).ask_stage([(b"x", one) for one in properties], topic, 0, 1)
    return answer.code, answer.remark or ""


def test_what_cannot_be_staged(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await create_topic(peer, "T", queues=1)
        for mixed in (
            [level(1), level(2)],
            [level(1), b""],
            [level(1), at(1)],
            [b"TRAN_MSG\x01true\x02"],
        ):
            code, remark = await refusal_of(peer, mixed)
            assert code == ResponseCode.MESSAGE_ILLEGAL, remark
        code, remark = await refusal_of(peer, [at(now_ms()), at(now_ms() + 4 * 86_400_000)])
        assert code == ResponseCode.INVALID_PARAMETER
        assert "record 1 (from 0) of 2 for topic T" in remark
        assert "259200000 ms (timerMaxDelaySec)" in remark
        code, remark = await refusal_of(peer, [at(1) + b"TIMER_DEL_UNIQKEY\x01T+k\x02"])
        assert code == ResponseCode.MESSAGE_ILLEGAL and "cancels" in remark
        for one in (at(now_ms() + FAR_MS), level(1)):
            more = b"p\x01%s\x02" % (b"x" * (32_757 - len(one)))
            code, remark = await refusal_of(peer, [one + more])
            assert code == ResponseCode.MESSAGE_ILLEGAL and "shorten" in remark
        for topic in (SCHEDULE_TOPIC, TIMER_TOPIC, SINK_TOPIC):
            code, remark = await refusal_of(peer, [b""], topic)
            assert code == ResponseCode.NO_PERMISSION, remark
        # A level of 0 is none.
        run = await SinkWriter(peer).stage([b"x"], properties=b"DELAY\x010\x02")
        assert run.topic == "T"

    serve(tmp_path, check, store=STORE)


def test_no_timers_at_a_broker_without_them(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await create_topic(peer, "T", queues=1)
        code, remark = await refusal_of(peer, [at(now_ms() + FAR_MS)])
        assert code == ResponseCode.INVALID_PARAMETER and "timerWheelEnable" in remark

    serve(tmp_path, check, store={"timer_wheel": False})


@pytest.mark.parametrize(
    ("properties", "changes", "reason"),
    [
        (level(2), {"delay_levels_ms": LEVELS_MS[:1]}, "messageDelayLevel"),
        (at(5), {"timer_wheel": False}, "timerWheelEnable"),
    ],
)
def test_what_nobody_delivers_any_more_is_not_published(
    tmp_path: Path, properties: bytes, changes: dict[str, Any], reason: str
) -> None:
    runs: list[StagedRun] = []

    async def stage(peer: Peer) -> None:
        await create_topic(peer, "T", queues=1)
        runs.append(await SinkWriter(peer).stage([b"a"], properties=properties))

    async def publish(peer: Peer) -> None:
        answer = await SinkWriter(peer).publish(0, *runs)
        assert answer.code == SinkCode.RUNS_LOST and reason in (answer.remark or "")

    serve(tmp_path, stage, store=STORE)
    serve(tmp_path, publish, store=STORE | changes)


@pytest.mark.parametrize("knows_layouts", [True, False])
def test_the_real_topic_must_be_there_when_it_is_decided(
    tmp_path: Path, knows_layouts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not knows_layouts:
        monkeypatch.setattr(StagedLayouts, "find", lambda self, run: None)

    async def check(peer: Peer) -> None:
        writer = SinkWriter(peer)
        for number, properties in enumerate((level(1), at(now_ms() + FAR_MS))):
            topic = f"T{number}"
            await create_topic(peer, topic, queues=1)
            run = await writer.stage([b"x"], topic, properties=properties)
            await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic)
            answer = await writer.publish(0, run)
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST, answer.remark
            assert f"[{topic}]" in (answer.remark or "")
            assert await writer.is_new(0)

    serve(tmp_path, check, store=STORE)


def test_a_check_of_the_store_finds_what_waits_in_its_place(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await create_topic(peer, "T", queues=1)
        await peer.send("T", b"other", properties=at(now_ms() + 500_000).decode())
        writer = SinkWriter(peer)
        run = await writer.stage([b"a", b"b"], properties=at(now_ms() + 400_000))
        other = await writer.stage([b"c"], properties=level(3))
        await writer.stage([b"never"], properties=at(now_ms() + 400_000))
        await writer.stage([b"never"], properties=level(3))
        assert (await writer.publish(0, run, other)).code == ResponseCode.SUCCESS
        while True:  # until all that waits has been taken up
            answer = await peer.ask(RequestCode.GET_TIMER_METRICS)
            counts = TimerMetricsTable.decode(answer.body).counts
            if sum(one.count for one in counts.values()) == 3:
                break
            await asyncio.sleep(0.02)

    serve(tmp_path, check, store=STORE)
    report = check_store(StoreConfig(root_path=tmp_path, segment_bytes=1 << 20, **STORE))
    assert not list(report.findings.groups()), list(report.findings.groups())
