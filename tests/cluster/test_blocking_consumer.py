"""The blocking consumer over loopback; Ctrl-C loses nothing."""

import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
from tests.cluster.outcome_scenarios import committed
from tests.handling import handle_until

from pymq import blocking
from pymq.client.consuming.outcomes import Outcomes
from pymq.client.consuming.thread_inbox import ThreadInbox
from pymq.client.threaded import consumer as threaded
from pymq.client.threaded.loop_thread import LoopThread
from pymq.errors import ClientClosed
from pymq.protocol.message import Message, ReceivedMessage
from pymq.testing import wait_until
from pymq.testing.cluster import Cluster

DEADLINE_S = 60.0
#: For that long nothing comes when everything has come.
IDLE_S = 0.5

pytestmark = pytest.mark.usefixtures("quick_local_retry")


def numbers_of(consumer: threaded.Consumer, count: int) -> list[int]:
    """Consume as many messages as there are to come, and what comes beyond that."""
    found: list[int] = []
    for message in consumer.messages(timeout_s=DEADLINE_S):
        found.append(int(message.body))
        if len(found) == count:
            consumer.acknowledge()
            break
    return found + [int(message.body) for message in consumer.messages(timeout_s=IDLE_S)]


def producer_at(name_server: str) -> blocking.Producer:
    return blocking.Producer(name_server, timeout_s=DEADLINE_S, deadline_s=DEADLINE_S)


def test_blocking_consumer(pymq_cluster: Cluster) -> None:
    name_server = pymq_cluster.name_server
    with producer_at(name_server) as producer:
        for number in range(200):
            producer.send(Message("T", b"%d" % number))
    with threaded.Consumer(name_server, "g", from_where="earliest").subscribe("T") as consumer:
        numbers = []
        for message in consumer:
            numbers.append(int(message.body))
            if len(numbers) == 100:
                break
    with threaded.Consumer(name_server, "g").subscribe("T") as consumer:
        rest = numbers_of(consumer, 100)
        wait_until(lambda: len(consumer.assignment) == 5, timeout_s=DEADLINE_S)
    assert sorted(numbers + rest) == list(range(200))
    consumer.close()
    with pytest.raises(ClientClosed):
        consumer.receive(1)


def test_blocking_consumer_gives_back_what_its_handler_refuses(pymq_cluster: Cluster) -> None:
    name_server = pymq_cluster.name_server
    with producer_at(name_server) as producer:
        for number in range(5):
            producer.send(Message("T", b"%d" % number))
    tries: dict[int, int] = {}

    def handler(message: ReceivedMessage) -> None:
        number = int(message.body)
        tries[number] = tries.get(number, 0) + 1
        if number == 2 and tries[number] == 1:
            raise ValueError("not 2")

    with threaded.Consumer(name_server, "g", from_where="earliest").subscribe("T") as consumer:
        handle_until(consumer, handler, lambda: sum(tries.values()) == 6)
    assert tries == {0: 1, 1: 1, 2: 2, 3: 1, 4: 1}


def test_blocking_consumer_whose_body_fails_gets_the_message_again(pymq_cluster: Cluster) -> None:
    name_server = pymq_cluster.name_server
    with producer_at(name_server) as producer:
        for number in range(5):
            producer.send(Message("T", b"%d" % number))
    with (
        pytest.raises(ZeroDivisionError),
        threaded.Consumer(name_server, "g", from_where="earliest").subscribe("T") as consumer,
    ):
        for _ in consumer:
            raise ZeroDivisionError
    with threaded.Consumer(name_server, "g").subscribe("T") as consumer:
        assert sorted(numbers_of(consumer, 5)) == list(range(5))


def send_to_one_queue(name_server: str, count: int) -> None:
    with producer_at(name_server) as producer:
        queue = producer.queues("T")[0]
        for number in range(count):
            producer.send(Message("T", b"%d" % number), queue=queue)


def test_ctrl_c_loses_nothing_that_was_taken(
    pymq_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: LoopThread, work: Any) -> None:
        self.begin(work).result()
        raise KeyboardInterrupt  # in the last moment

    name_server = pymq_cluster.name_server
    send_to_one_queue(name_server, 20)
    with threaded.Consumer(name_server, "g", from_where="earliest").subscribe("T") as consumer:
        with monkeypatch.context() as patched:
            patched.setattr(LoopThread, "call", interrupted)
            with pytest.raises(KeyboardInterrupt):
                consumer.receive()
        assert numbers_of(consumer, 20) == list(range(20))


