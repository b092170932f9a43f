"""Where tests put files that should not be on an ordinary disk."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.crash.afterwards import Afterwards

MEMORY = Path("/dev/shm")
_MOUNT_TIMEOUT_S = 30
#: Of a disk with room, and what is left of that when it is full.
_AMPLE_BYTES, _LEFT_BYTES, _FILL_ATTEMPTS = 8 << 30, 64 << 10, 20


@contextmanager
def in_memory(prefix: str, otherwise: Path) -> Iterator[Path]:
    """Make an empty directory, in memory where the machine allows."""
    try:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=MEMORY))
    except OSError:
        yield otherwise
        return
    yield path
    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def small_tmpfs(path: Path, size: str) -> Iterator[Path]:
    """Mount a disk of its own; the test is skipped where that is not allowed."""
    with _mounted(path, "tmpfs", "-o", f"size={size}"):
        yield path


@contextmanager
def ramfs(path: Path) -> Iterator[Path]:
    """Mount a file system that cannot reserve blocks, as ``small_tmpfs``."""
    with _mounted(path, "ramfs"):
        yield path


@contextmanager
def _mounted(path: Path, kind: str, *options: str) -> Iterator[None]:
    path.mkdir()
    made = subprocess.run(
        ["mount", "-t", kind, *options, kind, str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=_MOUNT_TIMEOUT_S,
    )
    if made.returncode:
        pytest.skip(f"no {kind} can be mounted here: {made.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True, timeout=_MOUNT_TIMEOUT_S)


class ResizableDisk:
    """A disk of its own that can be made full, and given room again.

    Args:
        path: where it is mounted; made here.
        afterwards: takes it away in the end.

    Raises:
        OSError: it cannot be mounted here.
    """

    def __init__(self, path: Path, afterwards: Afterwards) -> None:
        path.mkdir()
        self._path = path
        _mount("-t", "tmpfs", "-o", f"size={_AMPLE_BYTES},mode=700", "tmpfs", str(path))
        afterwards.do("umount", str(path))

    def fill(self) -> None:
        """Leave room for some pages only."""
        for attempt in range(_FILL_ATTEMPTS):
            found = os.statvfs(self._path)
            used_bytes = (found.f_blocks - found.f_bfree) * found.f_frsize
            try:
                self._resize(used_bytes + _LEFT_BYTES)
            except OSError:  # more was written meanwhile
                if attempt == _FILL_ATTEMPTS - 1:
                    raise
            else:
                return

    def free(self) -> None:
        """Give it all the room again that it had."""
        self._resize(_AMPLE_BYTES)

    def _resize(self, size_bytes: int) -> None:
        _mount("-o", f"remount,size={size_bytes}", str(self._path))


def _mount(*arguments: str) -> None:
    made = subprocess.run(
        ["mount", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=_MOUNT_TIMEOUT_S,
    )
    if made.returncode:
        raise OSError(f"mount {' '.join(arguments)}: {made.stderr.strip()}")
