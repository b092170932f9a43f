"""BlockingChannel whose waiting ends early: Ctrl-C comes, or its time is up."""

import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cluster.played import unreachable_address
from tests.cluster.test_blocking_channel import PEER, WAIT_S, Ends, Server, send, soon

from pymq.errors import ConnectionFailed, RequestTimeout
from pymq.net.blocking import BlockingChannel
from pymq.net.connecting import connect_sockets
from pymq.protocol.addresses import split_address
from pymq.protocol.command import Command


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = socket.socketpair()
    channel = BlockingChannel(PEER, ours)
    with theirs:
        yield channel, Server(theirs)
        channel.close()


class InterruptedPoll:
    """A poll object during whose call Ctrl-C comes: not before it, however slow the machine."""

    def __init__(self, poll: Any = None) -> None:
        self._poll = poll or select.poll()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._poll, name)

    def poll(self, timeout_ms: float) -> list[tuple[int, int]]:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        found: list[tuple[int, int]] = self._poll.poll(timeout_ms)
        return found


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Has the signal of ``InterruptedPoll`` raise KeyboardInterrupt in this thread."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("interruptible")
def test_nothing_follows_a_frame_that_was_interrupted(ends: Ends) -> None:
    channel, server = ends
    channel._writable = InterruptedPoll(channel._writable)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        send(channel, body=bytes(16_000_000))  # more than fits the socket; nobody reads it
    with pytest.raises(ConnectionFailed, match="nothing was sent"):
        send(channel, body=b"the rest of that body?")
    received = 0
    while data := server.connection.recv(1 << 20):
        received += len(data)
    assert 0 < received < 16_000_000


@pytest.mark.usefixtures("interruptible")
def test_the_answer_to_an_interrupted_request_is_dropped(ends: Ends) -> None:
    channel, server = ends
    readable = channel._readable
    channel._readable = InterruptedPoll(readable)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        channel.request(Command(1), WAIT_S)
    channel._readable = readable
    assert channel.pending_count == 0
    first = server.next()
    following = send(channel)
    server.connection.sendall(server.answer(first, b"late") + server.answer(server.next(), b"ok"))
    assert channel.receive(following, soon()).body == b"ok"
    assert not channel._answers


@pytest.mark.usefixtures("interruptible")
def test_sockets_are_closed_when_connecting_is_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, unreachable_address() as lost:
        before = len(os.listdir("/proc/self/fd"))
        monkeypatch.setattr("pymq.net.connecting.new_poll", InterruptedPoll)
        with pytest.raises(KeyboardInterrupt) as caught:
            connect_sockets([listener.getsockname(), split_address(lost)], timeout_s=WAIT_S)
        # Its traceback keeps the sockets: they are not closed by being forgotten.
        assert len(os.listdir("/proc/self/fd")) <= before and caught.tb


def test_a_stream_that_was_interrupted_is_not_followed(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> Command:
        raise KeyboardInterrupt

    channel, server = ends
    opaque = send(channel)
    server.connection.sendall(server.answer(server.next()))
    monkeypatch.setattr("pymq.net.frame_input.decode_header", interrupted)
    with pytest.raises(KeyboardInterrupt):
        channel.receive(opaque, soon())
    assert not channel.check_alive()


def test_a_connection_that_only_this_answer_keeps_waiting_is_not_silent(ends: Ends) -> None:
    channel, server = ends
    late, other = send(channel), send(channel)
    server.next()
    server.connection.sendall(server.answer(server.next(), b"other"))
    with pytest.raises(RequestTimeout):
        channel.receive(late, time.monotonic() + 0.05)
    assert channel.check_alive()
    assert channel.receive(other, soon()).body == b"other"
    with pytest.raises(RequestTimeout):
        channel.receive(send(channel), time.monotonic() + 0.05)
    assert not channel.check_alive()
