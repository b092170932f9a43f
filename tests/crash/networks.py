"""Hosts of a network that exists for one test: namespaces on a switch, whose links can be cut.

Nothing of it reaches beyond this machine, and whatever ends the test run also removes it
(``afterwards``). The switch, a bridge, has a namespace of its own: where Docker has run, this
machine's packet filter also sees what its own bridges forward, and drops it.

One direction between two hosts is cut by giving the one a wrong hardware address for the other:
what it sends is dropped without a word, and everything else arrives, as when a switch fails. That
needs nothing but ``ip``, and no module of the kernel for packet filters.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import pytest
from tests.crash.afterwards import Afterwards
from tests.crash.servers import Place

#: Of 198.18.0.0/15, which is for measuring and led nowhere else, one /24 is taken.
_NETWORKS: Final = [f"198.{second}.{third}" for second in (18, 19) for third in range(1, 255)]
_PREFIX: Final = "pymq"
_SWITCH: Final = "switch"
_NOWHERE: Final = "02:00:00:00:00:01"
_TIMEOUT_S: Final = 120.0


def require_networks() -> None:
    """Skip the test where no network can be made."""
    if not sys.platform.startswith("linux"):
        pytest.skip("no network can be cut here: namespaces are Linux'")
    if os.geteuid() != 0:
        pytest.skip("no network can be cut here: network namespaces are root's")
    if shutil.which("ip") is None:
        pytest.skip("no network can be cut here: there is no ip program (Debian: iproute2)")


class Network:
    """Hosts that reach each other, and that this machine reaches; a context manager.

    Args:
        names: of the hosts.
    """

    def __init__(self, names: Sequence[str]) -> None:
        # 15 characters at most, as it names a link: up to seven of them of a process id.
        self._id = f"{_PREFIX}{os.getpid()}-{random.SystemRandom().randrange(1 << 12):03x}"
        self._names = list(names)
        self._numbers = {name: number for number, name in enumerate(names, 2)}
        self._afterwards = Afterwards()
        self._cut: set[tuple[str, str]] = set()
        self._unplugged: set[str] = set()

    def __enter__(self) -> Self:
        require_networks()
        _remove_left_over()
        self._base = random.SystemRandom().choice(_free_networks())
        self._afterwards.__enter__()
        try:
            self._make()
        except OSError as error:
            self.__exit__()
            pytest.skip(f"no network can be made here: {error}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._afterwards.__exit__()

    def _make(self) -> None:
        switch = self._add_space(_SWITCH)
        _ip("link add bridge type bridge", switch)
        _ip("link set bridge addrgenmode none up", switch)
        _ip(f"link add {self._id} type veth peer name here netns {switch}")
        self._connect(self._id, 1, None, "here")
        for name in self._names:
            space, port = self._add_space(name), self._port(name)
            _ip(f"link add eth0 netns {space} type veth peer name {port} netns {switch}")
            self._connect("eth0", self._numbers[name], space, port)
        for name in self._names:
            self._know(name, self._names)

    def _add_space(self, name: str) -> str:
        space = self._space(name)
        _ip(f"netns add {space}")
        self._afterwards.do("ip", "netns", "del", space)
        _ip("link set lo up", space)
        return space

    def _connect(self, device: str, number: int, space: str | None, port: str) -> None:
        """Give a host its address, and have the other end of its cable be a port of the switch."""
        _ip(f"link set {port} addrgenmode none master bridge up", self._space(_SWITCH))
        _ip(f"link set {device} addrgenmode none address {_hardware(number)}", space)
        _ip(f"addr add {self._base}.{number}/24 dev {device}", space)
        _ip(f"link set {device} up", space)

    def place(self, name: str) -> Place:
        """Return where programs run that are to be on a host."""
        launcher = ("ip", "netns", "exec", self._space(name))
        return Place(f"{self._base}.{self._numbers[name]}", launcher)

    @property
    def addresses(self) -> str:
        """All addresses of this network, as ``pymqHaNetworks`` has them."""
        return f"{self._base}.0/24"

    # --- cuts

    def drop(self, senders: Iterable[str], receivers: Iterable[str]) -> None:
        """Have nothing arrive that these send to those, from now on and until ``mend``."""
        receivers = list(receivers)
        for sender in senders:
            others = [one for one in receivers if one != sender]
            self._cut |= {(sender, other) for other in others}
            self._know(sender, others)

    def cut(self, some: Iterable[str], others: Iterable[str]) -> None:
        """The same in both directions."""
        some, others = list(some), list(others)
        self.drop(some, others)
        self.drop(others, some)

    def unplug(self, name: str) -> None:
        """Pull a host's cable, until ``mend``."""
        self._unplugged.add(name)
        _ip(f"link set {self._port(name)} down", self._space(_SWITCH))

    def mend(self) -> None:
        """Have everything arrive again."""
        for name in self._unplugged:
            _ip(f"link set {self._port(name)} up", self._space(_SWITCH))
        self._unplugged.clear()
        cut, self._cut = self._cut, set()
        for sender, receiver in cut:
            self._know(sender, [receiver])

    # --- names, and what a host knows of others

    def _space(self, name: str) -> str:
        return f"{self._id}-{name}"

    def _port(self, name: str) -> str:
        return f"port{self._numbers[name]}"

    def _know(self, name: str, others: Iterable[str]) -> None:
        """Tell a host the hardware addresses of others, or wrong ones if that direction is cut."""
        lines = []
        for other in others:
            number = self._numbers[other]
            at = _NOWHERE if (name, other) in self._cut else _hardware(number)
            address = f"{self._base}.{number}"
            lines.append(f"neigh replace {address} lladdr {at} dev eth0 nud permanent\n")
        _ip("-batch -", self._space(name), "".join(lines))


def _hardware(number: int) -> str:
    return f"02:70:79:6d:71:{number:02x}"


def _ip(arguments: str, space: str | None = None, text: str = "") -> str:
    """Run ``ip``.

    Raises:
        OSError: it failed.
    """
    where = [] if space is None else ["-n", space]
    done = subprocess.run(
        ["ip", *where, *arguments.split()],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )
    if done.returncode:
        raise OSError(f"ip {arguments}: {done.stderr.strip()}")
    return done.stdout


def _free_networks() -> list[str]:
    taken = {
        one["local"].rpartition(".")[0]
        for link in json.loads(_ip("-json -4 addr show") or "[]")
        for one in link.get("addr_info", [])
    }
    return [network for network in _NETWORKS if network not in taken]


def _remove_left_over() -> None:
    """Remove what runs have left whose cleaner was killed, too."""
    for line in _ip("netns list").splitlines():
        name = line.partition(" ")[0]
        if _is_left_over(name):
            with suppress(OSError):  # another run does the same
                _ip(f"netns del {name}")


def _is_left_over(name: str) -> bool:
    digits = name.removeprefix(_PREFIX).partition("-")[0]
    is_ours = name.startswith(_PREFIX) and digits.isdigit()
    return is_ours and not Path(f"/proc/{digits}").exists()
