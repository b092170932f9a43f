"""One outgoing connection on real sockets: matching, deadlines, loss, the server's requests."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.cluster.children import in_child
from tests.cluster.played import closed_address

from pymq.errors import (
    ConnectionFailed,
    LocalProtocolError,
    PymqError,
    RequestTimeout,
    TooManyPending,
)
from pymq.net.channel import AsyncChannel
from pymq.net.server import Server, ServerConfig, ServerConnection
from pymq.protocol.codes import RequestCode, SinkRequest
from pymq.protocol.command import Command
from pymq.protocol.framing import encode_frame

DEADLINE_S = 120.0
#: For what is answered.
TIMEOUT_S = 60.0


class Peer:
    """Keeps requests until the test answers them."""

    def __init__(self) -> None:
        self.requests: list[tuple[ServerConnection, Command]] = []
        self.arrived = asyncio.Event()

    def on_commands(self, connection: ServerConnection, commands: list[Command]) -> None:
        self.requests += [(connection, command) for command in commands]
        self.arrived.set()

    async def wait_requests(self, count: int) -> None:
        while len(self.requests) < count:
            self.arrived.clear()
            await self.arrived.wait()

    def answer(self, index: int, body: bytes = b"") -> None:
        connection, request = self.requests[index]
        connection.respond(request, request.reply(0, body=body))


def check(test: Callable[[Peer, str], Awaitable[None]]) -> None:
    async def run() -> None:
        peer = Peer()
        server = Server(ServerConfig(), peer.on_commands, lambda connection: None)
        await server.start()
        try:
            await asyncio.wait_for(test(peer, f"127.0.0.1:{server.port}"), DEADLINE_S)
        finally:
            await server.close()

    asyncio.run(run())


def test_answers_come_in_any_order() -> None:
    async def test(peer: Peer, address: str) -> None:
        channel = await AsyncChannel.connect(address, TIMEOUT_S)
        futures = [
            channel.request_nowait(Command(n, {"n": str(n)}), TIMEOUT_S) for n in range(1, 6)
        ]
        await peer.wait_requests(5)
        for index in (3, 0, 4, 2, 1):
            peer.answer(index, b"%d" % peer.requests[index][1].code)
        answers = await asyncio.gather(*futures)
        assert [answer.body for answer in answers] == [b"1", b"2", b"3", b"4", b"5"]
        assert channel.pending_count == 0
        channel.close()

    check(test)


def test_who_was_overtaken_is_not_behind() -> None:
    async def test(peer: Peer, address: str) -> None:
        channel = await AsyncChannel.connect(address, TIMEOUT_S)
        futures = [channel.request_nowait(Command(1), TIMEOUT_S) for _ in range(3)]
        await peer.wait_requests(3)
        peer.answer(1)
        await futures[1]
        numbers = [command.opaque for _, command in peer.requests]
        assert [channel._progress.is_behind(one) for one in numbers] == [False, True, True]
        channel.abort()
        await asyncio.gather(*futures, return_exceptions=True)

    check(test)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_leaves_a_connection_that_is_only_just_being_made_to_its_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(peer: Peer, address: str) -> None:
        loop = asyncio.get_running_loop()
        make, begun, may_go_on = loop.create_connection, asyncio.Event(), asyncio.Event()
        numbers: list[int] = []

        async def slowly(protocol: Any, *, sock: socket.socket) -> Any:
            numbers.append(sock.fileno())
            begun.set()
            await may_go_on.wait()
            return await make(protocol, sock=sock)

        monkeypatch.setattr(loop, "create_connection", slowly)
        connecting = asyncio.ensure_future(AsyncChannel.connect(address, TIMEOUT_S))
        await begun.wait()
        nowhere = os.stat(os.devnull)
        assert in_child(lambda: [os.path.samestat(os.fstat(one), nowhere) for one in numbers]) == [
            True
        ]
        may_go_on.set()
        channel = await connecting
        answered = channel.request_nowait(Command(1), TIMEOUT_S)
        await peer.wait_requests(1)
        peer.answer(0, b"still there")
        assert (await answered).body == b"still there"
        channel.close()

    check(test)


def test_deadlines_differ_and_late_answers_are_dropped() -> None:
    async def test(peer: Peer, address: str) -> None:
        channel = await AsyncChannel.connect(address, TIMEOUT_S)
        long = channel.request_nowait(Command(1), TIMEOUT_S, description="the long one")
        short = channel.request_nowait(Command(2), 0.1, description="the short one")
        with pytest.raises(RequestTimeout, match=f"{address} did not answer the short one") as late:
            await short
        assert not late.value.outcome_known
        assert not long.done()
        await peer.wait_requests(2)
        peer.answer(1)
        peer.answer(0, b"x")
        assert (await long).body == b"x"
        channel.close()

    check(test)


def test_a_lost_connection_fails_what_is_unanswered_and_sends_no_more() -> None:
    async def test(peer: Peer, address: str) -> None:
        ended: list[AsyncChannel] = []
        channel = await AsyncChannel.connect(address, TIMEOUT_S, on_ended=ended.append)
        futures = [channel.request_nowait(Command(1), TIMEOUT_S) for _ in range(3)]
        await peer.wait_requests(3)
        peer.requests[0][0].abort()
        for future in futures:
            with pytest.raises(ConnectionFailed, match="was lost before") as lost:
                await future
            assert not lost.value.outcome_known
        assert ended == [channel]
        for refuse in (
            lambda: channel.request_nowait(Command(1), TIMEOUT_S),
            lambda: channel.send_one_way(Command(1)),
        ):
            with pytest.raises(ConnectionFailed) as closed:
                refuse()
            assert closed.value.outcome_known

    check(test)


def test_only_what_changes_something_may_have_taken_effect() -> None:
    async def test(peer: Peer, address: str) -> None:
        channel = await AsyncChannel.connect(address, TIMEOUT_S)
        reading = (RequestCode.PULL_MESSAGE, RequestCode.CONTROLLER_GET_METADATA_INFO)
        codes = (*reading, SinkRequest.SHOW_SINKS, RequestCode.SEND_MESSAGE)
        lost = [channel.request_nowait(Command(code), TIMEOUT_S) for code in codes]
        late = [channel.request_nowait(Command(code), 0.05) for code in codes]
        texts = [str(error) for error in await asyncio.gather(*late, return_exceptions=True)]
        await peer.wait_requests(8)
        peer.requests[0][0].abort()
        texts += [str(error) for error in await asyncio.gather(*lost, return_exceptions=True)]
        are_told = ["may have taken effect" in text for text in texts]
        assert are_told == [False, False, False, True] * 2

    check(test)


def test_a_peer_that_speaks_another_protocol_is_named_in_the_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once, to whoever waits: a client that tries again would fill the log."""

    async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        await reader.read()
        writer.close()

    async def test(peer: Peer, address: str) -> None:
        server = await asyncio.start_server(http, "127.0.0.1", 0)
        async with server:
            host, port = server.sockets[0].getsockname()
            channel = await AsyncChannel.connect(f"{host}:{port}", TIMEOUT_S)
            with pytest.raises(ConnectionFailed, match="was lost before.*HTTP, but this port"):
                await channel.request(Command(1), TIMEOUT_S)

    check(test)
    assert not caplog.records


