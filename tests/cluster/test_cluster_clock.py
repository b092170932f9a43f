"""Time that a test advances: what waits for hours happens at once, and nobody is taken for dead."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from tests.cluster.broker_peer import connect
from tests.cluster.pops import LONG_MS, PopConsumer
from tests.cluster.running import run
from tests.cluster.scenarios import create_topic

from pymq import Message, ReceivedMessage, TransactionStatus, blocking
from pymq.clock import Clock
from pymq.errors import ConfigurationError
from pymq.testing import Cluster, wait_until, wait_until_async

#: Less than what is waited for without a clock to advance.
SOON_S = 45.0
END_S = 120.0
HOUR_S = 3600.0


def bodies(cluster: Cluster, topic: str = "T") -> list[bytes]:
    return [message.body for message in cluster.messages(topic)]


def soon(condition: Callable[[], object]) -> None:
    wait_until(condition, timeout_s=SOON_S)


@contextlib.contextmanager
def consumer_of(cluster: Cluster, **settings: int) -> Iterator[blocking.Consumer]:
    consumer = blocking.Consumer(cluster.name_server, "g", from_where="earliest", **settings)
    with consumer.subscribe("T"):
        yield consumer


@pytest.fixture
def cluster() -> Cluster:
    """A cluster whose delays are RocketMQ's."""
    return Cluster()


def test_delay_levels(cluster: Cluster) -> None:
    with cluster, blocking.Producer(cluster.name_server) as producer:
        producer.send(Message("T", b"at once"))
        producer.send(Message("T", b"two hours", delay_level=18))
        producer.send(Message("T", b"a minute", delay_level=5))
        assert bodies(cluster) == [b"at once"]
        cluster.clock.advance(61)
        soon(lambda: bodies(cluster) == [b"at once", b"a minute"])
        cluster.clock.advance(1.5 * HOUR_S)
        assert bodies(cluster) == [b"at once", b"a minute"]
        cluster.clock.advance(0.5 * HOUR_S)
        soon(lambda: bodies(cluster) == [b"at once", b"a minute", b"two hours"])


def test_delays_and_times_of_their_own(cluster: Cluster) -> None:
    with cluster, blocking.Producer(cluster.name_server) as producer:
        cluster.clock.advance(24 * HOUR_S)
        producer.send(Message("T", b"in 90 s", delay_s=90))
        noon = cluster.clock.now() + timedelta(hours=12)
        producer.send(Message("T", b"at noon", deliver_at=noon))
        assert bodies(cluster) == []
        cluster.clock.advance(92)
        soon(lambda: bodies(cluster) == [b"in 90 s"])
        cluster.clock.advance(11 * HOUR_S)
        assert bodies(cluster) == [b"in 90 s"]
        cluster.clock.advance(HOUR_S)
        soon(lambda: bodies(cluster) == [b"in 90 s", b"at noon"])
        (_, last) = cluster.messages("T")
        assert last.store_timestamp_ms >= noon.timestamp() * 1000, "stored in the brokers' time"


def test_what_waits_survives_a_restart_in_between(cluster: Cluster) -> None:
    with cluster, blocking.Producer(cluster.name_server) as producer:
        producer.send(Message("T", b"level", delay_level=17))
        producer.send(Message("T", b"timer", delay_s=HOUR_S))
        cluster.broker().restart()
        cluster.clock.advance(0.5 * HOUR_S)
        cluster.broker().kill()
        cluster.clock.advance(HOUR_S)  # nobody is there
        cluster.broker().start()
        soon(lambda: set(bodies(cluster)) == {b"level", b"timer"})


def test_delays_at_two_brokers() -> None:
    with Cluster(brokers=2) as cluster, blocking.Producer(cluster.name_server) as producer:
        create_topic(cluster.name_server)
        for number in range(16):
            producer.send(Message("T", b"%d" % number, delay_level=17))
        cluster.clock.advance(HOUR_S)
        soon(lambda: len(bodies(cluster)) == 16)
        assert {one.broker_name for one in cluster.messages("T")} == {"broker-a", "broker-b"}


def test_the_master_of_a_group_and_its_successor() -> None:
    with Cluster(replicas=2) as cluster, blocking.Producer(cluster.name_server) as producer:
        cluster.wait_in_sync()
        producer.send(Message("T", b"x", delay_level=17))
        producer.send(Message("T", b"y", delay_level=18))
        cluster.clock.advance(HOUR_S)
        soon(lambda: bodies(cluster) == [b"x"])
        cluster.wait_in_sync()
        first = cluster.master()
        cluster.broker(broker_id=first).kill()
        wait_until(lambda: cluster.master() != first, timeout_s=END_S)
        cluster.clock.advance(HOUR_S)
        wait_until(lambda: set(bodies(cluster)) == {b"x", b"y"}, timeout_s=END_S)


def test_retries_up_to_the_dead_letter(cluster: Cluster) -> None:
    with (
        cluster,
        blocking.Producer(cluster.name_server) as producer,
        consumer_of(cluster, max_reconsume_times=3) as consumer,
    ):
        producer.send(Message("T", b"x"))
        attempts: list[int] = []

        def fail(message: ReceivedMessage) -> None:
            attempts.append(message.reconsume_times)
            raise ValueError("on purpose")

        running = threading.Thread(target=consumer.run, args=(fail,), kwargs={"timeout_s": END_S})
        running.start()
        began = time.monotonic()
        for count, wait_s in enumerate((10, 30, 60), 1):  # of levels 3, 4, 5
            soon(lambda count=count: len(attempts) == count)
            # It is sent back after that.
            soon(lambda count=count: len(cluster.messages("SCHEDULE_TOPIC_XXXX")) == count)
            cluster.clock.advance(wait_s + 1)
        soon(lambda: attempts == [0, 1, 2, 3])
        soon(lambda: bodies(cluster, "%DLQ%g") == [b"x"])
        assert time.monotonic() - began < 100, "of 100 s"
        consumer.close()
        running.join(END_S)


