"""Group commit when the disk, or the system, does not do as it should."""

import asyncio
import errno
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.unit.store.stores import (
    TOPIC,
    FailingFiles,
    FakeClock,
    failing_in,
    never,
    no_descriptors,
    open_store,
    put_ok,
    record,
    record_of_size,
)

from pymq.broker import flusher as flusher_module
from pymq.broker.flusher import Flusher
from pymq.clock import Clock
from pymq.errors import FlushFailed, StoreError
from pymq.store import Files, MessageStore

DEADLINE_S = 120.0


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


def run(
    store: MessageStore,
    executor: ThreadPoolExecutor,
    check: Callable[[Flusher], Awaitable[None]],
) -> None:
    """Run ``check`` beside a flusher that flushes every few milliseconds."""

    async def inside() -> None:
        flusher = Flusher(
            store, executor, Clock(), interval_s=0.005, queue_interval_s=0.005, timeout_s=DEADLINE_S
        )
        flusher.start()
        try:
            await asyncio.wait_for(check(flusher), DEADLINE_S)
        finally:
            await flusher.close()

    asyncio.run(inside())


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.001)


def flushed(flusher: Flusher, end_offset: int) -> asyncio.Future[str | None]:
    answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
    flusher.wait_flushed(end_offset, answer.set_result)
    return answer


def test_all_that_is_in_the_log_is_waited_for(tmp_path: Path, executor: ThreadPoolExecutor) -> None:
    store = open_store(tmp_path, files=Files())

    async def check(flusher: Flusher) -> None:
        (result,) = put_ok(store, record())
        await flusher.wait_all_flushed()
        assert store.durability.flushed_end >= result.physical_end
        await flusher.close()
        put_ok(store, record())
        with pytest.raises(StoreError, match="the broker is shutting down"):
            await flusher.wait_all_flushed()

    run(store, executor, check)
    store.close()


def test_who_waits_for_all_has_patience_with_a_slow_disk_and_none_with_a_broken_one(
    tmp_path: Path, executor: ThreadPoolExecutor
) -> None:
    may_end = threading.Event()

    class Slow(FailingFiles):
        def fsync(self, fd: int) -> None:
            assert may_end.wait(DEADLINE_S)
            super().fsync(fd)

    may_end.set()
    files = Slow()
    store = open_store(tmp_path, files=files)
    (result,) = put_ok(store, record())
    may_end.clear()

    async def inside() -> None:
        flusher = Flusher(
            store, executor, Clock(), interval_s=0.005, queue_interval_s=3600, timeout_s=0.01
        )
        flusher.start()
        waiting = asyncio.ensure_future(flusher.wait_all_flushed())
        assert await flushed(flusher, result.physical_end) is not None  # too slow for a send
        assert not waiting.done()
        may_end.set()
        await asyncio.wait_for(waiting, DEADLINE_S)
        assert store.durability.flushed_end >= result.physical_end
        files.on_fsync = failing_in("commitlog", errno.EIO)
        put_ok(store, record())
        with pytest.raises(StoreError, match="is not on the disk: the disk failed"):
            await asyncio.wait_for(flusher.wait_all_flushed(), DEADLINE_S)
        await flusher.close()

    asyncio.run(inside())
    store.close()


def test_flushes_go_on_when_descriptors_are_back(
    tmp_path: Path, executor: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path, files=Files())

    async def check(flusher: Flusher) -> None:
        await asyncio.get_running_loop().run_in_executor(executor, str)  # its thread is there
        (result,) = put_ok(store, record())
        with no_descriptors():
            answer = flushed(flusher, result.physical_end)
            await until(lambda: "log flush failed" in caplog.text)
        assert await answer is None

    run(store, executor, check)
    assert store.not_writable_reason is None
    store.close()


