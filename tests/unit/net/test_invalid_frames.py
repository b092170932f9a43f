"""Peers that send what cannot be read are said once for each host."""

import asyncio
import logging
from typing import Any

import pytest

from pymq.errors import RemoteProtocolError
from pymq.net import invalid_frames
from pymq.net.buffers import BufferPool
from pymq.net.invalid_frames import HOSTS_MAX, say_invalid
from pymq.net.wire import Wire

_log = logging.getLogger(__name__)


def levels(
    caplog: pytest.LogCaptureFixture, owner: BufferPool, *peers: str
) -> list[tuple[str, str]]:
    """Return with which level is said what these peers sent, in this order."""
    caplog.set_level(logging.DEBUG)
    caplog.clear()
    for peer in peers:
        say_invalid(_log, owner, peer, RemoteProtocolError("it is HTTP"))
    return [(one.levelname, one.getMessage().split()[0]) for one in caplog.records]


def test_each_host_is_said_once_by_each_server(caplog: pytest.LogCaptureFixture) -> None:
    one, two = BufferPool(count_max=1), BufferPool(count_max=1)
    peers = "10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:1", "[::1]:1", "[::1]:2", "10.0.0.2:1"
    said = ["WARNING", "DEBUG", "WARNING", "WARNING", "DEBUG", "DEBUG"]
    assert levels(caplog, one, *peers) == list(zip(said, peers, strict=True))
    assert levels(caplog, two, "10.0.0.1:3") == [("WARNING", "10.0.0.1:3")]
    assert "it is HTTP" in caplog.text


def test_what_is_kept_is_limited_and_goes_with_the_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = len(invalid_frames._hosts)
    owner = BufferPool(count_max=1)
    said = levels(caplog, owner, *(f"{number}:1" for number in range(HOSTS_MAX)), "0:2", "x:1")
    assert [level for level, _ in said[-3:]] == ["WARNING", "DEBUG", "WARNING"]
    assert invalid_frames._hosts[owner] == {"x"}
    del owner
    assert len(invalid_frames._hosts) == before


class Closed(Wire):
    """One end of a connection of which nothing is expected."""

    def commands_received(self, commands: Any) -> None:
        raise AssertionError(commands)


def test_a_load_balancer_that_asks_by_http_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def ask_often() -> None:
        buffers = BufferPool(count_max=1)
        for port in range(30):
            wire = Closed(buffers)
            wire.peer = f"10.0.0.1:{port}"
            asked = b"GET / HTTP/1.1\r\n\r\n"
            wire.get_buffer(-1)[: len(asked)] = asked
            wire.buffer_updated(len(asked))

    asyncio.run(ask_often())
    (warning,) = caplog.messages
    assert warning.startswith("10.0.0.1:0 sent an invalid frame; connection closed, and more")
