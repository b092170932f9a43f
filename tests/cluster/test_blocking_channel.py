"""BlockingChannel against a peer that this test plays itself, over a socket pair."""

import fcntl
import gc
import random
import socket
import struct
import termios
import threading
import time
from collections.abc import Iterator

import pytest
from tests.cluster.played import closed_address, unreachable_address

from pymq.errors import (
    ClientClosed,
    ConnectionFailed,
    LocalProtocolError,
    PymqError,
    RemoteProtocolError,
    RequestTimeout,
    TooManyPending,
)
from pymq.net.blocking import BlockingChannel
from pymq.net.frame_input import INBOX_BYTES, VIEW_BYTES_MIN
from pymq.protocol.addresses import split_address
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
from pymq.protocol.framing import FrameDecoder, encode_frame

WAIT_S = 60.0
PEER = "10.0.0.1:10911"


class Server:
    """The other end of the socket pair."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        connection.settimeout(WAIT_S)
        self._decoder = FrameDecoder()
        self._commands: list[Command] = []

    def next(self) -> Command:
        while not self._commands:
            self._commands = self._decoder.feed(self.connection.recv(1 << 16))
        return self._commands.pop(0)

    def answer(self, request: Command, body: bytes = b"", **fields: str) -> bytes:
        return encode_frame(request.reply(0, fields=fields, body=body))


@pytest.fixture
def ends() -> Iterator[tuple[BlockingChannel, Server]]:
    ours, theirs = socket.socketpair()
    channel = BlockingChannel(PEER, ours, pending_max=8)
    with theirs:
        yield channel, Server(theirs)
        channel.close()


Ends = tuple[BlockingChannel, Server]


def soon() -> float:
    return time.monotonic() + WAIT_S


def send(channel: BlockingChannel, code: int = 1, body: bytes = b"") -> int:
    return channel.send(Command(code, {"a": "b"}, body), soon())


def in_background(connection: socket.socket, data: bytes) -> threading.Thread:
    thread = threading.Thread(target=connection.sendall, args=(data,), daemon=True)
    thread.start()
    return thread


def test_answers_come_in_any_order(ends: Ends) -> None:
    channel, server = ends
    opaques = [send(channel, code) for code in (1, 2, 3)]
    requests = [server.next() for _ in opaques]
    assert [request.opaque for request in requests] == opaques
    assert channel.pending_count == 3
    for request in reversed(requests):
        server.connection.sendall(server.answer(request, n=str(request.code)))
    for code, opaque in zip((1, 2, 3), opaques, strict=True):
        assert channel.receive(opaque, soon()).fields == {"n": str(code)}
    assert channel.pending_count == 0


def test_notifications_and_strangers_are_ignored(ends: Ends) -> None:
    channel, server = ends
    opaque = send(channel)
    request = server.next()
    notice = Command(40, {"consumerGroup": "G"}, opaque=opaque, flag=2)
    stranger = Command(0, opaque=opaque + 100, flag=1)
    server.connection.sendall(encode_frame(notice) + encode_frame(stranger))
    server.connection.sendall(server.answer(request))
    assert channel.receive(opaque, soon()).is_response


def test_a_one_way_request_leaves_nothing_pending(ends: Ends) -> None:
    channel, server = ends
    channel.send(Command(15, flag=2), soon())
    assert server.next().is_one_way
    assert channel.pending_count == 0


@pytest.mark.parametrize(
    ("code", "is_told"), [(RequestCode.GET_MIN_OFFSET, False), (RequestCode.SEND_MESSAGE, True)]
)
def test_only_what_changes_something_may_be_done(
    ends: tuple[BlockingChannel, Server], code: RequestCode, is_told: bool
) -> None:
    channel, _ = ends
    with pytest.raises(RequestTimeout) as caught:
        channel.request(Command(code), 0.05)
    assert ("may have taken effect" in str(caught.value)) is is_told


def test_a_late_answer_is_dropped(ends: Ends) -> None:
    channel, server = ends
    late = send(channel)
    with pytest.raises(RequestTimeout, match=r"10.0.0.1:10911 did not answer request 1") as caught:
        channel.receive(late, time.monotonic() + 0.01)
    assert not caught.value.outcome_known
    late_request = server.next()
    following = send(channel)
    answers = server.answer(late_request, b"late" * VIEW_BYTES_MIN)
    answers += server.answer(server.next(), b"on time")
    thread = in_background(server.connection, answers)
    assert channel.receive(following, soon()).body == b"on time"
    thread.join(WAIT_S)
    with pytest.raises(RequestTimeout):
        channel.receive(late, time.monotonic())


@pytest.mark.parametrize("size", [0, 1, VIEW_BYTES_MIN - 1, VIEW_BYTES_MIN, INBOX_BYTES, 5 << 20])
def test_bodies_of_all_sizes(ends: Ends, size: int, seed: int) -> None:
    channel, server = ends
    body = random.Random(seed).randbytes(size)
    opaque = send(channel)
    request = server.next()
    # Something small in front and behind, in the same stretch of bytes.
    other = send(channel)
    small = server.answer(server.next(), b"small")
    thread = in_background(server.connection, small + server.answer(request, body) + small)
    answer = channel.receive(opaque, soon())
    assert bytes(answer.body) == body
    assert isinstance(answer.body, memoryview) == (size >= VIEW_BYTES_MIN)
    assert channel.receive(other, soon()).body == b"small"
    thread.join(WAIT_S)


def test_bytes_arrive_one_by_one(ends: Ends) -> None:
    channel, server = ends
    opaques = [send(channel), send(channel)]
    frames = b"".join(server.answer(server.next(), b"x" * number) for number in (3, 5))
    for byte in frames:
        server.connection.sendall(bytes([byte]))
        with pytest.raises(RequestTimeout):
            channel.receive(send(channel), 0.0)
    assert [channel.receive(opaque, 0.0).body for opaque in opaques] == [b"xxx", b"xxxxx"]


def test_a_deadline_in_the_middle_of_a_body_loses_nothing(ends: Ends) -> None:
    channel, server = ends
    first, second = send(channel), send(channel)
    large = server.answer(server.next(), b"a" * (2 << 20))
    server.connection.setblocking(False)
    sent = server.connection.send(large)
    assert sent < len(large), "the system took all at once; make the body larger"
    server.connection.settimeout(WAIT_S)
    with pytest.raises(RequestTimeout):
        while True:
            channel.receive(first, time.monotonic() + 0.001)
    following = server.answer(server.next(), b"b" * VIEW_BYTES_MIN)
    thread = in_background(server.connection, large[sent:] + following)
    assert bytes(channel.receive(second, soon()).body) == b"b" * VIEW_BYTES_MIN
    thread.join(WAIT_S)


class PlayedTime:
    """Takes the place of ``time``: it passes when the test says so, however slow the machine."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


