"""Many small requests at once, to brokers that are played: one that is away fails no other."""

import time
from collections.abc import Iterable
from typing import Any

import pytest
from tests.cluster.played import (
    PlayedBroker,
    PlayedNameServer,
    closed_address,
    unreachable_address,
)

from pymq.client import operations
from pymq.client.cluster.routes import Route
from pymq.client.sockets.bulk_client import BulkClient
from pymq.errors import BrokerSystemError, ConnectionFailed, PymqError, RequestTimeout
from pymq.net.connecting import Peer, connect_sockets
from pymq.protocol.addresses import join_address
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command

QUEUE = MessageQueue("T", "broker-a", 0)
#: For answers that come at once, were the machine not busy; and where somebody is silent.
LIMIT_S, SILENT_S = 60.0, 3.0


def ends(client: BulkClient, *addresses: str, timeout_s: float = LIMIT_S) -> list[Any]:
    """Return the ends, or the kinds of errors, that addresses answer with."""
    asked = [(address, operations.max_offset(QUEUE)) for address in addresses]
    found = client.ask_many(asked, timeout_s=timeout_s)
    return [type(one) if isinstance(one, PymqError) else one for one in found]


def test_results_come_in_order_whoever_is_away() -> None:
    with (
        PlayedNameServer() as name_server,
        PlayedBroker(end=3) as first,
        PlayedBroker(end=5) as second,
        PlayedBroker() as silent,
        BulkClient(name_server.address) as client,
    ):
        silent.is_silent = True
        a, b, c, d = first.address, second.address, silent.address, closed_address()
        begun_s = time.monotonic()
        found = ends(client, c, a, d, b, c, a, d, timeout_s=SILENT_S)
        away = [RequestTimeout, 3, ConnectionFailed]
        assert found == [*away, 5, *away]
        assert time.monotonic() - begun_s < LIMIT_S
        silent.is_silent = False
        assert ends(client, c, a) == [7, 3]
        assert ends(client) == []


def test_more_than_are_in_flight_together() -> None:
    with (
        PlayedNameServer() as name_server,
        PlayedBroker(end=3) as first,
        PlayedBroker(end=5) as second,
        BulkClient(name_server.address) as client,
    ):
        assert ends(client, *[first.address, second.address] * 500) == [3, 5] * 500
        first.stop()
        second.is_silent = True
        found = ends(client, *[first.address, second.address] * 500, timeout_s=SILENT_S)
        assert found == [ConnectionFailed, RequestTimeout] * 500
        # Nothing more was asked of who is silent.
        asked = [one for one in second.requests if one.code == RequestCode.GET_MAX_OFFSET]
        assert len(asked) <= 500 + 128


def test_a_refusal_is_of_one_request() -> None:
    with (
        PlayedNameServer() as name_server,
        PlayedBroker() as broker,
        BulkClient(name_server.address) as client,
    ):
        answer = broker.answer

        def refuse_the_second(request: Command) -> Command | None:
            return request.reply(1, "no") if len(broker.requests) == 2 else answer(request)

        broker.answer = refuse_the_second
        assert ends(client, *[broker.address] * 3) == [7, BrokerSystemError, 7]


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("timeout_s", [None, 2.0])
def test_a_host_that_takes_no_connection_fails_no_other(
    is_first: bool, timeout_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its broker lost power, or a firewall drops what is sent to it."""
    waits: list[tuple[set[str], float]] = []

    def connect(peers: Iterable[Peer], *, timeout_s: float) -> Any:
        waits.append(({join_address(*peer) for peer in peers}, timeout_s))
        return connect_sockets(peers, timeout_s=timeout_s)

    monkeypatch.setattr("pymq.net.blocking.connect_sockets", connect)
    with (
        unreachable_address() as lost,
        unreachable_address() as also_lost,
        PlayedBroker(end=5) as broker,
    ):
        addresses = {"broker-l": lost, "broker-m": also_lost, "broker-n": broker.address}
        queues = [MessageQueue("T", name, 0) for name in addresses]
        if not is_first:
            queues.reverse()
        route = Route("T", (), tuple(queues), {name: {0: at} for name, at in addresses.items()})
        own_s, waited_s = (2.0, 2.0) if timeout_s is None else (LIMIT_S, timeout_s)
        for ask in ("bounds", "ends"):
            waits.clear()
            with BulkClient("127.0.0.1:1", timeout_s=own_s, routes=[route]) as client:
                begun_s = time.monotonic()
                if ask == "bounds":
                    answer = client.try_bounds(queues, timeout_s=timeout_s)
                    assert answer.found == {MessageQueue("T", "broker-n", 0): (0, 5)}
                    assert set(answer.failed) == {"broker-l", "broker-m"}
                    errors: list[Any] = list(answer.failed.values())
                else:
                    asked = [
                        (addresses[queue.broker_name], operations.max_offset(queue))
                        for queue in queues
                    ]
                    found = client.ask_many(asked, timeout_s=timeout_s)
                    assert found.pop(-1 if is_first else 0) == 5
                    errors = list(found)
                # Both are waited for together, and no longer than an answer would be.
                assert waits == [({*addresses.values()}, waited_s)]
                assert time.monotonic() - begun_s < LIMIT_S
                for error in errors:
                    assert isinstance(error, ConnectionFailed)
                    assert f"no answer within {waited_s:g} s" in str(error)


def test_a_connection_is_waited_for_no_longer_than_an_answer() -> None:
    with unreachable_address() as lost, BulkClient(lost, timeout_s=0.2) as client:
        begun_s = time.monotonic()
        with pytest.raises(ConnectionFailed, match=r"no answer within 0\.2 s"):
            client.topic_names()
        assert time.monotonic() - begun_s < LIMIT_S
