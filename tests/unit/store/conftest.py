"""Real files, in memory where the machine allows: these tests make and flush thousands."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.disks import in_memory


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    with in_memory("pymq-store-", tmp_path) as path:
        yield path
