"""The listener on real sockets: gathered frames, foreign bytes, deadlines, back-pressure."""

import asyncio
import contextlib
import logging
import resource
import socket
import struct
import time
from collections.abc import Awaitable, Callable

import pytest

from pymq.errors import ConfigurationError, ConnectionFailed, RequestTimeout, TooManyPending
from pymq.net import wire
from pymq.net.channel import AsyncChannel
from pymq.net.server import ASKED_COUNT_MAX, Server, ServerConfig, ServerConnection
from pymq.net.wire import TURN_BYTES
from pymq.protocol.command import Command
from pymq.protocol.framing import FrameDecoder, Incoming, encode_frame

DEADLINE_S = 60.0
#: Longer than a standstill has to be.
FROZEN_S = 0.8


class Echo:
    """Answers every request with its own body and remembers how requests came together."""

    def __init__(self) -> None:
        self.groups: list[int] = []
        self.ended = 0

    def on_commands(self, connection: ServerConnection, commands: list[Command]) -> None:
        self.groups.append(len(commands))
        for command in commands:
            connection.respond(command, command.reply(0, body=command.body))

    def on_ended(self, connection: ServerConnection) -> None:
        self.ended += 1


def serve(check: Callable[[Server, Echo], Awaitable[None]], **settings: float) -> None:
    """Run ``check`` against a server that echoes."""

    async def run() -> None:
        echo = Echo()
        server = Server(ServerConfig(**settings), echo.on_commands, echo.on_ended)  # type: ignore[arg-type]
        await server.start()
        try:
            await asyncio.wait_for(check(server, echo), DEADLINE_S)
        finally:
            await server.close()
            await server.close()

    asyncio.run(run())


async def read_commands(reader: asyncio.StreamReader, count: int) -> list[Command]:
    decoder = FrameDecoder()
    commands: list[Command] = []
    while len(commands) < count:
        data = await reader.read(1 << 20)
        assert data, f"connection closed after {len(commands)} of {count} responses"
        commands += decoder.feed(data)
    return commands


def request(opaque: int, body: bytes = b"", flag: int = 0) -> bytes:
    return encode_frame(Command(310, {"b": "T"}, body, opaque=opaque, flag=flag))


def test_frames_that_arrive_together_are_handled_together_in_order() -> None:
    async def check(server: Server, echo: Echo) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"".join(request(n, b"%d" % n) for n in range(50)))
        answers = await read_commands(reader, 50)
        assert [answer.opaque for answer in answers] == list(range(50))
        assert [answer.body for answer in answers] == [b"%d" % n for n in range(50)]
        assert max(echo.groups) > 1
        writer.close()

    serve(check)


def test_an_answer_that_is_later_than_its_connection_is_dropped() -> None:
    held: list[tuple[ServerConnection, Command]] = []

    async def check(server: Server, echo: Echo) -> None:
        server.on_commands = lambda connection, commands: held.extend(
            (connection, command) for command in commands
        )
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request(1) + request(2))
        while len(held) < 2:
            await asyncio.sleep(0.001)
        writer.close()
        while not echo.ended:
            await asyncio.sleep(0.001)
        for connection, command in held:
            assert not connection.is_open
            connection.respond(command, command.reply(0), [memoryview(b"late")])
        server.on_commands = echo.on_commands
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request(3))
        assert [answer.opaque for answer in await read_commands(reader, 1)] == [3]
        writer.close()

    serve(check)