def wait_read(connection: socket.socket) -> None:
    """Wait until the other end has read everything."""
    while fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)) != bytes(4):
        time.sleep(0.001)


def test_a_slow_large_body_puts_the_deadline_off(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, server = ends
    opaque = send(channel)
    frame = server.answer(server.next(), bytes(1 << 20))
    played = PlayedTime()
    monkeypatch.setattr("pymq.net.blocking.time", played)

    def trickle() -> None:
        for at in range(0, len(frame), 1 << 17):
            played.now_s += 0.3 if at else 0.0  # not before it waits for the answer
            server.connection.sendall(frame[at : at + (1 << 17)])
            wait_read(server.connection)

    thread = threading.Thread(target=trickle, daemon=True)
    thread.start()
    assert len(channel.receive(opaque, 0.4).body) == 1 << 20
    thread.join(WAIT_S)
    assert played.now_s > 2


def test_the_wait_for_an_answer_begins_when_the_request_is_written(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, server = ends
    played = PlayedTime()
    monkeypatch.setattr("pymq.net.blocking.time", played)
    decoder, piece_bytes, count = FrameDecoder(), 1 << 16, 32

    def take_slowly() -> None:
        found: list[Command] = []
        while not found:
            piece = server.connection.recv(piece_bytes)
            # Much less between two writes than is waited, however small the pieces are.
            played.now_s += 5 * len(piece) / piece_bytes
            found = decoder.feed(piece)
        time.sleep(0.1)  # All is written: let it wait for the answer.
        server.connection.sendall(server.answer(found[0]))

    thread = threading.Thread(target=take_slowly, daemon=True)
    thread.start()
    channel.request(Command(320, {}, bytes(count * piece_bytes)), WAIT_S)
    thread.join(WAIT_S)
    assert channel.written_s > 1.5 * WAIT_S


def test_a_view_stays_as_it_is_while_somebody_holds_it(ends: Ends) -> None:
    channel, server = ends
    held = []
    buffers = set()
    for number in range(8):
        opaque = send(channel)
        body = bytes([number]) * VIEW_BYTES_MIN
        thread = in_background(server.connection, server.answer(server.next(), body))
        view = channel.receive(opaque, soon()).body
        assert isinstance(view, memoryview)
        thread.join(WAIT_S)
        buffers.add(id(view.obj))
        if number % 2:
            held.append((view, body))
        del view
    for view, body in held:
        assert bytes(view) == body
    channel.close()
    assert bytes(held[0][0]) == held[0][1]


def test_a_buffer_nobody_holds_is_used_again(ends: Ends) -> None:
    channel, server = ends
    buffers = set()
    for number in range(6):
        opaque = send(channel)
        body = bytes(VIEW_BYTES_MIN + number)
        thread = in_background(server.connection, server.answer(server.next(), body))
        view = channel.receive(opaque, soon()).body
        assert isinstance(view, memoryview)
        thread.join(WAIT_S)
        buffers.add(id(view.obj))
        del view
        gc.collect()
    assert len(buffers) == 1


def test_headers_larger_than_the_inbox(ends: Ends) -> None:
    channel, server = ends
    opaque = send(channel)
    frame = server.answer(server.next(), b"body", msgId="A" * (3 * INBOX_BYTES))
    other = send(channel)
    frame += server.answer(server.next(), b"other")
    thread = in_background(server.connection, frame)
    answer = channel.receive(opaque, soon())
    assert (len((answer.fields or {})["msgId"]), answer.body) == (3 * INBOX_BYTES, b"body")
    assert channel.receive(other, soon()).body == b"other"
    thread.join(WAIT_S)


def test_large_requests_leave_whole(ends: Ends, seed: int) -> None:
    channel, server = ends
    body = random.Random(seed).randbytes(4 << 20)
    received: list[Command] = []
    thread = threading.Thread(target=lambda: received.append(server.next()), daemon=True)
    thread.start()
    channel.send(Command(320, {}, memoryview(body)), soon())
    thread.join(WAIT_S)
    assert received[0].body == body


def test_a_peer_that_does_not_read(ends: Ends) -> None:
    channel, _ = ends
    with pytest.raises(ConnectionFailed, match="does not read") as caught:
        channel.send(Command(320, {}, bytes(8 << 20)), time.monotonic() + 0.05)
    assert not caught.value.outcome_known
    with pytest.raises(ConnectionFailed, match="nothing was sent") as caught:
        send(channel)
    assert caught.value.outcome_known


def test_connecting_to_many_at_a_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, unreachable_address() as lost:
        here = listener.getsockname()
        refused, away = split_address(closed_address()), split_address(lost)
        peers = {away: "", refused: "", ("no such host", 1): "", here: ""}
        found = BlockingChannel.connect_all(peers, timeout_s=0.2)
        connected = found.pop(here)
        assert isinstance(connected, BlockingChannel) and connected.check_alive()
        connected.close()
        assert {peer: str(error).partition(": ")[2] for peer, error in found.items()} == {
            away: "no answer within 0.2 s",
            refused: "[Errno 111] Connection refused",
            ("no such host", 1): "[Errno -2] Name or service not known",
        }


def test_the_addresses_of_a_host_are_tried_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, unreachable_address() as lost:
        addresses = [split_address(closed_address()), split_address(lost), listener.getsockname()]
        kind = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
        monkeypatch.setattr(
            socket, "getaddrinfo", lambda *_, **__: [(*kind, address) for address in addresses]
        )
        channel = BlockingChannel.connect("pymq.test", 9876, timeout_s=0.2)
        assert channel.peer == "pymq.test:9876" and channel.check_alive()
        channel.close()
        del addresses[2]
        with pytest.raises(ConnectionFailed, match=r"pymq\.test:9876: no answer within 0\.2 s"):
            BlockingChannel.connect("pymq.test", 9876, timeout_s=0.2)


def test_the_peer_closes(ends: Ends) -> None:
    channel, server = ends
    answered, unanswered = send(channel), send(channel)
    server.connection.sendall(server.answer(server.next(), b"ok"))
    server.connection.close()
    with pytest.raises(ConnectionFailed) as caught:
        channel.receive(unanswered, soon())
    assert not caught.value.outcome_known
    assert channel.receive(answered, soon()).body == b"ok"
    assert not channel.is_open and not channel.check_alive()


def test_an_idle_connection_that_ended_is_noticed(ends: Ends) -> None:
    channel, server = ends
    assert channel.check_alive()
    server.connection.close()
    assert not channel.check_alive()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP"),
        (bytes.fromhex("000012040000000000 000300000064"), "HTTP/2, which gRPC"),
        (bytes.fromhex("15030300020246"), "TLS alert"),
        (struct.pack(">II", 1 << 30, 0), "frame_bytes_max"),
        (struct.pack(">iI", -5, 0), "frame_bytes_max"),
        (struct.pack(">II", 8, 5), "room for 4"),
        (struct.pack(">II", 8, 4) + b"nope", "cannot be read"),
        (struct.pack(">II", 8, 7 << 24 | 4) + b"nope", "serialization 7"),
    ],
)
def test_answers_that_are_none(ends: Ends, data: bytes, text: str) -> None:
    channel, server = ends
    opaque = send(channel)
    server.connection.sendall(data)
    with pytest.raises(RemoteProtocolError, match=text) as caught:
        channel.receive(opaque, soon())
    assert PEER in str(caught.value)
    assert not channel.is_open


