"""Databases with all tables, made once."""

from pathlib import Path

import pytest
from tests.shop.in_process import migrated


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the empty databases of all services."""
    return migrated(tmp_path_factory.mktemp("template"))
