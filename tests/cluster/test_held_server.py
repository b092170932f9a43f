"""A server that is held: requests wait, and none is lost or doubled. On both event loops."""

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from pymq.errors import ConnectionFailed
from pymq.net.channel import AsyncChannel
from pymq.net.server import Server, ServerConfig, ServerConnection
from pymq.protocol.command import Command
from pymq.protocol.framing import encode_frame

DEADLINE_S = 120.0
#: After this, what was sent has arrived, wherever it waits.
ARRIVED_S = 0.15
LARGE = 3 << 20


class Bed:
    """A server that answers each request with its body, and says which were handled when."""

    def __init__(self) -> None:
        self.handled: list[int] = []
        self.ended = 0
        self.is_held = False
        self.server = Server(ServerConfig(), self._on_commands, self._on_ended)

    def _on_commands(self, connection: ServerConnection, commands: Any) -> None:
        assert not self.is_held, "requests are handled while the server is held"
        for command in commands:
            self.handled.append(int(command.fields["n"]))
            answer = command.reply(0, body=bytes(command.body))
            connection.respond(command, answer)

    def _on_ended(self, connection: ServerConnection) -> None:
        self.ended += 1

    def hold(self) -> None:
        self.is_held = True
        self.server.hold()

    def release(self) -> None:
        self.is_held = False
        self.server.release()

    async def connect(self) -> AsyncChannel:
        return await AsyncChannel.connect(f"127.0.0.1:{self.server.port}", DEADLINE_S)

    def ask(self, channel: AsyncChannel, number: int, body: bytes = b"") -> "asyncio.Task[Command]":
        request = channel.request(
            Command(1, {"n": str(number)}, body), DEADLINE_S, description="a test"
        )
        return asyncio.ensure_future(request)


Check = Callable[[Bed], Coroutine[Any, Any, None]]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Check], None]:
    def run_check(check: Check) -> None:
        async def main() -> None:
            bed = Bed()
            await bed.server.start()
            try:
                await asyncio.wait_for(check(bed), DEADLINE_S)
            finally:
                bed.is_held = False
                await bed.server.close()

        maker = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=maker) as runner:
            runner.run(main())

    return run_check


def test_requests_wait_for_the_release(run: Callable[[Check], None]) -> None:
    async def check(bed: Bed) -> None:
        channel = await bed.connect()
        await bed.ask(channel, 0)
        bed.hold()
        bed.hold()
        waiting = [bed.ask(channel, number, b"x" * number) for number in range(1, 200)]
        await asyncio.sleep(ARRIVED_S)
        assert bed.handled == [0]
        bed.release()
        bed.release()
        answers = await asyncio.gather(*waiting)
        assert [len(one.body) for one in answers] == list(range(1, 200))
        assert bed.handled == list(range(200))
        channel.close()

    run(check)


def test_new_connections_wait_too(run: Callable[[Check], None]) -> None:
    async def check(bed: Bed) -> None:
        bed.hold()
        channels = [await bed.connect() for _ in range(5)]
        waiting = [bed.ask(channel, n) for n, channel in enumerate(channels)]
        await asyncio.sleep(ARRIVED_S)
        assert bed.handled == []
        bed.release()
        await asyncio.gather(*waiting)
        assert sorted(bed.handled) == list(range(5))
        for channel in channels:
            channel.close()

    run(check)


def test_who_is_turned_away_is_told_and_nothing_is_handled_later(
    run: Callable[[Check], None],
) -> None:
    async def check(bed: Bed) -> None:
        old = await bed.connect()
        answer = await bed.ask(old, 0, bytes(LARGE))
        assert len(answer.body) == LARGE
        bed.hold()
        waiting = [bed.ask(old, number) for number in range(1, 200)]
        await asyncio.sleep(ARRIVED_S)
        bed.server.turn_away()
        new = await bed.connect()
        waiting.append(bed.ask(new, 200))
        for error in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(error, ConnectionFailed)
        bed.release()
        again = await bed.connect()
        await bed.ask(again, 201)
        assert bed.handled == [0, 201]
        for channel in (old, new, again):
            channel.close()

    run(check)


