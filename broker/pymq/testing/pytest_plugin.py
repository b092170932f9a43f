"""The fixture ``pymq_cluster``: a fresh name server and broker for every test that uses it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pymq.testing.cluster import Cluster


@pytest.fixture
def pymq_cluster() -> Iterator["Cluster"]:
    """An empty ``pymq.testing.Cluster`` that stops with the test."""
    from pymq.testing.cluster import Cluster  # here, because every pytest run loads the plugin

    with Cluster() as cluster:
        yield cluster
