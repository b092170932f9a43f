"""The HA port of a master whose event loop is uvloop, as that of ``pymq broker`` is."""

import asyncio
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pymq.broker.ha.door import Door
from pymq.broker.ha.security import Security
from pymq.net.tls import server_context

uvloop = pytest.importorskip("uvloop")

TLS = Path(__file__).parent / "tls"
#: For what comes at once, were the machine not busy.
LIMIT_S = 60.0
CONTEXT = server_context(TLS / "master.pem", TLS / "master-key.pem", None)
SECURITY = Security(
    secret=b"a secret of the tests", handshake_s=LIMIT_S, tls=lambda: CONTEXT
)
CONNECTION_COUNT = 30


class Nobody(asyncio.Protocol):
    """Whoever has come in."""


def shake_hands(port: int) -> str | None:
    """Begin TLS at once, as slaves do; return its version."""
    context = ssl.create_default_context(cafile=str(TLS / "authority.pem"))
    with (
        socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
    ):
        return secured.version()


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_tls_that_is_begun_at_once_is_answered(loop_factory: object) -> None:
    """What arrives while the connection is looked at is not lost."""

    async def test() -> list[str | None]:
        door = Door(
            SECURITY,
            silence_s=LIMIT_S,
            count_max=64,
            inside=lambda: 0,
            make=lambda *, is_proven: Nobody(),
        )
        loop = asyncio.get_running_loop()
        server = await loop.create_server(door.protocol, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with ThreadPoolExecutor(1) as pool:
            found = [
                await loop.run_in_executor(pool, shake_hands, port) for _ in range(CONNECTION_COUNT)
            ]
        await door.close()
        server.close()
        return found

    assert callable(loop_factory)
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert runner.run(test()) == ["TLSv1.3"] * CONNECTION_COUNT


def test_who_leaves_before_tls_is_forgotten() -> None:
    """A connection whose socket was taken from its transport is closed, too."""

    async def test() -> None:
        door = Door(
            Security(secret=b"a secret of the tests", handshake_s=0.2, tls=SECURITY.tls),
            silence_s=0.2,
            count_max=64,
            inside=lambda: 0,
            make=lambda *, is_proven: Nobody(),
        )
        loop = asyncio.get_running_loop()
        server = await loop.create_server(door.protocol, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        assert await asyncio.wait_for(reader.read(), LIMIT_S) == b""
        writer.close()
        await door.close()
        server.close()

    for loop_factory in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(test())