def test_one_way_requests_get_no_answer() -> None:
    async def check(server: Server, echo: Echo) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request(1, flag=2) + request(2))
        assert [answer.opaque for answer in await read_commands(reader, 1)] == [2]
        assert sum(echo.groups) == 2
        writer.close()

    serve(check)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP", id="http"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01", "TLS", id="tls"),
        pytest.param(struct.pack(">II", 1 << 30, 10) + b"x" * 64, "frame_bytes_max", id="huge"),
        pytest.param(struct.pack(">II", 0xFFFFFFF0, 10), "frame_bytes_max", id="negative"),
        pytest.param(struct.pack(">II", 2, 0) + b"ab", "frame of 6 B", id="too short"),
        pytest.param(struct.pack(">II", 14, 100) + b"x" * 10, "header of 100 B", id="header"),
        pytest.param(struct.pack(">II", 14, 10) + b"{not json}", "JSON header", id="json"),
        pytest.param(struct.pack(">II", 14, 7 << 24) + b"x" * 10, "serialization 7", id="form"),
        pytest.param(struct.pack(">II", 14, 1 << 24) + b"x" * 10, "binary header", id="binary"),
    ],
)
def test_foreign_bytes_close_their_connection_and_no_other(
    sent: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def check(server: Server, echo: Echo) -> None:
        good_reader, good_writer = await asyncio.open_connection("127.0.0.1", server.port)
        bad_reader, bad_writer = await asyncio.open_connection("127.0.0.1", server.port)
        bad_writer.write(sent)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await bad_reader.readexactly(1)
        good_writer.write(request(7))
        assert (await read_commands(good_reader, 1))[0].opaque == 7
        good_writer.close()
        bad_writer.close()

    with caplog.at_level(logging.WARNING, logger="pymq.net"):
        serve(check)
    assert reason in caplog.text


def test_many_small_frames_are_handled_in_turns_and_in_order() -> None:
    async def check(server: Server, echo: Echo) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        bodies = [b"%d" % n * 50 for n in range(3000)]
        bodies[1000] = b"x" * 300_000
        writer.write(b"".join(request(n, body) for n, body in enumerate(bodies)))
        answers = await read_commands(reader, len(bodies))
        assert [answer.body for answer in answers] == bodies
        smallest = len(request(0, bodies[0]))
        assert max(echo.groups) <= TURN_BYTES // smallest + 1
        assert len(echo.groups) >= 300_000 // TURN_BYTES
        writer.close()

    serve(check)


def test_input_of_many_connections_that_waits_has_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "SHARED_BACKLOG_BYTES_MAX", 1 << 20)
    count, size = 20, 1000

    async def check(server: Server, echo: Echo) -> None:
        most = 0
        on_commands = server.on_commands

        def watch(connection: ServerConnection, commands: list[Incoming]) -> None:
            nonlocal most
            most = max(most, server.buffers.waiting_bytes)
            on_commands(connection, commands)

        server.on_commands = watch
        frames = b"".join(request(number, bytes(size)) for number in range(800))
        ends = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(count)]
        for _, writer in ends:
            writer.write(frames)
        for reader, _ in ends:
            answers = await read_commands(reader, 800)
            assert [answer.opaque for answer in answers] == list(range(800))
        assert 0 < most <= (1 << 20) + count * wire.READ_BYTES
        assert server.buffers.waiting_bytes == 0
        for _, writer in ends:
            writer.close()

    serve(check)


def test_what_arrived_before_the_end_is_handled() -> None:
    async def check(server: Server, echo: Echo) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"".join(request(n, b"x" * 100, flag=2) for n in range(1000)))
        await writer.drain()
        writer.close()
        async with asyncio.timeout(DEADLINE_S):
            while not echo.ended:
                await asyncio.sleep(0.005)
        assert sum(echo.groups) == 1000

    serve(check)


def test_a_frame_cut_anywhere_is_put_together() -> None:
    async def check(server: Server, echo: Echo) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        frame = request(3, b"body")
        for at in range(len(frame)):
            writer.write(frame[at : at + 1])
            await writer.drain()
            await asyncio.sleep(0)
        assert (await read_commands(reader, 1))[0].body == b"body"
        writer.close()

    serve(check)


