"""A store's directories are its own: those of its log, too, wherever they are."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.store.stores import (
    HOST,
    QuickFiles,
    bodies,
    config,
    open_paths,
    open_store,
    put_ok,
    record,
    record_of_size,
)

from pymq.errors import FlushFailed, StoreError, StoreLocked
from pymq.store import PutStatus
from pymq.store.truncation import truncate_log


@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("name", ["first/commitlog", "log"])
def test_two_stores_never_have_the_same_log(tmp_path: Path, name: str, *, is_new: bool) -> None:
    """As when a ``broker.conf`` is copied, and only ``storePathRootDir`` is changed."""
    log = (tmp_path / name,)
    if not is_new:
        open_store(tmp_path / "first", commit_log_paths=log).close()
    store = open_store(tmp_path / "first", commit_log_paths=() if "/" in name else log)
    put_ok(store, record(b"first"))
    refused = f"{log[0]}: another broker has this directory of the commit log.*storePathCommitLog"
    with pytest.raises(StoreLocked, match=refused):
        open_store(tmp_path / "second", commit_log_paths=log)
    with pytest.raises(StoreLocked, match=refused):
        truncate_log(config(tmp_path / "second", commit_log_paths=log), 0)
    assert bodies(store) == [b"first"]
    store.close()
    assert not open_paths(tmp_path)
    open_store(tmp_path / "second", commit_log_paths=log).close()


def test_one_of_several_directories_is_enough(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    store = open_store(tmp_path / "first", commit_log_paths=(tmp_path / "a", shared))
    with pytest.raises(StoreLocked, match=str(shared)):
        open_store(tmp_path / "second", commit_log_paths=(tmp_path / "b", shared))
    assert not (tmp_path / "b").exists(), "a store that was not opened leaves no trace"
    store.close()


def test_directories_that_are_only_read_may_be_shared(tmp_path: Path) -> None:
    old = tmp_path / "old"
    for name in ("first", "second"):
        old.mkdir(exist_ok=True)
        open_store(tmp_path / name, read_only_log_paths=(old,))


def _remove(root: Path) -> None:
    shutil.rmtree(root)


def _remove_content(root: Path) -> None:
    _remove(root)
    root.mkdir()


def _replace(root: Path) -> None:
    """As a volume that is mounted over it, with the store of another broker."""
    other = root.with_name("other")
    shutil.copytree(root, other)
    root.rename(root.with_name("away"))
    other.rename(root)


def _remove_log(root: Path) -> None:
    shutil.rmtree(root / "commitlog")


@pytest.mark.parametrize("lose", [_remove, _remove_content, _replace, _remove_log])
def test_no_message_is_taken_without_the_directory(
    tmp_path: Path, lose: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "s"
    store = open_store(root)
    put_ok(store, record(b"before"))
    store.retention.check_disk()
    assert store.not_writable_reason is None
    lose(root)
    for _ in range(3):
        store.retention.check_disk()
    assert f"{root}" in str(store.not_writable_reason)
    assert "was removed or replaced" in str(store.not_writable_reason)
    (put,) = store.put([record(b"after")], HOST)
    assert put.status is PutStatus.NOT_WRITABLE
    assert bodies(store) == [b"before"], "what is open can be read"
    with pytest.raises(FlushFailed, match="removed or replaced"):
        store.durability.flush()
    assert caplog.text.count("removed or replaced") == 1
    store.close()
    assert caplog.text.count("removed or replaced") == 1


@pytest.mark.parametrize("lose", [_remove, _replace])
def test_nothing_is_deleted_in_a_directory_that_is_anothers(
    tmp_path: Path, lose: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "s"
    store = open_store(root, segment_bytes=1024, reserved_hours=0, held_grace_ms=0)
    for _ in range(3):
        put_ok(store, *(record_of_size(300) for _ in range(9)))
        store.durability.flush()
        store.durability.flush_queues()
    store.retention.clean_now()
    assert store.retention.clean_step() and store.log_first > 0
    lose(root)
    before = sorted(root.rglob("*"))
    for _ in range(5):
        store.retention.check_disk()
        assert not store.retention.clean_step()
    assert len(caplog.records) == 1, caplog.text
    store.close()
    assert sorted(root.rglob("*")) == before
    assert len(caplog.records) == 1, caplog.text


def test_a_directory_that_nobody_can_look_at_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: QuickFiles, fd: int, path: Path) -> bool:
        raise StoreError(f"{path}: look at: Input/output error")

    store = open_store(tmp_path)
    monkeypatch.setattr(QuickFiles, "is_at", fails)
    store.retention.check_disk()
    assert store.not_writable_reason is None
    store.close()
