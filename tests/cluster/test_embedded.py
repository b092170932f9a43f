"""``pymq.testing.Cluster``: started, stopped, started again."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cluster.children import in_child

from pymq import blocking
from pymq.broker.config import BrokerConfig
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.errors import ClientClosed, ConfigurationError, StoreMismatch
from pymq.protocol.message import Message
from pymq.testing import Cluster

#: For answers that come at once: the machine, and the disk of a broker that flushes, may be slow.
LIMIT_S = 60.0


def test_a_cluster_that_is_started_again_knows_its_new_name_server_alone(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    for _ in range(3):
        with cluster, BlockingClient(cluster.name_server) as client:
            client.send(Message("T", b"x"))
            assert _name_servers(cluster) == (cluster.name_server,)


def _name_servers(cluster: Cluster) -> tuple[str, ...]:
    config: BrokerConfig = cluster._broker_config
    return config.name_servers


def test_starting_a_broker_that_runs_changes_nothing() -> None:
    with Cluster() as cluster, BlockingClient(cluster.name_server) as client:
        cluster.start_broker()
        client.send(Message("T", b"x"))
        cluster.stop_broker()
        cluster.stop_broker()
        cluster.start_broker()
        client.send(Message("T", b"y"))
        assert sum(end for _, end in client.bounds(client.read_queues("T")).values()) == 2


def test_a_broker_is_registered_when_its_start_returns() -> None:
    """Although the name server takes its time."""
    with Cluster() as cluster, blocking.Producer(cluster.name_server) as producer:
        producer.send(Message("T", b"x"))
        address = cluster.broker_address
        cluster.stop_broker()
        assert not _is_registered(cluster, address)
        with cluster.namesrv.delay(1.5):  # longer than the broker waits
            cluster.start_broker()
            assert _is_registered(cluster, address)
        cluster.namesrv.stop()
        cluster.restart_broker()  # nobody to wait for


def _is_registered(cluster: Cluster, address: str) -> bool:
    assert cluster._naming is not None and cluster._naming.server is not None
    return cluster._naming.server.is_registered(address)


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_broker_with_a_transient_store_pool(flush: str) -> None:
    settings = {"transient_pool": True, "segment_bytes": 1 << 16}
    with (
        Cluster(flush=flush, store_settings=settings) as cluster,
        BlockingClient(cluster.name_server, timeout_s=LIMIT_S) as client,
    ):
        sent = [b"%d:" % number + bytes(1000) for number in range(200)]
        for body in sent:
            client.send(Message("T", body))
        deadline = time.monotonic() + LIMIT_S
        while _count(client) < len(sent):  # With "async" they are visible once committed.
            assert time.monotonic() < deadline
        cluster.restart_broker()
        assert _count(client) == len(sent)


def _count(client: BlockingClient) -> int:
    return sum(end for _, end in client.bounds(client.read_queues("T")).values())


def test_a_broker_that_cannot_start_may_be_started_later(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster, BlockingClient(cluster.name_server) as client:
        client.send(Message("T", b"x"))
        cluster.stop_broker()
        foreign = tmp_path / "commitlog" / "foreign"
        foreign.touch()
        with pytest.raises(StoreMismatch):
            cluster.start_broker()
        foreign.unlink()
        cluster.start_broker()
        client.send(Message("T", b"y"))


def test_a_child_leaves_the_cluster_to_its_parent_and_may_use_it() -> None:
    with Cluster() as cluster:

        def use() -> int:
            with BlockingClient(cluster.name_server, timeout_s=LIMIT_S) as client:
                client.send(Message("T", b"x"))
                return _count(client)

        assert in_child(use) == 1
        assert in_child(cluster.stop) is None  # as at the end of a `with` block
        refused: list[Callable[[], object]] = [
            cluster.start,
            cluster.stop_broker,
            cluster.start_broker,
            cluster.restart_broker,
        ]
        for call in refused:
            text = in_child(call)
            assert text.startswith(f"ClientMisplaced: the cluster runs in process {os.getpid()}")
        assert cluster.store.exists()
        assert use() == 2


def test_a_wrong_setting_is_named() -> None:
    with pytest.raises(ConfigurationError, match="flush='SYNC_FLUSH': expected 'async' or 'sync'"):
        Cluster(flush="SYNC_FLUSH")


def test_a_cluster_that_does_not_run_says_so() -> None:
    cluster = Cluster()
    for _ in range(2):
        with pytest.raises(ClientClosed, match="not started: use it inside `with`"):
            cluster.restart_broker()
        with cluster:
            cluster.stop_broker()
            with pytest.raises(ClientClosed, match="call start_broker"):
                assert cluster.broker_address
    with pytest.raises(ClientClosed, match="not started"):
        assert Cluster().name_server