def test_a_flush_in_progress_is_waited_for_and_its_failure_counts(
    tmp_path: Path, executor: ThreadPoolExecutor
) -> None:
    """The system reports a lost page once: the last flush would succeed, and vouch for it."""
    begun, may_end = threading.Event(), threading.Event()

    class Slow(FailingFiles):
        fails = True

        def fsync(self, fd: int) -> None:
            if self.fails and "commitlog" in self._path(fd).parts:
                begun.set()
                assert may_end.wait(DEADLINE_S)
                self.fails = False
                raise FlushFailed("fsync: Input/output error")
            super().fsync(fd)

    files = Slow()
    files.fails = False
    store = open_store(tmp_path, files=files)
    put_ok(store, record())
    files.fails = True

    async def check(flusher: Flusher) -> None:
        await until(begun.is_set)
        asyncio.get_running_loop().call_later(0.05, may_end.set)
        await flusher.close()

    run(store, executor, check)
    assert store.not_writable_reason is not None
    store.close()
    assert (tmp_path / "abort").exists()


def test_what_a_full_disk_held_up_shows_without_another_send(
    tmp_path: Path, executor: ThreadPoolExecutor
) -> None:
    files = FailingFiles()
    store = open_store(tmp_path, FakeClock(), files)
    files.on_write = failing_in("consumequeue", errno.ENOSPC)
    put_ok(store, record())
    store.durability.flush()
    assert store.queue_bounds(TOPIC, 0) == (0, 0)

    async def check(flusher: Flusher) -> None:
        files.on_write = never
        await until(lambda: store.queue_bounds(TOPIC, 0) == (0, 1))

    run(store, executor, check)
    store.close()


