"""A connection to a broker that takes only so many bytes a second."""

import asyncio
import socket
from typing import Self

PIECE_BYTES = 1 << 16


class SlowLink:
    """Passes on what clients send at a limited pace, and answers at once.

    Attributes:
        address: for clients.
        is_frozen: whether nothing is taken from clients any more.
    """

    def __init__(self, target: str, *, bytes_per_s: float) -> None:
        self._target = target
        self._bytes_per_s = bytes_per_s
        self._passing: set[asyncio.Task[None]] = set()
        self.is_frozen = False

    async def __aenter__(self) -> Self:
        listening = socket.create_server(("127.0.0.1", 0))
        # Little is under way: accepted connections have it from this one.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PIECE_BYTES)
        self.address = f"127.0.0.1:{listening.getsockname()[1]}"
        self._server = await asyncio.start_server(
            self._accepted, sock=listening, limit=PIECE_BYTES
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        for task in self._passing:
            task.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._pass_all(reader, writer))
        self._passing.add(task)

    async def _pass_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self._target.split(":")
        answers, requests = await asyncio.open_connection(host, int(port))
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pass(reader, requests, self._bytes_per_s))
                both.create_task(self._pass(answers, writer, float("inf")))
        except* OSError:
            pass
        finally:
            writer.close()
            requests.close()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, bytes_per_s: float
    ) -> None:
        while piece := await reader.read(PIECE_BYTES):
            writer.write(piece)
            await writer.drain()
            if bytes_per_s != float("inf"):
                await asyncio.sleep(len(piece) / bytes_per_s)
                while self.is_frozen:
                    await asyncio.sleep(0.01)
        writer.close()
