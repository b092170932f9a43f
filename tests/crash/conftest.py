"""Fixtures of crash tests: files in memory, and how often each feature is killed."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import ROUNDS_OF_A_TEST
from tests.disks import in_memory
from tests.unit.store.stores import close_left_stores


@pytest.fixture(autouse=True)
def stores_of_one_test() -> Iterator[None]:
    """No test leaves a store open to those that follow it in the same process."""
    yield
    close_left_stores()


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """An empty directory, in memory where the machine allows."""
    with in_memory("pymq-crash-", tmp_path) as path:
        yield path


@pytest.fixture(scope="session")
def feature_kills(crash_rounds: int) -> int:
    """How often the broker is killed in the test of one feature: a few times, or in the long run
    half as often as in that of plain messages.
    """
    return 5 if crash_rounds <= ROUNDS_OF_A_TEST else crash_rounds // 2


@pytest.fixture(
    params=[
        pytest.param(flush, marks=pytest.mark.by_turns("flush"))
        for flush in ("ASYNC_FLUSH", "SYNC_FLUSH")
    ]
)
def flush(request: pytest.FixtureRequest) -> str:
    """How a broker that is killed flushes."""
    return str(request.param)
