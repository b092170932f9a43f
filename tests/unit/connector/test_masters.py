"""Whose word an answer about a queue is, where a slave may act for its master."""

from dataclasses import replace

import pytest
from tests.unit.connector.fake import FakeBroker, FakeClient

from pymq.client.cluster.routes import Route
from pymq.errors import ConnectionFailed
from pymq.protocol.bodies import MessageQueue
from pyspark_pymq.source.masters import asks_master, said_by_masters

A, B = MessageQueue("orders", "a", 0), MessageQueue("orders", "b", 0)


class Client(FakeClient):
    """One whose routes may be others than the broker's."""

    routes: list[Route] | None = None

    def known_routes(self) -> list[Route]:
        return super().known_routes() if self.routes is None else self.routes


@pytest.fixture
def client() -> Client:
    return Client(FakeBroker({A: [b""] * 5, B: [b""] * 5}))


def is_master(client: Client) -> bool:
    return asks_master(client, B)  # type: ignore[arg-type]


def test_a_broker_that_is_sent_to_is_a_master(client: Client) -> None:
    assert is_master(client)
    assert client._broker.calls == []
    client._broker.only_slaves.add("b")
    assert not is_master(client)


def test_a_slave_that_acts(client: Client) -> None:
    client._broker.acting.add("b")
    (route,) = client.known_routes()
    assert route.masters()["b"] == "b:1" and not is_master(client)
    client.routes = [route]  # of before: the master is back elsewhere
    client._broker.acting.clear()
    assert is_master(client)
    client.routes = [replace(route, addresses={**route.addresses, "b": {0: "slave:1"}})]
    assert not is_master(client)
    client.routes = [replace(route, write_queues=(A, B), order_conf="a:1;b:1")]
    client._broker.acting.add("b")
    assert not is_master(client)


def test_a_list_that_cannot_be_had_vouches_for_nobody(client: Client) -> None:
    client._broker.acting.add("b")
    client._broker.errors = [ConnectionFailed("no name server answers")]
    assert not is_master(client)


def test_what_holds_the_position_needs_no_proof(client: Client) -> None:
    client._broker.acting.add("b")
    bounds = {A: (0, 5), B: (0, 5)}
    assert said_by_masters(client, {A: 5, B: 5}, bounds) == {A, B}  # type: ignore[arg-type]
    assert said_by_masters(client, {A: 9}, bounds) == {A, B}  # type: ignore[arg-type]
    assert "cluster_info" not in {call[0] for call in client._broker.calls}
    assert said_by_masters(client, {A: 9, B: 6}, bounds) == {A}  # type: ignore[arg-type]
