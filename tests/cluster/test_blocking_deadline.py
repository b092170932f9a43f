"""Sends of BlockingClient with a deadline: two brokers, killed and started while it sends."""

import random
import threading
import time

import pytest

from pymq import BlockingClient, ConfigurationError, Message, PymqError, blocking
from pymq.errors import ConnectionFailed, RouteNotFound
from pymq.testing import Cluster

#: For what succeeds; what waits for as long as it is told to does not get there.
LIMIT_S = 120.0


def test_brokers_and_name_server_come_back_before_the_deadline() -> None:
    with Cluster(brokers=2) as cluster, BlockingClient(cluster.name_server) as client:
        with blocking.Admin(cluster.name_server, timeout_s=LIMIT_S) as admin:
            admin.topics.create("T", queue_count=2)
        client.send(Message("T", b"0"))
        cluster.broker().kill()
        with pytest.raises(PymqError):  # as before: a few attempts, and no pauses
            client.send(Message("T", b"lost"))
        began_s = time.monotonic()
        with pytest.raises(PymqError) as caught:
            client.send(Message("T", b"lost"), deadline_s=3)
        assert caught.value.outcome_known and 1 < time.monotonic() - began_s < LIMIT_S / 2

        def back() -> None:
            time.sleep(1)
            cluster.namesrv.restart()
            cluster.broker().start()

        coming = threading.Thread(target=back)
        coming.start()
        client.send(Message("T", b"1"), deadline_s=LIMIT_S)
        queue = client.write_queues("T")[0]
        client.send(Message("T", b"2"), queue, deadline_s=LIMIT_S)
        coming.join()
        assert {one.body for one in cluster.messages("T")} == {b"0", b"1", b"2"}


def test_a_batch_is_tried_again_until_its_deadline() -> None:
    with Cluster() as cluster, BlockingClient(cluster.name_server, send_retries=0) as client:
        client.send(Message("T", b"0"))
        cluster.broker().kill()
        coming = threading.Timer(0.2, cluster.broker().start)
        coming.start()
        batch = [Message("T", b"1"), Message("T", b"2")]
        client.send_batch(None, batch, deadline_s=LIMIT_S)
        coming.join()
        assert {one.body for one in cluster.messages("T")} == {b"0", b"1", b"2"}


def test_nothing_acknowledged_is_lost_while_brokers_are_killed_in_turn() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    is_over = threading.Event()
    with Cluster(brokers=2) as cluster, BlockingClient(cluster.name_server) as client:

        def trouble() -> None:
            while not is_over.is_set():
                broker = cluster.broker(dice.choice(["broker-a", "broker-b"]))
                broker.kill()
                time.sleep(dice.random() * 0.3)
                broker.start()
                time.sleep(dice.random() * 0.3)

        client.send(Message("T", b"first"))
        thread = threading.Thread(target=trouble)
        thread.start()
        try:
            for number in range(300):
                client.send(Message("T", b"%d" % number), deadline_s=LIMIT_S)
                time.sleep(0.005)
        finally:
            is_over.set()
            thread.join()
        found = {one.body for one in cluster.messages("T")}
    assert found == {b"first", *(b"%d" % number for number in range(300))}


def test_what_no_waiting_heals_is_said_at_once() -> None:
    settings = {"auto_create_topic": False}
    with Cluster(broker=settings) as cluster, BlockingClient(cluster.name_server) as client:
        began_s = time.monotonic()
        with pytest.raises(RouteNotFound, match="no name server"):
            client.send(Message("nobody-has-it", b"x"), deadline_s=LIMIT_S)
        with pytest.raises(ConfigurationError, match="deadline_s=0"):
            client.send(Message("T", b"x"), deadline_s=0)
        assert time.monotonic() - began_s < LIMIT_S / 2
    with BlockingClient("127.0.0.1:1") as client:
        began_s = time.monotonic()
        with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:1"):
            client.send(Message("T", b"x"), deadline_s=3)
        assert 1 < time.monotonic() - began_s < LIMIT_S / 2
