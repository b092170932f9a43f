"""A consumer that pauses queues, and listeners that are told of queues that come and go."""

import asyncio
import logging
import threading
from typing import Any

import pytest
from tests.administration import admin_of
from tests.cluster.running import run
from tests.cluster.scenarios import (
    DEADLINE_S,
    TIMEOUT_S,
    numbers_of,
    receive,
    send_numbers,
    wait_until,
)

from pymq import blocking
from pymq.client.consuming.consumer import Consumer
from pymq.client.group.rebalance_listener import RebalanceListener
from pymq.client.sending.producer import Producer
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.errors import ClientClosed, ConfigurationError
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.message import Message, ReceivedMessage
from pymq.testing.cluster import Cluster

#: Long enough for a message to arrive that should not.
QUIET_S = 0.3


def member(cluster: Cluster, **options: Any) -> Consumer:
    settings: dict[str, Any] = {"from_where": "earliest", "timeout_s": TIMEOUT_S, **options}
    return Consumer(cluster.name_server, "g", **settings).subscribe("T")


def of_topic(consumer: Consumer, topic: str = "T") -> list[MessageQueue]:
    return [queue for queue in consumer.assignment if queue.topic == topic]


@pytest.mark.parametrize("orderly", [False, True])
def test_paused_queues_deliver_nothing_and_go_on_in_order(
    pymq_cluster: Cluster, orderly: bool
) -> None:
    got: list[bytes] = []

    async def handler(message: ReceivedMessage) -> None:
        got.append(message.body)

    async def test() -> None:
        async with (
            Producer(pymq_cluster.name_server, timeout_s=TIMEOUT_S) as producer,
            member(pymq_cluster, orderly=orderly) as consumer,
        ):
            await producer.send(Message("T", b"first"))
            running = asyncio.ensure_future(consumer.run(handler, concurrency=1))
            await wait_until(lambda: len(got) == 1 and len(of_topic(consumer)) == 4, "it reads")
            held, other = of_topic(consumer)[:2]
            consumer.pause([held])
            assert consumer.paused == [held]
            for number in range(3):
                await producer.send(Message("T", b"held-%d" % number), queue=held)
                await producer.send(Message("T", b"other-%d" % number), queue=other)
            await wait_until(lambda: len(got) == 4, "the other queue goes on")
            await asyncio.sleep(QUIET_S)
            assert got[1:] == [b"other-%d" % number for number in range(3)]
            consumer.resume([held])
            await wait_until(lambda: len(got) == 7, "the rest")
            assert got[4:] == [b"held-%d" % number for number in range(3)]
            consumer.pause()
            consumer.pause()
            assert consumer.paused == consumer.assignment
            await send_numbers(pymq_cluster.name_server, "T", range(8))
            await asyncio.sleep(QUIET_S)
            assert len(got) == 7
            consumer.resume()
            consumer.resume()
            await wait_until(lambda: len(got) == 15, "all")
            assert not consumer.paused
        await running

    run(test())


@pytest.mark.parametrize("orderly", [False, True])
def test_what_was_pulled_before_a_pause_waits(pymq_cluster: Cluster, orderly: bool) -> None:
    async def test() -> None:
        await send_numbers(pymq_cluster.name_server, "T", range(40))
        async with member(pymq_cluster, orderly=orderly) as consumer:
            await wait_until(lambda: consumer.backlog_count == 40, "all are pulled")
            consumer.pause()
            taking = asyncio.ensure_future(receive(consumer, 40))
            await asyncio.sleep(QUIET_S)
            assert not taking.done()
            consumer.resume()
            messages = await taking
        assert numbers_of(messages) == list(range(40))
        for queue_id in range(4):
            offsets = [m.queue_offset for m in messages if m.queue_id == queue_id]
            assert offsets == list(range(10))

    run(test())


