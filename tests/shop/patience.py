"""Stories and towns on a machine that has other things to do."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.interop.peers import free_port

from shop.story import customers, processes, town

#: Until a process of many that start at once is ready, or has ended.
START_S = 240.0


def ports(count: int) -> list[int]:
    """Return ports that no other process of the test run gets, also while nobody listens there."""
    return [free_port(-2, 0, 1) for _ in range(count)]


@contextmanager
def patient_story() -> Iterator[None]:
    """What this process tells of the shop inside the block has time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(town, "free_ports", ports)
        patch.setattr(town, "READY_S", START_S)
        patch.setattr(processes, "READY_S", START_S)
        patch.setattr(processes, "STOP_S", START_S / 4)
        patch.setattr(customers, "DEADLINE_S", START_S)
        yield
