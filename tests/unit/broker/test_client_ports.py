"""The ports of a broker that are chosen by the system."""

import os
from contextlib import suppress

import pytest

from pymq.broker.client_ports import ClientPorts
from pymq.broker.config import BrokerConfig
from pymq.broker.state.clients import ClientTable
from pymq.clock import Clock
from pymq.errors import ConfigurationError
from pymq.net.server import Server


def open_files() -> set[str]:
    """Return what this process has open; a socket has a name that comes once."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one that listed them
            found.add(os.readlink(f"/proc/self/fd/{name}"))
    return found


def socket_of(server: Server) -> str:
    assert server._socket is not None
    return os.readlink(f"/proc/self/fd/{server._socket.fileno()}")


@pytest.mark.parametrize("is_found", [True, False])
def test_ports_that_are_not_used_are_given_back(
    monkeypatch: pytest.MonkeyPatch, is_found: bool
) -> None:
    """The port that clients with a VIP channel take, 2 below, may be somebody else's."""
    bind, left = Server.bind, 3 if is_found else 1_000
    made: list[Server] = []
    sockets: set[str] = set()  # others of this process come and go as they like

    def bind_but(server: Server, *, is_wanted: bool = True) -> None:
        nonlocal left
        if server.config.port and left:
            left -= 1
            raise ConfigurationError("the port is in use")
        assert is_wanted is (server.config.port == 0)
        bind(server, is_wanted=is_wanted)
        made.append(server)
        sockets.add(socket_of(server))

    monkeypatch.setattr(Server, "bind", bind_but)
    ports = ClientPorts(BrokerConfig(listen_port=0), ClientTable(Clock(), expiry_s=120))
    ports.bind()
    listeners = ports.listeners
    assert len(listeners) == (2 if is_found else 1)
    assert listeners[0] is made[-len(listeners)]
    for server in listeners:
        others = [one for one in listeners if one is not server]
        assert list(server.beside) == others, "one limit is for the connections of both"
    assert len(sockets) == len(made) > 3
    assert sockets & open_files() == set(map(socket_of, listeners))
    for server in listeners:
        server.unbind()
    assert not sockets & open_files()
