"""The brokers of the simulator of failover.

The product's pure parts, and those that can be driven without an event loop, are used as they are:
``Epochs``, ``SyncStates``, ``InSync``, ``GroupProgress``, ``CaughtUp``, ``EpochFollowing``,
``EpochTalk``. What is around them is done here in callbacks, as the product does it:

===================  ===============================================================
``Broker``           ``ha.membership``, ``ha.controllers``, ``role_changes``, ``ha.identity``
``failover_master``  ``run``, ``log_writer``, ``ha.master``, ``ha.slave_connection``
``failover_slave``   ``run``, ``ha.slave``, ``ha.master_finder``, ``ha.metadata``
===================  ===============================================================

A log is a list of (epoch, message); an entry takes one byte of physical offset.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.crash.failover_controller import Answer
from tests.crash.failover_master import MasterRun, SlaveEnd
from tests.crash.failover_parts import CONFIG, Disk, Settings, Watch
from tests.crash.failover_slave import SlaveRun
from tests.crash.failover_world import Connection, Process, World

from pymq.broker.ha.controllers import NoController
from pymq.broker.ha.replica_group import MembersListener
from pymq.broker.ha.set_change import changed_set
from pymq.broker.ha.term import Term
from pymq.broker.role_changes import _epochs_of
from pymq.controller.groups import GroupState
from pymq.controller.reports import Report
from pymq.errors import PymqError, RequestTimeout
from pymq.protocol.codes import ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.controller import SyncStateSet

REQUEST_TIMEOUT_S, RETRY_S = 3.0, 0.5
FOUND = (ResponseCode.SUCCESS, ResponseCode.CONTROLLER_MASTER_STILL_EXIST)


class Broker(Process):
    """One broker; ``disk`` outlives it."""

    def __init__(
        self, world: World, broker_id: int, settings: Settings, watch: Watch
    ) -> None:
        super().__init__(world, f"broker {broker_id}")
        self.id = broker_id
        self.settings = settings
        self.watch = watch
        self.disk = Disk()
        self.peers: dict[int, Broker] = {}
        self.controller: Process
        self.run: MasterRun | SlaveRun | None = None

    def begin(self) -> None:
        """Start."""
        super().begin()
        self.term: Term | None = None
        self.run = None
        #: The last term of which this process may not be the master: it was, in another life.
        self.begun = self.disk.epochs.last_number
        self._is_registered = False
        self._channel: Connection | None = None
        self._asked: dict[int, Callable[[Any], None]] = {}
        self._number = 0
        self._members: tuple[int, MembersListener] | None = None
        self._run_term: Term | None = None
        self._wanted: Term | None = None
        self._cut_end: int | None = None
        self._is_changing = False
        self._flush_waiters: list[tuple[int, Callable[[str | None], None]]] = []
        self._is_flushing = False
        self.log_end = 0
        self.after(0, self._stay_connected)
        self.after(self.world.dice.random() * 0.3, self._beat_on)
        self.after(0.1, self._ask_on)
        if not self.settings.is_sync_flush:
            self.after(0.5, self._flush_on)

    def die(self, *, loses_power: bool = False) -> None:
        """End; unless the log is flushed, its end may be lost with the power."""
        super().die(loses_power=loses_power)
        self.run = None
        disk = self.disk
        if loses_power:
            kept = self.world.dice.randint(disk.flushed, len(disk.log))
            self.world.note(f"{self.name}: of {len(disk.log)}, {kept} are left")
            del disk.log[kept:]
            disk.flushed = kept

    # --- the controller (ha.controllers)

    def _stay_connected(self) -> None:
        if self._channel is None or not self._channel.is_open(self):
            channel = self.world.connect(self, self.controller)
            channel.on_message[0] = lambda message: self._answered(*message)
            channel.on_end[0] = lambda: self._lost(channel)
            self._channel = channel
        self.after(RETRY_S, self._stay_connected)

    def _lost(self, channel: Connection) -> None:
        if channel is self._channel:
            self._channel = None
            asked, self._asked = self._asked, {}
            for done in asked.values():
                done(RequestTimeout("the connection is lost"))

    def request(self, kind: str, given: tuple[Any, ...], done: Callable[[Any], None]) -> None:
        """Ask the controller; ``done`` gets an Answer, or an error."""
        if self._channel is None or not self._channel.is_open(self):
            done(NoController("it cannot be reached"))
            return
        self._number += 1
        number = self._number
        self._asked[number] = done
        self._channel.send(self, (number, kind, given))

        def late() -> None:
            if self._asked.pop(number, None) is None:
                return
            channel = self._channel
            if channel is not None and self.world.dice.random() < 0.3:
                channel.end(self)  # what was sent may arrive still
                self._lost(channel)
            done(RequestTimeout("no answer"))

        self.after(REQUEST_TIMEOUT_S, late)

    def _answered(self, number: int, answer: Answer) -> None:
        done = self._asked.pop(number, None)
        if done is not None:
            done(answer)

    # --- membership (ha.membership)

    def _beat_on(self) -> None:
        self._beat()
        self.after(CONFIG.controller_heartbeat_ms / 1000, self._beat_on)

    def _beat(self) -> None:
        if self._is_registered and self._channel is not None:
            report = Report(epoch=self.disk.epochs.last_number, max_offset=self._end())
            self._channel.send(self, (0, "heartbeat", (self.id, report)))

    def _end(self) -> int:
        if self.run is not None:
            self.log_end = len(self.disk.log)
        return self.log_end

    def _ask_on(self) -> None:
        """Register, or ask who is the master; again and again."""

        def done(answer: Any) -> None:
            if isinstance(answer, Answer):
                self._take_answer(kind, answer)
            pause_s = CONFIG.term_interval_ms / 1000
            self.after(pause_s if self.term is not None else RETRY_S, self._ask_on)

        kind = "look" if self._is_registered else "register"
        self.request(kind, () if kind == "look" else (self.id,), done)

    def _take_answer(self, kind: str, answer: Answer) -> None:
        state = answer.state
        if kind == "elect":
            if answer.code in FOUND and state is not None:
                self._take_state(state)
            return
        if answer.code != ResponseCode.SUCCESS or state is None:
            return
        if kind == "register":
            if answer.has_master and self._is_ours(state):
                return  # not a sign of life until the controller has found that we were gone
            self._is_registered = True
            self._beat()
        if state.master is None or (kind == "register" and not answer.has_master):
            self.request("elect", (self.id,), lambda one: self._take_elected(one))
        else:
            self._take_state(state)

    def _take_elected(self, answer: Any) -> None:
        if isinstance(answer, Answer):
            self._take_answer("elect", answer)

    def _is_ours(self, state: GroupState) -> bool:
        """Is this a term of which we were the master in another life?"""
        return state.master == self.id and state.master_epoch <= self.begun

    def notified(self, state: GroupState) -> None:
        """The controller says who is the master."""
        if self.run is not None:  # otherwise nobody answers requests
            self._take_state(state)

    def _take_state(self, state: GroupState) -> None:
        assert state.master is not None
        number, members = state.master_epoch, state.in_sync
        known = self.term
        if known is not None and number == known.number:
            self.take_members(number, members)
        if known is not None and number <= known.number:
            return
        if number < self.disk.epochs.last_number:
            return
        if self._is_ours(state):
            return
        self.term = Term(number, self.id, state.master, f"h:{state.master}", members)
        self._wanted = self.term
        self._change_soon()

    def take_members(self, number: int, members: SyncStateSet) -> None:
        """Tell the master's parts who is in sync."""
        if self._members is not None and self._members[0] == number:
            self._members[1].told(members)

    def members_listener(self, listener: MembersListener | None, *, term: int) -> None:
        """Have a run's parts told of the set."""
        self._members = None if listener is None else (term, listener)

    def alter(
        self, term: int, broker_ids: frozenset[int], epoch: int, done: Callable[[Any], None]
    ) -> None:
        """Ask for another set; ``done`` gets it, None, or an error."""

        def answered(answer: Any) -> None:
            if isinstance(answer, Answer):
                done(self.altered(answer))
            else:
                done(answer)

        self.request("alter", (self.id, term, SyncStateSet(broker_ids, epoch)), answered)

    def altered(self, answer: Answer) -> SyncStateSet | PymqError | None:
        """Return what an answer says about the set."""
        body = b"" if answer.state is None else answer.state.in_sync.encode()
        try:
            return changed_set(Command(answer.code, {}, body))
        except PymqError as error:
            return error

    # --- role changes

    def diverged(self, common_end: int) -> None:
        """The log has to be cut."""
        self._cut_end = common_end
        self._change_soon()

    def _change_soon(self) -> None:
        wanted, cut_end = self._wanted, self._cut_end
        if self._is_changing or wanted is None or (wanted == self._run_term and cut_end is None):
            return
        self._is_changing = True
        self._end_run(wanted, cut_end)

    def _end_run(self, term: Term, cut_end: int | None) -> None:
        """End the run that there is: first its requests, then its parts, then its store."""
        dice = self.world.dice
        pause_s = dice.random() * (0.02 if dice.random() < 0.8 else 2.0)
        run = self.run

        def parts() -> None:
            if run is not None:
                run.close()
            self.after(pause_s / 2, store)

        def store() -> None:
            self._run_term = None
            self._end()
            self.run = None
            self._flush_waiters.clear()
            self.disk.flushed = len(self.disk.log)
            if cut_end is not None:
                self._cut(cut_end)
                self._cut_end = None
            self.after(pause_s / 2, lambda: self._begin_run(term))

        if run is not None:
            run.is_open = False
        self.after(pause_s / 2, parts)

    def _cut(self, end: int) -> None:
        disk = self.disk
        self.world.note(f"{self.name}: cuts its log of {len(disk.log)} at {end}")
        del disk.log[end:]
        disk.flushed = min(disk.flushed, end)
        disk.save(disk.epochs.cut(end))

    def _begin_run(self, term: Term) -> None:
        disk = self.disk
        store: Any = _Store(len(disk.log))
        disk.save(_epochs_of(term, disk.epochs, store))
        self.world.note(f"{self.name}: {term.master_id} is master of {term.number}, {disk.epochs}")
        self.run = run = MasterRun(self, term) if term.is_master else SlaveRun(self, term)
        run.begin()

        def begun() -> None:
            self._run_term = term
            self._is_changing = False
            self._change_soon()

        dice = self.world.dice
        self.after(dice.random() * (0.02 if dice.random() < 0.9 else 1.0), begun)

    # --- the disk

    def wait_flushed(self, end: int, done: Callable[[str | None], None]) -> None:
        """Call back when the log is on the disk up to an end."""
        if self.disk.flushed >= end:
            done(None)
            return
        self._flush_waiters.append((end, done))
        if not self._is_flushing:
            self._is_flushing = True
            self._flush()

    def _flush(self) -> None:
        end, dice = len(self.disk.log), self.world.dice
        pause_s = dice.random() * (0.004 if dice.random() < 0.95 else 0.5)

        def flushed() -> None:
            if len(self.disk.log) < end:
                self._is_flushing = False  # it was closed and cut
                return
            self.disk.flushed = max(self.disk.flushed, end)
            waiters, self._flush_waiters = self._flush_waiters, []
            for wanted, done in waiters:
                if wanted <= end:
                    done(None)
                else:
                    self._flush_waiters.append((wanted, done))
            if isinstance(self.run, MasterRun):
                self.run.show()
            self._is_flushing = bool(self._flush_waiters)
            if self._is_flushing:
                self._flush()

        self.after(pause_s, flushed)

    def _flush_on(self) -> None:
        self.disk.flushed = len(self.disk.log)
        self.after(self.world.dice.random(), self._flush_on)

    # --- connections of others

    def accepted(self, connection: Connection) -> None:
        """Take a slave's connection, if we are a master."""
        run = self.run
        if isinstance(run, MasterRun) and not run.is_closed:
            run.slaves.append(SlaveEnd(run, connection))
        else:
            connection.end(self)

    def sent(self, message: int) -> None:
        """Take a message of a producer."""
        if isinstance(self.run, MasterRun) and self.run.is_open:
            self.run.append(message)


@dataclass(slots=True)
class _Store:
    log_end: int
    log_first: int = 0
