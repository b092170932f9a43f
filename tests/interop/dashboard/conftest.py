"""One pair of clusters for all tests of this directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.interop.conftest import require_peers
from tests.interop.dashboard.sites import VERSION, Site, filled
from tests.interop.jvm import JavaClient
from tests.interop.peers import RealBroker, RealNameServer

from pymq.testing import Cluster


@pytest.fixture(scope="package")
def sites(java_client: Callable[[str], JavaClient]) -> Iterator[tuple[Site, Site]]:
    """The real cluster and ours."""
    require_peers(VERSION)
    client = java_client(VERSION)
    with (
        RealNameServer(VERSION) as name_server,
        RealBroker(VERSION, [name_server.address]) as broker,
        Cluster() as cluster,
        filled(client, name_server.address, broker.address, is_real=True) as real,
        filled(client, cluster.name_server, cluster.broker_address, is_real=False) as ours,
    ):
        yield real, ours
