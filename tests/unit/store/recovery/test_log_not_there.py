"""A log that is not there, or cannot be opened: seen before a broker says how far it goes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.stores import (
    QuickFiles,
    config,
    crashed_copy,
    log_files,
    open_store,
    put_ok,
    record,
)

from pymq.errors import PymqError, StoreLocked, StoreMismatch
from pymq.store.recovery.end_check import LogEndMissing
from pymq.store.recovery.log_end import find_log_end
from pymq.store.state.checkpoint import DirectoryLock

SEGMENT_BYTES = 1024


@pytest.fixture
def filled(tmp_path: Path) -> Callable[..., Path]:
    def filled(*, is_clean: bool) -> Path:
        """Return a store with twelve messages in several files, which are on the disk."""
        root = tmp_path / "store"
        store = open_store(root, segment_bytes=SEGMENT_BYTES)
        for _ in range(12):
            put_ok(store, record(b"x" * 200))
        store.durability.flush()
        crashed = crashed_copy(root, tmp_path / "crashed")
        store.close()
        return root if is_clean else crashed

    return filled


def error_of(action: Callable[[], object]) -> PymqError:
    with pytest.raises(PymqError) as caught:
        action()
    return caught.value


def lose_all(root: Path) -> None:
    for path in log_files(root):
        path.unlink()


def lose_directory(root: Path) -> None:
    (root / "commitlog").rename(root / "elsewhere")


def lose_last(root: Path) -> None:
    log_files(root)[-1].unlink()


def lose_content_of_last(root: Path) -> None:
    log_files(root)[-1].write_bytes(bytes(SEGMENT_BYTES))


@pytest.mark.parametrize("is_clean", [False, True])
@pytest.mark.parametrize("lose", [lose_all, lose_directory, lose_last, lose_content_of_last])
def test_what_was_safe_and_is_missing_is_an_error_as_it_is_of_the_opening(
    filled: Callable[..., Path], lose: Callable[[Path], None], *, is_clean: bool
) -> None:
    root = filled(is_clean=is_clean)
    lose(root)
    settings = config(root, segment_bytes=SEGMENT_BYTES)
    found = error_of(lambda: find_log_end(settings, QuickFiles()))
    assert isinstance(found, LogEndMissing) and found.found in str(found)
    assert str(root) in found.found and "remove" not in found.found
    opened = error_of(lambda: open_store(root, segment_bytes=SEGMENT_BYTES))
    assert str(opened) == str(found)


@pytest.mark.parametrize(
    "settings",
    [{"segment_bytes": 2 * SEGMENT_BYTES}, {"queue_file_bytes": 20 * 1000}, {"key_index": True}],
)
def test_a_store_of_other_settings_is_refused(
    filled: Callable[..., Path], settings: dict[str, Any]
) -> None:
    root = filled(is_clean=True)
    (root / "index").mkdir()
    (root / "index" / "20261128000000000").write_bytes(b"of another size")
    changed: dict[str, Any] = {"segment_bytes": SEGMENT_BYTES, "key_index": False, **settings}
    found = error_of(lambda: find_log_end(config(root, **changed), QuickFiles()))
    assert isinstance(found, StoreMismatch)
    assert str(error_of(lambda: open_store(root, **changed))) == str(found)


def test_a_store_of_another_kind_is_refused(filled: Callable[..., Path]) -> None:
    root = filled(is_clean=True)
    (root / "consumequeue" / "CURRENT").touch()
    settings = config(root, segment_bytes=SEGMENT_BYTES)
    with pytest.raises(StoreMismatch, match="RocksDB"):
        find_log_end(settings, QuickFiles())


def test_a_log_that_another_store_has_open_is_refused(
    filled: Callable[..., Path], tmp_path: Path
) -> None:
    root, files = filled(is_clean=True), QuickFiles()
    lock = DirectoryLock(files, tmp_path, [root / "commitlog"])
    settings = config(root, segment_bytes=SEGMENT_BYTES)
    try:
        with pytest.raises(StoreLocked, match="commitlog"):
            find_log_end(settings, files)
    finally:
        lock.release()
    assert find_log_end(settings, files) > 0