def test_who_is_turned_away_with_answers_to_read_has_nothing_handled_later(
    run: Callable[[Check], None],
) -> None:
    """Its connection is still there when requests are handled again."""

    async def check(bed: Bed) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", bed.server.port, limit=1 << 10)

        def request(number: int, body: bytes) -> bytes:
            frame = encode_frame(Command(1, {"n": str(number)}, body, opaque=number))
            return b"".join(frame) if isinstance(frame, (list, tuple)) else bytes(frame)

        writer.write(request(0, bytes(LARGE)))
        while not bed.handled:
            await asyncio.sleep(0.01)
        bed.hold()
        (connection,) = bed.server._connections
        connection._put_off(request(1, b""), asyncio.get_running_loop().time())  # it has arrived
        connection.write_stuck_at = None  # as if it had read a little just now
        bed.server.turn_away()
        bed.release()
        with contextlib.suppress(ConnectionError):
            while await reader.read(1 << 20):
                pass
        assert bed.handled == [0]
        writer.close()

    run(check)


def test_a_large_request_is_held_in_its_middle(run: Callable[[Check], None]) -> None:
    async def check(bed: Bed) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", bed.server.port)
        body = random.Random(1).randbytes(LARGE)
        frame = encode_frame(Command(1, {"n": "1"}, body, opaque=5))
        data = b"".join(frame) if isinstance(frame, (list, tuple)) else bytes(frame)
        writer.write(data[: len(data) // 2])
        await writer.drain()
        await asyncio.sleep(ARRIVED_S)
        bed.hold()
        writer.write(data[len(data) // 2 :])
        await asyncio.sleep(ARRIVED_S)
        assert bed.handled == []
        bed.release()
        answer = await reader.readexactly(4)
        rest = await reader.readexactly(int.from_bytes(answer, "big"))
        assert rest.endswith(body)
        assert bed.handled == [1]
        writer.close()

    run(check)


def test_who_goes_away_meanwhile_does_no_harm(run: Callable[[Check], None]) -> None:
    async def check(bed: Bed) -> None:
        gone, stays = await bed.connect(), await bed.connect()
        await bed.ask(gone, 0)
        bed.hold()
        lost, kept = bed.ask(gone, 1), bed.ask(stays, 2)
        await asyncio.sleep(ARRIVED_S)
        gone.close()
        await asyncio.gather(lost, return_exceptions=True)
        await asyncio.sleep(ARRIVED_S)
        bed.release()
        await kept
        assert bed.handled.count(1) <= 1 and bed.handled.count(2) == 1
        while not bed.ended:
            await asyncio.sleep(0.01)
        stays.close()

    run(check)


def test_answers_leave_while_requests_are_held(run: Callable[[Check], None]) -> None:
    async def check(bed: Bed) -> None:
        pending: list[tuple[ServerConnection, Command]] = []
        bed.server.on_commands = lambda connection, commands: pending.extend(
            (connection, command)  # type: ignore[misc]
            for command in commands
        )
        channel = await bed.connect()
        early = bed.ask(channel, 1)
        while not pending:
            await asyncio.sleep(0.01)
        bed.hold()
        connection, request = pending[0]
        connection.respond(request, request.reply(0, body=b"early"))
        assert bytes((await early).body) == b"early"
        channel.close()

    run(check)


def test_nothing_is_lost_when_it_is_held_again_and_again(
    run: Callable[[Check], None], seed: int
) -> None:
    async def check(bed: Bed) -> None:
        dice = random.Random(seed)
        channels = [await bed.connect() for _ in range(4)]
        waiting = []
        for number in range(300):
            body = dice.randbytes(dice.choice((0, 10, 3000, 200_000)))
            waiting.append((body, bed.ask(dice.choice(channels), number, body)))
            if dice.random() < 0.2:
                bed.release() if bed.is_held else bed.hold()
            if dice.random() < 0.3:
                await asyncio.sleep(dice.random() * 0.004)
        bed.release()
        for body, answer in waiting:
            assert bytes((await answer).body) == body
        assert sorted(bed.handled) == list(range(300))
        for channel in channels:
            channel.close()

    run(check)
