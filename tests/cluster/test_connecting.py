"""Sockets that connect: in time for their options, and where the system has no ``poll``."""

import errno
import select
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cluster.played import closed_address, unreachable_address

from pymq.net.blocking import BlockingChannel
from pymq.net.connecting import connect_sockets
from pymq.net.polling import READ, WRITE, new_poll
from pymq.protocol.addresses import split_address

WAIT_S = 60.0


class LateOptions(socket.socket):
    """Refuses options once it is connected, as macOS does when the peer has closed by then."""

    def setsockopt(self, *arguments: Any) -> None:
        try:
            self.getpeername()
        except OSError:
            return super().setsockopt(*arguments)
        raise OSError(errno.EINVAL, "Invalid argument")


class NoOptions(socket.socket):
    """Refuses them always."""

    def setsockopt(self, *arguments: Any) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@pytest.fixture(params=[True, False], ids=["poll", "select"])
def has_poll(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if not request.param:
        monkeypatch.delattr(select, "poll")
    return bool(request.param)


def test_a_peer_that_closes_at_once_is_a_connection_that_ends(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "socket", LateOptions)
    channel = BlockingChannel.connect(*listener.getsockname(), timeout_s=WAIT_S)
    listener.accept()[0].close()
    assert channel._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    channel.close()


def test_a_socket_that_takes_no_option_is_no_connection(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = listener.getsockname()
    monkeypatch.setattr(socket, "socket", NoOptions)
    (error,) = connect_sockets([peer], timeout_s=WAIT_S).values()
    assert isinstance(error, OSError) and error.errno == errno.EINVAL


@pytest.mark.usefixtures("has_poll")
def test_each_peer_has_its_socket_or_its_error(listener: socket.socket) -> None:
    here, refused = listener.getsockname(), split_address(closed_address())
    with unreachable_address() as lost:
        away = split_address(lost)
        found = connect_sockets([away, refused, here], timeout_s=0.2)
    connected = found[here]
    assert isinstance(connected, socket.socket) and not connected.getblocking()
    connected.close()
    assert isinstance(found[refused], ConnectionRefusedError)
    assert isinstance(found[away], TimeoutError)


def test_what_can_be_read_and_written(has_poll: bool) -> None:
    ours, theirs = socket.socketpair()
    readable, writable = new_poll(), new_poll()
    if has_poll:
        assert isinstance(readable, type(select.poll()))
    with ours, theirs:
        ours.setblocking(False)
        readable.register(ours, READ)
        writable.register(ours, WRITE)
        assert not readable.poll(0) and [one for one, _ in writable.poll(0)] == [ours.fileno()]
        try:
            while True:
                ours.send(bytes(1 << 16))
        except BlockingIOError:
            assert not writable.poll(0)
        theirs.close()
        assert [one for one, _ in readable.poll(WAIT_S * 1000)] == [ours.fileno()]
        readable.unregister(ours.fileno())
    assert not readable.poll(0)
