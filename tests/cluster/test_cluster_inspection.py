"""What ``pymq.testing.Cluster`` tells a test, in threads and in coroutines."""

import asyncio
import threading
from collections.abc import Callable

import pytest
from tests.cluster.running import run
from tests.cluster.scenarios import create_topic
from tests.handling import handle_until

from pymq import Consumer, Message, Producer, ReceivedMessage, blocking
from pymq.errors import ClientClosed
from pymq.testing import Cluster, wait_until, wait_until_async

DEADLINE_S = 120.0


def test_messages_topics_and_lag() -> None:
    with Cluster(brokers=2) as cluster, blocking.Producer(cluster.name_server) as producer:
        assert (cluster.topics(), cluster.messages("T"), cluster.lag("g")) == ([], [], None)
        create_topic(cluster.name_server)
        sent = [
            producer.send(Message("T", b"%d" % number, tags="a", keys=f"k{number}"))
            for number in range(20)
        ]
        found = cluster.messages("T")
        assert cluster.topics() == ["T"]
        assert {one.broker_name for one in found} == {"broker-a", "broker-b"}
        assert sorted(one.message_id for one in found) == sorted(one.message_id for one in sent)
        times_ms = [one.store_timestamp_ms for one in found]
        assert times_ms == sorted(times_ms)
        for name in cluster.broker_names:
            ours = [int(one.body) for one in found if one.broker_name == name]
            assert ours == sorted(ours)
        assert (found[0].tags, found[0].topic) == ("a", "T")

        consumer = blocking.Consumer(cluster.name_server, "g", from_where="earliest")
        with consumer.subscribe("T"):
            seen: list[ReceivedMessage] = []
            handle_until(consumer, seen.append, lambda: len(seen) == 20)
        assert len(seen) == 20
        assert (cluster.lag("g"), cluster.lag("g", "T"), cluster.lag("other")) == (0, 0, None)
        producer.send(Message("T", b"one more"))
        assert (cluster.lag("g"), cluster.lag("g", "T")) == (1, 1)


def test_dead_letters_of_two_brokers() -> None:
    """In an order of their own, and under the topic that the group has read."""
    settings = {"delay_levels_ms": (20,) * 18}
    with (
        Cluster(brokers=2, store_settings=settings) as cluster,
        blocking.Producer(cluster.name_server) as producer,
    ):
        assert cluster.dead_letters("g") == []
        create_topic(cluster.name_server)
        for number in range(8):
            producer.send(Message("T", b"%d" % number, keys=["a", f"k{number}"]))

        def handle(message: ReceivedMessage) -> None:
            if int(message.body) % 2:
                raise ValueError("never")
            message.reject("unreadable")

        consumer = blocking.Consumer(
            cluster.name_server, "g", from_where="earliest", max_reconsume_times=1
        )
        with consumer.subscribe("T"):
            handle_until(consumer, handle, lambda: len(cluster.dead_letters("g")) == 8)
        dead = cluster.dead_letters("g")
        assert sorted(one.body for one in dead) == [b"%d" % number for number in range(8)]
        assert {one.topic for one in dead} == {"T"} and cluster.topics() == ["T"]
        assert {one.broker_name for one in dead} == {"broker-a", "broker-b"}
        reasons = [one.properties.get("DLQ_REASON") for one in dead]
        assert reasons.count("unreadable") == 4 and reasons.count(None) == 4
        assert cluster.dead_letters("other") == []
        # Sent again as it was: what was received has its keys as a list.
        (first, *_) = dead
        again = Message(first.topic, first.body, tags=first.tags, keys=first.keys)
        producer.send(again)
        assert cluster.messages("T")[-1].keys == first.keys == ["a", f"k{first.body.decode()}"]
        cluster.broker("broker-b").kill()
        with pytest.raises(ClientClosed, match="broker-b: stopped"):
            cluster.dead_letters("g")


def test_the_messages_of_a_broker_that_is_down_are_no_silent_gap() -> None:
    with Cluster() as cluster, blocking.Producer(cluster.name_server) as producer:
        producer.send(Message("T", b"x"))
        cluster.broker().kill()
        asking: list[Callable[[], object]] = [
            cluster.topics,
            lambda: cluster.messages("T"),
            lambda: cluster.lag("g"),
        ]
        for ask in asking:
            with pytest.raises(ClientClosed, match="broker-a: stopped"):
                ask()
        cluster.broker().start()
        assert [one.body for one in cluster.messages("T")] == [b"x"]


def test_a_name_server_that_was_restarted_does_not_have_messages_vanish() -> None:
    """It knows no topics until brokers have registered again, which takes them some seconds."""
    with Cluster() as cluster, blocking.Producer(cluster.name_server) as producer:
        producer.send(Message("T", b"x"))
        cluster.namesrv.restart()
        assert [one.body for one in cluster.messages("T")] == [b"x"]
        assert cluster.topics() == ["T"]
        assert cluster.lag("g") is None


def test_async_with_leaves_the_loop_running() -> None:
    async def main() -> None:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0.005)

        counting = asyncio.ensure_future(count())
        async with Cluster() as cluster:
            assert turns > 1, "the loop stood still while the cluster started"
            consumer = Consumer(cluster.name_server, "g", from_where="earliest")
            consumer.subscribe("T")
            async with Producer(cluster.name_server) as producer, consumer:
                await producer.send(Message("T", b"x"))
                seen: list[bytes] = []

                async def handle(message: ReceivedMessage) -> None:
                    seen.append(message.body)

                running = asyncio.ensure_future(consumer.run(handle))
                assert await wait_until_async(lambda: seen, timeout_s=DEADLINE_S) == [b"x"]
                await wait_until_async(lambda: cluster.lag("g") == 0, timeout_s=DEADLINE_S)
                running.cancel()
            store = cluster.store
        assert not store.exists()
        with pytest.raises(ClientClosed, match="not started"):
            cluster.broker().restart()
        counting.cancel()

    run(main())


def test_a_start_that_is_cancelled_leaves_nothing() -> None:
    before = threading.active_count()

    async def main() -> None:
        cluster = Cluster()
        starting = asyncio.ensure_future(cluster.__aenter__())
        await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert not cluster.store.exists()

    run(main())
    wait_until(lambda: threading.active_count() <= before, timeout_s=DEADLINE_S)


def test_many_threads_may_ask() -> None:
    with Cluster() as cluster, blocking.Producer(cluster.name_server) as producer:
        producer.send(Message("T", b"x"))
        counts: list[int] = []

        def ask() -> None:
            counts.append(len(cluster.messages("T")))
            cluster.broker().drop_connections()

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        assert set(counts) <= {1} and counts
