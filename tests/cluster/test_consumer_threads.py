"""Several threads on one blocking consumer: each acknowledges what it took itself."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from tests.administration import admin_of
from tests.handling import handle_until

from pymq import blocking
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.client.threaded import consumer as threaded
from pymq.protocol.message import Message, ReceivedMessage
from pymq.testing.cluster import Cluster

DEADLINE_S = 60.0

pytestmark = pytest.mark.usefixtures("quick_local_retry")


def send_numbers(name_server: str, count: int, *, to_one_queue: bool = False) -> None:
    with blocking.Producer(name_server, default_queue_count=8, timeout_s=DEADLINE_S) as producer:
        queue = producer.queues("T")[0] if to_one_queue else None
        for number in range(count):
            producer.send(Message("T", b"%d" % number), queue=queue)


def consumer_of(name_server: str) -> threaded.Consumer:
    consumer = threaded.Consumer(name_server, "g", from_where="earliest", timeout_s=DEADLINE_S)
    return consumer.subscribe("T")


def lag(name_server: str) -> int:
    with BlockingClient(name_server, timeout_s=DEADLINE_S) as client:
        return sum(queue.lag for queue in admin_of(client).offsets.lag("g", "T"))


def numbers(consumer: threaded.Consumer, count: int) -> list[int]:
    """Take this many messages in a loop, and acknowledge the last one."""
    found = []
    for message in consumer:
        found.append(int(message.body))
        if len(found) == count:
            break
    consumer.acknowledge()
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        threading.Event().wait(0.01)


def wait_acknowledged(consumer: threaded.Consumer, handled: list[int], count: int) -> None:
    """Wait until this many messages were handled and nothing is left."""
    wait_until(lambda: len(handled) >= count and consumer.backlog_count == 0)


def in_thread(work: Callable[[], object]) -> None:
    """Run something in a thread of its own and wait for the thread's end."""
    with ThreadPoolExecutor(1) as executor:
        executor.submit(work).result(DEADLINE_S)


def test_the_lag_is_zero_when_all_threads_are_done(pymq_cluster: Cluster) -> None:
    """One thread is slow: it holds one message while the others handle all the rest."""
    name_server = pymq_cluster.name_server
    send_numbers(name_server, 400)
    handled: list[int] = []
    only_one_is_left = threading.Event()
    slow_has_one = threading.Event()

    def handle(consumer: threaded.Consumer, *, is_slow: bool) -> None:
        for message in consumer:  # until it is closed
            if is_slow:
                slow_has_one.set()
                assert only_one_is_left.wait(DEADLINE_S)
            handled.append(int(message.body))

    with consumer_of(name_server) as consumer, ThreadPoolExecutor(4) as executor:
        ends: list[Future[None]] = [executor.submit(handle, consumer, is_slow=True)]
        assert slow_has_one.wait(DEADLINE_S)
        ends += [executor.submit(handle, consumer, is_slow=False) for _ in range(3)]
        wait_until(lambda: len(handled) == 399)
        only_one_is_left.set()
        wait_acknowledged(consumer, handled, 400)
        consumer.close()
        for end in ends:
            end.result(DEADLINE_S)
    assert sorted(handled) == list(range(400))
    assert lag(name_server) == 0


def test_a_message_at_work_in_another_thread_is_not_acknowledged(pymq_cluster: Cluster) -> None:
    name_server = pymq_cluster.name_server
    send_numbers(name_server, 10, to_one_queue=True)
    with consumer_of(name_server) as consumer, ThreadPoolExecutor(1) as executor:
        for number in range(9):
            message = consumer.receive(DEADLINE_S)
            assert message is not None and int(message.body) == number
        # The last one goes to another thread, which has not finished with it when all ends.
        last = executor.submit(consumer.receive, DEADLINE_S).result(DEADLINE_S)
        assert last is not None and int(last.body) == 9
        assert consumer.receive(0.0) is None
    assert lag(name_server) == 1
    with consumer_of(name_server) as consumer:
        assert numbers(consumer, 1) == [9]


@pytest.mark.parametrize("restart", [False, True])
def test_what_a_thread_that_died_had_is_delivered_again(
    pymq_cluster: Cluster, restart: bool
) -> None:
    """And nothing that was acknowledged: after a restart, and while others still take messages."""
    name_server = pymq_cluster.name_server
    send_numbers(name_server, 10, to_one_queue=True)

    def die(consumer: threaded.Consumer) -> None:
        assert consumer.receive(DEADLINE_S) is not None
        raise RuntimeError("in the middle of its work")

    def die_with_one(consumer: threaded.Consumer) -> None:
        with pytest.raises(RuntimeError, match="in the middle"):
            in_thread(lambda: die(consumer))

    if restart:
        with pytest.raises(ZeroDivisionError), consumer_of(name_server) as consumer:
            for _ in range(9):
                assert consumer.receive(DEADLINE_S)
            consumer.acknowledge()
            die_with_one(consumer)
            raise ZeroDivisionError
        assert lag(name_server) == 1
        expected = [9]
    else:
        expected = list(range(10))
    with consumer_of(name_server) as consumer:
        if not restart:
            die_with_one(consumer)
        # Without a restart somebody is already waiting when the thread's end is noticed.
        taken = numbers(consumer, len(expected))
        assert sorted(taken) == expected
        wait_until(lambda: consumer.backlog_count == 0)
    assert lag(name_server) == 0


