"""The addresses of this machine that peers see: told by the routes, nobody is asked."""

import socket

from tests.cluster.addresses import has_ipv6

from pymq.net.own_addresses import own_addresses


def test_nobody_needs_to_listen() -> None:
    assert own_addresses(["127.0.0.1:9"]) == ["127.0.0.1"]
    assert "127.0.0.1" in own_addresses(["localhost:9"])
    if has_ipv6():
        assert own_addresses(["[::1]:9", "127.0.0.1:9", "[::1]:8"]) == ["::1", "127.0.0.1"]


def test_a_peer_that_cannot_be_found_counts_for_none() -> None:
    assert own_addresses(["no-such-host.invalid:9", "127.0.0.1:9"]) == ["127.0.0.1"]
    assert own_addresses(["a" * 70 + ".b:9"]) == []
    assert own_addresses([]) == []


def test_it_is_the_address_that_a_listener_sees() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as connection:
            assert own_addresses([f"127.0.0.1:{port}"]) == [connection.getsockname()[0]]
