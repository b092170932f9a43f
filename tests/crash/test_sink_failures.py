"""Batches of exactly-once sinks when a certain thing happens at a certain moment.

In ``test_sink_schedules.py`` things happen at random ones.
"""

import asyncio
import errno
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.crash.sink_run import SinkRun
from tests.unit.store.stores import HOST, FakeClock, bodies, log_files

from pymq.broker.sinks import publishing
from pymq.errors import DiskFull, FlushFailed
from pymq.protocol.codes import ResponseCode, SinkCode
from pymq.protocol.record import NewRecord
from pymq.protocol.record_crc import RECORD_CRC_BYTES
from pymq.protocol.sink_bodies import SinkBatch, SinkRow, StagedRun
from pymq.store import FlushMode
from pymq.testing.faulty_files import FaultyFiles

pytestmark = pytest.mark.crash

QUEUES = [("T", 0), ("T", 1)]
ROWS = [b"a", b"b", b"c"]


class PickyFiles(FaultyFiles):
    """Asks before it writes: ``code_of`` returns what a write to a file fails with, or 0.

    Zeros, with which recovery overwrites an unfinished write, need no space, and neither does what
    is there already, which it writes again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.code_of: Callable[[Path], int] = lambda path: 0

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> None:
        is_new = any(data) and os.pread(fd, len(data), position) != data
        code = self.code_of(self._paths[fd]) if is_new else 0
        if code:
            text = f"{self._paths[fd]}: {os.strerror(code)}"
            raise FlushFailed(text) if code == errno.EIO else DiskFull(text)
        super().pwrite(fd, data, position)


class Broker:
    """A broker that is started again and again, with one sink and two queues.

    Attributes:
        run: the one that runs.
        files: its disk.
    """

    run: SinkRun
    files: PickyFiles

    def __init__(self, root: Path, **settings: Any) -> None:
        self.root = root
        self.settings: dict[str, Any] = {"segment_bytes": 1 << 16} | settings

    def start(self, code_of: Callable[[Path], int] = lambda path: 0) -> None:
        self.files = PickyFiles()
        self.files.code_of = code_of
        self.run = SinkRun(self.root, FakeClock(), self.files, saved=None, **self.settings)

    async def die(self) -> None:
        await self.run.leave()
        self.files.abandon()

    async def stage(self) -> list[StagedRun]:
        found = []
        for number, (topic, queue_id) in enumerate(QUEUES):
            run = await self.run.stage(topic, queue_id, ROWS, part=number + 1)
            assert run is not None
            found.append(run)
        return found

    async def publish(
        self, runs: list[StagedRun], sink: str = "s", number: int = 0
    ) -> tuple[int, str]:
        batch = SinkBatch(sink=sink, query="q", run="r", batch=number, row_count=6)
        (answer,) = await self.run.publish((batch, runs))
        return answer.code, answer.remark or ""

    def seen(self) -> list[list[bytes]]:
        return [bodies(self.run.store, *queue) for queue in QUEUES]

    def row(self) -> SinkRow:
        (row,) = self.run.table.page("", 9)
        return row


Life = Callable[[Broker], Coroutine[Any, Any, None]]


def live(root: Path, life: Life, **settings: Any) -> None:
    asyncio.run(life(Broker(root, **settings)))


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "RETRY_S", 0.0)


def failing_after(count: int, code: int, name: str) -> Callable[[Path], int]:
    """Return what has writes below a directory fail, but for the first few."""
    left = count

    def code_of(path: Path) -> int:
        nonlocal left
        left -= name in path.parts
        return code if name in path.parts and left < 0 else 0

    return code_of


NOTHING: list[list[bytes]] = [[], []]
ALL = [ROWS, ROWS]


def test_sinks_that_share_some_of_their_queues(memory_path: Path) -> None:
    async def life(broker: Broker) -> None:
        broker.start()
        run = broker.run

        def ends() -> list[int]:
            return [run.store.queue_bounds("T", queue_id)[1] for queue_id in range(3)]

        def look() -> None:
            small, both, large = ends()
            assert small % 15 == large % 20 == 0 and both == small + large

        run.on_turn = look
        for number in range(3):
            wanted = []
            for sink, queue_ids, count in (("large", (1, 2), 20), ("small", (0, 1), 15)):
                runs = [
                    await run.stage("T", queue_id, [b"row"], part=1)
                    for queue_id in queue_ids
                    for _ in range(count)
                ]
                batch = SinkBatch(sink=sink, query="q", run="r", batch=number)
                wanted.append((batch, [one for one in runs if one is not None]))
            answers = await run.publish(*wanted)
            assert [answer.code for answer in answers] == [ResponseCode.SUCCESS] * 2
        assert ends() == [45, 105, 60]
        await broker.die()

    live(memory_path, life)


@pytest.mark.parametrize("flush", list(FlushMode))
def test_a_disk_that_fails_shows_nothing_of_the_batch_it_was_copying(
    memory_path: Path, flush: FlushMode, caplog: pytest.LogCaptureFixture
) -> None:
    async def life(broker: Broker) -> None:
        broker.start()
        runs = await broker.stage()
        # The decision is one write, and each run two: the first four bytes are written last.
        broker.files.code_of = failing_after(4, errno.EIO, "commitlog")
        code, text = await broker.publish(runs)
        assert broker.seen() == NOTHING and not broker.row().is_published
        assert code == ResponseCode.FLUSH_DISK_TIMEOUT
        assert "batch 0 of sink s is decided, and cannot be published before" in text
        assert "Replace the disk if it failed, then start the broker again" in caplog.text
        assert "consumers see nothing new in its queues (T 0, T 1)" in caplog.text
        await broker.die()
        broker.start()
        assert broker.seen() == ALL and broker.row().is_published
        assert (await broker.publish(runs))[0] == ResponseCode.SUCCESS
        await broker.die()

    live(memory_path, life, flush_mode=flush)


def test_a_bug_shows_nothing_of_a_batch_and_keeps_nobody_waiting(
    memory_path: Path, unawaited: list[str]
) -> None:
    async def life(broker: Broker) -> None:
        broker.start()
        runs = await broker.stage()
        put, count = broker.run.journal.put, 0

        async def failing(*arguments: Any) -> int:
            nonlocal count
            count += 1
            if count == 2:  # A run, a run.
                raise ZeroDivisionError("a bug")
            return await put(*arguments)

        broker.run.journal.put = failing  # type: ignore[method-assign]
        code, text = await broker.publish(runs)
        assert code == ResponseCode.FLUSH_DISK_TIMEOUT and "a bug" in text
        await broker.run.put(NewRecord("T", 0, b"of a producer", b"", HOST, 0))
        assert broker.seen() == NOTHING
        other = await broker.run.stage("T", 1, [b"of another sink"], part=9)
        assert other is not None
        code, text = await broker.publish([other], "other")
        assert code == ResponseCode.FLUSH_DISK_TIMEOUT
        assert "batch 0 of sink s has one of its queues, and cannot be published either" in text
        # A batch that is not complete must not be forgotten for the next one.
        code, text = await broker.publish(runs, number=1)
        assert code == ResponseCode.FLUSH_DISK_TIMEOUT and "batch 0 of sink s is" in text
        (said,) = unawaited
        assert "ZeroDivisionError" in said
        unawaited.clear()
        await broker.die()
        broker.start()
        assert broker.seen() == [
            [*ROWS, b"of a producer"],
            [*ROWS, b"of another sink"],
        ]
        await broker.die()

    live(memory_path, life)


def test_a_start_on_a_full_disk_shows_nothing_of_a_batch_that_is_not_complete(
    memory_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def life(broker: Broker) -> None:
        broker.start()
        await broker.run.put(NewRecord("U", 0, b"elsewhere", b"", HOST, 0))
        runs = await broker.stage()
        broker.files.code_of = failing_after(4, errno.EIO, "commitlog")
        await broker.publish(runs)
        await broker.die()

        is_full = True
        broker.start(lambda path: errno.ENOSPC if is_full and "commitlog" in path.parts else 0)
        assert bodies(broker.run.store, "U", 0) == [b"elsewhere"]
        assert broker.seen() == NOTHING
        assert "batch 0 of sink s is decided, and cannot be published now" in caplog.text
        assert "consumers see nothing new in its queues (T 0, T 1)" in caplog.text
        is_full = False
        assert (await broker.publish(runs))[0] == ResponseCode.SUCCESS
        assert broker.seen() == ALL
        await broker.die()

    live(memory_path, life)


def test_a_batch_that_was_seen_is_not_hidden_by_a_start_on_a_full_disk(memory_path: Path) -> None:
    async def life(broker: Broker) -> None:
        broker.start()
        runs = await broker.stage()
        # It dies before it has written that all of it is published.
        broker.files.code_of = failing_after(5, errno.EIO, "commitlog")
        assert (await broker.publish(runs))[0] == ResponseCode.FLUSH_DISK_TIMEOUT
        assert broker.seen() == ALL
        await broker.die()
        broker.start(lambda path: errno.ENOSPC if "commitlog" in path.parts else 0)
        assert broker.seen() == ALL and not broker.row().is_published
        await broker.die()

    live(memory_path, life)


def test_a_slow_disk_lets_nobody_be_told_before_the_batch_is_seen(memory_path: Path) -> None:
    async def life(broker: Broker) -> None:
        broker.start()
        run = broker.run
        runs = await broker.stage()
        flush, slow = run.flush, 0

        def flush_slowly() -> None:
            nonlocal slow
            sink = run.table.find("s")
            if sink is None or run.store.durability.flushed_end < sink.decision_end or slow == 5:
                flush()
                return
            slow += 1
            waiting, run.waiting = run.waiting, []
            for _, done in waiting:
                done("not flushed within 5 s (syncFlushTimeout)")
            assert broker.seen() == NOTHING

        run.flush = flush_slowly  # type: ignore[method-assign]
        assert (await broker.publish(runs))[0] == ResponseCode.SUCCESS
        assert slow == 5 and broker.seen() == ALL
        await broker.die()

    live(memory_path, life, flush_mode=FlushMode.SYNC)


@pytest.mark.parametrize("queue_id", ["0", "1"])
def test_queues_that_cannot_be_written_show_nothing_until_all_can_be(
    memory_path: Path, queue_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def life(broker: Broker) -> None:
        broker.start()
        runs = await broker.stage()
        refused = 0

        def code_of(path: Path) -> int:
            nonlocal refused
            if refused == 20 or path.parts[-4:-1] != ("consumequeue", "T", queue_id):
                return 0
            refused += 1
            assert broker.seen()[1 - int(queue_id)] in ([], ROWS)
            return errno.ENOSPC

        def look() -> None:
            assert broker.seen() in (NOTHING, ALL)

        broker.files.code_of, broker.run.on_turn = code_of, look
        assert (await broker.publish(runs))[0] == ResponseCode.SUCCESS
        assert refused == 20 and broker.seen() == ALL
        assert "the entries of its queues cannot be written" in caplog.text
        await broker.die()

    live(memory_path, life)


def test_nothing_is_copied_before_the_decision_is_on_the_disk(memory_path: Path) -> None:
    async def life(broker: Broker) -> None:
        broker.start()
        store = broker.run.store
        runs = await broker.stage()
        count = 0

        def look() -> None:
            nonlocal count
            sink = broker.run.table.find("s")
            if sink is not None and store.durability.flushed_end < sink.decision_end:
                count += 1
                assert store.log_end == sink.decision_end

        broker.run.on_turn = look
        assert (await broker.publish(runs))[0] == ResponseCode.SUCCESS
        assert count
        await broker.die()

    live(memory_path, life, flush_mode=FlushMode.ASYNC)


# --- what was staged is damaged, or gone


def damage(root: Path, run: StagedRun) -> None:
    """Change the body of the last record of a run, one byte, or change it back."""
    body_at = run.physical_offset + run.size_bytes - RECORD_CRC_BYTES - len(b"\0\0T\1") - 1
    (path,) = log_files(root)
    with path.open("r+b") as file:
        file.seek(body_at)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes((byte[0] ^ 1,)))


def test_damage_before_the_decision(memory_path: Path) -> None:
    async def life(broker: Broker) -> None:
        broker.start()
        runs = await broker.stage()
        damage(broker.root, runs[1])
        code, text = await broker.publish(runs)
        assert code == SinkCode.RUNS_LOST
        assert "is damaged; nothing was published, write the batch again" in text
        assert broker.run.table.page("", 9) == []
        assert (await broker.publish(await broker.stage()))[0] == ResponseCode.SUCCESS
        assert broker.seen() == ALL
        await broker.die()

    live(memory_path, life, append_record_crc=True)


def test_damage_after_the_decision_is_told_for_ever(
    memory_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def life(broker: Broker) -> None:
        broker.start()
        runs = await broker.stage()
        is_damaged = False

        def look() -> None:
            nonlocal is_damaged
            if not is_damaged and broker.run.table.pending():
                is_damaged = True
                damage(broker.root, runs[1])

        broker.run.on_turn = look
        code, text = await broker.publish(runs)
        assert code == SinkCode.ROWS_LOST
        assert "batch 0 of sink s is published, but 3 of its rows were lost" in text
        assert "3 records for queue 1 of topic T are lost" in caplog.text
        assert broker.seen() == [ROWS, []]
        assert (broker.row().lost_count, broker.row().is_published) == (3, True)
        assert await broker.publish(runs) == (code, text)
        damage(broker.root, runs[1])  # Changed back: no store opens with it.
        await broker.die()
        broker.start()
        assert broker.row().lost_count == 3
        assert await broker.publish(runs) == (code, text)
        assert (await broker.publish(await broker.stage(), number=1))[0] == ResponseCode.SUCCESS
        assert broker.row().lost_count == 0
        await broker.die()

    live(memory_path, life, append_record_crc=True)


@pytest.mark.parametrize("is_found_out_at_a_start", [False, True])
def test_what_is_staged_is_not_deleted_before_it_is_copied(
    memory_path: Path, is_found_out_at_a_start: bool
) -> None:
    async def life(broker: Broker) -> None:
        broker.start()
        runs = await broker.stage()
        if is_found_out_at_a_start:
            broker.files.code_of = failing_after(4, errno.EIO, "commitlog")
            await broker.publish(runs)
            await broker.die()
            broker.start(lambda path: errno.ENOSPC if "commitlog" in path.parts else 0)
            assert broker.run.store.retention.needed_from() == runs[0].physical_offset
            broker.files.code_of = lambda path: 0
        assert broker.run.store.retention.needed_from() == (
            runs[0].physical_offset if is_found_out_at_a_start else None
        )
        needed: list[int | None] = []
        check = broker.run.publishing.check

        async def checked(some: Any) -> set[str]:
            needed.append(broker.run.store.retention.needed_from())
            return await check(some)

        def look() -> None:
            if broker.run.table.pending():
                needed.append(broker.run.store.retention.needed_from())

        broker.run.publishing.check = checked  # type: ignore[method-assign]
        broker.run.on_turn = look
        assert (await broker.publish(runs))[0] == ResponseCode.SUCCESS
        assert set(needed) == {runs[0].physical_offset}
        assert broker.run.store.retention.needed_from() is None
        # Nor does a batch that is refused keep anything.
        wrong = SinkBatch(sink="t", query="q", run="r", batch=0)
        runs[0].part += 1
        (answer,) = await broker.run.publish((wrong, runs))
        assert answer.code == SinkCode.RUNS_LOST
        assert broker.run.store.retention.needed_from() is None
        await broker.die()

    live(memory_path, life)
