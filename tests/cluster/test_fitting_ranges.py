"""How far ranges of queues go within a number of bytes: what brokers say, and clients ask."""

import random
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.administration import admin_of
from tests.cluster.broker_peer import Peer, serve
from tests.cluster.played import PlayedBroker, PlayedNameServer, closed_address, route_to

from pymq.client.sockets import fitting_ranges
from pymq.client.sockets.bulk_client import BulkClient
from pymq.errors import (
    ConnectionFailed,
    RemoteProtocolError,
    RequestNotSupported,
    RequestTimeout,
    RouteNotFound,
)
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.codes import FITTING_RANGES, ResponseCode, request_name
from pymq.protocol.command import Command
from pymq.protocol.message import Message
from pymq.protocol.range_bodies import Fitting, FittingRanges, QueueRange, QueueRanges
from pymq.protocol.record_batch import read_columns
from pymq.testing import Cluster

QUEUES = [MessageQueue(topic, "broker-a", number) for topic in ("T", "U") for number in range(2)]
COUNT = 300


def fill(client: BulkClient, chance: random.Random) -> dict[MessageQueue, list[int]]:
    """Send messages of different sizes; return what those of each queue take in the log."""
    for topic in ("T", "U"):
        admin_of(client).topics.create(topic, queue_count=2)
    sizes: dict[MessageQueue, list[int]] = {queue: [] for queue in QUEUES}
    for queue in QUEUES:
        for _ in range(COUNT):
            body = b"x" * chance.choice([1, 10, 500, 20_000])
            client.send(Message(queue.topic, body), queue=queue)
        while len(sizes[queue]) < COUNT:
            some = client.pull(queue, len(sizes[queue]), bytes_max=1 << 20)
            sizes[queue] += read_columns(some.body).size.tolist()
    return sizes


def naive(sizes: list[int], first: int, end: int, bytes_max: int) -> Fitting:
    at, total = first, 0
    while at < min(end, len(sizes)) and (at == first or total + sizes[at] <= bytes_max):
        total += sizes[at]
        at += 1
    return Fitting(at, total)


@pytest.mark.parametrize("most", [1, fitting_ranges.RANGES_MAX])
def test_clients_are_told_what_fits(monkeypatch: pytest.MonkeyPatch, most: int, seed: int) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(fitting_ranges, "RANGES_MAX", most)  # of one request
    settings = {"queue_file_bytes": 2000}
    with (
        Cluster(store_settings=settings) as cluster,
        BulkClient(cluster.name_server, timeout_s=30.0) as client,
    ):
        sizes = fill(client, chance)
        for round_number in range(20):
            if round_number == 10:
                cluster.restart_broker()
            wanted: Mapping[MessageQueue, tuple[int, int, int]] = {
                queue: (
                    first := chance.randrange(COUNT),
                    chance.randrange(first, COUNT + 50),
                    chance.choice([0, 1000, chance.randrange(1 << 22)]),
                )
                for queue in chance.sample(QUEUES, chance.randrange(len(QUEUES) + 1))
            }
            answer = client.try_fitting(wanted)
            assert not answer.failed
            assert answer.found == {
                queue: naive(sizes[queue], *asked) for queue, asked in wanted.items()
            }
        unknown = {MessageQueue("T", "broker-a", 9): (3, 5, 100)}
        assert list(client.try_fitting(unknown).found.values()) == [Fitting(3, 0)]


def test_a_request_that_is_none(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await peer.send("T", b"x")
        for body in (b"", b"{}", b'{"topics":["T"],"packed":"AAAA"}'):
            answer = await peer.ask(FITTING_RANGES, body)
            assert answer.code == ResponseCode.SYSTEM_ERROR and answer.remark
        answer = await peer.ask(
            FITTING_RANGES, QueueRanges.of([QueueRange("T", 0, 0, 1, 0)]).encode()
        )
        (found,) = FittingRanges.decode(answer.body).ranges()
        assert found.end == 1 and found.size_bytes > 91

    serve(tmp_path, check)
    assert request_name(FITTING_RANGES) == "FITTING_RANGES"


def test_brokers_that_give_no_answer() -> None:
    """Each of them costs the others nothing."""

    def fits(request: Command) -> Command:
        ranges = QueueRanges.decode(request.body).ranges()
        found = FittingRanges.of([Fitting(one.end, 1) for one in ranges])
        return request.reply(0, body=found.encode())

    with (
        PlayedNameServer() as name_server,
        PlayedBroker() as pymq,
        PlayedBroker() as official,
        PlayedBroker() as silent,
        PlayedBroker() as wrong,
        BulkClient(name_server.address, timeout_s=3.0, read_deadline_s=0.01) as client,
    ):
        pymq.answer = fits
        official.answer = lambda request: request.reply(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "request type 479007 not supported"
        )
        silent.is_silent = True
        wrong.answer = lambda request: request.reply(0, body=FittingRanges.of([]).encode())
        addresses = {
            "pymq": pymq.address,
            "official": official.address,
            "silent": silent.address,
            "wrong": wrong.address,
            "closed": closed_address(),
        }
        name_server.routes = {name: route_to(at, 1, name) for name, at in addresses.items()}
        queues = {name: MessageQueue(name, name, 0) for name in [*addresses, "unknown"]}
        answer = client.try_fitting(dict.fromkeys(queues.values(), (0, 9, 100)))
        assert answer.found == {queues["pymq"]: Fitting(9, 1)}
        assert {name: type(error) for name, error in answer.failed.items()} == {
            "official": RequestNotSupported,
            "silent": RequestTimeout,
            "wrong": RemoteProtocolError,
            "closed": ConnectionFailed,
            "unknown": RouteNotFound,
        }
        assert len(official.requests) == 1
