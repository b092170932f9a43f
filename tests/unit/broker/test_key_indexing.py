"""Indexing beside everything else: how far a query may rely on it, and what a full disk does."""

import asyncio
import errno
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.store.stores import (
    HOST,
    FailingFiles,
    failing_in,
    never,
    open_store,
    record,
)

from pymq.broker import key_indexing
from pymq.broker.key_indexing import (
    BUSY_SHARE,
    FAR_BEHIND_BYTES,
    FAR_BEHIND_SHARE,
    IDLE_SHARE,
    KeyIndexing,
)
from pymq.errors import StoreError
from pymq.store import Files, Keys, MessageStore


def store_with_messages(root: Path, files: Files | None = None) -> MessageStore:
    store = open_store(root, files=files, segment_bytes=1 << 20)
    for _ in range(30):
        store.put([record(20_000)], HOST)
    return store


def test_waits_for_what_is_visible(tmp_path: Path) -> None:
    store = store_with_messages(tmp_path)
    assert store.keys.behind_bytes > 30 * 20_000
    asyncio.run(KeyIndexing(store.keys).wait_indexed())
    assert store.keys.behind_bytes == 0
    store.close()


def test_runs_by_itself(tmp_path: Path) -> None:
    store = store_with_messages(tmp_path)

    async def run() -> None:
        indexing = KeyIndexing(store.keys)
        indexing.start()
        async with asyncio.timeout(60):
            while store.keys.behind_bytes:
                await asyncio.sleep(0)
        await indexing.close()
        await indexing.close()

    asyncio.run(run())
    store.close()


def test_a_full_disk_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = FailingFiles()
    store = open_store(tmp_path, files=files)
    new = record()
    new.properties = b"KEYS\x01k"
    store.put([new], HOST)
    files.on_create = failing_in("index", errno.ENOSPC)
    indexing = KeyIndexing(store.keys)
    for _ in range(3):
        assert indexing.step() == 0
        with pytest.raises(StoreError, match="cannot be indexed.*space"):
            asyncio.run(indexing.wait_indexed())
    assert len([one for one in caplog.records if "not indexed" in one.message]) == 1
    files.on_create = never
    asyncio.run(indexing.wait_indexed())
    assert store.keys.behind_bytes == 0
    store.close()


class SlowKeys:
    """A prefetch that takes as long as a test wants, and whose end may fail."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.begun = self.finished = self.steps = 0
        self.behind_bytes = 1000
        self.error: StoreError | None = None

    def begin_prefetch(self) -> "SlowKeys":
        self.begun += 1
        return self

    def run(self) -> None:
        self.may_end.wait(120)

    def finish_prefetch(self, job: "SlowKeys") -> None:
        self.finished += 1
        if self.error is not None:
            raise self.error

    def index_step(self) -> int:
        self.steps += 1
        return self.behind_bytes


def test_those_who_wait_share_one_prefetch_and_may_give_up(tmp_path: Path) -> None:
    async def run() -> None:
        keys = SlowKeys()
        indexing = KeyIndexing(cast(Keys, keys))
        for _ in range(5):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(indexing.wait_indexed(), 0.01)
        patient = asyncio.create_task(indexing.wait_indexed())
        await asyncio.sleep(0.01)
        assert (keys.begun, keys.finished) == (1, 0)
        keys.may_end.set()
        async with asyncio.timeout(60):
            await patient
        assert (keys.begun, keys.finished, keys.steps) == (1, 1, 1)
        await indexing.close()

    asyncio.run(run())


def test_a_prefetch_that_fails_is_left_to_the_step(tmp_path: Path) -> None:
    async def run() -> None:
        keys = SlowKeys()
        keys.may_end.set()
        keys.error = StoreError("no descriptor is left")
        indexing = KeyIndexing(cast(Keys, keys))
        indexing.start()
        async with asyncio.timeout(60):
            while keys.steps < 3:
                await asyncio.sleep(0.01)
        assert keys.finished >= 3
        await indexing.close()

    asyncio.run(run())


class TimedKeys:
    """Steps of one millisecond, on a clock that only they and ``sleep`` move."""

    def __init__(self, behind_bytes: int, busy: float) -> None:
        self.behind_bytes = behind_bytes
        self.now_s = self.worked_s = 100.0
        self.pauses_s: list[float] = []
        self._busy = busy
        self._thread = threading.get_ident()

    def begin_prefetch(self) -> None:
        return None

    def index_step(self) -> int:
        self.now_s += 0.001
        self.worked_s += 0.001
        return 1

    async def sleep(self, pause_s: float) -> None:
        self.now_s += pause_s
        self.worked_s += pause_s * self._busy
        self.pauses_s.append(pause_s)
        if len(self.pauses_s) == 3:
            await asyncio.get_running_loop().create_future()

    def rule(self, patch: pytest.MonkeyPatch) -> None:
        """Be the clock of indexing, in this thread: other tests may have left brokers running."""
        clock = SimpleNamespace(
            perf_counter=self._here(lambda: self.now_s, time.perf_counter),
            thread_time=self._here(lambda: self.worked_s, time.thread_time),
        )
        patch.setattr(key_indexing, "time", clock)
        loop = SimpleNamespace(**vars(asyncio) | {"sleep": self._here(self.sleep, asyncio.sleep)})
        patch.setattr(key_indexing, "asyncio", loop)

    def _here(self, ours: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
        def chosen(*arguments: Any) -> Any:
            is_ours = threading.get_ident() == self._thread
            return (ours if is_ours else theirs)(*arguments)

        return chosen


@pytest.mark.parametrize(
    ("busy", "behind_bytes", "share"),
    [
        (0.0, 1 << 30, IDLE_SHARE),
        (0.5, 1 << 30, IDLE_SHARE / 2),
        (1.0, 1 << 30, BUSY_SHARE),
        (1.0, FAR_BEHIND_BYTES + 1, FAR_BEHIND_SHARE),
    ],
)
def test_what_it_takes_of_the_loop_s_time(
    monkeypatch: pytest.MonkeyPatch, busy: float, behind_bytes: int, share: float
) -> None:
    async def run() -> None:
        keys = TimedKeys(behind_bytes, busy)
        indexing = KeyIndexing(cast(Keys, keys))
        with monkeypatch.context() as patch:
            keys.rule(patch)
            indexing.start()
            while len(keys.pauses_s) < 3:
                await asyncio.sleep(0)
        await indexing.close()
        assert keys.pauses_s[-1] == pytest.approx(0.001 * (1 / share - 1), rel=1e-3)

    asyncio.run(run())
