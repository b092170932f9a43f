"""Brokers that are not where they say, and name servers that are looked up or come from outside."""

import asyncio
import http.server
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import pymq
from pymq import BlockingClient, Network, blocking
from pymq.client.cluster import name_server_lookup
from pymq.client.cluster.config import parse_name_servers
from pymq.errors import ConfigurationError, ConnectionFailed
from pymq.protocol.message import Message
from pymq.testing import Cluster

#: Nobody listens there.
NOWHERE = "127.0.0.1:1"


class WebServer:
    """Answers every GET with the same text; ``paths`` are what was asked for."""

    def __init__(self) -> None:
        self.text = ""
        self.status = 200
        self.paths: list[str] = []
        web = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                web.paths.append(self.path)
                self.send_response(web.status)
                self.end_headers()
                self.wfile.write(web.text.encode())

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/rocketmq/nsaddr"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def web() -> Iterator[WebServer]:
    server = WebServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


@pytest.fixture(scope="module")
def hidden() -> Iterator[Cluster]:
    """A cluster whose broker advertises an address at which nobody can reach it."""
    with Cluster(broker={"advertised_address": "192.0.2.1"}) as running:
        yield running


def test_a_broker_is_reached_where_the_map_says(hidden: Cluster) -> None:
    advertised = hidden.broker_address
    port = advertised.rpartition(":")[2]
    assert advertised == f"192.0.2.1:{port}"
    for pairs in ({advertised: f"127.0.0.1:{port}"}, {"192.0.2.1": "127.0.0.1"}):
        network = Network(broker_address_map=pairs)
        name_server = hidden.name_server
        with blocking.Admin(name_server, network=network) as admin:
            admin.topics.create("mapped", queue_count=1)
            assert admin.topics.route("mapped").masters().popitem()[1] == advertised
        with BlockingClient(name_server, network=network) as client:
            client.send(Message("mapped", b"1"))
        with blocking.Producer(name_server, network=network) as producer:
            producer.send(Message("mapped", b"2"))
        consumer = blocking.Consumer(
            name_server, f"g-{len(pairs)}", from_where="earliest", network=network
        )
        with consumer.subscribe("mapped"):
            messages = consumer.messages()
            assert {next(messages).body, next(messages).body} == {b"1", b"2"}
    # The cluster itself knows where its brokers are.
    assert hidden.topics() == ["mapped"] and hidden.lag("g-1") == 0
    assert {one.body for one in hidden.messages("mapped")} == {b"1", b"2"}


def test_an_error_says_where_the_map_led(hidden: Cluster) -> None:
    network = Network(broker_address_map={hidden.broker_address: NOWHERE})
    with (
        blocking.Admin(hidden.name_server, network=network) as admin,
        pytest.raises(ConnectionFailed, match=rf"to 192.* at {NOWHERE}: .*brokerIP1"),
    ):
        admin.groups.names()
    with (
        BlockingClient(hidden.name_server, network=network, read_deadline_s=0.1) as client,
        pytest.raises(ConnectionFailed, match=r"to which broker_address_map maps 192\.0\.2\.1"),
    ):
        client.send(Message("mapped", b"x"))


@pytest.mark.parametrize(
    ("pairs", "wrong"),
    [
        ({"a:1": "b"}, "expected host:port to host:port"),
        ({"a": "b:1"}, "expected host:port to host:port"),
        ({"a:1": 7}, "expected two strings"),
        ({"a:x": "b:1"}, "port of 1..65535"),
        ("a=b", "expected a dict"),
    ],
)
def test_a_wrong_map_is_refused(pairs: Any, wrong: str) -> None:
    with pytest.raises(ConfigurationError, match=wrong):
        Network(broker_address_map=pairs)
    not_a_network: Any = {"a:1": "b:1"}
    with pytest.raises(ConfigurationError, match="expected a pymq.Network"):
        blocking.Admin("127.0.0.1:9876", network=not_a_network)


def test_addresses_of_all_kinds_are_mapped() -> None:
    network = Network(
        broker_address_map={"a:1": "[::1]:2", "a": "c", "::1": "10.0.0.1", "[::2]:5": "d:6"}
    )
    found = {one: network.reached(one) for one in ("a:1", "a:3", "[::1]:9", "[::2]:5", "e:1")}
    assert found == {
        "a:1": "[::1]:2",
        "a:3": "c:3",
        "[::1]:9": "10.0.0.1:9",
        "[::2]:5": "d:6",
        "e:1": "e:1",
    }