def test_a_failed_flush_is_told_to_all_who_wait_and_named_once(
    tmp_path: Path, executor: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    files = FailingFiles()
    store = open_store(tmp_path, files=files)
    (first,) = put_ok(store, record())
    files.on_fsync = failing_in("commitlog", errno.EIO)

    async def check(flusher: Flusher) -> None:
        for _ in range(5):
            assert "the disk failed" in str(await flushed(flusher, first.physical_end))

    run(store, executor, check)
    assert caplog.text.count("log flush failed") <= 2 and "Traceback" not in caplog.text
    store.close()


@pytest.mark.parametrize(
    ("step", "job", "what"),
    [
        (Flusher.flush, "begin_flush", "log flush"),
        (Flusher.commit_due, "begin_commit", "commit"),
        (Flusher.flush_queues, "begin_queue_flush", "queue flush"),
    ],
)
def test_an_error_is_said_once_and_again_when_it_comes_back(
    tmp_path: Path,
    executor: ThreadPoolExecutor,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    step: Callable[[Flusher], Awaitable[None]],
    job: str,
    what: str,
) -> None:
    """Months later, for one: who has it fixed the first time would not hear of the second."""
    monkeypatch.setattr(flusher_module, "COMMIT_RETRY_S", 0.0)
    store = open_store(tmp_path, files=FailingFiles(), transient_pool=True)

    def fails() -> None:
        raise StoreError("too many open files")

    async def inside() -> None:
        flusher = Flusher(
            store,
            executor,
            Clock(),
            commit_interval_s=0.0,
            interval_s=0.0,
            queue_interval_s=0.0,
            timeout_s=DEADLINE_S,
        )
        for count in (1, 2):
            with monkeypatch.context() as patch:
                patch.setattr(store.durability, job, fails)
                for _ in range(3):
                    await step(flusher)
            assert caplog.text.count(f"{what} failed: too many open files") == count
            put_ok(store, record())
            await step(flusher)
        await flusher.close()

    asyncio.run(asyncio.wait_for(inside(), DEADLINE_S))
    store.close()


def test_few_pages_wait_for_the_thorough_interval(
    tmp_path: Path, executor: ThreadPoolExecutor
) -> None:
    store, clock = open_store(tmp_path, segment_bytes=1 << 20), FakeClock()
    flusher = Flusher(
        store,
        executor,
        clock,
        interval_s=0.5,
        pages_least=4,
        thorough_interval_s=10.0,
        queue_interval_s=60.0,
        timeout_s=5.0,
    )
    clock.now_ms += 20_000
    assert not flusher.is_due()  # nothing to flush
    put_ok(store, record())
    asyncio.run(flusher.flush())
    put_ok(store, record())
    assert not flusher.is_due()
    put_ok(store, record_of_size(3 * 4096))
    assert not flusher.is_due()
    put_ok(store, record_of_size(4096))
    assert flusher.is_due()
    asyncio.run(flusher.flush())
    put_ok(store, record())
    clock.now_ms += 9_999
    assert not flusher.is_due()
    clock.now_ms += 1
    assert flusher.is_due()
    store.close()


def test_flushes_are_counted(tmp_path: Path) -> None:
    files = FailingFiles()
    store = open_store(tmp_path, files=files)
    put_ok(store, record())
    store.durability.flush()
    found = store.statistics.snapshot()
    assert (found.flush_count, found.flush_failed_count) == (1, 0) and found.flush_max_s > 0
    files.on_fsync = failing_in("commitlog", errno.EIO)
    put_ok(store, record())
    for _ in range(2):
        with pytest.raises(FlushFailed):
            store.durability.flush()
    found = store.statistics.snapshot()
    assert (found.flush_count, found.flush_failed_count) == (1, 1)
    store.close()


def test_staged_records_are_committed_by_time_and_by_pages(
    tmp_path: Path, executor: ThreadPoolExecutor
) -> None:
    store = open_store(tmp_path, segment_bytes=1 << 20, transient_pool=True)
    clock = FakeClock()

    async def inside() -> None:
        flusher = Flusher(
            store,
            executor,
            clock,
            commit_interval_s=0.2,
            commit_pages_least=4,
            interval_s=60.0,
            queue_interval_s=60.0,
            timeout_s=DEADLINE_S,
        )
        await flusher.commit_due()
        put_ok(store, record(b"0"))
        await flusher.commit_due()
        assert store.queue_bounds(TOPIC, 0) == (0, 0)
        clock.now_ms += 200
        await flusher.commit_due()
        assert store.queue_bounds(TOPIC, 0) == (0, 1)
        put_ok(store, *(record_of_size(4096) for _ in range(4)))
        await flusher.commit_due()
        assert store.queue_bounds(TOPIC, 0) == (0, 5)
        put_ok(store, record(b"flushed"))
        await flusher.flush()
        assert store.durability.flushed_end == store.log_end
        await flusher.close()

    asyncio.run(inside())
    store.close()


def test_a_commit_that_fails_is_tried_again(
    tmp_path: Path, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flusher_module, "COMMIT_RETRY_S", 0.01)
    files = FailingFiles()
    store = open_store(tmp_path, files=files, transient_pool=True)
    put_ok(store, record(b"0"))
    files.on_write = failing_in("commitlog", errno.ENOSPC)

    async def inside() -> None:
        flusher = Flusher(
            store,
            executor,
            Clock(),
            commit_interval_s=0.01,
            interval_s=60.0,
            queue_interval_s=60.0,
            timeout_s=DEADLINE_S,
        )
        flusher.start()
        await until(lambda: store.not_writable_reason is not None)
        files.on_write = never
        await until(lambda: store.queue_bounds(TOPIC, 0) == (0, 1))
        await flusher.close()

    asyncio.run(asyncio.wait_for(inside(), DEADLINE_S))
    store.close()


def test_a_full_index_file_is_flushed_at_once(tmp_path: Path, executor: ThreadPoolExecutor) -> None:
    clock = FakeClock()
    store = open_store(tmp_path, clock, index_slot_count=5, index_item_limit=4)

    def put_keys(count: int) -> None:
        new = record()
        new.properties = b"KEYS\x01" + b" ".join(b"%d" % number for number in range(count))
        put_ok(store, new)
        while store.keys.index_step():
            pass

    def saved_counts() -> list[int]:
        paths = sorted((tmp_path / "index").iterdir())
        return [int.from_bytes(path.read_bytes()[36:40], "big") for path in paths]

    async def inside() -> None:
        flusher = Flusher(
            store, executor, clock, interval_s=60.0, queue_interval_s=60.0, timeout_s=DEADLINE_S
        )
        put_keys(2)
        await flusher.flush_due_queues()
        assert saved_counts() == [0]
        put_keys(2)
        await flusher.flush_due_queues()
        assert saved_counts() == [4, 2]
        put_keys(1)
        await flusher.flush_due_queues()
        assert saved_counts() == [4, 2]
        clock.now_ms += 60_000
        await flusher.flush_due_queues()
        assert saved_counts() == [4, 3]
        await flusher.close()

    asyncio.run(inside())
    store.close()
