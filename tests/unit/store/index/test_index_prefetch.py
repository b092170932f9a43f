"""What indexing needs after a start is read by a job, if it is not in memory."""

from collections.abc import Iterator
from pathlib import Path
from typing import Never

import pytest
from tests.unit.store.index.test_key_index import found, index_all, keyed
from tests.unit.store.stores import QuickFiles, open_store, overwrite, put_ok

from pymq.errors import StoreError
from pymq.store import MessageStore
from pymq.store.index.index_file import IndexFile


class ColdFiles(QuickFiles):
    """Nothing of a file counts as in memory until it was read."""

    is_cold = False

    def is_cached(self, fd: int, size: int, position: int) -> bool:
        return not self.is_cold


def put_keys(store: MessageStore, *keys: str) -> None:
    put_ok(store, *(keyed(key, body=key.encode()) for key in keys))


def reopened(root: Path, files: QuickFiles) -> MessageStore:
    """Return a store with a started index file, and a message that is not indexed yet."""
    store = open_store(root)
    put_keys(store, "a", "b")
    index_all(store)
    store.close()
    store = open_store(root, files=files)
    put_keys(store, "c")
    return store


def prefetch(store: MessageStore) -> bool:
    job = store.keys.begin_prefetch()
    if job is None:
        return False
    job.run()
    store.keys.finish_prefetch(job)
    return True


def test_the_slots_are_read_once_by_a_job(tmp_path: Path) -> None:
    store = reopened(tmp_path, QuickFiles())
    assert prefetch(store)
    assert not prefetch(store)
    index_all(store)
    assert [found(store, key) for key in "abc"] == [[b"a"], [b"b"], [b"c"]]
    put_keys(store, "a")
    assert not prefetch(store)
    index_all(store)
    assert found(store, "a") == [b"a", b"a"]
    store.close()
    assert store.keys.behind_bytes == 0


def test_a_cold_part_of_the_log_is_read_by_a_job(tmp_path: Path) -> None:
    files = ColdFiles()
    store = open_store(tmp_path, files=files)
    put_keys(store, "a")
    assert not prefetch(store)
    files.is_cold = True
    assert prefetch(store)
    index_all(store)
    assert not prefetch(store)  # There is nothing to do.
    store.close()


def test_slots_that_a_step_overtook_are_not_used(tmp_path: Path) -> None:
    store = reopened(tmp_path, QuickFiles())
    job = store.keys.begin_prefetch()
    assert job is not None
    job.run()
    index_all(store)
    store.keys.finish_prefetch(job)
    put_keys(store, "d")
    index_all(store)
    assert [found(store, key) for key in "abcd"] == [[b"a"], [b"b"], [b"c"], [b"d"]]
    store.close()


def test_slots_that_lead_out_of_the_file_are_rebuilt(tmp_path: Path) -> None:
    store = reopened(tmp_path, QuickFiles())
    (path,) = (tmp_path / "index").iterdir()
    overwrite(path, 40, b"\x7f" * 40)
    assert prefetch(store)
    index_all(store)
    assert [found(store, key) for key in "abc"] == [[b"a"], [b"b"], [b"c"]]
    store.close()


def test_a_store_that_was_closed_meanwhile(tmp_path: Path) -> None:
    store = reopened(tmp_path, QuickFiles())
    job = store.keys.begin_prefetch()
    assert job is not None
    store.close()
    job.run()
    store.keys.finish_prefetch(job)


def test_unsound_slots_that_cannot_be_rebuilt_now_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = reopened(tmp_path, QuickFiles())
    (path,) = (tmp_path / "index").iterdir()
    overwrite(path, 40, b"\x7f" * 40)

    def no_descriptor(file: IndexFile) -> Iterator[Never]:
        raise StoreError("cannot be mapped")

    with monkeypatch.context() as ill:
        ill.setattr(IndexFile, "items", no_descriptor)
        for _ in range(2):
            with pytest.raises(StoreError, match="cannot be mapped"):
                prefetch(store)
    assert prefetch(store)
    index_all(store)
    assert [found(store, key) for key in "abc"] == [[b"a"], [b"b"], [b"c"]]
    store.close()
