"""One random schedule of a group of brokers and its controller, and what must hold in it.

Always:

* one master per epoch, the one that the controller has elected, and it alone acknowledges in it;
* whoever begins to be the master has every message that was acknowledged, and every one that was
  shown to consumers, each at its place;
* no two brokers acknowledge or show different messages at one place;
* what a slave takes for its master's log is that;
* each byte is in the epoch in which it was written, for whoever asks the epochs of the log;
* offsets of consumers are not beyond the end of a master's log.

In the end, when everything runs and reaches everything else: all logs are the same, all brokers are
in sync, and new messages are acknowledged.

What a power failure takes from a broker with ASYNC_FLUSH may have been acknowledged: there, it hits
one broker at a time only, and not before all are in sync.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

from tests.crash.failover_brokers import Broker
from tests.crash.failover_controller import Controller
from tests.crash.failover_master import MasterRun
from tests.crash.failover_parts import Settings, Watch
from tests.crash.failover_slave import SlaveRun
from tests.crash.failover_world import Process, World

from pymq.broker.ha import in_sync
from pymq.controller.groups import GroupState
from pymq.protocol.epochs import Epochs

#: For how long things happen, and for how long nothing does in the end.
TROUBLE_S, LONG_TROUBLE_S, PEACE_S = 12.0, 80.0, 60.0
SEND_S = 0.12
#: For so many seconds everything has to be well before it is looked at in the end: what was stuck
#: in the network may come late, and a silence be noticed.
WELL_COUNT = 5


class Broken(AssertionError):
    """Something does not hold."""


class _Virtual:
    """What ``InSync`` asks of asyncio."""

    def __init__(self, world: World) -> None:
        self._world = world

    def get_running_loop(self) -> _Virtual:
        """Return what tells the time."""
        return self

    def time(self) -> float:
        """Return the time."""
        return self._world.now_s


class Schedule(Watch):
    """One schedule.

    Args:
        dice: of everything.
        make_broker, make_controller: with other rules, to see that these are needed.
    """

    def __init__(
        self,
        dice: random.Random,
        make_broker: Callable[..., Broker] = Broker,
        make_controller: Callable[..., Controller] = Controller,
    ) -> None:
        self.dice = dice
        self.world = World(dice)
        self.is_sync = dice.random() < 0.6
        #: Whether troubles come one at a time, and the power may fail then, whatever is flushed.
        self.is_careful = not self.is_sync and dice.random() < 0.6
        self.is_long = dice.random() < 0.03
        settings = Settings(is_sync_flush=self.is_sync)
        self.brokers = {
            number: make_broker(self.world, number, settings, self)
            for number in range(1, dice.choice((2, 3, 3)) + 1)
        }
        processes: Any = self.brokers
        self.controller = make_controller(self.world, processes, self.changed)
        for broker in self.brokers.values():
            broker.peers, broker.controller = self.brokers, self.controller
        self.acknowledged_at: dict[int, int] = {}
        self.shown: list[int] = []
        self.masters: dict[int, int] = {}
        self.last: MasterRun | None = None
        self.count = 0
        self.acknowledged_count = 0
        self.is_over = False
        self.cut_count = 0
        self.unwell_s = 0.0
        self.in_sync: frozenset[int] = frozenset()

    # --- what brokers do

    def broken(self, text: str) -> None:
        """Something is wrong."""
        raise Broken(text)

    def changed(self, state: GroupState) -> None:
        """The controller has another state: any of those in sync may be the next master."""
        master, epoch = state.master, state.master_epoch
        if master is not None and self.masters.setdefault(epoch, master) != master:
            self.broken(f"epoch {epoch} has two masters")
        if self.is_careful:
            return
        for broker_id in state.in_sync.broker_ids:
            self.check_whole(self.brokers[broker_id])
        came, self.in_sync = state.in_sync.broker_ids - self.in_sync, state.in_sync.broker_ids
        for broker_id in came:
            # Who has just joined, and is away before the master knows, is what matters most.
            if not self.is_over and self.dice.random() < 0.3:
                action = self.dice.choice((self.kill, self.cut, self.freeze))
                broker = self.brokers[broker_id]
                happens = functools.partial(action, broker)
                self.world.after(self.dice.random() * 0.3, broker, happens)

    def check_members(self, physical_offset: int, message: int) -> None:
        """Do all that may be the next master have a message?"""
        state = self.controller.disk.state
        assert state is not None
        for broker_id in () if self.is_careful else state.in_sync.broker_ids:
            if not self.has(self.brokers[broker_id], physical_offset, message):
                self.broken(f"broker {broker_id} is in sync, without {message}")

    def has(self, broker: Broker, physical_offset: int, message: int) -> bool:
        """Does a broker keep a message, whatever happens to it?"""
        disk = broker.disk
        end = disk.flushed if self.is_sync else len(disk.log)
        return physical_offset < end and disk.log[physical_offset][1] == message

    def began(self, run: MasterRun) -> None:
        """A broker begins to be the master: it has everything."""
        broker, number = run.broker, run.term.number
        if self.masters.get(number) != broker.id:
            self.broken(f"{broker.name} is not the master of {number}")
        self.check_log(broker)
        disk = broker.disk
        if self.is_sync and disk.offset > len(disk.log):
            self.broken(f"{broker.name}: offset {disk.offset} is beyond {len(disk.log)}")
        if self.last is None or number >= self.last.term.number:
            self.check_whole(broker)
            self.last = run

    def check_whole(self, broker: Broker) -> None:
        """Has a log everything that was acknowledged or shown?"""
        log = broker.disk.log
        if self.is_sync:
            log = log[: broker.disk.flushed]
        for at, message in self.acknowledged_at.items():
            if at >= len(log) or log[at][1] != message:
                self.broken(f"LOST: {broker.name} has no message {message} at {at}")
        if [message for _, message in log[: len(self.shown)]] != self.shown:
            self.broken(f"{broker.name} has not what was shown up to {len(self.shown)}")

    def check_log(self, broker: Broker) -> None:
        """Do the epochs say of each byte who wrote it?"""
        disk = broker.disk
        entries = disk.epochs.entries
        ends = [*(one.first for one in entries[1:]), len(disk.log)] if entries else []
        at = 0
        for one, end in zip(entries, ends, strict=True):
            if one.first != at or any(number != one.number for number, _ in disk.log[at:end]):
                self.broken(f"{broker.name}: {one}..{end} is not what was written in that epoch")
            at = max(end, at)
        if at != len(disk.log):
            self.broken(f"{broker.name}: nobody knows the epochs from {at} on")

    def agreed(self, run: SlaveRun, epochs: Epochs, common_end: int) -> None:
        """A slave goes on from where its log and the master's are the same."""
        self.check_log(run.broker)
        master = self.brokers[run.term.master_id]
        is_it = isinstance(master.run, MasterRun) and master.run.epochs == epochs
        if is_it and run.log[:common_end] != master.disk.log[:common_end]:
            self.broken(f"{run.broker.name} keeps what {master.name} has not")

    def acknowledged(self, run: MasterRun, physical_offset: int, message: int) -> None:
        """A master has acknowledged a message."""
        broker = run.broker
        if self.acknowledged_at.setdefault(physical_offset, message) != message:
            self.broken(f"two messages are acknowledged at {physical_offset}")
        if self.last is not run and self.last is not None:
            log = self.last.broker.disk.log
            if physical_offset >= len(log) or log[physical_offset][1] != message:
                self.broken(f"{broker.name} acknowledges what the next master has not")
        if sum(self.has(one, physical_offset, message) for one in self.brokers.values()) < 2:
            self.broken(f"message {message} is acknowledged, but {broker.name} alone has it")
        self.check_members(physical_offset, message)
        self.acknowledged_count += 1

    def showed(self, broker: Broker, end: int) -> None:
        """A broker shows its messages up to an end."""
        shown, log = self.shown, broker.disk.log
        if end > len(shown):
            for at in range(len(shown), end):
                shown.append(log[at][1])
                self.check_members(at, log[at][1])
        elif end and log[end - 1][1] != shown[end - 1]:
            self.broken(f"{broker.name} shows another message at {end - 1}")
        if isinstance(broker.run, MasterRun) and self.dice.random() < 0.2:
            broker.disk.offset = max(broker.disk.offset, end)

    # --- producers

    def produce(self) -> None:
        """Send a message to whoever says that it is the master."""
        world, dice = self.world, self.dice
        masters = [
            broker for broker in self.brokers.values() if isinstance(broker.run, MasterRun)
        ]
        if masters:
            self.count += 1
            broker, message = dice.choice(masters), self.count
            world.after(world.latency_s(), broker, lambda: broker.sent(message))
        pause_s = SEND_S * (5 if self.is_long else 1)
        if not self.is_over:
            world.after(dice.random() * 2 * pause_s, None, self.produce)

    # --- troubles

    def trouble(self) -> None:
        """Have something happen to somebody."""
        world, dice = self.world, self.dice
        pause_s = dice.choice((0.05, 0.3, 1.0, 3.0, 6.0)) * dice.random()
        world.after(pause_s, None, self.trouble)
        if self.is_over:
            return
        if self.is_careful and not (self.is_settled() and self.is_well()):
            self.unwell_s = world.now_s
        if self.is_careful and world.now_s - self.unwell_s < WELL_COUNT:
            return  # what is left of the last trouble may come late
        up = [broker for broker in self.brokers.values() if broker.is_up and not broker.is_frozen]
        if not up:
            return
        master = self.last.broker if self.last is not None else up[0]
        broker = master if master in up and dice.random() < 0.5 else dice.choice(up)
        kinds = [self.kill, self.kill, self.freeze, self.cut, self.cut, self.trouble_controller]
        if self.is_sync or self.is_careful:
            kinds += [self.lose_power, self.lose_power]
        dice.choice(kinds)(broker)

    def is_well(self) -> bool:
        """Does everybody run, and have everything?"""
        state, last = self.controller.disk.state, self.last
        if state is None or last is None or last.is_closed or not self.controller.is_up:
            return False
        broker = last.broker
        return (
            state.master == broker.id
            and broker.run is last
            and state.in_sync.broker_ids == self.brokers.keys()
            and last.states.members == state.in_sync
            and self.controller.heard() == self.brokers.keys()
            and len(last.slaves) == len(self.brokers) - 1
            and all(slave.confirmed_end == len(last.log) for slave in last.slaves)
        )

    def down_s(self) -> float:
        """Return for how long something is away."""
        return self.dice.random() * self.dice.choice((0.3, 1.5, 5.0))

    def kill(self, broker: Broker) -> None:
        """Kill a process, or all."""
        victims = [broker]
        if not self.is_careful and self.dice.random() < 0.15:
            victims = list(self.brokers.values())
        for victim in victims:
            self.stop(victim, loses_power=False)

    def lose_power(self, broker: Broker) -> None:
        """Have a machine lose its power, or all."""
        victims = [broker]
        if self.is_sync and self.dice.random() < 0.15:
            victims = list(self.brokers.values())
        for victim in victims:
            self.stop(victim, loses_power=True)

    def stop(self, process: Process, *, loses_power: bool) -> None:
        """End a process, and start it again."""
        if not process.is_up:
            return
        self.world.note(f"{process.name} {'loses power' if loses_power else 'is killed'}")
        process.die(loses_power=loses_power)

        def begin() -> None:
            if not process.is_up:
                self.world.note(f"{process.name} starts")
                process.begin()

        self.world.after(self.down_s(), None, begin)

    def freeze(self, process: Process) -> None:
        """Freeze a process for a while."""
        if process.is_frozen:
            return
        self.world.note(f"{process.name} freezes")
        process.freeze()
        life = process.life

        def thaw() -> None:
            if process.life == life:
                self.world.note(f"{process.name} thaws")
                process.thaw()

        pause_s = self.down_s() * (8 if self.is_long and self.dice.random() < 0.3 else 1)
        self.world.after(pause_s, None, thaw)

    def cut(self, broker: Broker) -> None:
        """Cut a broker off from some, or all."""
        others: list[Process] = [one for one in self.brokers.values() if one is not broker]
        others.append(self.controller)
        chosen = self.dice.sample(others, self.dice.randint(1, len(others)))
        pause_s = self.down_s()
        self.world.note(f"{broker.name} is cut off from {', '.join(one.name for one in chosen)}")
        self.cut_count += 1
        for other in chosen:
            self.world.cut(broker, other)

        def mend() -> None:
            self.cut_count -= 1
            self.world.note(f"{broker.name} is reached again")
            for other in chosen:
                self.world.mend(broker, other)

        self.world.after(pause_s, None, mend)

    def trouble_controller(self, broker: Broker) -> None:
        """Have something happen to the controller, and perhaps to a broker meanwhile."""
        controller, dice = self.controller, self.dice
        kind = dice.choice(("stop", "freeze", "stall", "fail"))
        if kind == "stop":
            self.stop(controller, loses_power=False)
        elif kind == "freeze" and controller.is_up:
            self.freeze(controller)
        else:
            disk = controller.disk
            disk.stalls, disk.fails = kind == "stall" and self.is_long, kind == "fail"

            def mend() -> None:
                disk.stalls = disk.fails = False

            self.world.after(self.down_s(), None, mend)
        if dice.random() < 0.5 and not self.is_careful:
            choices = [self.kill, self.lose_power if self.is_sync else self.kill]
            self.world.after(dice.random() * 0.3, broker, lambda: dice.choice(choices)(broker))

    # --- the whole

    def live(self) -> None:
        """Go through everything.

        Raises:
            Broken: something does not hold.
        """
        true_asyncio = in_sync.asyncio
        setattr(in_sync, "asyncio", _Virtual(self.world))  # noqa: B010
        try:
            self._live()
        finally:
            setattr(in_sync, "asyncio", true_asyncio)  # noqa: B010

    def _live(self) -> None:
        world, controller = self.world, self.controller
        controller.first_ids()
        controller.begin()
        for broker in self.brokers.values():
            world.after(self.dice.random(), None, broker.begin)
        self.produce()
        world.after(self.dice.random() * 5, None, self.trouble)
        world.run(LONG_TROUBLE_S if self.is_long else TROUBLE_S)
        self.is_over = True
        self.world.note("peace")
        deadline_s = world.now_s + PEACE_S + (LONG_TROUBLE_S if self.is_long else 0.0)
        well_count = 0
        while world.now_s < deadline_s and well_count < WELL_COUNT:
            world.run(world.now_s + 1.0)
            well_count = well_count + 1 if self.is_settled() and self.is_well() else 0
        self.check_end()

    def is_settled(self) -> bool:
        """Are there no troubles left?"""
        processes = [self.controller, *self.brokers.values()]
        disk = self.controller.disk
        return not (disk.stalls or disk.fails or self.cut_count) and all(
            one.is_up and not one.is_frozen for one in processes
        )

    def check_end(self) -> None:
        """Is everything the same everywhere?"""
        if not self.is_well():
            self.broken(f"not in sync in the end: {self.controller.disk.state}")
        assert self.last is not None
        for broker in self.brokers.values():
            self.check_log(broker)
            if broker.disk.log != self.last.log:
                self.broken(f"{broker.name} has another log in the end")
        self.check_whole(self.last.broker)
        before = self.acknowledged_count
        self.world.after(0, None, lambda: self.last is None or self.last.broker.sent(-1))
        self.world.run(self.world.now_s + 2.0)
        if self.acknowledged_count == before:
            self.broken("nothing is acknowledged in the end")
