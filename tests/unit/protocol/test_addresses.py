"""``host:port``, split and joined."""

import pytest

from pymq.errors import ConfigurationError
from pymq.protocol.addresses import join_address, split_address


@pytest.mark.parametrize(
    "address",
    [
        *("", "host", "host:", ":1", "host:0", "host:65536", "host:x", "ho\0st:1", "a b:1"),
        "host:" + "9" * 5000,  # more digits than int() takes
    ],
)
def test_what_is_not_an_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match="expected host:port"):
        split_address(address)


def test_addresses_are_split_at_the_last_colon() -> None:
    assert split_address("[::1]:10911") == ("::1", 10911)
    assert split_address("broker.example:1") == ("broker.example", 1)


@pytest.mark.parametrize(
    ("host", "port", "address"),
    [
        ("10.0.0.1", 10911, "10.0.0.1:10911"),
        ("broker.example", 1, "broker.example:1"),
        ("2001:db8::1", 65535, "[2001:db8::1]:65535"),
    ],
)
def test_joining_is_the_inverse_of_splitting(host: str, port: int, address: str) -> None:
    assert join_address(host, port) == address
    assert split_address(address) == (host, port)
