"""Exactly-once sinks at a broker: what is staged, what is published, and who may do that."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.broker_peer import DEADLINE_S, Peer, create_topic, fields, records, serve
from tests.cluster.sinks import SinkWriter, bodies, seen, shown

from pymq.broker.handlers import sinks as handler
from pymq.broker.sinks.publishing import Publishing
from pymq.protocol.codes import RequestCode, ResponseCode, SinkCode, SinkRequest
from pymq.protocol.command import Command
from pymq.protocol.names import SINK_TOPIC
from pymq.protocol.sink_bodies import SinkRow
from pymq.protocol.sink_decisions import JournalEntry, StagedRuns
from pymq.store import FlushMode


@pytest.fixture(autouse=True)
def patient_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have queries by key wait for the index for as long as a busy machine needs."""
    monkeypatch.setattr("pymq.broker.handlers.query.INDEX_WAIT_S", DEADLINE_S)


async def found_by_key(peer: Peer, key: str) -> list[bytes]:
    answer = await peer.ask(
        RequestCode.QUERY_MESSAGE,
        topic="T",
        key=key,
        maxNum=32,
        beginTimestamp=0,
        endTimestamp=1 << 62,
    )
    return [record.body for record in records(answer)] if answer.code == 0 else []


def lose_file(path: Path) -> None:
    """Delete what spares a start from reading all of the journal."""
    (path / "config" / "sinks.json").unlink()
    (path / "config" / "sinks.json.bak").unlink(missing_ok=True)


@pytest.mark.parametrize("flush", list(FlushMode))
@pytest.mark.parametrize("store", [{}, {"append_record_crc": True}], ids=["", "checksums"])
def test_a_batch_is_seen_when_it_is_published(
    tmp_path: Path, flush: FlushMode, store: dict[str, Any]
) -> None:
    async def check(peer: Peer) -> None:
        await create_topic(peer, "T", queues=2)
        await peer.send("T", b"before")
        writer = SinkWriter(peer)
        assert await writer.is_new(0)
        first = await writer.stage([b"a", b"b"], properties=b"TAGS\x01tag\x02KEYS\x01k\x02")
        second = await writer.stage([b"c"], queue_id=1)
        orphan = await writer.stage([b"of a task that died"])
        await peer.send("T", b"between")
        assert await bodies(peer) == [b"before", b"between"]
        assert await bodies(peer, queue_id=1) == await found_by_key(peer, "k") == []
        answer = await writer.publish(0, first, second)
        assert (answer.code, fields(answer)["new"]) == (ResponseCode.SUCCESS, "true")
        assert await bodies(peer) == [b"before", b"between", b"a", b"b"]
        assert await bodies(peer, queue_id=1) == [b"c"]
        copies = (await seen(peer))[2:]
        assert [record.queue_offset for record in copies] == [2, 3]
        assert [record.sys_flag & 0xC for record in copies] == [8, 8]
        assert copies[0].prepared_transaction_offset == first.physical_offset
        tagged = await peer.pull("T", 0, subscription="tag")
        assert [record.body for record in records(tagged)] == [b"a", b"b"]
        assert sorted(await found_by_key(peer, "k")) == [b"a", b"b"]
        assert not await writer.is_new(0) and await writer.is_new(1)
        # The same once more, and what somebody else has staged for it: nothing happens.
        answer = await writer.publish(0, orphan)
        assert (answer.code, fields(answer)["new"]) == (ResponseCode.SUCCESS, "false")
        assert SinkRow.decode(answer.body).last.row_count == 3
        assert await bodies(peer) == [b"before", b"between", b"a", b"b"]
        (row,) = await shown(peer)
        assert (row.last.batch, row.is_published) == (0, True)

    serve(tmp_path, check, flush=flush, store=store)


