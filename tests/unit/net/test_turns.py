"""Requests whose answers cost much: other connections have their turn in between."""

import asyncio
import time
from typing import Any

from tests.unit.net.test_held_wire import Held

from pymq.net import dispatcher as dispatchers
from pymq.net.dispatcher import Answer, Dispatcher, Request
from pymq.net.server import Server, ServerConfig, ServerConnection
from pymq.protocol.codes import CommandFlag, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.framing import FrameDecoder, Incoming, encode_frame

DEADLINE_S = 60.0
SLOW, QUICK, COUNT = 7, 8, 20


def frames(code: int, count: int, *, flag: int = 0) -> bytes:
    return b"".join(
        encode_frame(Command(code, {}, b"%d" % number, opaque=number, flag=flag))
        for number in range(count)
    )


class Slow:
    """A server one of whose requests takes longer than a turn may."""

    def __init__(self) -> None:
        self.events: list[str] = []
        table = {SLOW: self._slow, QUICK: self._quick}
        self.server = Server(ServerConfig(), Dispatcher("test", table).on_commands, self._on_ended)

    def _slow(self, request: Request) -> Answer:
        time.sleep(1.2 * dispatchers.TURN_S)
        self.events.append(f"slow {bytes(request.body).decode()}")
        return request.response(ResponseCode.SUCCESS)

    def _quick(self, request: Request) -> Answer:
        self.events.append("quick")
        return request.response(ResponseCode.SUCCESS)

    def _on_ended(self, connection: ServerConnection) -> None:
        self.events.append("ended")

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.server.port)

    async def wait_events(self, count: int) -> None:
        while len(self.events) < count:
            await asyncio.sleep(0)


async def read(reader: asyncio.StreamReader, count: int) -> list[int]:
    """Return the numbers of the next answers."""
    decoder, numbers = FrameDecoder(), list[int]()
    while len(numbers) < count:
        data = await reader.read(1 << 16)
        assert data, "the connection was closed"
        numbers += [one.opaque for one in decoder.feed(data) if isinstance(one, Command)]
    return numbers


def run(check: Any) -> None:
    async def main() -> None:
        slow = Slow()
        await slow.server.start()
        try:
            await asyncio.wait_for(check(slow), DEADLINE_S)
        finally:
            await slow.server.close()

    asyncio.run(main())


def test_others_are_answered_between_slow_requests_that_came_together() -> None:
    async def check(slow: Slow) -> None:
        reader, writer = await slow.connect()
        _, other = await slow.connect()
        writer.write(frames(SLOW, COUNT) + frames(QUICK, 1))
        await slow.wait_events(1)
        other.write(frames(QUICK, 1))
        assert await read(reader, COUNT + 1) == [*range(COUNT), 0]
        others_turn = slow.events.index("quick")
        assert others_turn < COUNT
        del slow.events[others_turn]
        assert slow.events == [*(f"slow {number}" for number in range(COUNT)), "quick"]
        for one in (writer, other):
            one.close()

    run(check)


def test_what_comes_later_waits_for_what_is_left() -> None:
    async def check(slow: Slow) -> None:
        reader, writer = await slow.connect()
        writer.write(frames(SLOW, 5))
        await slow.wait_events(1)
        writer.write(frames(SLOW, 3) + frames(QUICK, 1) + frames(SLOW, 2))
        wanted = [*range(5), *range(3), 0, *range(2)]
        assert await read(reader, len(wanted)) == wanted
        writer.close()

    run(check)


def test_what_is_left_at_the_end_of_a_connection_is_handled_before_it_ends() -> None:
    async def check(slow: Slow) -> None:
        _, writer = await slow.connect()
        writer.write(frames(SLOW, 5, flag=int(CommandFlag.ONE_WAY)))
        await writer.drain()
        writer.close()
        await slow.wait_events(6)
        assert slow.events == [*(f"slow {number}" for number in range(5)), "ended"]

    run(check)


class Postponing(Held):
    """Handles one command in each turn."""

    def commands_received(self, commands: list[Incoming]) -> None:
        super().commands_received(commands[:1])
        if len(commands) > 1:
            assert self.postpone(commands[1:])


def test_what_is_left_waits_while_the_connection_is_held() -> None:
    async def turns(count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    async def main() -> None:
        wire = Postponing()
        wire.take(frames(1, 3))
        assert wire.bodies == [b"0"]
        wire.hold()
        wire.take(frames(1, 2))
        await turns(5)
        assert wire.bodies == [b"0"]
        wire.release()
        await turns(20)
        assert wire.bodies == [b"0", b"1", b"2", b"0", b"1"]
        wire.take(frames(1, 3))
        wire.hold()
        wire.connection_lost(None)
        wire.release()
        await turns(5)
        assert len(wire.bodies) == 6

    asyncio.run(main())


def test_commands_are_not_left_for_later_outside_of_a_turn() -> None:
    async def main() -> None:
        assert not Postponing().postpone([Command(1)])

    asyncio.run(main())
