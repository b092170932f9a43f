"""Stores that are inspected."""

import shutil
from pathlib import Path

import pytest
from tests.unit.store.inspection.inspected import SIZES, fill, write_tables
from tests.unit.store.stores import (
    FakeClock,
    open_store,
    seeded,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cleanly stopped store of everything; copy it before you break it."""
    root = tmp_path_factory.mktemp("whole") / "store"
    clock = FakeClock()
    store = open_store(root, clock, **SIZES)
    fill(store, clock, seeded(5))
    store.close()
    write_tables(root)
    return root


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "store"))
