"""pymq's name server between official brokers, clients and the official admin tool."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.interop.conftest import require_peers
from tests.interop.java_admin import JavaAdmin
from tests.interop.java_client import JavaProducer, JavaPushConsumer
from tests.interop.java_values import JavaError, call, map_items
from tests.interop.jvm import JavaClient
from tests.interop.peers import RealBroker

from pymq.namesrv import NameServer, NamesrvConfig

pytestmark = pytest.mark.interop

WAIT_S = 90.0
# (broker version, client version, further keys of broker.conf)
PEERS: list[tuple[str, str, dict[str, Any]]] = [
    ("5.3.3", "5.3.3", {}),
    # Registers with a compressed body, and only after asking whether its version is known.
    ("4.9.7", "4.9.7", {"compressedRegister": True, "forceRegister": False}),
    ("4.5.1", "5.4.0", {"compressedRegister": True}),
    # Registers each new topic alone, and keeps alive with lightweight heartbeats.
    (
        "5.4.0",
        "4.5.1",
        {"enableSingleTopicRegister": True, "enableSlaveActingMaster": True},
    ),
]


class NameServers:
    """Some name servers on one thread with an event loop of its own."""

    def __init__(self, count: int, **settings: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="name servers")
        config = NamesrvConfig(port=0, **settings)
        self.servers = [NameServer(config) for _ in range(count)]

    def __enter__(self) -> list[str]:
        self._thread.start()
        for server in self.servers:
            self._run(server.start())
        return [server.address for server in self.servers]

    def __exit__(self, *error: object) -> None:
        for server in self.servers:
            self._run(server.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)


@dataclass(frozen=True, slots=True)
class Peers:
    """A real broker registered with two name servers of ours, and a client JVM."""

    name_servers: list[str]
    broker: RealBroker
    client: JavaClient
    admins: list[JavaAdmin]  # one at each name server


@pytest.fixture(params=PEERS, ids=lambda param: f"broker-{param[0]}-client-{param[1]}")
def peers(
    request: pytest.FixtureRequest, java_client: Callable[[str], JavaClient]
) -> Iterator[Peers]:
    broker_version, client_version, properties = request.param
    require_peers(broker_version)
    client = java_client(client_version)
    with (
        NameServers(2, order_message_enable=True) as addresses,
        RealBroker(broker_version, addresses, **properties) as broker,
        JavaAdmin(client, addresses[0]) as one,
        JavaAdmin(client, addresses[1]) as other,
    ):
        yield Peers(addresses, broker, client, [one, other])


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_brokers_clients_and_tools_work_through_our_name_servers(peers: Peers) -> None:
    topic = f"ns-{uuid.uuid4().hex[:12]}"
    for admin in peers.admins:
        info = admin.cluster_info()
        assert {name: dict(ids) for name, ids in info.brokers.items()} == {
            "broker-a": {0: peers.broker.address}
        }
        assert info.clusters == {"DefaultCluster": frozenset({"broker-a"})}
    peers.admins[0].create_topic(topic, 4)
    for admin in peers.admins:  # each was told, none told the other
        wait_until(lambda: admin.route(topic) == [peers.broker.address], topic)  # noqa: B023
        assert {topic, "TBW102", "broker-a", "DefaultCluster"} <= admin.topics()

    both = ";".join(peers.name_servers)
    with (
        JavaProducer(peers.client, f"p-{topic}", both) as producer,
        JavaPushConsumer(peers.client, f"c-{topic}", both, topic) as consumer,
    ):
        bodies = [b"message-%d" % n for n in range(20)]
        for body in bodies:
            assert producer.send(topic, body).status == "SEND_OK"
        fresh = f"{topic}-auto"  # created by the send, from the route of TBW102
        assert producer.send(fresh, b"x").status == "SEND_OK"
        received = consumer.wait_count(len(bodies))
        assert sorted(message.body for message in received) == sorted(bodies)
        for admin in peers.admins:
            wait_until(lambda: admin.route(fresh) == [peers.broker.address], fresh)  # noqa: B023

    check_administration(peers, topic)

    peers.broker.kill()
    for admin in peers.admins:
        wait_until(lambda: admin.route(topic) == [], "a killed broker leaves")  # noqa: B023
        assert admin.cluster_info().brokers == {}


def check_administration(peers: Peers, topic: str) -> None:
    """What mqadmin asks of a name server."""
    admin, java = peers.admins[0], peers.admins[0].java
    address = peers.name_servers[0]

    assert topic in set(call(java.fetchTopicsByCLuster, "DefaultCluster").getTopicList())

    call(java.createAndUpdateKvConfig, "NS", "key", "välue")
    assert call(java.getKVConfig, "NS", "key") == "välue"
    table = call(java.getKVListByNamespace, "NS").getTable()
    assert dict(map_items(table)) == {"key": "välue"}
    call(java.deleteKvConfig, "NS", "key")
    with pytest.raises(JavaError):
        call(java.getKVConfig, "NS", "key")

    call(java.createOrUpdateOrderConf, topic, "broker-a:4", True)
    route = call(java.examineTopicRouteInfo, topic)
    assert route.getOrderTopicConf() == "broker-a:4"

    assert call(java.wipeWritePermOfBroker, address, "broker-a") > 3
    queue = call(java.examineTopicRouteInfo, topic).getQueueDatas()[0]
    assert queue.getPerm() == 4
    if peers.client.version != "4.5.1":  # does not have it
        assert call(java.addWritePermOfBroker, address, "broker-a") > 3
        queue = call(java.examineTopicRouteInfo, topic).getQueueDatas()[0]
        assert queue.getPerm() == 6

    servers = peers.client.array_list([address])
    config = dict(map_items(call(java.getNameServerConfig, servers)))[address]
    assert config.getProperty("orderMessageEnable") == "true"
    changes = peers.client.jvm.java.util.Properties()
    changes.setProperty("orderMessageEnable", "false")
    with pytest.raises(JavaError) as refused:
        call(java.updateNameServerConfig, changes, servers)
    assert refused.value.response_code == 16

    admin.delete_topic(topic)
    assert admin.route(topic) == []
    wait_until(lambda: peers.admins[1].route(topic) != [], "the other one was told nothing")