def test_unanswered_requests_are_bounded() -> None:
    async def test(peer: Peer, address: str) -> None:
        channel = await AsyncChannel.connect(address, TIMEOUT_S, pending_max=2)
        futures = [channel.request_nowait(Command(1), TIMEOUT_S) for _ in range(2)]
        with pytest.raises(TooManyPending, match="pending_max"):
            channel.request_nowait(Command(1), TIMEOUT_S)
        await peer.wait_requests(2)
        peer.answer(0)
        await futures[0]
        third = channel.request_nowait(Command(1), TIMEOUT_S)
        await peer.wait_requests(3)
        peer.answer(1)
        peer.answer(2)
        await asyncio.gather(futures[1], third)
        channel.close()

    check(test)


def test_a_request_that_cannot_be_encoded_is_not_pending() -> None:
    async def test(peer: Peer, address: str) -> None:
        channel = await AsyncChannel.connect(address, TIMEOUT_S, frame_bytes_max=1000)
        with pytest.raises(LocalProtocolError, match="frame_bytes_max"):
            channel.request_nowait(Command(1, body=b"x" * 1000), TIMEOUT_S)
        assert channel.pending_count == 0
        channel.close()

    check(test)


def test_one_way_requests_wait_for_nothing() -> None:
    async def test(peer: Peer, address: str) -> None:
        channel = await AsyncChannel.connect(address, TIMEOUT_S)
        channel.send_one_way(Command(15, body=b"x" * 10_000))
        await peer.wait_requests(1)
        assert peer.requests[0][1].is_one_way
        assert peer.requests[0][1].body == b"x" * 10_000
        assert channel.pending_count == 0
        channel.close()

    check(test)


def test_the_servers_own_requests_reach_their_handler_and_can_be_answered() -> None:
    async def test(peer: Peer, address: str) -> None:
        def on_request(channel: AsyncChannel, request: Command) -> None:
            channel.respond(request, request.reply(0, body=b"here"))

        channel = await AsyncChannel.connect(address, TIMEOUT_S, on_request=on_request)
        mine = channel.request_nowait(Command(1), TIMEOUT_S)
        await peer.wait_requests(1)
        connection = peer.requests[0][0]
        # The server counts for itself: the same number does not answer our request.
        connection.send(encode_frame(Command(221, opaque=peer.requests[0][1].opaque)))
        await peer.wait_requests(2)
        assert peer.requests[1][1].body == b"here"
        assert peer.requests[1][1].is_response
        assert not mine.done()
        peer.answer(0)
        await mine
        channel.close()

    check(test)


