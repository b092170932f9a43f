"""Faults of ``pymq.testing.Cluster``, each met by a client."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

import pytest
from tests.cluster.scenarios import create_topic

from pymq import BlockingClient, Message, SendReceipt, SendStatus, blocking
from pymq.errors import (
    BrokerError,
    ClientClosed,
    ConfigurationError,
    ConnectionFailed,
    PymqError,
    RequestTimeout,
    RouteNotFound,
)
from pymq.testing import Cluster, wait_until

DELAY_S = 0.3
#: By then it has happened, or something is wrong.
DEADLINE_S = 120.0


def bodies(cluster: Cluster, topic: str = "T") -> list[bytes]:
    return [message.body for message in cluster.messages(topic)]


def test_a_killed_broker_is_met_and_comes_back_with_everything(pymq_cluster: Cluster) -> None:
    broker = pymq_cluster.broker()
    with blocking.Producer(pymq_cluster.name_server, timeout_s=30) as producer:
        producer.send(Message("T", b"before"))
        address = broker.address
        broker.kill()
        assert not broker.is_running
        with pytest.raises(ClientClosed, match="is stopped"):
            assert broker.address
        with pytest.raises(ConnectionFailed) as caught:
            producer.send(Message("T", b"lost"), deadline_s=0.5)
        assert caught.value.outcome_known
        started = threading.Timer(0.3, broker.start)
        started.start()
        producer.send(Message("T", b"waited for"), deadline_s=DEADLINE_S)
        started.join()
        assert broker.is_running and broker.address == address
    assert bodies(pymq_cluster) == [b"before", b"waited for"]


def test_one_of_two_brokers_is_killed_while_messages_are_sent() -> None:
    with Cluster(brokers=2) as cluster, blocking.Producer(cluster.name_server) as producer:
        create_topic(cluster.name_server)
        producer.send(Message("T", b"first"))
        receipts: list[SendReceipt] = []
        ended = threading.Event()

        def send_all() -> None:
            number = 0
            while not ended.is_set():
                message = Message("T", b"%d" % number)
                receipts.append(producer.send(message, deadline_s=DEADLINE_S))
                number += 1

        sending = threading.Thread(target=send_all)
        sending.start()
        for name in cluster.broker_names:
            broker = cluster.broker(name)
            count = len(receipts)
            wait_until(lambda count=count: len(receipts) > count + 20, timeout_s=DEADLINE_S)
            broker.kill()
            count = len(receipts)
            wait_until(lambda count=count: len(receipts) > count + 20, timeout_s=DEADLINE_S)
            broker.restart()  # as far as it runs: it does not
        ended.set()
        sending.join(DEADLINE_S)
        stored = {message.message_id for message in cluster.messages("T")}
        assert stored >= {receipt.message_id for receipt in receipts}, "acknowledged, but lost"
        with pytest.raises(ConfigurationError, match=r"which broker\? broker-a/0, broker-b/0"):
            assert cluster.broker().address


def test_requests_to_a_slow_broker_take_longer_and_stay_in_order(pymq_cluster: Cluster) -> None:
    with blocking.Producer(pymq_cluster.name_server, timeout_s=30) as producer:
        queue = producer.send(Message("T", b"first")).queue
        with pymq_cluster.broker().delay(DELAY_S):
            began = time.monotonic()
            futures = [
                producer.send_nowait(Message("T", b"%d" % number), queue=queue)
                for number in range(20)
            ]
            receipts = [future.result(DEADLINE_S) for future in futures]
            took = time.monotonic() - began
            assert took >= DELAY_S
            pymq_cluster.broker().restart()
            began = time.monotonic()
            producer.send(Message("T", b"last"), queue=queue)
            assert time.monotonic() - began >= DELAY_S, "a restart does not end it"
        offsets = [receipt.queue_offset for receipt in receipts]
        assert offsets == sorted(offsets)
        pymq_cluster.broker().delay(60)
        with pytest.raises(RequestTimeout):
            _client_send(pymq_cluster, timeout_s=2)  # in which the name server has to answer
        pymq_cluster.broker().delay(0)
        _client_send(pymq_cluster, timeout_s=30)
        assert bodies(pymq_cluster)[:2] == [b"first", b"0"]


def _client_send(cluster: Cluster, *, timeout_s: float) -> None:
    with BlockingClient(
        cluster.name_server, timeout_s=timeout_s, read_deadline_s=timeout_s, send_retries=0
    ) as client:
        client.send(Message("T", b"x"))


def test_connections_that_are_dropped_are_made_again(pymq_cluster: Cluster) -> None:
    with blocking.Producer(pymq_cluster.name_server) as producer:
        producer.send(Message("T", b"before"))
        assert pymq_cluster.broker().drop_connections() >= 1
        producer.send(Message("T", b"after"))
        broker = pymq_cluster.broker()
        broker.delay(60)
        waiting = producer.send_nowait(Message("T", b"cut off"), deadline_s=DEADLINE_S)
        wait_until(lambda: producer.in_flight_count == 1, timeout_s=DEADLINE_S)

        def cut() -> bool:
            """The send was on its way when the connection ended."""
            return broker.drop_connections() > 0

        wait_until(cut, timeout_s=DEADLINE_S)
        broker.delay(0)
        assert waiting.result(DEADLINE_S).status is SendStatus.OK, "it was sent again"
    assert set(bodies(pymq_cluster)) == {b"before", b"after", b"cut off"}


def test_a_full_disk_refuses_messages_and_takes_them_later(pymq_cluster: Cluster) -> None:
    with (
        blocking.Producer(pymq_cluster.name_server) as producer,
        # It gives up when it has an answer, not when a time is over.
        blocking.Producer(pymq_cluster.name_server, retries=0, timeout_s=30) as impatient,
    ):
        producer.send(Message("T", b"before"))
        fault = pymq_cluster.broker().disk_full()
        with pytest.raises(BrokerError, match=r"full|no space") as caught:
            impatient.send(Message("T", b"refused"))
        assert caught.value.outcome_known and caught.value.retriable
        assert bodies(pymq_cluster) == [b"before"], "and reading goes on"
        for _ in range(2):
            fault.end()
        producer.send(Message("T", b"after"), deadline_s=DEADLINE_S)
        with pymq_cluster.broker().disk_full(), pytest.raises(PymqError):
            impatient.send(Message("T", b"refused"))
        producer.send(Message("T", b"in the end"), deadline_s=DEADLINE_S)
        pymq_cluster.broker().restart()
    assert bodies(pymq_cluster) == [b"before", b"after", b"in the end"]


def test_of_delays_the_one_that_began_last_and_lasts_counts(pymq_cluster: Cluster) -> None:
    every, one = pymq_cluster.broker(), pymq_cluster.broker("broker-a")
    with blocking.Producer(pymq_cluster.name_server, timeout_s=30) as producer:
        producer.send(Message("T", b"first"))

        def took_s() -> float:
            began = time.monotonic()
            producer.send(Message("T", b"x"))
            return time.monotonic() - began

        with every.delay(DELAY_S):
            with one.delay(60):
                with every.delay(0):
                    producer.send(Message("T", b"at once"))
                with one.delay(2 * DELAY_S):
                    assert took_s() >= 2 * DELAY_S
            assert took_s() >= DELAY_S, "the outer one goes on"
        outer = every.delay(60)
        with one.delay(DELAY_S):
            for _ in range(2):
                outer.end()
            assert took_s() >= DELAY_S, "and so does the inner one"
        with pymq_cluster.namesrv.delay(DELAY_S):
            with pymq_cluster.namesrv.delay(0):
                pass
            began = time.monotonic()
            _client_send(pymq_cluster, timeout_s=30)
            assert time.monotonic() - began >= DELAY_S


def test_a_disk_is_full_until_all_is_ended_that_fills_it(pymq_cluster: Cluster) -> None:
    with (
        blocking.Producer(pymq_cluster.name_server) as producer,
        blocking.Producer(pymq_cluster.name_server, retries=0, timeout_s=30) as impatient,
    ):
        producer.send(Message("T", b"before"))
        with pymq_cluster.broker().disk_full():
            inner = pymq_cluster.broker("broker-a").disk_full()
            for _ in range(2):
                inner.end()
            with pytest.raises(BrokerError, match=r"full|no space"):
                impatient.send(Message("T", b"refused"))
        producer.send(Message("T", b"after"), deadline_s=DEADLINE_S)
    assert bodies(pymq_cluster) == [b"before", b"after"]


def test_a_full_disk_ends_with_its_cluster() -> None:
    cluster = Cluster()
    with cluster:
        cluster.broker().disk_full()
    with cluster, blocking.Producer(cluster.name_server) as producer:
        with cluster.broker().disk_full():
            pass
        producer.send(Message("T", b"x"), deadline_s=DEADLINE_S)


def test_one_full_disk_of_two() -> None:
    with Cluster(brokers=2) as cluster, blocking.Producer(cluster.name_server) as producer:
        create_topic(cluster.name_server)
        for number in range(8):
            producer.send(Message("T", b"%d" % number))
        before = {one.message_id for one in cluster.messages("T")}
        cluster.broker("broker-b").disk_full()
        for number in range(8):
            producer.send(Message("T", b"%d" % number), deadline_s=DEADLINE_S)
        after = [one for one in cluster.messages("T") if one.message_id not in before]
        assert [one.broker_name for one in after] == ["broker-a"] * 8


def test_without_a_name_server_established_clients_carry_on(pymq_cluster: Cluster) -> None:
    namesrv = pymq_cluster.namesrv
    with blocking.Producer(pymq_cluster.name_server) as producer:
        producer.send(Message("T", b"before"))
        namesrv.kill()
        assert not namesrv.is_running and namesrv.address == pymq_cluster.name_server
        producer.send(Message("T", b"without"))
        with pytest.raises(PymqError):
            _client_send(pymq_cluster, timeout_s=0.5)
        namesrv.start()
        namesrv.start()
        # The broker registers again by itself.
        wait_until(lambda: _knows_route(pymq_cluster), timeout_s=DEADLINE_S)
        namesrv.restart()
        wait_until(lambda: _knows_route(pymq_cluster), timeout_s=DEADLINE_S)
        assert namesrv.drop_connections() >= 1
        wait_until(lambda: _knows_route(pymq_cluster), timeout_s=DEADLINE_S)
    assert set(bodies(pymq_cluster)) == {b"before", b"without"}


def _knows_route(cluster: Cluster) -> bool:
    with BlockingClient(cluster.name_server, timeout_s=30) as client:
        try:
            return bool(client.read_queues("T"))
        except RouteNotFound:
            return False


def test_a_slow_name_server(pymq_cluster: Cluster) -> None:
    with pymq_cluster.namesrv.delay(DELAY_S):
        began = time.monotonic()
        assert not _knows_route(pymq_cluster)
        assert time.monotonic() - began >= DELAY_S


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_delay_that_is_no_time(pymq_cluster: Cluster, seconds: float) -> None:
    calls: list[Callable[[float], object]] = [
        pymq_cluster.broker().delay,
        pymq_cluster.namesrv.delay,
    ]
    for call in calls:
        with pytest.raises(ConfigurationError, match="expected seconds from 0 on"):
            call(seconds)


def test_a_broker_that_there_is_not(pymq_cluster: Cluster) -> None:
    with pytest.raises(ConfigurationError, match="no broker broker-z/None: expected one of"):
        pymq_cluster.broker("broker-z")


def test_a_cluster_stops_while_everything_is_wrong() -> None:
    with Cluster(brokers=2) as cluster, blocking.Producer(cluster.name_server) as producer:
        producer.send(Message("T", b"x"))
        cluster.broker().disk_full()
        cluster.broker("broker-a").delay(60)
        cluster.broker("broker-b").kill()
        cluster.namesrv.delay(60)
        waiting: Future[SendReceipt] = producer.send_nowait(Message("T", b"y"), deadline_s=1)
    assert isinstance(waiting.exception(DEADLINE_S), PymqError)
