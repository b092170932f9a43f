"""Blocking clients that Ctrl-C interrupts at the worst moments: nothing is lost, all goes on."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.cluster.running import LIMITS
from tests.interrupting import Moments

from pymq import Message, MessageQueue, blocking
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.testing import Cluster

WAIT_S = 20.0

#: Coroutines that a call was interrupted before it could begin them.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")


def interrupted(loop: asyncio.AbstractEventLoop, work: Callable[[], object]) -> None:
    """Call something; Ctrl-C comes when it has told its loop of a coroutine."""
    tell = loop.call_soon_threadsafe

    def told(*args: Any, **kwargs: Any) -> None:
        loop.call_soon_threadsafe = tell  # type: ignore[method-assign]
        tell(*args, **kwargs)
        raise KeyboardInterrupt

    loop.call_soon_threadsafe = told  # type: ignore[method-assign,assignment]
    with pytest.raises(KeyboardInterrupt):
        work()


@pytest.mark.parametrize("way", ["poll", "batches"])
def test_a_poll_that_was_interrupted_takes_nothing(pymq_cluster: Cluster, way: str) -> None:
    name_server = pymq_cluster.name_server
    with blocking.Producer(name_server, **LIMITS) as producer:
        producer.send(Message("T", b"first"))
        queue = MessageQueue("T", "broker-a", 0)
        consumer = blocking.PullConsumer(name_server, "g").assign([queue])
        with consumer:
            consumer.seek(queue, 0)
            while consumer.poll(10, 0.3):
                pass
            thread, batches = consumer._thread, consumer.batches()
            assert thread is not None
            ways: dict[str, Callable[[], object]] = {
                "poll": lambda: consumer.poll(1, WAIT_S),
                "batches": lambda: next(batches),
            }
            interrupted(thread._loop, ways[way])
            assert consumer.assignment == [queue]  # What was begun has begun.
            made, begun, polled = consumer._made, threading.Event(), []
            begin = made._begin_poll

            def begin_poll() -> None:
                begun.set()
                begin()

            def poll() -> None:
                while len(polled) < 3 and (messages := consumer.poll(1, WAIT_S)):
                    polled.extend(one.body for one in messages)

            made._begin_poll = begin_poll  # type: ignore[method-assign]
            polling = threading.Thread(target=poll, daemon=True)
            polling.start()
            assert begun.wait(WAIT_S)
            sent = [producer.send(Message("T", b"%d" % n), queue=queue) for n in range(3)]
            polling.join(2 * WAIT_S)
        assert polled == [b"0", b"1", b"2"]
        with BlockingClient(name_server) as client:
            assert client.committed_offset("g", queue) == sent[-1].queue_offset + 1


@pytest.mark.parametrize("kind", ["producer", "batcher"])
def test_sends_that_were_interrupted_leave_no_room_taken(
    pymq_cluster: Cluster, kind: str
) -> None:
    with blocking.Producer(pymq_cluster.name_server, **LIMITS) as producer:
        batcher = blocking.Batcher(producer)
        face = producer if kind == "producer" else batcher
        face.send_nowait(Message("T", b"first")).result(WAIT_S)
        moments = Moments()
        for _ in moments:
            moments.call(lambda: face.send_nowait(Message("T", b"x")))
        assert moments.count > 20
        face.send_nowait(Message("T", b"last")).result(WAIT_S)
        face.flush()
        producer._call(asyncio.sleep(0))  # Futures have called back.
        with face._room._lock:
            assert face._room._has_room()
        assert (len(face._room._open), face._room._size_bytes) == (0, 0)


def test_messages_of_others_go_out_when_who_wakes_the_loop_is_interrupted(
    pymq_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with blocking.Producer(pymq_cluster.name_server, **LIMITS) as producer:
        batcher = blocking.Batcher(producer)
        batcher.send(Message("T", b"first"))
        soon, others = producer._soon, []

        def interrupt(function: Callable[[], object]) -> None:
            monkeypatch.setattr(producer, "_soon", soon)
            others.append(batcher.send_nowait(Message("T", b"of another thread")))
            raise KeyboardInterrupt

        monkeypatch.setattr(producer, "_soon", interrupt)
        with pytest.raises(KeyboardInterrupt):
            batcher.send_nowait(Message("T", b"x"))
        assert others[0].result(WAIT_S)
