"""The ports of a broker that are chosen by the system."""

import os

import pytest

from pymq.broker.client_ports import ClientPorts
from pymq.broker.config import BrokerConfig
from pymq.broker.state.clients import ClientTable
from pymq.clock import Clock
from pymq.errors import ConfigurationError
from pymq.net.server import Server


def sockets() -> int:
    """Return how many sockets this process has."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        except FileNotFoundError:
            continue  # the one that listed them
    return found


@pytest.mark.parametrize("is_found", [True, False])
def test_ports_that_are_not_used_are_given_back(
    monkeypatch: pytest.MonkeyPatch, is_found: bool
) -> None:
    """The port that clients with a VIP channel take, 2 below, may be somebody else's."""
    bind, left = Server.bind, 3 if is_found else 1_000
    made: list[Server] = []

    def bind_but(server: Server) -> None:
        nonlocal left
        if server.config.port and left:
            left -= 1
            raise ConfigurationError("the port is in use")
        bind(server)
        made.append(server)

    monkeypatch.setattr(Server, "bind", bind_but)
    before = sockets()
    ports = ClientPorts(BrokerConfig(listen_port=0), ClientTable(Clock(), expiry_s=120))
    ports.bind()
    listeners = ports.listeners
    assert len(listeners) == (2 if is_found else 1)
    assert listeners[0] is made[-len(listeners)]
    assert len(made) > 3 and sockets() == before + len(listeners)
    for server in listeners:
        server.unbind()
    assert sockets() == before