def test_a_connection_stuck_in_a_frame_or_silent_is_closed_by_deadline() -> None:
    async def check(server: Server, echo: Echo) -> None:
        half_reader, half_writer = await asyncio.open_connection("127.0.0.1", server.port)
        half_writer.write(request(1)[:10])
        silent_reader, silent_writer = await asyncio.open_connection("127.0.0.1", server.port)
        for reader in (half_reader, silent_reader):
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
        half_writer.close()
        silent_writer.close()
        assert echo.ended == 2

    serve(check, frame_s=0.05, idle_s=0.1)


def freeze() -> None:
    """Stand still, with the event loop, for longer than nobody would notice."""
    time.sleep(FROZEN_S)


def test_a_standstill_of_this_process_is_no_silence_of_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Timers run before any socket is read when it goes on."""

    async def check(server: Server, echo: Echo) -> None:
        half_reader, half_writer = await asyncio.open_connection("127.0.0.1", server.port)
        half_writer.write(request(1)[:10])
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request(1))
        await read_commands(reader, 1)
        freeze()
        await asyncio.sleep(0)  # timers that are due run, and nothing is read
        half_writer.write(request(1)[10:])
        writer.write(request(2))
        await read_commands(half_reader, 1)
        await read_commands(reader, 1)
        assert echo.ended == 0
        levels = {one.levelname for one in caplog.records if "stood still" in one.getMessage()}
        assert levels == {"DEBUG"}  # a machine that is slow does so all the time
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        half_writer.close()
        writer.close()

    with caplog.at_level("DEBUG"):
        serve(check, frame_s=0.1, idle_s=0.3)


def test_unfinished_frames_of_all_connections_have_a_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    part = request(1, bytes(400 << 10))[: 300 << 10]

    async def check(server: Server, echo: Echo) -> None:
        peers = []
        for _ in range(8):
            peers.append(await asyncio.open_connection("127.0.0.1", server.port))
            before = server.buffers.unfinished_bytes
            peers[-1][1].write(part)
            while server.buffers.unfinished_bytes == before and not echo.ended:
                await asyncio.sleep(0.001)
        while echo.ended < 5:
            await asyncio.sleep(0.001)
        for reader, _ in peers[:5]:  # those that began first
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        while server.buffers.unfinished_bytes < 3 * len(part):
            await asyncio.sleep(0.001)
        assert server.buffers.unfinished_bytes == 3 * len(part)
        for _, writer in peers[:-1]:
            writer.close()
        while echo.ended < 7:
            await asyncio.sleep(0.001)
        reader, writer = peers[-1]
        writer.write(request(1, bytes(400 << 10))[300 << 10 :])
        (answer,) = await read_commands(reader, 1)
        assert len(answer.body) == 400 << 10
        writer.close()
        while echo.ended < 8:
            await asyncio.sleep(0.001)
        assert server.buffers.unfinished_bytes == 0

    serve(check, unfinished_bytes_max=1 << 20)
    assert caplog.text.count("(unfinished_bytes_max), and its own began") == 1


def test_a_peer_that_does_not_read_stops_being_read_and_is_closed() -> None:
    async def check(server: Server, echo: Echo) -> None:
        peer = socket.create_connection(("127.0.0.1", server.port))
        peer.setblocking(False)
        loop = asyncio.get_running_loop()
        frame = request(1, b"x" * 100_000)
        sent = 0
        with pytest.raises((ConnectionError, TimeoutError)):
            async with asyncio.timeout(8):
                while True:
                    await loop.sock_sendall(peer, frame)
                    sent += 1
                    assert sent < 10_000, "the server went on reading"
        peer.close()

    serve(check, frame_s=0.05, write_stuck_s=0.2)


def test_large_answers_arrive_whole_while_small_ones_follow() -> None:
    async def check(server: Server, echo: Echo) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        bodies = [b"a" * 5_000_000, b"b" * 10, b"c" * 300_000, b""]
        for opaque, body in enumerate(bodies):
            writer.write(request(opaque, body))
        answers = await read_commands(reader, len(bodies))
        assert [answer.body for answer in answers] == bodies
        writer.close()

    serve(check)


def test_closing_cuts_off_a_peer_that_does_not_read() -> None:
    async def check(server: Server, echo: Echo) -> None:
        with socket.create_connection(("127.0.0.1", server.port)) as peer:
            peer.setblocking(False)
            frame = request(1, b"x" * 1_000_000)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    while True:
                        await asyncio.get_running_loop().sock_sendall(peer, frame)
            await server.close()
            async with asyncio.timeout(DEADLINE_S):
                while not echo.ended:
                    await asyncio.sleep(0.005)

    serve(check)


def test_a_bug_in_the_handler_ends_the_connection(
    caplog: pytest.LogCaptureFixture, unawaited: list[str]
) -> None:
    async def check(server: Server, echo: Echo) -> None:
        def failing(connection: ServerConnection, commands: list[Command]) -> None:
            handled.append(len(commands))
            if len(handled) == 2:  # a later turn than the one in which the frames came
                raise ZeroDivisionError

        handled: list[int] = []
        server.on_commands = failing
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"".join(request(n, b"x" * 1000) for n in range(3 * TURN_BYTES // 1000)))
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        assert len(handled) == 2
        assert echo.ended == 1
        writer.close()

    serve(check)
    assert "ZeroDivisionError" in caplog.text
    unawaited.clear()


def test_a_host_that_is_no_name_is_refused() -> None:
    server = Server(ServerConfig(host="a" * 70 + ".example"), lambda *_: None, lambda _: None)
    with pytest.raises(ConfigurationError, match="the host cannot be resolved"):
        server.bind()


def test_a_port_in_use_is_named_with_what_to_do() -> None:
    async def check(server: Server, echo: Echo) -> None:
        second = Server(ServerConfig(port=server.port), echo.on_commands, echo.on_ended)
        with pytest.raises(ConfigurationError, match=f"{server.port}.*in use.*choose another"):
            await second.start()

    serve(check)


def test_connections_above_the_limit_are_refused() -> None:
    async def check(server: Server, echo: Echo) -> None:
        first_reader, first_writer = await asyncio.open_connection("127.0.0.1", server.port)
        first_writer.write(request(1))
        await read_commands(first_reader, 1)
        second_reader, second_writer = await asyncio.open_connection("127.0.0.1", server.port)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await second_reader.readexactly(1)
        first_writer.write(request(2))
        await read_commands(first_reader, 1)
        first_writer.close()
        second_writer.close()

    serve(check, connection_count_max=1)


def test_connections_of_all_ports_take_half_of_the_files(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (8, 8))

    async def check(server: Server, echo: Echo) -> None:
        second = Server(ServerConfig(), echo.on_commands, echo.on_ended)
        server.beside, second.beside = [second], [server]
        await second.start()
        writers = []
        for number, port in enumerate((server.port, second.port) * 2):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request(number))
            await read_commands(reader, 1)
            writers.append(writer)
        for port in (server.port, second.port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
            writers.append(writer)
        for writer in writers:
            writer.close()
        while echo.ended < 6:
            await asyncio.sleep(0.001)
        reader, writer = await asyncio.open_connection("127.0.0.1", second.port)
        writer.write(request(9))
        await read_commands(reader, 1)
        writer.close()
        await second.close()

    serve(check)
    assert caplog.text.count("as many as may (connection_count_max, and half of ulimit -n)") == 2


# --- a server that asks its client


def test_it_is_said_once_that_no_file_is_left_for_connections(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pymq.net.server")

    async def check(server: Server, echo: Echo) -> None:
        server.check_files()
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (4, limits[1]))  # fewer than are open
            for _ in range(3):
                server.check_files()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for _ in range(2):
            server.check_files()

    serve(check)
    assert caplog.text.count("no connection can be accepted") == 1
    assert caplog.text.count("connections can be accepted again") == 1


class Asking:
    """A server that passes on what its clients answer, and one client of it."""

    def __init__(self) -> None:
        self.accepted: list[ServerConnection] = []

    def on_commands(self, connection: ServerConnection, commands: list[Command]) -> None:
        for command in commands:
            if command.is_response:
                connection.answered(command)
            else:
                self.accepted.append(connection)
                connection.respond(command, command.reply(0))


def serve_asking(check: Callable[[AsyncChannel, ServerConnection], Awaitable[None]]) -> None:
    """Run ``check`` with both ends of a connection; the client answers codes below 100."""

    def on_request(channel: AsyncChannel, command: Command) -> None:
        if command.code < 100:
            channel.respond(command, command.reply(command.code, body=command.body))

    async def run() -> None:
        asking = Asking()
        server = Server(ServerConfig(), asking.on_commands, lambda _: None)
        await server.start()
        channel = await AsyncChannel.connect(
            f"127.0.0.1:{server.port}", DEADLINE_S, on_request=on_request
        )
        try:
            await channel.request(Command(1), DEADLINE_S)
            await asyncio.wait_for(check(channel, asking.accepted[0]), DEADLINE_S)
        finally:
            channel.close()
            await server.close()

    asyncio.run(run())


def test_both_ends_ask_at_the_same_time_with_numbers_of_their_own() -> None:
    async def check(channel: AsyncChannel, connection: ServerConnection) -> None:
        ours = [
            connection.request_nowait(Command(n, body=b"%d" % n), DEADLINE_S) for n in range(50)
        ]
        theirs = [channel.request_nowait(Command(n), DEADLINE_S) for n in range(50)]
        answers = await asyncio.gather(*ours)
        assert [(one.code, one.body) for one in answers] == [(n, b"%d" % n) for n in range(50)]
        assert len(await asyncio.gather(*theirs)) == 50
        assert connection.pending_count == channel.pending_count == 0

    serve_asking(check)


def test_a_client_that_does_not_answer_in_time() -> None:
    async def check(channel: AsyncChannel, connection: ServerConnection) -> None:
        with pytest.raises(RequestTimeout, match=r"^127.+ did not answer request UPDATE_AND"):
            await connection.request(Command(200), 0.05)
        assert connection.pending_count == 0 and connection.is_open

    serve_asking(check)


def test_a_client_that_is_gone_fails_what_it_was_asked() -> None:
    async def check(channel: AsyncChannel, connection: ServerConnection) -> None:
        asked = connection.request_nowait(Command(200), DEADLINE_S)
        channel.close()
        with pytest.raises(
            ConnectionFailed,
            match="was lost before request UPDATE_AND_CREATE_SUBSCRIPTIONGROUP was answered",
        ):
            await asked
        with pytest.raises(ConnectionFailed, match="is closed"):
            await connection.request(Command(1), 5)

    serve_asking(check)


def test_a_client_is_asked_so_much_at_a_time() -> None:
    async def check(channel: AsyncChannel, connection: ServerConnection) -> None:
        asked = [connection.request_nowait(Command(200), 60) for _ in range(ASKED_COUNT_MAX)]
        with pytest.raises(TooManyPending, match=f"{ASKED_COUNT_MAX} requests are unanswered"):
            await connection.request(Command(1), 5)
        connection.abort()
        assert all(
            isinstance(error, ConnectionFailed)
            for error in await asyncio.gather(*asked, return_exceptions=True)
        )

    serve_asking(check)


def test_a_client_that_does_not_read_is_not_asked() -> None:
    async def check(channel: AsyncChannel, connection: ServerConnection) -> None:
        transport = channel._transport
        assert transport is not None
        transport.pause_reading()
        while connection.write_stuck_at is None:
            connection.send(b"x" * 1_000_000)
            await asyncio.sleep(0)
        with pytest.raises(RequestTimeout, match="has not read for 0.05 s"):
            await connection.ask(Command(1), 0.05)
        assert connection.pending_count == 0
        connection.abort()

    serve_asking(check)