def test_transactions_are_checked() -> None:
    answers = [TransactionStatus.UNKNOWN, TransactionStatus.UNKNOWN, TransactionStatus.COMMIT]
    asked: list[bytes] = []

    def check(message: ReceivedMessage) -> TransactionStatus:
        asked.append(message.body)
        return answers[len(asked) - 1]

    with (
        # Only the clock has it look for transactions that are open.
        Cluster(broker={"transaction_check_interval_ms": 3_600_000}) as cluster,
        blocking.Producer(
            cluster.name_server, group="p", check_transaction=check, check_topics=["T"]
        ) as producer,
    ):
        producer.send(Message("T", b"plain"))
        with pytest.raises(KeyboardInterrupt), blocking.Transaction(producer, Message("T", b"x")):
            raise KeyboardInterrupt  # whatever ends it like this leaves it open
        for count in (1, 2, 3):
            cluster.clock.advance(7)  # transactionTimeOut is 6 s
            soon(lambda count=count: len(asked) == count)
        soon(lambda: bodies(cluster) == [b"plain", b"x"])
        assert asked == [b"x"] * 3


def test_old_messages_expire() -> None:
    small = {"segment_bytes": 1 << 16, "clean_pause_ms": 0, "queue_file_bytes": 2000}
    with (
        Cluster(store_settings=small) as cluster,
        blocking.Producer(cluster.name_server) as producer,
    ):
        for number in range(200):
            producer.send(Message("T", b"%03d" % number + bytes(1000)))
        assert len(bodies(cluster)) == 200
        cluster.clock.advance(48 * HOUR_S)
        for number in range(200, 300):
            producer.send(Message("T", b"%03d" % number + bytes(1000)))
        assert len(bodies(cluster)) == 300, "72 h are not over"
        cluster.clock.advance(48 * HOUR_S)
        left = sorted(int(body[:3]) for body in bodies(cluster))
        assert left[0] > 100, "the oldest are gone"
        assert set(range(200, 300)) <= set(left), "these are 48 h old"


def test_nobody_is_taken_for_dead(cluster: Cluster) -> None:
    with (
        cluster,
        blocking.Producer(cluster.name_server) as producer,
        consumer_of(cluster) as consumer,
    ):
        producer.send(Message("T", b"before"))
        seen: list[bytes] = []

        def handle(message: ReceivedMessage) -> None:
            seen.append(message.body)

        running = threading.Thread(target=consumer.run, args=(handle,), kwargs={"timeout_s": END_S})
        running.start()
        soon(lambda: seen == [b"before"])
        soon(lambda: len(consumer.assignment) == 5)  # and that of retries
        assignment = consumer.assignment
        cluster.clock.advance(10 * 24 * HOUR_S)
        assert consumer.assignment == assignment
        producer.send(Message("T", b"after"), deadline_s=END_S)
        soon(lambda: seen == [b"before", b"after"])
        consumer.close()
        running.join(END_S)


def test_a_clock_of_one_s_own_is_left_alone() -> None:
    class Later(Clock):
        def wall_ms(self) -> int:
            return super().wall_ms() + 1_000_000_000

    clock = Later()
    with Cluster(clock=clock) as cluster, blocking.Producer(cluster.name_server) as producer:
        producer.send(Message("T", b"x"))
        (message,) = cluster.messages("T")
        assert message.store_timestamp_ms - time.time() * 1000 > 900_000_000
        with pytest.raises(ConfigurationError, match="made with clock="):
            cluster.clock.advance(1)


def test_it_can_be_advanced_before_the_start_and_goes_on_after_the_end(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.clock.advance(HOUR_S)
    for count in (1, 2):
        with cluster, blocking.Producer(cluster.name_server) as producer:
            producer.send(Message("T", b"x"))
            last = cluster.messages("T")[-1]
            ahead_ms = last.store_timestamp_ms - time.time() * 1000
            assert abs(ahead_ms - count * HOUR_S * 1000) < 60_000
        cluster.clock.advance(HOUR_S)


def test_popped_messages_come_again(cluster: Cluster) -> None:
    with cluster, blocking.Producer(cluster.name_server) as producer:
        producer.send(Message("T", b"x"))

        async def pop() -> None:
            (member,) = cluster._members
            assert member.broker is not None
            peer = await connect(member.broker)
            consumer = PopConsumer(peer)
            (first,) = await consumer.pop(invisibleTime=LONG_MS)
            assert not await consumer.pop()
            await asyncio.to_thread(cluster.clock.advance, LONG_MS / 1000 + 1)
            (again,) = await wait_until_async(consumer.pop, timeout_s=SOON_S)
            assert (first.body, again.body, again.record.reconsume_times) == (b"x", b"x", 1)
            in_order = PopConsumer(peer, group="in-order")
            (first,) = await in_order.pop(invisibleTime=LONG_MS, order=True)
            assert not await in_order.pop(order=True)
            waiting = asyncio.ensure_future(in_order.pop(order=True, pollTime=15_000))
            await asyncio.to_thread(cluster.clock.advance, LONG_MS / 1000 + 1)
            (again,) = await waiting
            assert (first.body, again.body) == (b"x", b"x")
            peer.channel.close()

        run(pop())