def test_ctrl_c_interrupts_a_blocking_consumer(pymq_cluster: Cluster) -> None:
    consumer = threaded.Consumer(pymq_cluster.name_server, "g").subscribe("T")
    with pytest.raises(KeyboardInterrupt), consumer:
        interrupt = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        interrupt.start()
        consumer.receive(timeout_s=DEADLINE_S)
    interrupt.join()
    with pytest.raises(ClientClosed):
        consumer.receive()


def received(consumer: threaded.Consumer) -> Iterator[ReceivedMessage]:
    while (message := consumer.receive(timeout_s=DEADLINE_S)) is not None:
        yield message


def iterated(consumer: threaded.Consumer) -> Iterator[ReceivedMessage]:
    return consumer.messages(timeout_s=DEADLINE_S)


def count_ready(consumer: threaded.Consumer) -> int:
    return len(consumer._inbox._ready) + len(consumer._client._inbox._ready)


@pytest.mark.parametrize("take", [received, iterated])
@pytest.mark.parametrize("interrupted", [2, 4])
def test_what_an_interruption_kept_back_is_not_acknowledged(
    pymq_cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    take: Callable[[threaded.Consumer], Iterator[ReceivedMessage]],
    interrupted: int,
) -> None:
    """Neither by the next call nor by the end of the block."""

    def take_interrupted(self: ThreadInbox, held: Any, count_max: int) -> Any:
        taken = take_nowait(self, held, count_max)
        if taken and int(taken[0].message.body) == interrupted:
            raise KeyboardInterrupt
        return taken

    name_server = pymq_cluster.name_server
    send_to_one_queue(name_server, 5)
    take_nowait = ThreadInbox.take_nowait
    found: list[int] = []
    with threaded.Consumer(name_server, "g", from_where="earliest").subscribe("T") as consumer:
        wait_until(lambda: count_ready(consumer) == 5, timeout_s=DEADLINE_S)
        with monkeypatch.context() as patched:
            patched.setattr(ThreadInbox, "take_nowait", take_interrupted)
            with pytest.raises(KeyboardInterrupt):
                found.extend(int(message.body) for message in take(consumer))
        if interrupted == 2:
            rest = itertools.islice(take(consumer), 5 - len(found))
            found.extend(int(message.body) for message in rest)
    with threaded.Consumer(name_server, "g").subscribe("T") as consumer:
        found += numbers_of(consumer, 5 - len(found)) if len(found) < 5 else []
    assert found == list(range(5))


class InterruptedStep:
    """Raises KeyboardInterrupt at one of the steps at which a signal's handler may run.

    Those are calls of functions, and returns from functions of C.
    """

    def __init__(self, number: int, *modules: Any) -> None:
        self._left = number
        self._files = {module.__file__ for module in modules}

    def __enter__(self) -> None:
        sys.setprofile(self._step)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _step(self, frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_return") and frame.f_code.co_filename in self._files:
            self._left -= 1
            if self._left == 0:
                raise KeyboardInterrupt


def test_no_interruption_skips_a_message_or_keeps_its_queue_waiting(
    pymq_cluster: Cluster,
) -> None:
    name_server = pymq_cluster.name_server
    count = 100
    send_to_one_queue(name_server, count)
    modules = (threaded, sys.modules[ThreadInbox.__module__], sys.modules[Outcomes.__module__])
    found: list[int] = []
    is_interrupted, step = True, 0
    with threaded.Consumer(name_server, "g", from_where="earliest").subscribe("T") as consumer:
        wait_until(lambda: count_ready(consumer) == count, timeout_s=DEADLINE_S)
        found.append(int(next(received(consumer)).body))
        while is_interrupted:
            step += 1
            try:
                with InterruptedStep(step, *modules):
                    message = consumer.receive(timeout_s=DEADLINE_S)
                is_interrupted = False
            except KeyboardInterrupt:
                message = consumer.receive(timeout_s=DEADLINE_S)
            assert message is not None
            found.append(int(message.body))
        found += numbers_of(consumer, count - len(found))
        consumer.commit()
        assert step > 10
        assert found == list(range(count))
        assert committed(name_server, "T", "g") == count
