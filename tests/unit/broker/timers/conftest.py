"""What the tests of timers share: a clock to set, and a store whose timers go by it."""

from pathlib import Path

import pytest
from tests.unit.broker.timers.waits import NOW_MS, Waits
from tests.unit.store.stores import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW_MS)


@pytest.fixture
def waits(tmp_path: Path, clock: FakeClock) -> Waits:
    return Waits(tmp_path / "store", clock)
