"""The blocking consumer over loopback; Ctrl-C loses nothing."""

import os
import signal
import threading
from typing import Any

import pytest
from tests.handling import handle_until

from pymq import blocking
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
