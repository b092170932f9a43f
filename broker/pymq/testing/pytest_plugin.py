"""Fixtures: ``pymq_cluster``, a fresh cluster for a test, ``pymq_session_cluster``, one for all.

pytest loads this in every run wherever pymq is installed, whether the run is about pymq or not: it
imports nothing, and it has no hooks. With pytest-xdist each worker has clusters of its own.
"""

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pymq.testing.cluster import Cluster


@pytest.fixture(scope="session")
def pymq_settings() -> dict[str, Any]:
    """Arguments of ``Cluster`` for both fixtures; none, unless a conftest.py says otherwise."""
    return {}


@pytest.fixture
def pymq_cluster(pymq_settings: dict[str, Any]) -> Iterator["Cluster"]:
    """An empty ``pymq.testing.Cluster`` that stops with the test."""
    from pymq.testing.cluster import Cluster  # here, because every pytest run loads the plugin

    with Cluster(**pymq_settings) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def pymq_session_cluster(pymq_settings: dict[str, Any]) -> Iterator["Cluster"]:
    """A ``pymq.testing.Cluster`` that all tests share; take topics of ``pymq_topic``."""
    from pymq.testing.cluster import Cluster

    with Cluster(**pymq_settings) as cluster:
        yield cluster


@pytest.fixture
def pymq_topic() -> str:
    """A name that no other test has, for topics or groups."""
    return f"test-{uuid.uuid4().hex[:12]}"
