"""Messages handled in order: by one member, by several that come and go, around failures."""

import asyncio
import contextlib
import functools
import logging
import random
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from tests.administration import admin_of
from tests.cluster.in_order import KEYS, OrderLog, send_keys
from tests.cluster.running import ask, run
from tests.cluster.scenarios import (
    DEADLINE_S,
    QUEUE_COUNT,
    TIMEOUT_S,
    create_topic,
    wait_until,
)
from tests.handling import handle_until

from pymq import blocking
from pymq.client import operations
from pymq.client.consuming.consumer import Consumer
from pymq.client.group.rebalance_listener import RebalanceListener
from pymq.client.sending.producer import Producer
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.message import Message, ReceivedMessage
from pymq.testing.cluster import Cluster

COUNT = 30


Handler = Callable[[ReceivedMessage], object]


@pytest.fixture
def two_brokers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr("pymq.client.group.rebalance.REBALANCE_SOON_S", 0.2)
    with Cluster(brokers=2) as running:
        # Where a topic comes to one broker later than to the other, keys change their queues.
        create_topic(running.name_server)
        yield running


@pytest.fixture
def log() -> OrderLog:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    return OrderLog(random.Random(seed))


def member(cluster: Cluster, **options: object) -> Consumer:
    settings: dict[str, Any] = {"from_where": "earliest", "timeout_s": TIMEOUT_S, **options}
    return Consumer(cluster.name_server, "g", orderly=True, **settings).subscribe("T")


def producer_of(cluster: Cluster) -> Producer:
    """To a certain queue nothing is sent again that may have been stored."""
    return Producer(cluster.name_server, deadline_s=DEADLINE_S, timeout_s=TIMEOUT_S)


def queues_of(consumer: Consumer) -> set[MessageQueue]:
    return {queue for queue in consumer.assignment if queue.topic == "T"}


def spawn(
    log: OrderLog, consumer: Consumer, name: str, *, in_threads: bool = False
) -> asyncio.Task[None]:
    handle = log.handle_in_thread if in_threads else log.handle
    return asyncio.ensure_future(consumer.run(functools.partial(handle, name)))


def plain(handler: Callable[[ReceivedMessage], Coroutine[Any, Any, None]]) -> Handler:
    """Return a handler that runs in threads and does the same, which must not wait."""

    def call(message: ReceivedMessage) -> None:
        with contextlib.suppress(StopIteration):
            handler(message).send(None)

    return call


def same(handler: Handler) -> Handler:
    return handler


in_both_ways = pytest.mark.parametrize("way", [same, plain])


def test_a_key_is_handled_in_order_by_many_handlers(pymq_cluster: Cluster, log: OrderLog) -> None:
    async def test() -> None:
        async with producer_of(pymq_cluster) as producer, member(pymq_cluster) as one:
            running = spawn(log, one, "one")
            await send_keys(producer, "T", range(COUNT))
            await wait_until(lambda: log.has_all(COUNT), "all of them")
            await wait_until(lambda: not one.backlog_count, "all are finished")
        await running

    run(test())
    assert (log.wrong, log.again_count) == ([], 0)


@in_both_ways
def test_a_failure_holds_its_queue_back_and_is_tried_again_in_place(
    pymq_cluster: Cluster, caplog: pytest.LogCaptureFixture, way: Callable[[Any], Handler]
) -> None:
    seen: list[tuple[bytes, int]] = []

    async def handler(message: ReceivedMessage) -> None:
        seen.append((message.body, message.reconsume_times))
        if message.body == b"1" and message.reconsume_times < 3:
            raise ZeroDivisionError

    async def test() -> None:
        async with producer_of(pymq_cluster) as producer:
            for number in range(4):
                await producer.send(Message("T", b"%d" % number), sharding_key="k")
            queues = await producer.queues("T")
            held = (await producer.send(Message("T", b"4"), sharding_key="k")).queue
            other = next(queue for queue in queues if queue != held)
            async with member(pymq_cluster, suspend_s=0.05) as one:
                running = asyncio.ensure_future(one.run(way(handler)))
                await wait_until(lambda: (b"1", 0) in seen, "it fails")
                await producer.send(Message("T", b"other"), queue=other)
                await wait_until(lambda: (b"4", 0) in seen and (b"other", 0) in seen, "the others")
                await wait_until(lambda: not one.backlog_count, "all are finished")
            await running

    run(test())
    seen.remove((b"other", 0))
    tries = [(b"1", times) for times in range(4)]
    assert seen == [(b"0", 0), *tries, (b"2", 0), (b"3", 0), (b"4", 0)]
    said = [r.getMessage() for r in caplog.records if "the handler failed" in r.getMessage()]
    assert len(said) == 2, "the first and the second time, then after 4, 8, ..."
    assert "its queue waits for it and tries again in 0.05 s" in said[0]


