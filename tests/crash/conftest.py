"""Files in memory for what makes and flushes thousands of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.disks import in_memory


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """An empty directory, in memory where the machine allows."""
    with in_memory("pymq-crash-", tmp_path) as path:
        yield path
