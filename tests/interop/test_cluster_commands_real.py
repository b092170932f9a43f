"""``pymq cluster list``, ``promote`` and ``demote`` with official brokers and their controller."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.cli_processes import array, pymq, refusal
from tests.interop.conftest import RealCluster, require_peers, some
from tests.interop.controllers import BROKER_NAME, eventually
from tests.interop.peers import RealBroker, RealNameServer, free_port
from tests.interop.test_failover_mixed import SEGMENT_BYTES, VERSION, controller, make_broker

from pymq.broker.replication_config import Role
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.protocol.message import Message
from pymq.testing import Cluster

pytestmark = pytest.mark.interop


def listed(name_server: str) -> dict[str, dict[str, Any]]:
    """Return what is listed, by address."""
    rows = array(pymq("cluster", "list", "-n", name_server, "-o", "json"))
    return {row["address"]: row for row in rows}


@pytest.mark.parametrize("version", some([("4.9.7",), ("5.3.3",)], ("5.3.3",)))
def test_an_official_broker_alone(
    version: str, real_cluster: Callable[[str], RealCluster]
) -> None:
    cluster = real_cluster(version)
    (row,) = listed(cluster.name_server.address).values()
    assert (row["state"], row["role"], row["controlled"]) == ("up", "master", False)
    assert (row["epoch"], row["inSync"], row["behindBytes"]) == (None, None, None)
    assert row["version"] == "V" + version.replace(".", "_")
    told = refusal(
        pymq("cluster", "demote", row["broker"], "-n", cluster.name_server.address)
    )
    assert told.status == 2 and "no slave is registered" in told.line


@pytest.mark.parametrize("version", some([("4.9.7",), ("5.3.3",)], ("5.3.3",)))
def test_a_slave_of_ours_of_an_official_master(tmp_path: Path, version: str) -> None:
    require_peers(version)
    with ExitStack() as stack:
        name_server = stack.enter_context(RealNameServer(version)).address
        master = stack.enter_context(
            RealBroker(
                version,
                [name_server],
                store_dir=tmp_path / "master",
                brokerName=BROKER_NAME,
                haListenPort=free_port(0),
                mappedFileSizeCommitLog=SEGMENT_BYTES,
            )
        )
        slave = stack.enter_context(
            Cluster(
                tmp_path / "slave",
                broker={"name": BROKER_NAME, "broker_id": 1, "name_servers": (name_server,)},
                replication={"role": Role.SLAVE},
                store_settings={"segment_bytes": SEGMENT_BYTES},
            )
        ).broker_address
        with BlockingClient(name_server) as client:
            client.send(Message("T", b"x"))
        eventually(lambda: listed(name_server)[slave]["behindBytes"] == 0, "it follows")
        found = listed(name_server)
        row = found[slave]
        assert (row["role"], row["controlled"], row["behindSeconds"]) == ("slave", False, 0.0)
        assert row["inSync"] is (None if version == "4.9.7" else True)
        assert found[master.address]["role"] == "master"
        told = refusal(pymq("cluster", "promote", BROKER_NAME, "--to", "1", "-n", name_server))
        assert told.status == 2 and "docs/replication.md" in told.line


@pytest.mark.parametrize("whose", some([("pymq",), ("java",)], ("pymq",)))
def test_the_master_moves_between_an_official_broker_and_ours(tmp_path: Path, whose: str) -> None:
    require_peers(VERSION)
    with ExitStack() as stack:
        controllers = stack.enter_context(controller(whose, tmp_path / "controller"))
        name_server = stack.enter_context(RealNameServer(VERSION)).address
        members = [
            stack.enter_context(make_broker(kind, tmp_path / kind, name_server, controllers))
            for kind in ("java", "pymq")
        ]
        addresses = [one.address for one in members]

        def in_sync() -> bool:
            found = listed(name_server)
            return all(found.get(one, {}).get("inSync") is True for one in addresses)

        with BlockingClient(name_server) as client:
            client.send(Message("T", b"x"))
        eventually(in_sync, "both are in sync")
        found = listed(name_server)
        assert [found[one]["controlled"] for one in addresses] == [True, True]
        assert [found[one]["role"] for one in addresses] == ["master", "slave"]
        assert [found[one]["memberId"] for one in addresses] == [1, 2]
        assert found[addresses[1]]["behindBytes"] == 0
        epoch = 0
        for to in (addresses[1], "1"):
            eventually(in_sync, "both are in sync")
            where = ("-n", name_server, "-o", "json")
            (dry,) = array(pymq("cluster", "promote", BROKER_NAME, "--to", to, "--dry-run", *where))
            assert (dry["whyNot"], dry["inSync"]) == (None, True)
            (row,) = array(pymq("cluster", "promote", BROKER_NAME, "--to", to, *where))
            print(f"{whose}: {row['to']} served after {row['seconds']} s")
            assert row["epoch"] > epoch
            epoch = row["epoch"]
            assert listed(name_server)[row["to"]]["role"] == "master"
        eventually(in_sync, "both are in sync")
        (row,) = array(pymq("cluster", "demote", BROKER_NAME, "-n", name_server, "-o", "json"))
        assert row["to"] == addresses[1]
