"""Acts when brokers come and go: elects masters, and tells brokers of them.

A group is reviewed when its master's connection ends or its heartbeats stop, when a broker comes
back, when this controller begins to lead, and every second anyhow: whatever was missed, by a store
that was away, say, is made up for then.

Source: RocketMQ ControllerManager.
"""

import asyncio
import logging
from collections.abc import Callable, Hashable

from pymq.controller.config import ControllerConfig
from pymq.controller.elections import elect, why_designation
from pymq.controller.groups import GroupState, Outcome
from pymq.controller.liveness import BROKER_COUNT_MAX, Liveness
from pymq.controller.notices import Notices
from pymq.controller.registry import Registry
from pymq.controller.reports import Report
from pymq.controller.two_of_one_id import incomplete, present, with_last_term
from pymq.errors import PymqError
from pymq.net.said_once import SaidOnce
from pymq.net.tasks import Tasks
from pymq.protocol.codes import ResponseCode

_log = logging.getLogger(__name__)

#: How often it is looked whether a broker is silent for too long.
EXPIRY_INTERVAL_S = 0.1
#: Before a review that could not reach the store is made again.
RETRY_S = 0.2


class Failover:
    """Keeps a living master in every group that can have one.

    Args:
        config: how the controller behaves.
        registry: the groups.
        liveness: the brokers.
        notices: tells brokers.
        now_s: tells the time.
    """

    def __init__(
        self,
        config: ControllerConfig,
        registry: Registry,
        liveness: Liveness,
        notices: Notices,
        now_s: Callable[[], float],
    ) -> None:
        self._config = config
        self._registry = registry
        self._liveness = liveness
        self._notices = notices
        self._now_s = now_s
        self._tasks = Tasks("controller: failover")
        #: Group -> the master epoch that its brokers were told.
        self._told: dict[str, int] = {}
        self._said = SaidOnce(_log)
        self._led = False

    def start(self) -> None:
        """Begin."""
        self._tasks.repeat("expiry", self.expire, EXPIRY_INTERVAL_S)
        self._tasks.repeat("scan", self.scan, self._config.scan_interval_ms / 1000)

    async def close(self) -> None:
        """Stop; idempotent."""
        await self._tasks.close()

    # --- brokers come and go

    def heard(
        self,
        name: str,
        broker_id: int,
        *,
        connection: Hashable,
        silence_s: float | None,
        report: Report,
    ) -> None:
        """Record a heartbeat; look after the group if the broker was not there before.

        Or if another epoch is in its log: if it is the master, that has to be kept.
        """
        epoch_before = self._liveness.epoch_of(name, broker_id)
        is_new = self._liveness.heard(
            name,
            broker_id,
            connection=connection,
            silence_s=silence_s,
            report=report,
            now_s=self._now_s(),
        )
        if self._liveness.is_full:
            self._said.warn(
                "full",
                "%d brokers are alive, and no others are taken (BROKER_COUNT_MAX): look for peers "
                "that make up brokers",
                BROKER_COUNT_MAX,
            )
        self._look_for_another(name, broker_id, report.address)
        if is_new:
            self._said.over(("two of one id", name, broker_id))
            self._said.over(("two of one address", name, broker_id))
            _log.info("broker %s, id %d, is alive", name, broker_id)
            self._start_review(name, came=broker_id)
        elif self._liveness.epoch_of(name, broker_id) != epoch_before:
            self._start_review(name)

    def _look_for_another(self, name: str, broker_id: int, address: str) -> None:
        """Say that two brokers beat with one id, if they do."""
        if self._liveness.are_two(name, broker_id):
            self._said.warn(
                ("two of one address", name, broker_id),
                "two brokers beat as broker %s, id %d, at %s, and nobody can tell which of them is "
                "meant: both may be master of one epoch. Stop one of them at once; set brokerIP1 "
                "(or listenPort) of each to what only it has, and delete brokerIdentity in the "
                "store of the copy",
                name,
                broker_id,
                address,
            )
            return
        holder = self._liveness.holder(name, broker_id)
        if holder is None or not address or holder[0] in ("", address):
            return
        self._said.warn(
            ("two of one id", name, broker_id),
            "broker %s, id %d, is at %s, and so says one at %s, whose heartbeats do not count: two "
            "brokers have copies of one store. Delete brokerIdentity in the store of the copy, or "
            "stop it",
            name,
            broker_id,
            holder[0],
            address,
        )

    def connection_ended(self, connection: Hashable) -> None:
        """Brokers whose connection ended are gone."""
        for name, broker_id in self._liveness.connection_ended(connection):
            _log.warning("broker %s, id %d, is gone: its connection ended", name, broker_id)
            self._start_review(name)

    def expire(self) -> int:
        """Brokers that are silent for too long are gone; return how many."""
        late = self._liveness.expire(self._now_s(), EXPIRY_INTERVAL_S)
        for name, broker_id in late:
            _log.warning("broker %s, id %d, is gone: it is silent", name, broker_id)
            self._start_review(name)
        return len(late)

    # --- reviews

    def _start_review(self, name: str, *, came: int | None = None) -> None:
        if self._registry.is_leader and not self._tasks.is_closed:
            self._tasks.start(f"review of {name}", self._review_stubbornly(name, came))

    async def _review_stubbornly(self, name: str, came: int | None) -> None:
        for attempt in range(self._config.election_attempt_count):
            if attempt:
                await asyncio.sleep(RETRY_S)
            try:
                await self.review(name, came=came)
                self._said.over(("review", name), "group %s is looked after again", name)
                return
            except PymqError as error:
                self._said.warn(
                    ("review", name), "group %s could not be reviewed: %s", name, error
                )
                if not self._registry.is_leader:
                    return

    async def review(self, name: str, *, came: int | None = None) -> None:
        """Elect a master if the group lacks one and can have one, and tell its brokers.

        Args:
            came: a broker that was not alive before: it may have missed something.

        Raises:
            BrokerError: this process does not lead, or the store cannot be reached.
        """
        state = await self._registry.read(name)
        if state is None:
            return
        if self.lacks_master(state):
            outcome = await self._registry.change(name, self._elect_if_none)
            state = outcome.state
            assert state is not None
            self._log_election(state, outcome)
        else:
            await self._keep_last_term(state)
        if self._told.get(name) != state.master_epoch:
            self.announce(state)
        elif came is not None:
            self._tell(state, came)

    async def _keep_last_term(self, state: GroupState) -> None:
        """Keep in the store what the master has in its log, so that no broker with less is it."""

        def decide(now: GroupState | None) -> Outcome:
            return Outcome(now and with_last_term(now, self._liveness.alive(state.name)))

        if with_last_term(state, self._liveness.alive(state.name)) != state:
            await self._registry.change(state.name, decide)

    def lacks_master(self, state: GroupState) -> bool:
        """Is there no master, or is it surely gone? Not of groups that wait for their first."""
        if state.master_epoch == 0:
            return False
        alive = present(state, self._liveness.alive(state.name))
        if state.master is None:  # then somebody has to be there
            return not alive.keys().isdisjoint(state.in_sync.broker_ids) or (
                self._config.unclean_elections and bool(alive)
            )
        if state.master in alive:
            return False
        return not self._liveness.may_be_alive(state.name, state.master, self._now_s())

    def _elect_if_none(self, state: GroupState | None) -> Outcome:
        if state is None or not self.lacks_master(state):
            return Outcome(state, ResponseCode.CONTROLLER_MASTER_STILL_EXIST)
        return elect(
            state,
            alive=self._liveness.alive(state.name),
            unclean=self._config.unclean_elections,
        )

    def _log_election(self, state: GroupState, outcome: Outcome) -> None:
        if outcome.is_success:
            self._said.over(state.name)
            self._said.over((state.name, "incomplete"))
            _log.warning(
                "group %s: broker %s at %s is master of epoch %d",
                state.name,
                state.master,
                state.address_of(state.master),
                state.master_epoch,
            )
            if outcome.remark is not None:
                _log.warning("group %s: %s", state.name, outcome.remark)
        elif outcome.code == ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE:
            without = incomplete(state, self._liveness.alive(state.name))
            if not without:
                self._said.over((state.name, "incomplete"))
            cause = (state.name, "incomplete") if without else state.name
            self._said.warn(cause, "group %s has no master: %s", state.name, outcome.remark)

    def announce(self, state: GroupState) -> None:
        """Tell the brokers of a group that are alive who is master."""
        self._told[state.name] = state.master_epoch
        alive = self._liveness.alive(state.name)
        for broker_id in sorted(alive, key=lambda one: one != state.master):
            self._tell(state, broker_id)

    def _tell(self, state: GroupState, broker_id: int) -> None:
        if self._config.notify_brokers:
            self._notices.tell(state, broker_id)

    async def scan(self) -> int:
        """Review every group, if this process leads; return how many lacked a master."""
        if not self._registry.is_leader:
            self._led = False
            self._told.clear()
            return 0
        if not self._led:
            self._led = True
            _log.info("this controller leads")
        try:
            groups = await self._registry.read_all()
        except PymqError as error:
            self._said.warn("scan", "groups cannot be looked after: %s", error)
            return 0
        self._said.over("scan", "groups are looked after again")
        masterless_count = 0
        for name, state in groups.items():
            if self._is_reelectable(state):
                masterless_count += 1
                await self._review_stubbornly(name, None)
                continue
            is_news = with_last_term(state, self._liveness.alive(name)) != state
            if is_news or self._liveness.is_at_odds(state):
                await self._review_stubbornly(name, None)
            elif self._told.get(name) != state.master_epoch:
                self.announce(state)
            if state.master is not None:
                await self._look_for_old_copy(state)
        for name in self._told.keys() - groups.keys():
            del self._told[name]
        return masterless_count

    async def _look_for_old_copy(self, state: GroupState) -> None:
        """Say that brokers of a group with a living master know a later epoch, if they do.

        By the copy nothing is lacking, but the true master is another one.
        """
        cause = "old copy", state.name
        alive = self._liveness.alive(state.name)
        if why_designation(state, alive) is None:
            self._said.over(cause)
            return
        # Or the group was changed after it was read, and the brokers have heard of that.
        try:
            now = await self._registry.read(state.name)
        except PymqError:
            return  # the next scan says what is wrong with the store
        reason = None if now is None else why_designation(now, alive)
        if reason is not None:
            self._said.warn(cause, "%s", reason)

    def _is_reelectable(self, state: GroupState) -> bool:
        """Does it lack a master, with somebody there who could be it? As RocketMQ's scan asks."""
        return self.lacks_master(state) and bool(self._liveness.alive(state.name))
