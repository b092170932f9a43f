"""The pull consumer over loopback: scenarios, restarts of brokers, two brokers, wrong arguments."""

import asyncio
import logging
import random
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.administration import admin_of
from tests.cluster import pulling
from tests.cluster.pulling import EACH, fill, in_order, poll_count
from tests.cluster.running import run
from tests.cluster.scenarios import QUEUE_COUNT, TIMEOUT_S, wait_until
from tests.spark.two_brokers import TwoBrokers, numbers

from pymq import (
    BlockingClient,
    ClientClosed,
    CommitFailed,
    ConfigurationError,
    CorruptRecord,
    FlowLimits,
    Message,
    MessageQueue,
    PullConsumer,
    RequestTimeout,
    blocking,
)
from pymq.client.pulling import pull_consumer
from pymq.client.threaded.loop_thread import LoopThread
from pymq.testing.cluster import Cluster


@pytest.mark.parametrize("scenario", pulling.ALL, ids=lambda scenario: scenario.__name__)
def test_scenario(
    scenario: Callable[[str, str], Awaitable[None]], pymq_cluster: Cluster, topic: str
) -> None:
    run(scenario(pymq_cluster.name_server, topic))


def member(name_server: str, **more: Any) -> PullConsumer:
    return PullConsumer(name_server, "g", from_where="earliest", timeout_s=TIMEOUT_S, **more)


def test_a_restart_of_the_broker_is_survived(pymq_cluster: Cluster, topic: str) -> None:
    async def test() -> None:
        name_server = pymq_cluster.name_server
        queues = await fill(name_server, topic)
        consumer = member(name_server).assign(queues)
        async with consumer:
            got = await poll_count(consumer, 3)
            await asyncio.to_thread(pymq_cluster.restart_broker)
            await fill(name_server, topic, first=EACH)
            got += await poll_count(consumer, 2 * QUEUE_COUNT * EACH - len(got))
            in_order(got)
            await consumer.commit()
            assert await consumer.committed() == dict.fromkeys(queues, 2 * EACH)

    run(test())


def test_seeks_under_load_lose_and_repeat_nothing(pymq_cluster: Cluster, topic: str) -> None:
    async def test() -> None:
        name_server = pymq_cluster.name_server
        queues = await fill(name_server, topic)
        limits = FlowLimits(queue_messages_max=3, messages_max=8)  # pulls go on all the time
        consumer = member(name_server, limits=limits)
        chance = random.Random(seed := random.randrange(1 << 30))
        print(f"seed {seed}")
        async with consumer.assign(queues):
            expected = dict.fromkeys((queue.queue_id for queue in queues), 0)
            for _ in range(300):
                if chance.random() < 0.3:
                    queue = chance.choice(queues)
                    expected[queue.queue_id] = offset = chance.randrange(EACH + 1)
                    assert await consumer.seek(queue, offset) == offset
                for one in await consumer.poll(chance.randrange(1, 5), 0.002):
                    assert one.queue_offset == expected[one.queue_id]
                    expected[one.queue_id] += 1
            while sum(expected.values()) < QUEUE_COUNT * EACH:
                for one in await consumer.poll(5, 5):
                    assert one.queue_offset == expected[one.queue_id]
                    expected[one.queue_id] += 1
            assert await consumer.poll(1, 0.1) == []
            assert consumer._buffer.message_count == consumer._buffer.message_bytes == 0

    run(test())


