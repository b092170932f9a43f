"""What arrives at a connection that is held, whatever the transport does."""

import asyncio
from typing import Any

from pymq.net.buffers import BufferPool
from pymq.net.wire import Wire
from pymq.protocol.command import Command
from pymq.protocol.framing import encode_frame


class Held(Wire):
    """Keeps commands."""

    def __init__(self) -> None:
        super().__init__(BufferPool(count_max=2))
        self.bodies: list[bytes] = []

    def commands_received(self, commands: Any) -> None:
        self.bodies += [bytes(command.body) for command in commands]

    def connection_ended(self, error: Exception | None) -> None:
        pass

    def take(self, data: bytes) -> None:
        """Receive bytes as a transport does."""
        while data:
            room = self.get_buffer(-1)
            count = min(len(room), len(data))
            room[:count] = data[:count]
            self.buffer_updated(count)
            data = data[count:]


def test_a_large_frame_that_is_complete_waits() -> None:
    body = bytes(range(256)) * 8192
    frame = encode_frame(Command(1, {}, body))
    data = bytes(frame) if isinstance(frame, bytes) else b"".join(frame)

    async def main() -> list[bytes]:
        wire = Held()
        wire.take(data[:1_000_000])
        wire.hold()
        wire.take(data[1_000_000:] + data)
        await asyncio.sleep(0)
        assert wire.bodies == []
        wire.release()
        for _ in range(1000):
            await asyncio.sleep(0)
        return wire.bodies

    assert asyncio.run(main()) == [body, body]


def test_the_end_of_a_connection_that_is_held() -> None:
    frame = encode_frame(Command(1, {}, b"x"))
    data = bytes(frame) if isinstance(frame, bytes) else b"".join(frame)

    async def main() -> None:
        wire = Held()
        wire.hold()
        wire.take(data)
        wire.connection_lost(None)
        wire.release()
        await asyncio.sleep(0)
        assert wire.bodies == []

    asyncio.run(main())
