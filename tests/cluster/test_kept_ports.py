"""Ports of an embedded cluster's servers stay theirs while they are stopped, and no longer."""

import socket
from collections.abc import Iterator

import pytest

from pymq import Message, blocking
from pymq.net.listening import bind
from pymq.protocol.addresses import split_address
from pymq.testing import Cluster, wait_until
from pymq.testing.handles import BrokerHandle, NamesrvHandle


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2) as running:
        yield running


def is_taken(port: int) -> bool:
    """Would the system give it to nobody?"""
    with socket.socket() as other:
        try:
            other.bind(("127.0.0.1", port))
        except OSError:
            return True
        return False


@pytest.mark.parametrize("server", ["broker", "namesrv"])
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_nobody_gets_a_port_meanwhile(cluster: Cluster, server: str, end: str) -> None:
    handle: BrokerHandle | NamesrvHandle
    handle = cluster.broker("broker-a") if server == "broker" else cluster.namesrv
    address = handle.address
    host, port = split_address(address)
    with blocking.Producer(cluster.name_server, deadline_s=60) as producer:
        for _ in range(3):  # with connections of clients, which linger
            producer.send(Message("T", b"x"))
            getattr(handle, end)()
            assert is_taken(port)
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((host, port), timeout=60)
            handle.start()
            assert handle.address == address
    # The name server knows brokers when they have registered again.
    wait_until(lambda: len(cluster.messages("T")) == 3, timeout_s=90)


def test_ports_are_let_go_of_in_the_end(cluster: Cluster) -> None:
    addresses = [cluster.address(name) for name in cluster.broker_names]
    ports = [split_address(one)[1] for one in (*addresses, cluster.name_server)]
    cluster.kill_broker("broker-b")
    cluster.namesrv.stop()
    cluster.stop()
    for port in ports:
        bind("127.0.0.1", port).close()  # beside connections that linger
    cluster.start()
    assert [cluster.address(name) for name in cluster.broker_names] == addresses
