"""Where tests put files that should not be on an ordinary disk."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")
_MOUNT_TIMEOUT_S = 30


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
    path.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=_MOUNT_TIMEOUT_S,
    )
    if made.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {made.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True, timeout=_MOUNT_TIMEOUT_S)