@pytest.mark.parametrize("flush", list(FlushMode))
def test_what_is_staged_may_still_be_in_the_transient_pool(
    tmp_path: Path, flush: FlushMode
) -> None:
    async def check(peer: Peer) -> None:
        await create_topic(peer, "T", queues=1)
        writer = SinkWriter(peer)
        for number in range(3):
            run = await writer.stage([b"%d" % number])
            answer = await writer.publish(number, run)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            assert await bodies(peer) == [b"%d" % one for one in range(number + 1)]

    serve(tmp_path, check, flush=flush, store={"transient_pool": True})


def test_who_may_not_publish(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await create_topic(peer, "T", queues=1)
        writer = SinkWriter(peer)
        assert (await writer.publish(5, await writer.stage([b"5"]))).code == 0

        async def refused(other: SinkWriter, number: int) -> tuple[int, str]:
            answer = await other.publish(number, await other.stage([b"never"]))
            state = await peer.ask(SinkRequest.SINK_STATE, other.batch(number).encode())
            assert (state.code, state.remark) == (answer.code, answer.remark)
            return answer.code, answer.remark or ""

        code, text = await refused(writer, 4)
        assert code == SinkCode.BATCH_TOO_OLD
        assert "batch 4 comes after batch 5 was published" in text and "pymq sink forget s" in text
        code, text = await refused(SinkWriter(peer, query="other", run="r0"), 6)
        assert code == SinkCode.OTHER_QUERY
        assert "query q has published up to batch 5 there, and this is query other" in text
        assert (await refused(SinkWriter(peer, query="other", run="r0"), 4))[0] == code
        newer = SinkWriter(peer, run="r2")
        assert await newer.is_new(6)
        code, text = await refused(writer, 6)
        assert code == SinkCode.FENCED and "run r2 of the query began after this one, r1" in text
        assert (await newer.publish(6, await newer.stage([b"6"]))).code == 0
        assert await bodies(peer) == [b"5", b"6"]

    serve(tmp_path, check)


def test_what_was_staged_and_is_not_there(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await create_topic(peer, "T", queues=2)
        writer = SinkWriter(peer)
        await peer.send("T", b"an ordinary message")
        run = await writer.stage([b"a", b"b"])
        for name, wrong in {
            "part": run.part + 1,
            "count": 1,
            "queue_id": 1,
            "topic": "U",
            "physical_offset": 0,
            "size_bytes": run.size_bytes + 1,
        }.items():
            await create_topic(peer, "U", queues=1)
            changed = type(run)(
                **{field: getattr(run, field) for field in run.__dataclass_fields__} | {name: wrong}
            )
            answer = await writer.publish(0, run, changed)
            assert answer.code == SinkCode.RUNS_LOST, (name, answer)
            assert "nothing was published, write the batch again" in (answer.remark or "")
        changed = type(run)(
            topic="T", queue_id=0, physical_offset=1 << 40, size_bytes=100, count=1, part=1
        )
        assert (await writer.publish(0, changed)).code == SinkCode.RUNS_LOST
        assert await bodies(peer) == [b"an ordinary message"]
        assert (await writer.publish(0, run)).code == ResponseCode.SUCCESS
        await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
        answer = await writer.publish(1, run)
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST

    serve(tmp_path, check)


def test_runs_that_are_not_all_of_the_rows(tmp_path: Path) -> None:
    """One task was told that the batch is published already, and that was forgotten since."""

    async def check(peer: Peer) -> None:
        await create_topic(peer, "T", queues=1)
        writer = SinkWriter(peer)
        run = await writer.stage([b"a", b"b"])
        for runs, row_count in (([], 1000), ([run], 3), ([run, run], 2)):
            answer = await writer.publish(0, *runs, row_count=row_count)
            assert answer.code == SinkCode.RUNS_LOST
            assert f"has {row_count} rows, and {2 * len(runs)} are staged" in (answer.remark or "")
        assert await shown(peer) == []
        assert (await writer.publish(0, run)).code == 0
        # Of a batch that is there it does not matter.
        answer = await writer.publish(0, row_count=2)
        assert (answer.code, fields(answer)["new"]) == (ResponseCode.SUCCESS, "false")
        assert await bodies(peer) == [b"a", b"b"]

    serve(tmp_path, check)


@pytest.mark.parametrize("is_file_lost", [False, True])
def test_older_runs_are_fenced_after_a_restart(tmp_path: Path, is_file_lost: bool) -> None:
    """The newer one has published nothing yet."""

    async def begin(peer: Peer) -> None:
        await create_topic(peer, "T", queues=1)
        writer = SinkWriter(peer, run="old", planned_ms=10)
        assert (await writer.publish(5, await writer.stage([b"5"]))).code == 0
        for _ in range(3):
            assert await SinkWriter(peer, run="new", planned_ms=20).is_new(6)
        entries = [JournalEntry.decode(record.body) for record in await seen(peer, SINK_TOPIC)]
        assert [entry.kind for entry in entries] == ["decided", "published", "begun"]

    async def go_on(peer: Peer) -> None:
        old = SinkWriter(peer, run="old", planned_ms=30)
        answer = await old.publish(6, await old.stage([b"never"]))
        assert answer.code == SinkCode.FENCED
        new = SinkWriter(peer, run="new", planned_ms=20)
        assert (await new.publish(6, await new.stage([b"6"]))).code == ResponseCode.SUCCESS
        assert await bodies(peer) == [b"5", b"6"]

    serve(tmp_path, begin)
    if is_file_lost:
        lose_file(tmp_path)
    serve(tmp_path, go_on)


def test_a_run_that_is_fenced_before_it_has_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(peer: Peer) -> None:
        await create_topic(peer, "T", queues=1)
        old = SinkWriter(peer, run="old", planned_ms=10)
        run = await old.stage([b"never"])
        new = SinkWriter(peer, run="new", planned_ms=20)
        look = Publishing.check

        async def look_long(publishing: Publishing, runs: Any) -> set[str]:
            topics = await look(publishing, runs)
            publishing._table.admit(new.batch(0))
            return topics

        monkeypatch.setattr(Publishing, "check", look_long)
        assert (await old.publish(0, run)).code == SinkCode.FENCED
        assert (await new.publish(0, await new.stage([b"new"]))).code == ResponseCode.SUCCESS
        assert await bodies(peer) == [b"new"]

    serve(tmp_path, check)


def test_sinks_are_shown_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler, "SHOWN_MAX", 2)

    async def check(peer: Peer) -> None:
        for name in "dacbe":
            assert (await SinkWriter(peer, name).publish(0)).code == 0
        pages = [await shown(peer, after=after) for after in ("", "b", "d", "e")]
        assert [[row.last.sink for row in page] for page in pages] == [
            ["a", "b"],
            ["c", "d"],
            ["e"],
            [],
        ]
        assert [row.last.sink for row in await shown(peer, sink="e")] == ["e"]
        assert await shown(peer, sink="f") == []

    serve(tmp_path, check)


@pytest.mark.parametrize("is_file_lost", [False, True])
def test_a_restart_knows_what_was_published(tmp_path: Path, is_file_lost: bool) -> None:
    async def publish(peer: Peer) -> None:
        await create_topic(peer, "T", queues=1)
        for number in range(3):
            for name in ("one", "two"):
                writer = SinkWriter(peer, name, run=f"r-{name}")
                run = await writer.stage([b"%s %d" % (name.encode(), number)])
                assert (await writer.publish(number, run)).code == 0
        job = SinkWriter(peer, "job", run="x")
        assert (await job.publish(0, await job.stage([b"job"]), is_lasting=False)).code == 0
        assert (await peer.ask(SinkRequest.FORGET_SINK, sink="two")).code == 0
        assert (await peer.ask(SinkRequest.FORGET_SINK, sink="two")).code != 0

    async def go_on(peer: Peer) -> None:
        assert [(row.last.sink, row.last.batch) for row in await shown(peer)] == [
            ("job", 0),
            ("one", 2),
        ]
        writer = SinkWriter(peer, "one", run="r-one")
        assert not await writer.is_new(2) and await writer.is_new(3)
        assert (await writer.publish(2)).code == 0
        again = SinkWriter(peer, "two", "another query", "run")
        assert (await again.publish(0, await again.stage([b"two, from the start"]))).code == 0
        assert len(await bodies(peer)) == 8

    serve(tmp_path, publish)
    if is_file_lost:
        lose_file(tmp_path)
    serve(tmp_path, go_on)


def test_consumers_see_all_of_a_batch_or_nothing(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await create_topic(peer, "T", queues=2)
        await create_topic(peer, "U", queues=1)
        writer = SinkWriter(peer)
        runs = [
            await writer.stage([b"%d" % number] * 500, queue_id=number % 2) for number in range(40)
        ]
        counts: list[int] = []

        async def watch() -> None:
            while True:
                answer = await peer.ask(RequestCode.GET_MAX_OFFSET, topic="T", queueId=1)
                counts.append(int(fields(answer)["offset"]))

        async def produce(topic: str) -> None:
            for number in range(1000):
                await peer.send(topic, b"%d" % number)

        watching = asyncio.create_task(watch())
        published = asyncio.create_task(writer.publish(0, *runs))
        others = [asyncio.create_task(produce(topic)) for topic in "TU"]
        answer = await published
        assert isinstance(answer, Command) and answer.code == 0
        assert len(set(counts)) <= 2 and set(counts) <= {0, 10_000}
        await asyncio.gather(*others)
        watching.cancel()
        found = await seen(peer)
        assert [record.queue_offset for record in found] == list(range(11_000))
        assert len(await seen(peer, queue_id=1)) == 10_000

    serve(tmp_path, check)


def test_a_batch_of_more_runs_than_a_message_can_name(tmp_path: Path) -> None:
    store = {"message_bytes_max": 4096}

    async def publish(peer: Peer) -> None:
        await create_topic(peer, "T", queues=1)
        writer = SinkWriter(peer)
        runs = [await writer.stage([b"%d" % number]) for number in range(500)]
        assert len(StagedRuns.of(runs).encode()) > 4 * 4096
        assert (await writer.publish(0, *runs)).code == ResponseCode.SUCCESS
        assert await bodies(peer) == [b"%d" % number for number in range(500)]
        journal = [JournalEntry.decode(record.body) for record in await seen(peer, SINK_TOPIC)]
        kinds = [entry.kind for entry in journal]
        assert kinds == ["runs"] * (len(kinds) - 2) + ["decided", "published"] and len(kinds) > 6

    async def go_on(peer: Peer) -> None:
        writer = SinkWriter(peer)
        assert not await writer.is_new(0)
        assert (await writer.publish(1, await writer.stage([b"more"]))).code == 0
        assert len(await bodies(peer)) == 501

    serve(tmp_path, publish, store=store)
    lose_file(tmp_path)
    serve(tmp_path, go_on, store=store)


def test_the_journal_is_a_topic_that_nobody_else_writes_to(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await create_topic(peer, "T", queues=1)
        writer = SinkWriter(peer)
        assert (await writer.publish(0, await writer.stage([b"a"]))).code == 0
        assert len(await seen(peer, SINK_TOPIC)) == 2  # decided, published
        answer = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic=SINK_TOPIC)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        answer = await peer.send(SINK_TOPIC, b"{}")
        assert answer.code == ResponseCode.NO_PERMISSION

    serve(tmp_path, check)


@pytest.mark.parametrize("name", ["", "x" * 256, "two\nlines", "a\x01b"])
def test_names_that_are_refused(tmp_path: Path, name: str) -> None:
    async def check(peer: Peer) -> None:
        for writer in (SinkWriter(peer, name), SinkWriter(peer, "s", name)):
            answer = await writer.publish(0)
            assert answer.code == ResponseCode.INVALID_PARAMETER
            assert "expected 1..255, all of them printable" in (answer.remark or "")
        assert await shown(peer) == []

    serve(tmp_path, check)