def test_a_cancelled_request_leaves_the_others_alone() -> None:
    async def test(peer: Peer, address: str) -> None:
        channel = await AsyncChannel.connect(address, TIMEOUT_S)
        first = asyncio.ensure_future(channel.request(Command(1), TIMEOUT_S))
        second = channel.request_nowait(Command(2), TIMEOUT_S)
        await peer.wait_requests(2)
        first.cancel()
        peer.answer(0)
        peer.answer(1)
        await second
        channel.close()

    check(test)


def test_nobody_there_is_told_with_the_address() -> None:
    async def test(peer: Peer, address: str) -> None:
        gone = closed_address()
        with pytest.raises(ConnectionFailed, match=gone) as failed:
            await AsyncChannel.connect(gone, TIMEOUT_S)
        assert failed.value.outcome_known

    check(test)


def test_a_host_that_cannot_be_looked_up_cannot_be_connected_to() -> None:
    async def test(peer: Peer, address: str) -> None:
        with pytest.raises(ConnectionFailed, match="label"):
            await AsyncChannel.connect("a" * 70 + ".example:1", TIMEOUT_S)

    check(test)


def test_the_addresses_of_a_name_are_tried_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    look_up = socket.getaddrinfo

    def played(host: str, port: int, *arguments: int) -> list[Any]:
        if host != "two.example" or socket.AI_NUMERICHOST in arguments:
            return look_up(host, port, *arguments)
        return look_up("::1", port, *arguments) + look_up("127.0.0.1", port, *arguments)

    async def test(peer: Peer, address: str) -> None:
        monkeypatch.setattr(socket, "getaddrinfo", played)
        port = address.rpartition(":")[2]  # which nobody listens at over IPv6
        channel = await AsyncChannel.connect(f"two.example:{port}", TIMEOUT_S)
        assert channel.local_host == "127.0.0.1" and channel.peer == f"two.example:{port}"
        channel.close()
        gone = closed_address().rpartition(":")[2]
        with pytest.raises(ConnectionFailed, match=r"two\.example:.*; .*127\.0\.0\.1"):
            await AsyncChannel.connect(f"two.example:{gone}", TIMEOUT_S)

    check(test)


def test_many_requests_share_one_timer() -> None:
    async def test(peer: Peer, address: str) -> None:
        channel = await AsyncChannel.connect(address, TIMEOUT_S)
        answers: list[Command | PymqError] = []
        complete = asyncio.Event()

        def on_answer(answer: Command | PymqError) -> None:
            answers.append(answer)
            if len(answers) == 1000:
                complete.set()

        for _ in range(1000):
            channel.register("a thing", 0.05, on_answer)
        timers = len(asyncio.get_running_loop()._scheduled)  # type: ignore[attr-defined]
        assert timers < 20
        await complete.wait()
        assert all(isinstance(answer, RequestTimeout) for answer in answers)
        channel.close()

    check(test)


def test_a_timer_that_may_be_late_is_not_made_again_for_each_request() -> None:
    async def test(peer: Peer, address: str) -> None:
        channel = await AsyncChannel.connect(address, TIMEOUT_S)
        channel.late_until_s = asyncio.get_running_loop().time() + DEADLINE_S

        def timer_with(timeout_s: float) -> asyncio.TimerHandle | None:
            channel.register("a request", timeout_s, lambda _: None)
            return channel._sweep

        first = timer_with(TIMEOUT_S)
        assert all(timer_with(TIMEOUT_S) is first for _ in range(100))
        assert timer_with(TIMEOUT_S / 2) is not first
        channel.close()

    check(test)


def test_a_peer_that_answers_much_while_much_is_sent_blocks_nobody() -> None:
    count, body = 3000, b"x" * 10_000

    async def test(peer: Peer, address: str) -> None:
        def echo(connection: ServerConnection, commands: list[Command]) -> None:
            for command in commands:
                connection.respond(command, command.reply(0, body=body))

        server = Server(ServerConfig(write_stuck_s=1000), echo, lambda connection: None)
        await server.start()
        channel = await AsyncChannel.connect(f"127.0.0.1:{server.port}", TIMEOUT_S)
        futures = [channel.request_nowait(Command(1, body=body), TIMEOUT_S) for _ in range(count)]
        answers = await asyncio.gather(*futures)
        assert all(answer.body == body for answer in answers)
        channel.close()
        await server.close()

    check(test)


def test_waiting_until_the_peer_reads() -> None:
    async def test(peer: Peer, address: str) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        loop = asyncio.get_running_loop()
        here = f"127.0.0.1:{listener.getsockname()[1]}"
        channel = await AsyncChannel.connect(here, TIMEOUT_S)
        accepted, _ = await loop.sock_accept(listener)
        await channel.wait_writable()
        for _ in range(40):
            channel.send_one_way(Command(1, body=b"x" * 1_000_000))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting = asyncio.ensure_future(channel.wait_writable())
        await asyncio.sleep(0)
        assert not waiting.done()
        while not waiting.done():
            await loop.sock_recv(accepted, 1 << 20)
        also = asyncio.ensure_future(channel.wait_writable())
        channel.abort()
        await also
        accepted.close()
        listener.close()

    check(test)
