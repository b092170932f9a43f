"""Indexing beside everything else: how far a query may rely on it, and what a full disk does."""

import asyncio
import errno
from pathlib import Path

import pytest
from tests.unit.store.stores import (
    HOST,
    FailingFiles,
    failing_in,
    never,
    open_store,
    record,
)

from pymq.broker.key_indexing import KeyIndexing
from pymq.errors import StoreError
from pymq.store import Files, MessageStore


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
        async with asyncio.timeout(30):
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
