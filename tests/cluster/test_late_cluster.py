"""Clients that start before their cluster: they wait as long as they may, and say what for."""

import asyncio
import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from tests.cluster.children import in_child
from tests.cluster.running import run

from pymq import (
    Admin,
    ClientClosed,
    ConfigurationError,
    ConnectionFailed,
    Consumer,
    Message,
    Network,
    Producer,
    PymqError,
    ReceivedMessage,
    TransactionStatus,
    blocking,
)
from pymq.errors import RouteNotFound
from pymq.testing import Cluster

LIMIT_S = 120.0
#: For answers that come at once, were the machine not busy.
TIMEOUT_S = 30.0


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2) as running:
        yield running


def wait_waiting(caplog: pytest.LogCaptureFixture) -> None:
    """Return when a client has found out that it has to wait."""
    end_s = time.monotonic() + LIMIT_S
    while "waiting for the cluster" not in caplog.text:
        assert time.monotonic() < end_s
        time.sleep(0.01)


def meanwhile(work: Callable[[], object], caplog: pytest.LogCaptureFixture) -> threading.Thread:
    """Do something in a thread, some time after a client has begun to wait."""

    def later() -> None:
        wait_waiting(caplog)
        time.sleep(0.5)
        work()

    thread = threading.Thread(target=later)
    thread.start()
    return thread