def test_unit_and_instance_name_are_in_the_client_id(cluster: Cluster) -> None:
    network = Network(unit_name="unit", instance_name="me")
    with blocking.Producer(cluster.name_server, network=network) as producer:
        assert producer.client_id == "127.0.0.1@me@unit"
    with pytest.raises(ConfigurationError, match="unit_name='a b'"):
        Network(unit_name="a b")


def test_sends_go_to_the_vip_port() -> None:
    with (
        Cluster(broker={"vip_port": True}) as cluster,
        blocking.Producer(cluster.name_server, network=Network(vip_channel=True)) as producer,
    ):
        producer.send(Message("vip", b"x"))
        channels = producer._client._pool._channels
        host, _, port = cluster.broker_address.rpartition(":")
        assert channels[f"{host}:{int(port) - 2}"].is_open


# ---------------------------------------------------------------------------- name servers


def test_name_servers_come_from_the_environment(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", f"127.0.0.1:1;{cluster.name_server}")
    with blocking.Admin() as admin, blocking.Producer() as producer, BlockingClient() as client:
        admin.topics.create("environment", queue_count=1)
        producer.send(Message("environment", b"x"))
        assert client.name_servers == ("127.0.0.1:1", cluster.name_server)
    monkeypatch.delenv("NAMESRV_ADDR")
    for kind in (blocking.Admin, blocking.Producer, BlockingClient, pymq.Admin):
        with pytest.raises(ConfigurationError, match="no name servers: give .* NAMESRV_ADDR"):
            kind()


def test_name_servers_are_looked_up(cluster: Cluster, web: WebServer) -> None:
    web.text = f"{cluster.name_server};127.0.0.1:1\nwhat follows does not count\n"
    with blocking.Admin(web.url) as admin:
        admin.topics.create("looked-up", queue_count=1)
    with BlockingClient(web.url) as client:
        client.send(Message("looked-up", b"x"))
        assert client.name_servers == (cluster.name_server, "127.0.0.1:1")
    with blocking.Producer(web.url, network=Network(unit_name="u1")) as producer:
        producer.send(Message("looked-up", b"y"))
    assert web.paths == ["/rocketmq/nsaddr"] * 2 + ["/rocketmq/nsaddr-u1?nofix=1"]


def test_they_are_looked_up_again_and_the_old_ones_stay_while_nobody_answers(
    cluster: Cluster, web: WebServer, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr("pymq.client.cluster.pool.LOOKUP_S", 0.02)
    caplog.set_level(logging.INFO, "pymq")
    web.text = cluster.name_server

    async def test() -> None:
        async with pymq.Admin(web.url) as admin:
            web.status = 503
            await logged("status 503")
            assert await admin.topics.names()
            web.status, web.text = 200, f"127.0.0.1:1;{cluster.name_server}"
            await logged("the name servers are 127.0.0.1:1;")
            assert await admin.topics.names()
            assert admin._pool.name_servers == ("127.0.0.1:1", cluster.name_server)

    async def logged(text: str) -> None:
        async with asyncio.timeout(60):
            while text not in caplog.text:
                await asyncio.sleep(0.01)

    asyncio.run(test())
    # Brokers may warn of a slow disk meanwhile.
    warnings = [
        one
        for one in caplog.records
        if one.levelno >= logging.WARNING and one.name.startswith("pymq.client")
    ]
    assert len(warnings) == 1, "said once"


def test_a_look_up_that_fails_says_why(web: WebServer) -> None:
    for text, status, wrong in (("x", 404, "status 404"), ("", 200, "expected 200 and host:port")):
        web.text, web.status = text, status
        with pytest.raises(ConnectionFailed, match=wrong):
            blocking.Admin(web.url).start()
        with BlockingClient(web.url) as client, pytest.raises(ConnectionFailed, match=wrong):
            client.route("T")
    nobody = f"http://{NOWHERE}/nsaddr"
    with pytest.raises(ConnectionFailed, match="is that web server running"):
        name_server_lookup.look_up(nobody)


def test_an_endpoint_without_a_path_is_an_address() -> None:
    assert parse_name_servers("http://mq.example:80") == ("mq.example:80",)


# ----------------------------------------------------------------------------- connections


def test_a_connection_that_is_lost_and_made_again_is_said_once(caplog: Any) -> None:
    caplog.set_level(logging.INFO, "pymq")
    with Cluster() as cluster, blocking.Producer(cluster.name_server) as producer:
        producer.send(Message("lost", b"1"))
        address = cluster.broker_address
        cluster.stop_broker()
        cluster.start_broker()
        producer.send(Message("lost", b"2"))
        assert cluster.broker_address == address
        texts = [record.getMessage() for record in caplog.records]
    lost = f"the connection to broker {address} was lost; it is made again when needed"
    assert texts.count(lost) == 1
    assert texts.count(f"connected to {address} again") == 1