def test_random_bytes_raise_only_our_errors(seed: int) -> None:
    chooser = random.Random(seed)
    for _ in range(200):
        ours, theirs = socket.socketpair()
        channel = BlockingChannel(PEER, ours)
        with theirs:
            opaque = send(channel)
            data = bytearray(encode_frame(Command(0, {"k": "v"}, b"body", opaque=opaque, flag=1)))
            for _ in range(chooser.randrange(1, 4)):
                data[chooser.randrange(len(data))] = chooser.randrange(256)
            theirs.sendall(data)
            theirs.shutdown(socket.SHUT_WR)
            try:
                channel.receive(opaque, soon())
            except PymqError:
                pass
        channel.close()


def test_limits(ends: Ends) -> None:
    channel, _ = ends
    with pytest.raises(LocalProtocolError, match="frame_bytes_max"):
        channel.send(Command(310, {}, bytes(16 << 20)), soon())
    for _ in range(8):
        send(channel)
    with pytest.raises(TooManyPending, match="pending_max"):
        send(channel)


def test_a_closed_channel(ends: Ends) -> None:
    channel, _ = ends
    opaque = send(channel)
    channel.close()
    channel.close()
    for use in (lambda: send(channel), lambda: channel.receive(opaque, soon())):
        with pytest.raises(ClientClosed):
            use()


def test_a_refused_connection_names_address_and_hint() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # not listening
        port = taken.getsockname()[1]
        with pytest.raises(ConnectionFailed, match=f"127.0.0.1:{port}.*brokerIP1") as caught:
            BlockingChannel.connect("127.0.0.1", port, timeout_s=1.0, hint="is brokerIP1 right?")
    assert caught.value.outcome_known
