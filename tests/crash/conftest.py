"""Files in memory for what makes and syncs thousands of them, and how long to go on."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """An empty directory, in memory where the machine allows."""
    try:
        path = Path(tempfile.mkdtemp(prefix="pymq-crash-", dir=MEMORY))
    except OSError:
        yield tmp_path
        return
    yield path
    shutil.rmtree(path, ignore_errors=True)