def test_a_queue_that_was_made_again_is_told_once_and_read_from_its_beginning(
    pymq_cluster: Cluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        name_server = pymq_cluster.name_server
        queues = (await fill(name_server, topic))[:1]
        consumer = member(name_server).assign(queues)
        async with consumer:
            await poll_count(consumer, EACH)
            with BlockingClient(name_server) as client:
                admin = admin_of(client)
                admin.topics.delete(topic)
                admin.topics.create(topic, queue_count=QUEUE_COUNT)
                for n in range(3):
                    client.send(Message(topic, b"new-%d" % n), queues[0])
            got = await poll_count(consumer, 3)
            assert [one.body for one in got] == [b"new-0", b"new-1", b"new-2"]

    with caplog.at_level(logging.WARNING):
        run(test())
    told = [one for one in caplog.messages if "reading goes on at offset 0, instead of" in one]
    assert len(told) == 1, caplog.messages
    assert "deleted and created again" in told[0]


@pytest.fixture
def two_brokers(tmp_path: Path) -> "TwoBrokers":
    # Longer than a machine ever stands still: only a broker that is away is to be forgotten.
    return TwoBrokers(tmp_path, expiry_s=10)


async def commit(consumer: PullConsumer) -> None:
    """Commit what was polled, while one of the brokers may still be slow to answer."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await consumer.commit()
            except CommitFailed as failure:
                assert all(isinstance(e, RequestTimeout) for e in failure.failed.values())


@pytest.mark.parametrize("trouble", ["killed", "frozen"])
@pytest.mark.parametrize("way", ["assigned", "subscribed"])
def test_the_queues_of_the_other_broker_go_on(
    two_brokers: TwoBrokers, way: str, trouble: str
) -> None:
    async def test(bed: TwoBrokers) -> None:
        bed.create_topic("T")
        queues = bed.queues("T")
        consumer = PullConsumer(bed.name_server, "g", from_where="earliest", timeout_s=4)
        got: list[tuple[str, int, int, bytes]] = []

        async def poll() -> None:
            for one in await consumer.poll(50, 0.2):
                got.append((one.broker_name, one.queue_id, one.queue_offset, one.body))

        def count(name: str) -> int:
            return sum(one[0] == name for one in got)

        _ = consumer.assign(queues) if way == "assigned" else consumer.subscribe("T")
        async with consumer:
            with bed.load("T") as load:
                while count("broker-a") < 20 or count("broker-b") < 20:
                    await poll()
                if trouble == "killed":
                    await asyncio.to_thread(bed.kill, "broker-b")
                else:
                    bed.freeze("broker-b")
                before = count("broker-a")
                async with asyncio.timeout(60):
                    while count("broker-a") < before + 50:
                        await poll()
                if trouble == "killed":
                    await asyncio.to_thread(bed.start, "broker-b")
                else:
                    bed.thaw("broker-b")
                before = count("broker-b")
                async with asyncio.timeout(60):
                    while count("broker-b") < before + 50:
                        await poll()
                await asyncio.to_thread(load.wait_acknowledged, 20)
            stored = set(map(tuple, bed.stored("T")))
            async with asyncio.timeout(60):
                while len(set(got)) < len(stored):
                    await poll()
            await commit(consumer)
        assert set(got) == stored
        if way == "assigned":  # Otherwise what was not committed of the broker comes again.
            assert len(got) == len(set(got)), "a message came twice without a reason"
        assert set(map(tuple, bed.acknowledged("T"))) <= stored

    with two_brokers as bed:
        run(test(bed))


def test_closing_commits_although_a_broker_is_frozen(two_brokers: TwoBrokers) -> None:
    async def test(bed: TwoBrokers) -> None:
        bed.create_topic("T", queue_count=1)
        bed.send("T", numbers(20))
        # The other broker has to take the commit within this time.
        consumer = PullConsumer(bed.name_server, "g", from_where="earliest", timeout_s=4)
        queues = bed.queues("T")
        async with consumer.assign(queues):
            await poll_count(consumer, 20)
            bed.freeze("broker-b")
        bed.thaw("broker-b")
        with bed.client() as client:
            assert client.committed_offset("g", queues[0]) == 10

    with two_brokers as bed:
        run(test(bed))


def test_the_blocking_face(pymq_cluster: Cluster, topic: str) -> None:
    name_server = pymq_cluster.name_server
    run(_fill(name_server, topic))
    consumer = blocking.PullConsumer(
        name_server, "g", from_where="earliest", timeout_s=TIMEOUT_S
    ).subscribe(topic)
    with consumer:
        got = []
        for message in consumer:
            got.append(message)
            if len(got) == 5:
                break
        while len(got) < QUEUE_COUNT * EACH:
            got += consumer.poll(8, 1)
        in_order(got)
        one = consumer.assignment[0]
        assert consumer.position(one) == EACH == consumer.end_offsets([one])[one]
        assert consumer.seek(one, 2) == 2
        threads: list[bytes] = []
        thread = threading.Thread(
            target=lambda: threads.extend(one.body for one in consumer.poll(1, 30))
        )
        thread.start()
        thread.join()
        assert threads == [b"0-2"]
    with BlockingClient(name_server) as client:
        assert client.committed_offset("g", one) == 3
    with pytest.raises(ClientClosed):
        consumer.poll()


async def _fill(name_server: str, topic: str) -> None:
    await fill(name_server, topic)


def interrupted(consumer: blocking.PullConsumer, way: str) -> None:
    """Press Ctrl-C when messages were taken, in the last moment before they are returned."""

    def call(self: LoopThread, work: Any) -> None:
        self.begin(work).result()
        raise KeyboardInterrupt

    batches, loop = consumer.batches(), iter(consumer)
    ways: dict[str, Callable[[], object]] = {
        "poll": lambda: consumer.poll(3, 60),
        "batches": lambda: next(batches),
        "loop": lambda: next(loop),
    }
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(LoopThread, "call", call)
        with pytest.raises(KeyboardInterrupt):
            ways[way]()


def polled(consumer: blocking.PullConsumer, count: int) -> list[int]:
    """Poll until there are so many messages, and what comes beyond that."""
    got: list[int] = []
    while len(got) < count:
        assert (found := consumer.poll(7, 60)), f"{len(got)} of {count}"
        got += [one.queue_offset for one in found]
    return got + [one.queue_offset for one in consumer.poll(7, 0.2)]


@pytest.fixture
def queue(pymq_cluster: Cluster, topic: str) -> MessageQueue:
    """One that holds messages 0 up to EACH."""
    run(_fill(pymq_cluster.name_server, topic))
    return MessageQueue(topic, "broker-a", 0)


def alone(cluster: Cluster, queue: MessageQueue, **more: Any) -> blocking.PullConsumer:
    return blocking.PullConsumer(
        cluster.name_server, "g", from_where="earliest", timeout_s=TIMEOUT_S, **more
    ).assign([queue])


@pytest.mark.parametrize("way", ["poll", "batches", "loop"])
def test_what_ctrl_c_kept_from_a_poll_comes_with_the_next(
    pymq_cluster: Cluster, queue: MessageQueue, way: str
) -> None:
    with alone(pymq_cluster, queue) as consumer:
        assert [one.queue_offset for one in consumer.poll(2, 60)] == [0, 1]
        interrupted(consumer, way)
        assert consumer.position(queue) == 2
        assert polled(consumer, EACH - 2) == list(range(2, EACH))


@pytest.mark.parametrize("end", ["commit", "exit"])
@pytest.mark.parametrize("way", ["poll", "batches", "loop"])
def test_what_ctrl_c_kept_from_a_poll_is_not_committed(
    pymq_cluster: Cluster, queue: MessageQueue, way: str, end: str
) -> None:
    with alone(pymq_cluster, queue, auto_commit=end == "exit") as consumer:
        assert [one.queue_offset for one in consumer.poll(2, 60)] == [0, 1]
        interrupted(consumer, way)
        if end == "commit":
            consumer.commit()
    with BlockingClient(pymq_cluster.name_server) as client:
        assert client.committed_offset("g", queue) == 2


def test_a_seek_counts_although_ctrl_c_kept_messages_from_a_poll(
    pymq_cluster: Cluster, queue: MessageQueue
) -> None:
    with alone(pymq_cluster, queue) as consumer:
        interrupted(consumer, "poll")
        consumer.seek(queue, 6)
        assert polled(consumer, EACH - 6) == list(range(6, EACH))


def test_a_paused_queue_keeps_what_ctrl_c_kept_from_a_poll(
    pymq_cluster: Cluster, queue: MessageQueue
) -> None:
    with alone(pymq_cluster, queue) as consumer:
        interrupted(consumer, "poll")
        consumer.pause([queue])
        assert consumer.poll(1, 0.2) == []
        consumer.resume([queue])
        assert polled(consumer, EACH) == list(range(EACH))


def test_another_subscription_does_not_pass_over_what_ctrl_c_kept_from_a_poll(
    pymq_cluster: Cluster, queue: MessageQueue
) -> None:
    with alone(pymq_cluster, queue) as consumer:
        interrupted(consumer, "poll")
        consumer.assign([queue], "even")
        assert polled(consumer, EACH // 2) == list(range(0, EACH, 2))


def test_a_chunk_that_cannot_be_read_as_columns_is_not_passed_over(
    pymq_cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def corrupt(*_: object) -> None:
        raise CorruptRecord("played")

    async def test() -> None:
        queues = (await fill(pymq_cluster.name_server, topic))[:1]
        async with member(pymq_cluster.name_server).assign(queues) as consumer:
            with monkeypatch.context() as patched, pytest.raises(CorruptRecord):
                patched.setattr(pull_consumer, "column_batch", corrupt)
                await anext(consumer.batches())
            got = await poll_count(consumer, EACH)
            assert [one.queue_offset for one in got] == list(range(EACH))

    run(test())


def test_wrong_use_is_refused_with_a_reason(pymq_cluster: Cluster, topic: str) -> None:
    async def test() -> None:
        name_server = pymq_cluster.name_server
        with pytest.raises(ConfigurationError, match="subscribe.*assign"):
            await PullConsumer(name_server, "g").start()
        consumer = PullConsumer(name_server, "g").subscribe(topic)
        with pytest.raises(ConfigurationError, match="either subscribes"):
            consumer.assign([])
        with pytest.raises(ClientClosed):
            await consumer.poll()
        async with consumer:
            await wait_until(lambda: len(consumer.assignment) == QUEUE_COUNT, "its queues")
            for arguments in ((0,), (1, -1.0), (1, "x")):
                with pytest.raises(ConfigurationError, match="expected"):
                    await consumer.poll(*arguments)  # type: ignore[arg-type]
            with pytest.raises(ConfigurationError, match="expected an offset"):
                await consumer.seek(consumer.assignment[0], "end")
            with pytest.raises(ConfigurationError, match="offsets=.*expected a mapping"):
                await consumer.commit([consumer.assignment[0]])  # type: ignore[arg-type]
            with pytest.raises(ConfigurationError, match="several MessageQueue"):
                consumer.pause(consumer.assignment[0])  # type: ignore[arg-type]
            polling = asyncio.ensure_future(consumer.poll(1, None))
            await asyncio.sleep(0)
        assert await polling == []
        with pytest.raises(ClientClosed):
            await consumer.commit({MessageQueue(topic, "broker-a", 0): 1})

    run(test())
