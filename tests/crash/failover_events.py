"""What can happen to a group of brokers: each event does something, waits, and mends it.

Those of ``EVENTS`` need a machine alone; those of ``CUTS`` a network (``networks``) on whose hosts
the brokers, the controller and two processes that send are.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from tests.crash.failover_group import Group
from tests.crash.kills import kill_and_sometimes_again
from tests.crash.networks import Network
from tests.disks import ResizableDisk
from tests.interop.controllers import BROKER_NAME

#: What happens, and how often.
EVENTS: Final = {
    "kill the master": 5,
    "kill a slave": 2,
    "kill all": 1,
    "freeze the master": 3,
    "freeze a slave": 2,
    "kill the controller": 2,
    "freeze the controller": 1,
    "fill the master's disk": 2,
    "fill a slave's disk": 1,
    "wipe a slave": 2,
    "wipe the master": 1,
    "promote a slave": 2,
    "demote the master": 1,
}
CUTS: Final = {
    "cut the master from the others": 3,
    "cut the master from the other brokers": 2,
    "cut the master from the controller": 2,
    "nothing that the master sends arrives": 2,
    "nothing arrives at the master": 2,
    "pull the master's cable": 2,
    "cut a slave off": 1,
    "cut a slave off, kill the master": 1,
    "cut those who send off": 1,
}
#: Hosts of the network besides the brokers'.
CONTROLLER, NAMES, NEAR, FAR = "control", "names", "near", "far"
#: How long things last, at least and at most. Somebody silent is taken for gone after two seconds,
#: and cuts are about that.
SHORT_S: Final = (0.5, 3.0)
SHORT_CUT_S: Final = (2.2, 4.0)
LONG_S: Final = (1.0, 60.0)
CLI_TIMEOUT_S: Final = 180.0


def events_of(
    every: dict[str, int], seed: int, part: int, count: int, long_count: int | None
) -> list[str]:
    """Return what is to happen.

    Args:
        every: what can happen, and how often.
        part: which part of a short list; several tests share one, in which each kind is as
            frequent as any other.
        count: length of that part.
        long_count: None: it is a short one; otherwise the length of a long one, with each kind as
            often as ``every`` says.
    """
    if long_count is not None:
        chance = random.Random(f"{seed} {part}")
        return chance.choices(list(every), list(every.values()), k=long_count)
    shuffled = random.Random(seed).sample(list(every), len(every))
    return (shuffled * 2)[part * count : (part + 1) * count]


class Events:
    """Has them happen.

    Args:
        chance: decides whom it hits, and for how long.
        disks: of brokers that have one of their own.
        network: None: there is none to be cut.
        name_server: for ``pymq cluster``.
        all_died: called when all brokers are dead at the same time.
        is_long: whether things may last for a minute.

    Attributes:
        complaints: what went wrong that is not about messages.
    """

    def __init__(
        self,
        group: Group,
        chance: random.Random,
        *,
        disks: dict[str, ResizableDisk],
        network: Network | None,
        name_server: str,
        all_died: Callable[[], None],
        is_long: bool,
    ) -> None:
        self._all_died = all_died
        self._group = group
        self._chance = chance
        self._disks = disks
        self._network = network
        self._name_server = name_server
        self._is_long = is_long
        self.complaints: list[str] = []
        self._doings: dict[str, Callable[[str, str], object]] = {
            "kill the master": lambda master, slave: self._kill(master),
            "kill a slave": lambda master, slave: self._kill(slave),
            "kill all": lambda master, slave: self._kill(*group.brokers),
            "freeze the master": lambda master, slave: self._freeze(master),
            "freeze a slave": lambda master, slave: self._freeze(slave),
            "kill the controller": lambda master, slave: group.steering.kill_one(
                chance, self._pause
            ),
            "freeze the controller": lambda master, slave: group.steering.freeze_one(
                chance, self._wait
            ),
            "fill the master's disk": lambda master, slave: self._fill(master),
            "fill a slave's disk": lambda master, slave: self._fill(slave),
            "wipe a slave": lambda master, slave: self._wipe(slave=True),
            "wipe the master": lambda master, slave: self._wipe(slave=False),
            "promote a slave": lambda master, slave: self._promote(),
            "demote the master": lambda master, slave: self._hand_over("demote", BROKER_NAME),
        }

    @property
    def possible(self) -> dict[str, int]:
        """What can happen here, and how often."""
        every = EVENTS if self._network is None else CUTS
        return {event: n for event, n in every.items() if self._disks or "disk" not in event}

    def disturb(self, event: str) -> None:
        """Have an event happen, and mend what it did."""
        group, chance = self._group, self._chance
        master = group.master() or chance.choice(list(group.brokers))
        slave = chance.choice([name for name in group.brokers if name != master])
        if event in CUTS:
            self._cut(event, master, slave)
        elif group.steering.etcd is not None and chance.random() < 0.5:
            with group.steering.without_a_member(chance) as number:
                print(f"member {number} of etcd is dead", flush=True)
                self._doings[event](master, slave)
        else:
            self._doings[event](master, slave)

    def _wait(self) -> None:
        """Wait for as long as something lasts; short times are more frequent than long ones."""
        short = SHORT_S if self._network is None else SHORT_CUT_S
        least, most = LONG_S if self._is_long else short
        time.sleep(least * (most / least) ** self._chance.random())

    def _pause(self) -> None:
        time.sleep(self._chance.choice((0.0, 1.0, 3.0) if self._is_long else (0.0, 1.0)))

    # --- processes

    def _kill(self, *names: str) -> None:
        victims = [self._group.brokers[name] for name in names]
        for name in names:
            broker = self._group.brokers[name]
            kill_and_sometimes_again(broker, self._chance, partial(self._tell, name))
        self._pause()
        for victim in self._chance.sample(victims, len(victims)):
            victim.spawn()
        for victim in victims:
            victim.wait_ready()

    def _tell(self, dead: str) -> None:
        """Say that all died each time: one that is killed twice may have served alone in between.

        So has one that was the only one in sync: on a machine where the others stood still.
        """
        is_any_running = any(broker.is_running for broker in self._group.brokers.values())
        if not is_any_running or self._group.state() in ((dead, {dead}), (None, {dead})):
            self._all_died()

    def _freeze(self, name: str) -> None:
        broker = self._group.brokers[name]
        broker.freeze()
        try:
            self._wait()
        finally:
            broker.thaw()

    # --- disks

    def _fill(self, name: str) -> None:
        self._disks[name].fill()
        try:
            self._wait()
        finally:
            self._disks[name].free()

    def _wipe(self, *, slave: bool) -> None:
        """Wipe a store when everybody has what was acknowledged."""
        group, chance = self._group, self._chance
        while True:
            master = group.wait_in_sync("before a store is wiped")
            name = chance.choice([one for one in group.brokers if (one != master) is slave])
            group.brokers[name].kill()
            if group.is_spare(name):
                break
            group.brokers[name].start()  # the others stood still for too long meanwhile
        group.wipe(name)
        self._pause()
        group.brokers[name].start()
        group.wait_in_sync(f"after {name} was wiped")

    # --- by hand

    def _promote(self) -> None:
        group = self._group
        master = group.wait_in_sync("before a slave is promoted")
        slave = self._chance.choice([name for name in group.brokers if name != master])
        self._hand_over("promote", BROKER_NAME, "--to", str(group.id_of(slave)))

    def _hand_over(self, *command: str) -> None:
        """Have another master made by hand.

        No controller leads for a moment when the leader of etcd has died; and who stands still for
        two seconds is not in sync any more, and refused: it is tried again.
        """
        deadline = time.monotonic() + CLI_TIMEOUT_S
        while True:
            self._group.wait_in_sync(f"before {command[0]}")
            done = subprocess.run(
                [sys.executable, "-m", "pymq.cli", "cluster", *command, "-n", self._name_server],
                capture_output=True,
                text=True,
                check=False,
                timeout=CLI_TIMEOUT_S,
            )
            if not done.returncode or time.monotonic() > deadline:
                break
            print(f"pymq cluster {command[0]}: {done.stderr.strip()}", flush=True)
        if done.returncode:
            self.complaints.append(
                f"pymq cluster {' '.join(command)} ended with {done.returncode}: "
                f"{done.stdout}{done.stderr}"
            )

    # --- the network

    def _cut(self, event: str, master: str, slave: str) -> None:
        network, brokers = self._network, self._group.brokers
        assert network is not None
        others = [name for name in brokers if name != master]
        near = [NEAR, *([NAMES] if self._chance.random() < 0.5 else [])]
        far = [FAR, CONTROLLER, *others]
        every = [*brokers, CONTROLLER, NAMES, NEAR, FAR]
        match event:
            case "cut the master from the others":
                network.cut([master, *near], far)
            case "cut the master from the other brokers":
                network.cut([master], others)
            case "cut the master from the controller":
                network.cut([master], [CONTROLLER])
            case "nothing that the master sends arrives":
                network.drop([master], self._chance.choice((others, far, every)))
            case "nothing arrives at the master":
                network.drop(self._chance.choice((others, far, every)), [master])
            case "pull the master's cable":
                network.unplug(master)
            case "cut those who send off":
                network.cut([NEAR], every)
            case _:
                network.cut([slave], every)
        try:
            if event.endswith("kill the master"):
                brokers[master].kill()
                brokers[master].spawn()  # it may wait for the one that is cut off
            self._wait()
        finally:
            network.mend()
        brokers[master].wait_ready()
