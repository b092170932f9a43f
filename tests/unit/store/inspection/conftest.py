"""Stores that are inspected."""

import shutil
from pathlib import Path

import pytest
from tests.unit.store.inspection.inspected import stopped_store


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cleanly stopped store of everything; copy it before you break it."""
    return stopped_store(tmp_path_factory.mktemp("whole") / "store", seed=5)


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "store"))
