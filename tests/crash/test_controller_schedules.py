"""Brokers, controllers and members of etcd die, freeze and come back, in random schedules.

Whatever happens, an epoch has one master, and what was acknowledged is in the log of the last one;
when all are back, there is a master, and everybody is in sync.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.cluster.etcd_members import EtcdCluster
from tests.crash.controlled_group import Group
from tests.interop.controllers import PymqController

pytestmark = pytest.mark.crash

MEMBER_COUNT, CONTROLLER_COUNT, ETCD_COUNT = 3, 2, 3
PAUSE_S = 0.5
DEADLINE_S = 240.0


class Run:
    """Everything of one schedule, and what it can suffer."""

    def __init__(self, folder: Path, stack: ExitStack, chance: random.Random) -> None:
        self.chance = chance
        self.etcd = stack.enter_context(EtcdCluster(folder / "etcd", ETCD_COUNT))
        self.etcd_down: set[int] = set()
        self.etcd_frozen: set[int] = set()
        self.controllers = [
            stack.enter_context(
                PymqController(
                    folder,
                    self.etcd.store,
                    pymqEtcdLeaseSeconds="2",
                    pymqHeartbeatTimeout="600",
                    pymqStartPatience="1500",
                )
            )
            for _ in range(CONTROLLER_COUNT)
        ]
        self.controllers_down: set[int] = set()
        self.controllers_frozen: set[int] = set()
        self.group = Group([one.address for one in self.controllers], MEMBER_COUNT, chance)
        self.story: list[str] = []

    async def step(self) -> None:
        """Let one thing happen."""
        actions: list[Callable[[], Awaitable[None]]] = [
            *[self.kill_or_start_member] * 4,
            *[self.freeze_or_wake_member] * 3,
            *[self.kill_or_start_controller] * 2,
            self.freeze_or_wake_controller,
            *[self.kill_or_start_etcd] * 2,
            self.freeze_or_wake_etcd,
        ]
        await self.chance.choice(actions)()
        await asyncio.sleep(PAUSE_S * self.chance.random())

    def say(self, what: str) -> None:
        self.story.append(what)

    async def kill_or_start_member(self) -> None:
        member = self.chance.choice(list(self.group.members.values()))
        self.say(f"member {member.id} {'dies' if member.is_running else 'starts'}")
        await (member.kill() if member.is_running else member.start())

    async def freeze_or_wake_member(self) -> None:
        member = self.chance.choice(list(self.group.members.values()))
        if member.is_running:
            member.is_frozen = not member.is_frozen
            self.say(f"member {member.id} {'freezes' if member.is_frozen else 'wakes'}")

    async def kill_or_start_controller(self) -> None:
        number = self.chance.randrange(CONTROLLER_COUNT)
        controller = self.controllers[number]
        if number in self.controllers_down:
            self.say(f"controller {number} starts")
            self.controllers_down.discard(number)
            await asyncio.to_thread(controller.__enter__)
        elif number not in self.controllers_frozen:
            self.say(f"controller {number} dies")
            self.controllers_down.add(number)
            controller.kill()

    async def freeze_or_wake_controller(self) -> None:
        number = self.chance.randrange(CONTROLLER_COUNT)
        if number in self.controllers_down:
            return
        self.controllers_frozen ^= {number}
        frozen = number in self.controllers_frozen
        self.say(f"controller {number} {'freezes' if frozen else 'wakes'}")
        os.kill(self.controllers[number].pid, signal.SIGSTOP if frozen else signal.SIGCONT)

    async def kill_or_start_etcd(self) -> None:
        number = self.chance.randrange(ETCD_COUNT)
        if number in self.etcd_down:
            self.say(f"etcd {number} starts")
            self.etcd_down.discard(number)
            self.etcd.start(number)
        elif not self.etcd_frozen:
            self.say(f"etcd {number} dies")
            self.etcd_down.add(number)
            self.etcd.kill(number)

    async def freeze_or_wake_etcd(self) -> None:
        number = self.chance.randrange(ETCD_COUNT)
        if number in self.etcd_down:
            return
        self.etcd_frozen ^= {number}
        frozen = number in self.etcd_frozen
        self.say(f"etcd {number} {'freezes' if frozen else 'wakes'}")
        self.etcd.signal(number, signal.SIGSTOP if frozen else signal.SIGCONT)

    async def heal(self) -> None:
        """Bring everything back."""
        self.say("all come back")
        for number in self.etcd_frozen:
            self.etcd.signal(number, signal.SIGCONT)
        for number in self.etcd_down:
            self.etcd.start(number)
        for number in self.controllers_frozen:
            os.kill(self.controllers[number].pid, signal.SIGCONT)
        for number in self.controllers_down:
            await asyncio.to_thread(self.controllers[number].__enter__)
        for member in self.group.members.values():
            member.is_frozen = False
            if not member.is_running:
                await member.start()

    async def wait_in_sync(self) -> None:
        """Wait until a master has acknowledged something with all others in sync."""
        deadline = asyncio.get_running_loop().time() + DEADLINE_S
        members = self.group.members.values()
        while True:
            epoch = max(member.epoch for member in members)
            masters = {member.master for member in members if member.epoch == epoch}
            master = self.group.members.get(next(iter(masters)) or 0)
            if len(masters) == 1 and master is not None and master.has_all_in_sync:
                return
            assert asyncio.get_running_loop().time() < deadline, "there is no master"
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("schedule", range(2))
def test_schedules(schedule: int, tmp_path: Path, seed: int, crash_rounds: int) -> None:
    with ExitStack() as stack:
        run = Run(tmp_path, stack, random.Random(f"{seed} {schedule}"))
        stack.callback(_wake, run)
        try:
            asyncio.run(_play(run, crash_rounds))
        except AssertionError as error:
            raise AssertionError(
                f"schedule {schedule} of seed {seed}: {error}\n" + "\n".join(run.story)
            ) from error


def _wake(run: Run) -> None:
    for number in run.controllers_frozen - run.controllers_down:
        os.kill(run.controllers[number].pid, signal.SIGCONT)


async def _play(run: Run, step_count: int) -> None:
    group = run.group
    try:
        for member in group.members.values():
            await member.start()
        await run.wait_in_sync()
        for _ in range(step_count):
            await run.step()
            assert not group.errors, group.errors
        await run.heal()
        await run.wait_in_sync()
        for member in group.members.values():
            await member.kill()
    except BaseException:
        for member in group.members.values():
            if member.is_running:
                await member.kill()
        raise
    assert not group.errors, group.errors
    last = group.members[group.masters[max(group.masters)]]
    lost = group.acknowledged - {value for _, value in last.log}
    assert not lost, f"{len(lost)} of {len(group.acknowledged)} acknowledged values are lost"
    assert group.acknowledged
