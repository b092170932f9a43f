"""Our broker registered with official name servers."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.interop.conftest import require_peers
from tests.interop.java_client import JavaProducer
from tests.interop.jvm import JavaClient
from tests.interop.peers import RealNameServer, wait_for_route

from pymq.testing import Cluster

pytestmark = [pytest.mark.interop, pytest.mark.by_turns("version")]


@pytest.mark.parametrize("version", ["4.5.1", "5.3.3"])
def test_clients_find_it_though_it_announces_no_ha_address(
    tmp_path: Path, java_client: Callable[[str], JavaClient], version: str
) -> None:
    require_peers(version)
    topic = f"t-{uuid.uuid4().hex[:8]}"
    with (
        RealNameServer(version) as name_server,
        Cluster(tmp_path, broker={"name_servers": (name_server.address,)}) as cluster,
    ):
        wait_for_route(
            name_server.address, cluster.broker_name, broker_address=cluster.broker_address
        )
        with JavaProducer(java_client("5.3.3"), "p", name_server.address) as producer:
            assert producer.send(topic, b"x").status == "SEND_OK"