def test_queues_to_come_are_paused_with_all(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        await send_numbers(pymq_cluster.name_server, "T", range(4))
        consumer = member(pymq_cluster)
        with pytest.raises(ClientClosed):
            consumer.pause()
        async with consumer:
            consumer.pause()
            await wait_until(lambda: len(of_topic(consumer)) == 4, "it has the queues")
            await asyncio.sleep(QUIET_S)
            assert (consumer.paused, consumer.backlog_count) == (consumer.assignment, 0)
            with pytest.raises(ConfigurationError, match="not a queue of this member.*assignment"):
                consumer.pause([MessageQueue("T", "nowhere", 0)])
            consumer.resume()
            assert numbers_of(await receive(consumer, 4)) == list(range(4))

    run(test())


def test_blocking(pymq_cluster: Cluster) -> None:
    with blocking.Producer(pymq_cluster.name_server) as producer:
        for number in range(8):
            producer.send(Message("T", b"%d" % number))
    consumer = blocking.Consumer(pymq_cluster.name_server, "g", from_where="earliest")
    with consumer.subscribe("T"):
        first = consumer.receive(timeout_s=DEADLINE_S)
        consumer.pause()
        while len(consumer.assignment) < 5:  # and retries
            threading.Event().wait(0.02)
        assert consumer.paused == consumer.assignment
        assert consumer.receive(timeout_s=QUIET_S) is None
        consumer.resume()
        rest = [consumer.receive(timeout_s=DEADLINE_S) for _ in range(7)]
    assert {int(message.body) for message in (first, *rest) if message} == set(range(8))


class Notes(RebalanceListener):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []

    def note(self, what: str, queues: list[MessageQueue]) -> None:
        assert {queue.topic for queue in queues} == {"T"}
        self.told.append((what, len(queues)))

    def count(self, what: str) -> int:
        return sum(count for told, count in self.told if told == what)


class Plain(Notes):
    def assigned(self, queues: list[MessageQueue]) -> None:
        self.note("assigned", queues)

    def revoked(self, queues: list[MessageQueue]) -> None:
        self.note("revoked", queues)

    def lost(self, queues: list[MessageQueue]) -> None:
        self.note("lost", queues)


class Async(Notes):
    async def assigned(self, queues: list[MessageQueue]) -> None:
        await asyncio.sleep(0)
        self.note("assigned", queues)

    async def revoked(self, queues: list[MessageQueue]) -> None:
        await asyncio.sleep(0)
        self.note("revoked", queues)


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("kind", [Plain, Async])
def test_a_listener_is_told_of_queues_that_come_and_go(
    pymq_cluster: Cluster, kind: type[Notes], orderly: bool
) -> None:
    async def test() -> None:
        await send_numbers(pymq_cluster.name_server, "T", range(4))

        one, other = kind(), kind()
        async with member(pymq_cluster, orderly=orderly, rebalance_listener=one) as first:
            await wait_until(lambda: one.count("assigned") == 4, "all are assigned")
            async with member(pymq_cluster, orderly=orderly, rebalance_listener=other):
                await wait_until(lambda: one.count("revoked") == 2, "half of them go")
                await wait_until(lambda: other.count("assigned") == 2, "to the other one")
                assert len(of_topic(first)) == 2
            assert other.count("revoked") == 2
            await wait_until(lambda: one.count("assigned") == 6, "and come back")
        assert (one.count("revoked"), one.count("lost")) == (6, 0)

    run(test())


def test_a_broker_that_leaves_the_route_takes_its_queues_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(cluster: Cluster) -> None:
        with BlockingClient(cluster.name_server, timeout_s=TIMEOUT_S) as client:
            admin_of(client).topics.create("T", queue_count=2)
        notes = Plain()
        async with member(cluster, rebalance_listener=notes) as consumer:
            readers = consumer._parts.held.readers
            await wait_until(lambda: notes.count("assigned") == 4, "two brokers' queues")
            # One whose beginning is not known when its broker goes is lost, and taken again.
            await wait_until(lambda: all(r.process_queue for r in readers.values()), "all begun")
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, cluster.stop_broker, "broker-b")
            await wait_until(lambda: notes.count("lost") == 2, "they are lost")
            await loop.run_in_executor(None, cluster.start_broker, "broker-b")
            await wait_until(lambda: notes.count("assigned") == 6, "they are back")

    with Cluster(brokers=2) as cluster:
        run(test(cluster))


def test_a_listener_that_fails_or_hangs_is_named(
    pymq_cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    unawaited: list[str],
) -> None:
    monkeypatch.setattr("pymq.client.group.rebalance_listener.SLOW_S", 0.05)

    class Bad(RebalanceListener):
        async def assigned(self, queues: list[MessageQueue]) -> None:
            await asyncio.sleep(0.2)
            raise ZeroDivisionError

    async def test() -> None:
        await send_numbers(pymq_cluster.name_server, "T", range(4))
        async with member(pymq_cluster, rebalance_listener=Bad()) as consumer:
            assert numbers_of(await receive(consumer, 4)) == list(range(4))

    run(test())
    assert caplog.text.count("Bad.assigned has taken more than 0.05 s for 4 queues") == 1
    assert caplog.text.count("Bad.assigned failed for 4 queues") == 1
    unawaited.clear()  # it logs the traceback of a bug that is the program's


def test_a_listener_of_the_blocking_face_may_block(
    pymq_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    threads: set[int] = set()
    done = threading.Event()

    class Blocking(RebalanceListener):
        def assigned(self, queues: list[MessageQueue]) -> None:
            threads.add(threading.get_ident())
            consumer.commit_nowait()
            assert len(consumer.assignment) >= len(queues)
            done.set()

    with blocking.Producer(pymq_cluster.name_server) as producer:
        producer.send(Message("T", b"0"))
    consumer = blocking.Consumer(
        pymq_cluster.name_server, "g", from_where="earliest", rebalance_listener=Blocking()
    ).subscribe("T")
    with consumer:
        message = consumer.receive(timeout_s=DEADLINE_S)
        assert message is not None
        assert done.wait(DEADLINE_S)
    assert threading.get_ident() not in threads
    assert "failed for" not in caplog.text
