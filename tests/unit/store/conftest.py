"""Real files, in memory where the machine allows: these tests make and sync thousands."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    try:
        path = Path(tempfile.mkdtemp(prefix="pymq-store-", dir=MEMORY))
    except OSError:
        yield tmp_path
        return
    yield path
    shutil.rmtree(path, ignore_errors=True)
