"""Who says which broker is the master: our controller or RocketMQ's, which die and freeze, too."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Protocol

from tests.cluster.etcd_members import EtcdCluster
from tests.crash.servers import HERE, Place, controller_process
from tests.interop.controllers import RealController

KINDS: Final = ("file", "etcd", "java")
JAVA_VERSION: Final = "5.3.3"
ETCD_COUNT: Final = 3


class Controller(Protocol):
    """One controller's process."""

    @property
    def address(self) -> str:
        """``host:port``."""

    def start(self) -> object:
        """Start it, and wait until it serves."""

    def kill(self) -> None:
        """SIGKILL."""

    def freeze(self) -> None:
        """SIGSTOP."""

    def thaw(self) -> None:
        """SIGCONT."""


class JavaController:
    """RocketMQ's controller."""

    def __init__(self, folder: Path) -> None:
        self._controller = RealController(JAVA_VERSION, folder, scanNotActiveBrokerInterval=1000)
        self.address = self._controller.address

    def start(self) -> None:
        """Start it, and wait until it leads."""
        self._controller.__enter__()

    def kill(self) -> None:
        """SIGKILL."""
        self._controller.__exit__()

    def freeze(self) -> None:
        """SIGSTOP."""
        os.kill(self._controller.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self._controller.pid, signal.SIGCONT)


class Steering:
    """The controllers of a group, and what they stand on.

    Args:
        kind: one of ``KINDS``: ours with a file, two of ours with an etcd of three members, or
            RocketMQ's.
        folder: for their files; exists.
        stack: ends them.
        place: where ours run.
    """

    def __init__(self, kind: str, folder: Path, stack: ExitStack, place: Place = HERE) -> None:
        self.etcd: EtcdCluster | None = None
        self.controllers: list[Controller] = []
        if kind == "java":
            java = JavaController(folder / "java")
            stack.callback(java.kill)
            self.controllers = [java]
            return
        store = {}
        if kind == "etcd":
            self.etcd = stack.enter_context(EtcdCluster(folder / "etcd", ETCD_COUNT))
            store = {"pymqControllerStore": self.etcd.store, "pymqEtcdLeaseSeconds": 2}
        for number in range(1 if kind == "file" else 2):
            home = folder / f"controller-{number}"
            home.mkdir()
            ours = controller_process(home, place, **store)
            stack.callback(lambda one=ours: one.kill() if one.is_running else None)
            self.controllers.append(ours)

    def start(self) -> None:
        """Start all controllers."""
        for controller in self.controllers:
            controller.start()

    @property
    def addresses(self) -> list[str]:
        """``host:port`` of each controller."""
        return [one.address for one in self.controllers]

    def kill_one(self, chance: random.Random, sleep: Callable[[], None]) -> None:
        """Kill a controller, and start it again after a while."""
        victim = chance.choice(self.controllers)
        victim.kill()
        sleep()
        victim.start()

    def freeze_one(self, chance: random.Random, sleep: Callable[[], None]) -> None:
        """Freeze a controller for a while."""
        victim = chance.choice(self.controllers)
        victim.freeze()
        try:
            sleep()
        finally:
            victim.thaw()

    @contextmanager
    def without_a_member(self, chance: random.Random) -> Iterator[int]:
        """Have one member of etcd dead meanwhile; yield its number."""
        assert self.etcd is not None
        number = chance.randrange(ETCD_COUNT)
        self.etcd.kill(number)
        try:
            yield number
        finally:
            self.etcd.start(number)
            self.etcd.wait_healthy(number)
