"""The file that tells an unclean stop: also on a disk without room for what stands in it."""

import errno
from pathlib import Path

import pytest
from tests.unit.store.stores import (
    FailingFiles,
    bodies,
    crashed_copy,
    failing_in,
    never,
    open_store,
    put_ok,
    record,
)

from pymq.errors import DiskFull
from pymq.store.state.checkpoint import AbortMarker


def test_a_store_opens_on_a_full_disk(tmp_path: Path) -> None:
    """It can be read then, and cleaned, which may be what makes room."""
    store = open_store(tmp_path / "s")
    put_ok(store, record(b"before"))
    store.close()
    assert not (tmp_path / "s" / "abort").exists()
    files, flushed = FailingFiles(), list[str]()

    def note(path: Path) -> int:
        flushed.append(path.name)
        return 0

    files.on_write = failing_in("abort", errno.ENOSPC)
    files.on_fsync = note
    store = open_store(tmp_path / "s", files=files)
    assert (tmp_path / "s" / "abort").read_bytes() == b"" and "abort" in flushed
    assert bodies(store) == [b"before"]
    files.on_write = never
    put_ok(store, record(b"after"))
    crashed = crashed_copy(tmp_path / "s", tmp_path / "crashed")
    assert AbortMarker(files, crashed).present()
    store.close()
    for root in (tmp_path / "s", crashed):
        store = open_store(root)
        assert bodies(store) == [b"before", b"after"]
        store.close()


def test_without_a_file_nothing_is_changed(tmp_path: Path) -> None:
    """As when there are no more inodes."""

    class NoInodes(FailingFiles):
        def open_emptied(self, path: Path) -> int:
            raise DiskFull(f"{path}: create: no space left on the device")

    with pytest.raises(DiskFull, match="abort"):
        open_store(tmp_path, files=NoInodes())
