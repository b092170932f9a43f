"""Blocking batchers that are made while their producer is at work, interrupted, or forked."""

import concurrent.futures
import functools
import threading
from collections.abc import Callable

import pytest
from tests.cluster.children import in_child
from tests.cluster.running import LIMITS
from tests.interrupting import Moments

from pymq import Message, SendReceipt, blocking
from pymq.client.sending.batcher import Batcher
from pymq.client.sending.producer import Producer
from pymq.errors import ClientClosed
from pymq.testing import Cluster

WAIT_S = 20.0


def test_threads_make_batchers_while_others_are_looked_at(pymq_cluster: Cluster) -> None:
    """As ``flush`` and ``close`` look at them, and count what they have."""
    with blocking.Producer(pymq_cluster.name_server, **LIMITS) as producer:
        made = [blocking.Batcher(producer) for _ in range(3)]
        found = 0
        for _ in producer._client._parts.batchers:
            made.append(blocking.Batcher(producer))
            found += 1
        assert found == 3 and len(list(producer._client._parts.batchers)) == len(made) == 6
        del made
        producer.flush()


def test_a_producer_is_flushed_while_a_batcher_is_made(
    pymq_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed_from = Batcher._feed_from
    with blocking.Producer(pymq_cluster.name_server, **LIMITS) as producer:

        def fed(batcher: Batcher, feeder: blocking.Batcher) -> None:
            feed_from(batcher, feeder)
            producer.flush()

        monkeypatch.setattr(Batcher, "_feed_from", fed)
        batcher = blocking.Batcher(producer)
        assert batcher.send(Message("T", b"x"))


def test_a_batcher_whose_making_was_interrupted_harms_no_producer(pymq_cluster: Cluster) -> None:
    with blocking.Producer(pymq_cluster.name_server, **LIMITS) as producer:
        moments = Moments()
        for _ in moments:
            moments.call(lambda: blocking.Batcher(producer))
            producer.flush()
        assert moments.count > 10


def test_threads_that_come_first_in_a_child_have_one_batcher(pymq_cluster: Cluster) -> None:
    """Each would wait for ever for what only the batcher of the parent has."""
    with (
        blocking.Producer(pymq_cluster.name_server, **LIMITS) as producer,
        blocking.Batcher(producer) as batcher,
    ):
        batcher.send(Message("T", b"parent"))

        def use() -> int:
            futures: list[concurrent.futures.Future[SendReceipt]] = []
            make: Callable[[Producer], Batcher] = batcher._make
            other = threading.Thread(
                target=lambda: futures.append(batcher.send_nowait(Message("T", b"second")))
            )

            def made(client: Producer) -> Batcher:
                other.start()
                other.join(0.2)  # It has to wait until we are done.
                return make(client)

            batcher._make = made  # type: ignore[assignment]
            batcher.send(Message("T", b"first"))
            other.join(WAIT_S)
            return len([future.result(WAIT_S) for future in futures])

        assert in_child(use) == 1
    bodies = sorted(message.body for message in pymq_cluster.messages("T"))
    assert bodies == [b"first", b"parent", b"second"]


def test_threads_that_come_first_in_a_child_have_its_room(pymq_cluster: Cluster) -> None:
    """That of the parent is full as it was at the fork, and stays so."""
    with blocking.Producer(pymq_cluster.name_server, **LIMITS) as producer:
        producer.send(Message("T", b"parent"))
        room = producer._room

        def use() -> int:
            for _ in range(room._count_max):
                room.wait_begin(object(), 0, 0, lambda: None)
            futures: list[concurrent.futures.Future[SendReceipt]] = []
            second = Message("T", b"second")
            other = threading.Thread(
                target=lambda: futures.append(producer.send_nowait(second, deadline_s=WAIT_S / 4))
            )
            renewed = producer._renewed

            def renew() -> None:
                other.start()
                other.join(0.2)  # It has to wait until we are done.
                renewed()

            producer._renewed = renew  # type: ignore[method-assign]
            producer.send(Message("T", b"first"))
            other.join(WAIT_S)
            return len([future.result(WAIT_S) for future in futures])

        assert in_child(use) == 1


def test_a_signals_handler_does_not_wait_for_the_first_use_that_it_interrupts(
    pymq_cluster: Cluster,
) -> None:
    """In a child: it would wait for its own thread, for ever. What it interrupts goes on."""
    with (
        blocking.Producer(pymq_cluster.name_server, **LIMITS) as producer,
        blocking.Batcher(producer) as batcher,
    ):
        batcher.send(Message("T", b"parent"))

        def use(
            interrupt: Callable[[Callable[[], None]], None], send: Callable[[Message], object]
        ) -> str:
            heard: list[str] = []

            def handle() -> None:
                try:
                    send(Message("T", b"of a handler"))
                except ClientClosed as error:
                    heard.append(str(error))

            interrupt(handle)
            send(Message("T", b"interrupted"))
            send(Message("T", b"next"))
            return heard[0]

        def batcher_begins(handle: Callable[[], None]) -> None:
            make: Callable[[Producer], Batcher] = batcher._make

            def made(client: Producer) -> Batcher:
                handle()
                return make(client)

            batcher._make = made  # type: ignore[assignment]

        def producer_begins(handle: Callable[[], None]) -> None:
            renewed = producer._renewed

            def renew() -> None:
                handle()
                renewed()

            producer._renewed = renew  # type: ignore[method-assign]

        for send, interrupt in ((batcher.send, batcher_begins), (producer.send, producer_begins)):
            assert "in this very thread" in in_child(functools.partial(use, interrupt, send))
    bodies = [message.body for message in pymq_cluster.messages("T")]
    assert sorted(bodies) == sorted([b"parent", *[b"interrupted", b"next"] * 2])
