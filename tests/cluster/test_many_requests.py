"""Many small requests at once, of brokers that are played: one that is away delays no other."""

import time
from typing import Any

from tests.cluster.played import PlayedBroker, PlayedNameServer, closed_address

from pymq.client import operations
from pymq.client.bulk_client import BulkClient
from pymq.errors import BrokerSystemError, ConnectionFailed, PymqError, RequestTimeout
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command

QUEUE = MessageQueue("T", "broker-a", 0)


def ends(client: BulkClient, *addresses: str) -> list[Any]:
    """Return the ends, or the kinds of errors, that addresses answer with."""
    asked = [(address, operations.max_offset(QUEUE)) for address in addresses]
    found = client.ask_many(asked, timeout_s=0.5)
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
        found = ends(client, c, a, d, b, c, a, d)
        away = [RequestTimeout, 3, ConnectionFailed]
        assert found == [*away, 5, *away]
        assert time.monotonic() - begun_s < 5
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
        found = ends(client, *[first.address, second.address] * 500)
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