def test_a_thread_that_takes_one_message_acknowledges_it_itself(pymq_cluster: Cluster) -> None:
    name_server = pymq_cluster.name_server
    send_numbers(name_server, 20)
    taken: list[int] = []

    def take_one(consumer: threaded.Consumer) -> None:
        message = consumer.receive(DEADLINE_S)
        assert message is not None
        taken.append(int(message.body))
        consumer.acknowledge()

    with consumer_of(name_server) as consumer:
        for _ in range(20):
            in_thread(lambda: take_one(consumer))
        wait_acknowledged(consumer, taken, 20)
    assert sorted(taken) == list(range(20))
    assert lag(name_server) == 0


def test_handlers_in_several_threads_share_the_messages(pymq_cluster: Cluster) -> None:
    """No thread ends before every thread has had a message: none starves beside another."""
    name_server = pymq_cluster.name_server
    send_numbers(name_server, 8, to_one_queue=True)
    all_at_work = threading.Barrier(4)
    handled: list[int] = []

    def handler(message: ReceivedMessage) -> None:
        all_at_work.wait(DEADLINE_S)
        handled.append(int(message.body))

    with consumer_of(name_server) as consumer, ThreadPoolExecutor(4) as executor:
        runs = [executor.submit(consumer.run, handler) for _ in range(4)]
        wait_acknowledged(consumer, handled, 8)
        consumer.close()
        for end in runs:
            end.result(DEADLINE_S)
    assert sorted(handled) == list(range(8))
    assert lag(name_server) == 0


def test_threads_that_wait_for_messages_share_what_arrives(pymq_cluster: Cluster) -> None:
    """All wait before anything is there; what arrives together does not go to one of them."""
    name_server = pymq_cluster.name_server
    send_numbers(name_server, 1)
    all_have_one = threading.Barrier(3)

    def take(consumer: threaded.Consumer) -> int:
        message = consumer.receive(DEADLINE_S)
        assert message is not None
        all_have_one.wait(DEADLINE_S)
        consumer.acknowledge()
        return int(message.body)

    with consumer_of(name_server) as consumer, ThreadPoolExecutor(3) as executor:
        assert consumer.receive(DEADLINE_S) is not None
        ends = [executor.submit(take, consumer) for _ in range(3)]
        with blocking.Producer(name_server, timeout_s=DEADLINE_S) as producer:
            producer.send_batch([Message("T", b"%d" % number) for number in range(3)])
        assert sorted(end.result(DEADLINE_S) for end in ends) == [0, 1, 2]
    assert lag(name_server) == 0


def test_a_loop_that_failed_has_not_handled_its_message(pymq_cluster: Cluster) -> None:
    """The next loop of the thread gets it again, as with asyncio."""
    name_server = pymq_cluster.name_server
    send_numbers(name_server, 3, to_one_queue=True)
    with consumer_of(name_server) as consumer:
        with pytest.raises(ZeroDivisionError):
            for message in consumer:
                if int(message.body) == 1:
                    raise ZeroDivisionError
        assert numbers(consumer, 2) == [1, 2]


def test_a_handler_that_was_interrupted_has_not_handled_its_message(pymq_cluster: Cluster) -> None:
    name_server = pymq_cluster.name_server
    send_numbers(name_server, 3, to_one_queue=True)

    def interrupted(message: ReceivedMessage) -> None:
        if int(message.body) == 1:
            raise KeyboardInterrupt

    with consumer_of(name_server) as consumer, pytest.raises(KeyboardInterrupt):
        consumer.run(interrupted, concurrency=1)
    with consumer_of(name_server) as consumer:
        assert numbers(consumer, 2) == [1, 2]


def test_what_one_thread_has_acknowledged_counts_while_nobody_takes_more(
    pymq_cluster: Cluster,
) -> None:
    """It is freed by the consumer itself, not by the next call of a thread that is at work."""
    name_server = pymq_cluster.name_server
    send_numbers(name_server, 5, to_one_queue=True)
    with consumer_of(name_server) as consumer:
        for _ in range(5):
            assert consumer.receive(DEADLINE_S)
        wait_until(lambda: consumer.backlog_count == 1)


def test_a_blocking_handler_of_lists(pymq_cluster: Cluster) -> None:
    name_server = pymq_cluster.name_server
    send_numbers(name_server, 50, to_one_queue=True)
    sizes: list[int] = []
    handled: list[int] = []

    def handler(messages: list[ReceivedMessage]) -> None:
        sizes.append(len(messages))
        if len(sizes) == 1:
            raise ValueError("not yet")
        handled.extend(int(message.body) for message in messages)

    with consumer_of(name_server) as consumer, ThreadPoolExecutor(1) as executor:
        end = executor.submit(consumer.run, handler, concurrency=1, batch_size=8)
        wait_acknowledged(consumer, handled, 50)
        consumer.close()
        end.result(DEADLINE_S)
    assert max(sizes) == 8
    assert sorted(handled) == list(range(50))
    assert lag(name_server) == 0


def test_a_blocking_consumer_awaits_async_handlers(pymq_cluster: Cluster) -> None:
    name_server = pymq_cluster.name_server
    send_numbers(name_server, 20)
    handled: list[int] = []
    threads: set[str] = set()

    async def handler(message: ReceivedMessage) -> None:
        await asyncio.sleep(0)
        threads.add(threading.current_thread().name)
        handled.append(int(message.body))

    with consumer_of(name_server) as consumer:
        handle_until(consumer, handler, lambda: len(handled) == 20)
    assert sorted(handled) == list(range(20))
    assert threads == {"pymq consumer"}
    assert lag(name_server) == 0