def test_what_was_tried_too_often_becomes_a_dead_letter(
    pymq_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[bytes] = []

    async def handler(message: ReceivedMessage) -> None:
        seen.append(message.body)
        if message.body == b"bad":
            raise ZeroDivisionError

    async def test() -> None:
        async with producer_of(pymq_cluster) as producer:
            for body in (b"a", b"bad", b"z"):
                await producer.send(Message("T", body), sharding_key="k")
        async with member(pymq_cluster, suspend_s=0.02, max_reconsume_times=2) as one:
            running = asyncio.ensure_future(one.run(handler))
            await wait_until(lambda: b"z" in seen, "the queue goes on")
            await wait_until(lambda: not one.backlog_count, "all are finished")
        await running
        dead = Consumer(pymq_cluster.name_server, "reader", from_where="earliest")
        async with dead.subscribe("%DLQ%g"), asyncio.timeout(DEADLINE_S):
            message = await anext(aiter(dead))
            assert (message.body, message.properties["RETRY_TOPIC"]) == (b"bad", "T")
            assert "its handler failed 3 times, last with Zero" in message.properties["DLQ_REASON"]

    run(test())
    assert seen == [b"a", b"bad", b"bad", b"bad", b"z"]
    assert "it was tried 3 times and becomes a dead letter (%DLQ%g)" in caplog.text


@in_both_ways
def test_outcomes_by_name_keep_the_order(
    pymq_cluster: Cluster, way: Callable[[Any], Handler]
) -> None:
    seen: list[tuple[bytes, int]] = []

    async def handler(message: ReceivedMessage) -> None:
        seen.append((message.body, message.reconsume_times))
        if message.body == b"again" and not message.reconsume_times:
            message.retry(after_s=1)
        elif message.body == b"bad":
            message.reject("it is bad")
        elif message.body == b"acked":
            message.ack()
            raise ZeroDivisionError

    async def test() -> None:
        async with producer_of(pymq_cluster) as producer:
            for body in (b"again", b"bad", b"acked", b"z"):
                await producer.send(Message("T", body), sharding_key="k")
        async with member(pymq_cluster) as one:
            running = asyncio.ensure_future(one.run(way(handler)))
            await wait_until(lambda: (b"z", 0) in seen, "the queue goes on")
            await wait_until(lambda: not one.backlog_count, "all are finished")
        await running
        dead = Consumer(pymq_cluster.name_server, "reader", from_where="earliest")
        async with dead.subscribe("%DLQ%g"), asyncio.timeout(DEADLINE_S):
            message = await anext(aiter(dead))
            assert (message.body, message.properties["DLQ_REASON"]) == (b"bad", "it is bad")

    run(test())
    assert seen == [(b"again", 0), (b"again", 1), (b"bad", 0), (b"acked", 0), (b"z", 0)]


def test_a_handler_that_takes_long_is_named_and_keeps_its_message(
    pymq_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        got: list[bytes] = []
        is_free = asyncio.Event()

        async def slow(message: ReceivedMessage) -> None:
            got.append(message.body)
            await is_free.wait()

        async with producer_of(pymq_cluster) as producer:
            for body in (b"a", b"b"):
                await producer.send(Message("T", body), sharding_key="k")
        async with member(pymq_cluster, consume_timeout_s=0.2) as one:
            running = asyncio.ensure_future(one.run(slow))
            await wait_until(lambda: "its queue stands still until it is done" in caplog.text, "")
            await asyncio.sleep(0.1)
            assert got == [b"a"]
            is_free.set()
            await wait_until(lambda: got == [b"a", b"b"], "the next one")
        await running

    run(test())
    assert caplog.text.count("its queue stands still until it is done") == 1


@pytest.mark.parametrize("in_threads", [False, True])
def test_members_come_and_go_and_nothing_is_handled_twice(
    two_brokers: Cluster, log: OrderLog, in_threads: bool
) -> None:
    async def test() -> None:
        count = 0
        has_left = False

        async def send() -> None:
            """Send for as long as members come and go."""
            nonlocal count
            while count < 3 * COUNT or not has_left:
                await send_keys(producer, "T", [count])
                count += 1

        async with producer_of(two_brokers) as producer:
            sending = asyncio.ensure_future(send())
            members: list[Consumer] = []
            running: list[asyncio.Task[None]] = []
            for number in range(3):
                await wait_until(lambda n=number: log.has_all(n * COUNT // 2), "some")  # type: ignore[misc]
                members.append(await member(two_brokers).start())
                name = f"member {number}"
                running.append(spawn(log, members[-1], name, in_threads=in_threads))
            await wait_until(lambda: len(log.members) == 3, "all take part")
            await members[0].close()
            has_left = True
            await sending
            await wait_until(lambda: log.has_all(count), "all of them")
            await wait_until(lambda: not any(m.backlog_count for m in members[1:]), "finished")
            for one in members[1:]:
                await one.close()
            await asyncio.gather(*running)

    run(test())
    assert (log.wrong, log.again_count) == ([], 0)


def test_a_broker_is_killed_and_comes_back_while_in_order(
    two_brokers: Cluster, log: OrderLog
) -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        async with (
            producer_of(two_brokers) as producer,
            member(two_brokers) as one,
            member(two_brokers) as other,
        ):
            running = [spawn(log, one, "one"), spawn(log, other, "other")]
            await wait_until(
                lambda: len(queues_of(one)) == len(queues_of(other)) == QUEUE_COUNT,
                "both have queues",
            )
            await send_keys(producer, "T", range(COUNT))
            await wait_until(lambda: len(log.members) == 2, "both take part")
            await loop.run_in_executor(None, two_brokers.kill_broker, two_brokers.broker_name)
            await loop.run_in_executor(None, two_brokers.start_broker, two_brokers.broker_name)
            # While it was away, keys went to the other one: in order only behind what was before.
            await wait_until(lambda: log.has_all(COUNT), "what was sent before")
            while len(await producer.queues("T")) < 2 * QUEUE_COUNT:
                await asyncio.sleep(0.02)
            await send_keys(producer, "T", range(COUNT, 2 * COUNT))
            await wait_until(lambda: log.has_all(2 * COUNT), "all of them")
        await asyncio.gather(*running)

    run(test())
    assert log.wrong == []
    print(log.again_count, "handled again")


def test_a_queue_is_given_up_when_its_handler_is_done(
    pymq_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pymq.client.group.leaving_queue.LEAVING_S", 0.1)
    monkeypatch.setattr("pymq.client.group.rebalance.REBALANCE_SOON_S", 0.1)
    got: list[tuple[str, bytes]] = []

    async def test() -> None:
        is_free = asyncio.Event()

        async def slow(message: ReceivedMessage) -> None:
            got.append(("one", message.body))
            await is_free.wait()

        async def quick(message: ReceivedMessage) -> None:
            got.append(("other", message.body))

        async with producer_of(pymq_cluster) as producer:
            await producer.send(Message("T", b"-"))
            queues = await producer.queues("T")
            async with member(pymq_cluster) as one:
                running = [asyncio.ensure_future(one.run(slow))]
                await wait_until(lambda: len(got) == 1, "the first one")
                for queue in queues:
                    for body in (b"first", b"second"):
                        await producer.send(Message("T", body), queue=queue)
                await wait_until(lambda: len(got) == 4, "one of each queue is at work")
                async with member(pymq_cluster) as other:
                    running.append(asyncio.ensure_future(other.run(quick)))
                    await wait_until(lambda: "it keeps the queue" in caplog.text, "it says so")
                    assert not queues_of(other)
                    assert len(got) == 4
                    is_free.set()
                    await wait_until(lambda: len(got) == 9, "the rest")
                    assert len(queues_of(other)) == 2
        await asyncio.gather(*running)

    run(test())
    assert [who for who, body in got].count("other") >= 2


class Told(RebalanceListener):
    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []

    def assigned(self, queues: list[MessageQueue]) -> None:
        self.told.append(("assigned", len(queues)))

    async def revoked(self, queues: list[MessageQueue]) -> None:
        self.told.append(("revoked", len(queues)))

    async def lost(self, queues: list[MessageQueue]) -> None:
        self.told.append(("lost", len(queues)))


def test_a_lock_that_another_member_has_taken_is_lost(
    pymq_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pymq.client.group.queue_locks.RENEW_S", 0.1)
    monkeypatch.setattr("pymq.client.group.rebalance.REBALANCE_SOON_S", 0.1)

    async def test() -> None:
        with BlockingClient(pymq_cluster.name_server, timeout_s=TIMEOUT_S) as client:
            admin_of(client).topics.create("T", queue_count=1)
            (queue,) = client.write_queues("T")
        address = pymq_cluster.broker_address
        told = Told()
        async with member(pymq_cluster, rebalance_listener=told) as one:
            await wait_until(lambda: queue in one.assignment, "it has the queue")
            # As a broker that forgets its locks and has given this one to another member.
            await ask(address, operations.unlock_queues("g", one.client_id, [queue]))
            lock = operations.lock_queues("g", "other", [queue])
            while queue not in await ask(address, lock):  # renewed in between
                await ask(address, operations.unlock_queues("g", one.client_id, [queue]))
            await wait_until(lambda: ("lost", 1) in told.told, "it notices")
            assert queue not in one.assignment
            await ask(address, operations.unlock_queues("g", "other", [queue]))
            await wait_until(lambda: queue in one.assignment, "it has the queue again")
        assert told.told == [("assigned", 1), ("lost", 1), ("assigned", 1), ("revoked", 1)]
        # It was unlocked at the end, so another one needs not wait for a minute.
        assert await ask(address, operations.lock_queues("g", "other", [queue])) == [queue]

    run(test())
    assert "has lost its lock, because the broker has given the queue to another one" in caplog.text


def test_batches_are_of_one_queue_and_in_order(pymq_cluster: Cluster, log: OrderLog) -> None:
    sizes: list[int] = []

    async def handler(messages: list[ReceivedMessage]) -> None:
        sizes.append(len(messages))
        assert len({message.queue_id for message in messages}) == 1
        for message in messages:
            log.begin("one", message)
            log.end(message)
        await asyncio.sleep(0.01)

    async def test() -> None:
        async with producer_of(pymq_cluster) as producer:
            await send_keys(producer, "T", range(COUNT))
        async with member(pymq_cluster) as one:
            running = asyncio.ensure_future(one.run(handler, batch_size=8))
            await wait_until(lambda: log.has_all(COUNT), "all of them")
            await wait_until(lambda: not one.backlog_count, "all are finished")
        await running

    run(test())
    assert (log.wrong, log.again_count, max(sizes)) == ([], 0, 8)


def test_loops_of_several_tasks_keep_the_order(pymq_cluster: Cluster, log: OrderLog) -> None:
    async def test() -> None:
        async def loop(name: str) -> None:
            async for message in one:
                await log.handle(name, message)

        async with producer_of(pymq_cluster) as producer, member(pymq_cluster) as one:
            loops = [asyncio.ensure_future(loop(f"loop {n}")) for n in range(6)]
            await send_keys(producer, "T", range(COUNT))
            await wait_until(lambda: log.has_all(COUNT), "all of them")
        await asyncio.gather(*loops)

    run(test())
    assert (log.wrong, log.again_count) == ([], 0)
    assert len(log.members) > 1


def test_threads_keep_the_order(pymq_cluster: Cluster, log: OrderLog) -> None:
    lock = threading.Lock()
    done = threading.Event()

    def work(name: str) -> None:
        for message in consumer.messages():
            with lock:
                log.begin(name, message)
            done.wait(0.001)
            with lock:
                log.end(message)
                if log.has_all(COUNT):
                    done.set()

    with blocking.Producer(pymq_cluster.name_server, timeout_s=TIMEOUT_S) as producer:
        for number in range(COUNT):
            for key in KEYS:
                body = b"%s %d" % (key.encode(), number)
                producer.send(Message("T", body), sharding_key=key)
    consumer = blocking.Consumer(
        pymq_cluster.name_server, "g", orderly=True, from_where="earliest"
    ).subscribe("T")
    with consumer:
        threads = [threading.Thread(target=work, args=(f"thread {n}",), daemon=True) for n in "abc"]
        for thread in threads:
            thread.start()
        assert done.wait(DEADLINE_S)
    for thread in threads:
        thread.join(DEADLINE_S)
    assert (log.wrong, log.again_count) == ([], 0)


def test_what_waits_for_a_thread_does_not_keep_its_queue(pymq_cluster: Cluster) -> None:
    options = {"orderly": True, "from_where": "earliest"}
    with blocking.Producer(pymq_cluster.name_server, timeout_s=TIMEOUT_S) as producer:
        queues = producer.queues("T")
        for number in range(12):
            producer.send(Message("T", b"%d" % number), queue=queues[number % len(queues)])
    one = blocking.Consumer(pymq_cluster.name_server, "g", **options).subscribe("T")  # type: ignore[arg-type]
    other = blocking.Consumer(pymq_cluster.name_server, "g", **options).subscribe("T")  # type: ignore[arg-type]
    with one:
        first = one.receive(timeout_s=DEADLINE_S)
        assert first is not None
        # It holds one message, and at most one of each other queue waits for a thread.
        with other:
            others = [other.receive(timeout_s=DEADLINE_S) for _ in range(3)]
            assert all(message is not None for message in others)


@pytest.mark.parametrize("batch_size", [None, 4])
def test_blocking_runs_keep_the_order(
    pymq_cluster: Cluster, log: OrderLog, batch_size: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    failed: set[bytes] = set()
    sizes: set[int] = set()

    def one_message(message: ReceivedMessage) -> None:
        if OrderLog.parts(message)[1] == 7 and message.body not in failed:
            failed.add(message.body)
            raise ZeroDivisionError
        log.begin("run", message)
        log.end(message)

    def several(messages: list[ReceivedMessage]) -> None:
        sizes.add(len(messages))
        assert len({message.queue_id for message in messages}) == 1
        for message in messages:
            log.begin("run", message)
            log.end(message)

    with blocking.Producer(pymq_cluster.name_server, timeout_s=TIMEOUT_S) as producer:
        for number in range(COUNT):
            for key in KEYS:
                body = b"%s %d" % (key.encode(), number)
                producer.send(Message("T", body), sharding_key=key)
    consumer = blocking.Consumer(
        pymq_cluster.name_server, "g", orderly=True, suspend_s=0.05, from_where="earliest"
    ).subscribe("T")
    with consumer:
        if batch_size is None:
            handle_until(consumer, one_message, lambda: log.has_all(COUNT))
        else:
            handle_until(consumer, several, lambda: log.has_all(COUNT), batch_size=batch_size)
    assert (log.wrong, log.again_count) == ([], 0)
    assert log.has_all(COUNT)
    assert batch_size is None or batch_size in sizes
