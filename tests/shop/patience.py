"""Stories and towns on a machine that has other things to do."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from shop.story import customers, processes, town

#: Until a process of many that start at once is ready, or has ended.
START_S = 240.0


@contextmanager
def patient_story() -> Iterator[None]:
    """What this process tells of the shop inside the block has time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(town, "READY_S", START_S)
        patch.setattr(processes, "READY_S", START_S)
        patch.setattr(processes, "STOP_S", START_S / 4)
        patch.setattr(customers, "DEADLINE_S", START_S)
        yield