def test_everything_starts_before_the_cluster(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """First there is no name server, then one that knows nobody, then one broker, then both."""
    caplog.set_level(logging.INFO)
    network = Network(start_deadline_s=LIMIT_S)
    cluster.broker().stop()
    cluster.namesrv.kill()
    handled: list[bytes] = []

    async def produce() -> None:
        async with Producer(
            cluster.name_server,
            group="pg",
            network=network,
            check_transaction=lambda _: TransactionStatus.COMMIT,
            check_topics=["checked"],
        ) as producer:
            await producer.send(Message("T", b"1"))

    async def consume() -> None:
        async def handle(message: ReceivedMessage) -> None:
            handled.append(message.body)
            await consumer.close()

        consumer = Consumer(cluster.name_server, "g", from_where="earliest", network=network)
        async with consumer.subscribe("T"):
            await consumer.run(handle)

    async def create() -> None:
        async with Admin(cluster.name_server, timeout_s=TIMEOUT_S, network=network) as admin:
            masters = await admin.brokers.wait_registered(2, deadline_s=LIMIT_S)
            assert list(masters) == ["broker-a", "broker-b"]
            await admin.topics.create("checked")

    async def cluster_comes() -> None:
        await asyncio.sleep(0.5)
        await asyncio.to_thread(cluster.namesrv.start)
        await asyncio.sleep(0.5)
        await asyncio.to_thread(cluster.broker("broker-b").start)
        await asyncio.sleep(0.5)
        await asyncio.to_thread(cluster.broker("broker-a").start)

    async def test() -> None:
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(produce(), consume(), create(), cluster_comes())

    run(test())
    assert handled == [b"1"]
    assert f"waiting for the cluster, for up to {LIMIT_S:g} s: no name server of" in caplog.text
    assert "the cluster is there" in caplog.text


def test_blocking_clients_wait_too(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.namesrv.kill()
    with pytest.raises(ConnectionFailed, match="Is it running"):
        blocking.Producer(cluster.name_server).start()
    starting = meanwhile(cluster.namesrv.start, caplog)
    with blocking.Producer(
        cluster.name_server, network=Network(start_deadline_s=math.inf)
    ) as producer:
        producer.send(Message("T", b"1"))
    starting.join()
    assert [message.body for message in cluster.messages("T")] == [b"1"]


def test_the_deadline_ends_it(cluster: Cluster) -> None:
    cluster.broker().stop()
    network = Network(start_deadline_s=0.5)
    began_s = time.monotonic()
    with pytest.raises(RouteNotFound, match=r"no master broker is registered.*for it for 0\.5 s"):
        blocking.Consumer(cluster.name_server, "g", network=network).subscribe("T").start()
    with blocking.Admin(cluster.name_server) as admin:
        with pytest.raises(RouteNotFound, match="0 of 1 masters are registered: none"):
            admin.brokers.wait_registered(deadline_s=0)
        cluster.broker("broker-a").start()
        admin.brokers.wait_registered(deadline_s=LIMIT_S)
        with pytest.raises(RouteNotFound, match="1 of 2 masters are registered: broker-a"):
            admin.brokers.wait_registered(2, deadline_s=0.2)
    cluster.namesrv.kill()
    with pytest.raises(ConnectionFailed, match=r"waited for it for 0\.5 s"):
        blocking.Producer(cluster.name_server, network=network).start()
    assert 1 < time.monotonic() - began_s < LIMIT_S


def test_a_name_server_that_does_not_answer() -> None:
    """It takes connections, and no more."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = f"127.0.0.1:{silent.getsockname()[1]}"
        admin = blocking.Admin(server, timeout_s=1, network=Network(start_deadline_s=1.5))
        began_s = time.monotonic()
        with pytest.raises(ConnectionFailed, match="did not answer"):
            admin.start()
        assert 1.5 <= time.monotonic() - began_s < LIMIT_S


def test_a_client_that_is_closed_while_it_waits() -> None:
    async def test() -> None:
        for make in (Producer, lambda *a, **k: Consumer(*a, "g", **k).subscribe("T")):
            client = make("127.0.0.1:1", network=Network(start_deadline_s=LIMIT_S))
            starting = asyncio.create_task(client.start())
            await asyncio.sleep(0.2)
            await client.close()
            async with asyncio.timeout(LIMIT_S / 2):
                with pytest.raises(ClientClosed):
                    await starting

    run(test())


def test_a_blocking_client_that_is_closed_while_it_waits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    producer = blocking.Producer("127.0.0.1:1", network=Network(start_deadline_s=math.inf))
    closing = meanwhile(producer.close, caplog)
    with pytest.raises(ClientClosed, match="closed meanwhile"):
        producer.start()
    closing.join()


def test_a_fork_while_a_client_waits(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.namesrv.kill()
    network = Network(start_deadline_s=math.inf)
    producer = blocking.Producer(cluster.name_server, timeout_s=TIMEOUT_S, network=network)
    starting = threading.Thread(target=producer.start)
    starting.start()
    wait_waiting(caplog)

    def use() -> str:
        with producer:
            return producer.send(Message("T", b"child")).status

    coming = meanwhile(cluster.namesrv.start, caplog)
    assert in_child(use) == "SEND_OK"
    coming.join()
    starting.join()
    with producer:
        producer.send(Message("T", b"parent"))
    assert {message.body for message in cluster.messages("T")} == {b"child", b"parent"}


def test_a_start_that_is_cancelled_can_be_repeated(cluster: Cluster) -> None:
    async def test() -> None:
        cluster.namesrv.kill()
        producer = Producer(cluster.name_server, network=Network(start_deadline_s=LIMIT_S))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await producer.start()
        await asyncio.to_thread(cluster.namesrv.start)
        async with producer:
            await producer.send(Message("T", b"1"))

    run(test())


def test_two_tasks_that_start_one_client_both_wait(cluster: Cluster) -> None:
    async def test() -> None:
        producer = Producer(cluster.name_server, network=Network(start_deadline_s=LIMIT_S))

        async def use() -> None:
            await producer.start()
            await producer.send(Message("T", b"1"))

        cluster.namesrv.kill()
        both = asyncio.gather(use(), use())
        await asyncio.sleep(0.3)
        await asyncio.to_thread(cluster.namesrv.start)
        await both
        await producer.close()

    run(test())
    assert len(cluster.messages("T")) == 2


@pytest.mark.parametrize("wrong", [-1, "5", None, True, math.nan])
def test_a_wrong_deadline_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigurationError, match="start_deadline_s="):
        Network(start_deadline_s=wrong)  # type: ignore[arg-type]


def test_what_no_waiting_heals_is_said_at_once(cluster: Cluster) -> None:
    """A broker's address in place of a name server's."""
    address = cluster.broker("broker-a").address
    network = Network(start_deadline_s=LIMIT_S)
    began_s = time.monotonic()
    with pytest.raises(PymqError, match="is a broker"):
        blocking.Producer(address, network=network).start()
    assert time.monotonic() - began_s < LIMIT_S / 2
