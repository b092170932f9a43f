"""Ports that are taken before anybody listens on them."""

import socket

import pytest

from pymq.errors import ConfigurationError
from pymq.net.listening import bind, listen


def test_a_port_that_nobody_listens_on_yet_is_taken_all_the_same() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(ConfigurationError, match="the port is in use"):
            bind("127.0.0.1", port)
        listen(first)
        with pytest.raises(ConfigurationError, match="the port is in use"):
            bind("127.0.0.1", port)


def test_a_port_whose_connections_are_not_quite_over_can_be_taken() -> None:
    with bind("127.0.0.1", 0) as first:
        address = first.getsockname()
        listen(first)
        with socket.create_connection(address, timeout=60) as client:
            accepted, _ = first.accept()
            accepted.close()  # The server closes first: the port's end of it lingers (TIME_WAIT).
            assert client.recv(1) == b""
    with pytest.raises(OSError, match="in use"), socket.socket() as plain:
        plain.bind(address)
    for _ in range(2):
        with bind(*address[:2]) as again:
            listen(again)


def test_a_port_that_is_not_needed_is_left_to_who_took_it_beside_such_connections() -> None:
    """Both would have it, and only the first one to listen could."""
    with bind("127.0.0.1", 0) as first:
        address = first.getsockname()
        listen(first)
        with socket.create_connection(address, timeout=60) as client:
            accepted, _ = first.accept()
            accepted.close()
            assert client.recv(1) == b""
    with bind(*address[:2]) as again:
        with pytest.raises(ConfigurationError, match="the port is in use"):
            bind(*address[:2], is_wanted=False)
        listen(again)
