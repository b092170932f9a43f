"""Whether the master that a slave is told to follow is the slave itself."""

import socket
from typing import Any

import pytest

from pymq.broker.own_master import is_own
from pymq.net.own_addresses import own_addresses

OWN, PORTS = "10.1.2.3:10911", {10911, 10912}
#: Those of documentation: nobody has them.
FOREIGN = "192.0.2.7"


@pytest.mark.parametrize(
    ("master", "is_it"),
    [
        ("10.1.2.3:10911", True),
        ("10.1.2.3:10912", True),
        ("10.1.2.3:10913", False),
        ("127.0.0.1:10912", True),
        ("127.9.9.9:10912", True),
        ("0.0.0.0:10912", True),
        ("[::1]:10912", True),
        ("[::]:10912", True),
        ("127.0.0.1:10913", False),
        (f"{FOREIGN}:10912", False),
        ("no-such-host.invalid:10912", False),
        ("a" * 70 + ".b:10912", False),
    ],
)
def test_addresses(master: str, is_it: bool) -> None:
    assert is_own(master, OWN, PORTS) is is_it


@pytest.mark.parametrize("host", [FOREIGN, "127.0.1.1"])
def test_names_are_looked_up_if_the_port_is_ours(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def look_up(name: str, *more: Any, **options: Any) -> list[Any]:
        asked.append(name)
        return [(socket.AF_INET, socket.SOCK_DGRAM, 0, "", (host, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert is_own("this-machine:10912", OWN, PORTS) is (host != FOREIGN)
    assert not is_own("this-machine:10922", OWN, PORTS)
    assert asked == ["this-machine"]


def test_an_address_of_this_machine() -> None:
    """Whichever the broker tells its clients."""
    found = own_addresses([f"{FOREIGN}:9"])
    if not found:
        pytest.skip("this machine has no network")
    assert is_own(f"{found[0]}:10912", OWN, PORTS)
