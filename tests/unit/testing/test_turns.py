"""Servers of an embedded cluster that several threads start, end and restart at the same time."""

import asyncio
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest

from pymq import Message, blocking
from pymq.broker.broker import Broker
from pymq.errors import ClientClosed
from pymq.namesrv.server import NameServer
from pymq.testing import Cluster

THREADS = 4


def at_once(calls: Iterable[Callable[[], None]]) -> None:
    """Make calls in threads, at the same time; raises what one of them raises."""
    with ThreadPoolExecutor() as threads:
        for call in [threads.submit(call) for call in calls]:
            call.result()


def test_threads_that_start_and_end_the_same_servers_at_once() -> None:
    """Two starts opened the store twice, and a start beside an end found it open still."""
    with Cluster() as cluster, blocking.Producer(cluster.name_server) as producer:
        producer.send(Message("T", b"1"))
        for server in (cluster.namesrv, cluster.broker()):
            server.kill()
            at_once([server.start] * THREADS)
            at_once([server.restart] * THREADS)
            assert server.is_running
            at_once([server.stop] * THREADS)
            assert not server.is_running
            server.start()
        assert cluster.namesrv.is_running
        producer.send(Message("T", b"2"), deadline_s=30)
        assert [one.body for one in cluster.messages("T")] == [b"1", b"2"]


class Held:
    """The next start of a server waits until it may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: type[Broker | NameServer]) -> None:
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()
        start = kind.start

        async def held(server: Broker | NameServer) -> None:
            self.has_begun.set()
            while not self.may_go_on.is_set():
                await asyncio.sleep(0.002)
            await start(server)  # type: ignore[arg-type]

        monkeypatch.setattr(kind, "start", held)


def test_what_is_stopped_while_it_starts_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was said to be stopped, and ran a moment later."""
    with Cluster() as cluster, ThreadPoolExecutor() as threads:
        cluster.namesrv.stop()
        held = Held(monkeypatch, NameServer)
        starting = threads.submit(cluster.namesrv.start)
        assert held.has_begun.wait(10)
        stopping = threads.submit(cluster.namesrv.stop)
        held.may_go_on.set()
        starting.result(10)
        stopping.result(10)
        assert not cluster.namesrv.is_running


def test_a_start_that_waits_when_all_is_stopped_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It began when the loop was about to end: it never returned, nor did the next start."""
    cluster = Cluster()
    with ThreadPoolExecutor() as threads:
        cluster.start()
        cluster.broker().stop()
        with monkeypatch.context() as patch:
            held = Held(patch, Broker)
            starts = [threads.submit(cluster.broker().start) for _ in range(3)]
            assert held.has_begun.wait(10)
            cluster.stop()
        for start in starts:
            assert start.exception(10) is None or isinstance(start.exception(), ClientClosed)
        threads.submit(cluster.start).result(20)
        assert cluster.broker().is_running
        cluster.stop()
