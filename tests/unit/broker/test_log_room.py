"""Room ahead of the log's end: the next file, and pages of the current one."""

import asyncio
import errno
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.unit.store.stores import (
    FailingFiles,
    never,
    open_store,
    put_ok,
    read_all,
    record_of_size,
)

from pymq.broker import log_room as log_room_module
from pymq.broker.log_room import LogRoom
from pymq.clock import Clock
from pymq.errors import StoreError

DEADLINE_S = 60.0


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


class TouchedFiles(FailingFiles):
    """Notes what is touched."""

    def __init__(self) -> None:
        super().__init__()
        self.touched: list[tuple[int, int]] = []

    def touch(self, path: Path, size: int, position: int) -> None:
        super().touch(path, size, position)
        self.touched.append((position, position + size))


def test_a_segment_that_cannot_be_made_ahead_is_named_once(
    tmp_path: Path,
    executor: ThreadPoolExecutor,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_room_module, "PREPARE_PAUSE_S", 0.0)
    files = FailingFiles()
    store = open_store(tmp_path, files=files, segment_bytes=1024)
    put_ok(store, record_of_size(800))
    tries = 0

    def failing(path: Path) -> int:
        nonlocal tries
        tries += 1
        return errno.ENOSPC

    async def check() -> None:
        room = LogRoom(store, executor, Clock())
        room.start()
        files.on_create = failing
        while tries < 3:
            await asyncio.sleep(0.001)
        files.on_create = never
        while store.ahead.segment_due:
            await asyncio.sleep(0.001)
        await room.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(asyncio.wait_for(check(), DEADLINE_S))
    assert caplog.text.count("no space") == 1
    store.close()


def test_pages_are_touched_ahead_of_what_is_written(
    tmp_path: Path, executor: ThreadPoolExecutor
) -> None:
    files = TouchedFiles()
    store = open_store(tmp_path, files=files, segment_bytes=8 << 20)
    # The first file is created by the first put, so nothing can be touched before it.
    put_ok(store, record_of_size(1000))

    async def check() -> None:
        room = LogRoom(store, executor, Clock())
        assert not await room.touch_pages() and not files.touched

        put_ok(store, *[record_of_size(1 << 16)] * 3)
        assert not await room.touch_pages() and not files.touched, "that was not much"

        put_ok(store, *[record_of_size(1 << 16)] * 8)
        end = store.log_end
        assert await room.touch_pages()
        assert files.touched == [(end, end + (1 << 19) * 4)]

        put_ok(store, *[record_of_size(1 << 16)] * 8)
        assert await room.touch_pages()
        assert files.touched[1:] == [(end + (1 << 19) * 4, end + (1 << 19) * 5)], "only what is new"

        put_ok(store, *[record_of_size(1 << 16)] * 60)
        assert await room.touch_pages()
        (first, last) = files.touched[2]
        assert (first, last) == (store.log_end, 8 << 20), "not beyond the file"
        assert await room.touch_pages() is False
        await room.close()

    asyncio.run(check())
    assert len(read_all(store)) == 1 + 3 + 8 + 8 + 60
    store.close()


def test_a_file_that_cannot_be_touched_is_written_all_the_same(
    tmp_path: Path, executor: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    files = FailingFiles()
    store = open_store(tmp_path, files=files, segment_bytes=8 << 20)

    def failing(path: Path, size: int, position: int) -> None:
        raise StoreError("not today")

    files.touch = failing  # type: ignore[method-assign]

    async def check() -> None:
        put_ok(store, record_of_size(1000))
        room = LogRoom(store, executor, Clock())
        for _ in range(3):
            put_ok(store, *[record_of_size(1 << 16)] * 8)
            assert await room.touch_pages()
        await room.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(check())
    assert not caplog.text
    store.close()


def test_nothing_is_touched_behind_a_pool(tmp_path: Path, executor: ThreadPoolExecutor) -> None:
    files = TouchedFiles()
    store = open_store(tmp_path, files=files, segment_bytes=8 << 20, transient_pool=True)

    async def check() -> None:
        room = LogRoom(store, executor, Clock())
        put_ok(store, *[record_of_size(1 << 16)] * 16)
        await room.touch_pages()
        await room.close()

    asyncio.run(check())
    assert not files.touched
    store.close()
