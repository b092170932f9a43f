"""The fixture ``pymq_cluster``: a fresh name server and broker for every test that asks."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pymq.testing.cluster import Cluster


@pytest.fixture
def pymq_cluster() -> Iterator["Cluster"]:
    """An empty ``pymq.testing.Cluster`` that stops with the test."""
    from pymq.testing.cluster import Cluster  # here: a plugin is loaded by every pytest run

    with Cluster() as cluster:
        yield cluster
