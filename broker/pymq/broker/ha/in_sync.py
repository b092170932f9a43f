"""Keeps the sync state set of a master: who must have a message, and who may succeed it.

Source: RocketMQ AutoSwitchHAService, ReplicasManager.checkSyncStateSetAndDoReport.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from pymq.broker.ha.controllers import NoController
from pymq.broker.ha.group_progress import GroupProgress
from pymq.broker.ha.offset_followers import OffsetFollowers
from pymq.broker.ha.progress import ReplicaRules
from pymq.broker.ha.replica_group import GroupSteering, ReplicaGroup
from pymq.broker.ha.set_change import SetRefused
from pymq.broker.ha.slave_connection import SlaveConnection
from pymq.broker.ha.sync_states import Position, SyncStates
from pymq.broker.replication_config import ReplicationConfig, Role
from pymq.clock import Clock
from pymq.errors import PymqError
from pymq.net.said_once import SaidOnce
from pymq.net.tasks import Tasks
from pymq.protocol.admin_bodies import ReplicationStatus
from pymq.protocol.controller import SyncStateSet
from pymq.protocol.epoch_replication import Handshake
from pymq.store import Replication

_log = logging.getLogger(__name__)

#: A change of which nothing was heard for so long is not in any controller's queue any more.
FORGOTTEN_S = 30.0


class InSync:
    """Takes what slaves confirm, and has the set changed when that is due.

    Args:
        states: the set.
        steering: asks the controller.
        replication: the log; shows what is confirmed.
        progress: tells senders; None: they do not wait.
        term: in which this broker is the master.
        interval_s: how often it is looked whether the set should be another.

    Attributes:
        slaves: returns the slaves that are connected; to be set by whoever listens for them.
        offsets: knows who has the consumer offsets; to be set as well.
    """

    def __init__(
        self,
        states: SyncStates,
        steering: GroupSteering,
        replication: Replication,
        progress: GroupProgress | None,
        *,
        term: int,
        interval_s: float,
    ) -> None:
        self._states = states
        self._term = term
        self._steering = steering
        self._replication = replication
        self.progress = progress
        self._interval_s = interval_s
        #: When the first change was asked for whose outcome is not known.
        self._unknown_since_s: float | None = None
        self._said = SaidOnce(_log)
        self._tasks = Tasks("sync state set")
        #: The last connection of each slave.
        self._connections: dict[int, SlaveConnection] = {}
        self.slaves: Callable[[], Sequence[SlaveConnection]] = lambda: ()
        self.offsets: OffsetFollowers | None = None

    def start(self) -> None:
        """Begin."""
        self._steering.members_listener(self, term=self._term)
        self.update()
        self._tasks.repeat("members", self.look, self._interval_s)

    @property
    def confirmed_end(self) -> int:
        """Physical offset up to which all members have the log."""
        return self._states.confirmed_end

    @property
    def members(self) -> SyncStateSet:
        """The set that the controller has, as far as is known."""
        return self._states.members

    def update(self) -> None:
        """Take how far slaves and log are."""
        positions = {
            one.handshake.broker_id: self._position(one, one.handshake)
            for one in self.slaves()
            if one.handshake is not None and one.confirmed_end >= 0
        }
        states = self._states
        confirmed_end = states.update(positions, self._replication.readable_end)
        # Alone, this broker shows what it has, at once.
        self._replication.show_up_to(confirmed_end if states.awaited else None)
        if self.progress is not None:
            self.progress.update()
        if self.offsets is not None:
            self.offsets.look()

    def _position(self, slave: SlaveConnection, handshake: Handshake) -> Position:
        broker_id, offsets = handshake.broker_id, self.offsets
        end, caught_up_s = slave.confirmed_end, slave.caught_up.at_s
        if offsets is None:
            return Position(end, caught_up_s, handshake.is_learner)
        if self._connections.get(broker_id) is not slave:
            self._connections[broker_id] = slave
            offsets.connected(broker_id, asks=slave.is_proven)
        return Position(
            end,
            min(caught_up_s, offsets.complete_s(broker_id)),
            handshake.is_learner,
            offsets.has_promised(broker_id),
        )

    @property
    def awaited(self) -> frozenset[int]:
        """Who must have what is acknowledged, besides this broker."""
        return self._states.awaited

    def status(self, found: ReplicationStatus) -> ReplicationStatus:
        """Return how far the slaves are; in sync are, as in RocketMQ, the members of the set."""
        members = self.members.broker_ids
        for slave in found.slaves:
            slave.in_sync = slave.broker_id in members
        found.in_sync_slave_count = len(members) - 1
        return found

    async def look(self) -> None:
        """Have the set changed, if it should be another."""
        self.update()
        states = self._states
        wanted = states.wanted(asyncio.get_running_loop().time())
        if wanted is None:
            self.update()  # others may be waited for from now on
            return
        members = states.members
        for broker_ids in (wanted, *states.instead(wanted)):
            if not await self._is_refused(broker_ids, members.epoch) or states.members != members:
                return

    async def _is_refused(self, broker_ids: frozenset[int], epoch: int) -> bool:
        """Ask for a set; return whether a controller has refused it for one broker."""
        states, is_refused = self._states, False
        states.ask(broker_ids)
        # Others may be waited for from now on: what is written now is not shown before.
        self.update()
        try:
            found = await self._steering.alter(broker_ids, epoch, term=self._term)
        except NoController as error:
            self._not_asked(error)
        except SetRefused:
            self._stays()
        except PymqError as error:
            self._said.warn("unknown", "whether the sync state set was changed: %s", error)
            if self._unknown_since_s is None:
                self._unknown_since_s = asyncio.get_running_loop().time()
        else:
            is_refused = found is None
            if found is None:
                self._stays()
            else:
                self.told(found)
        self.update()
        return is_refused

    def _stays(self) -> None:
        """The set is not changed, by this request."""
        if self._unknown_since_s is None:
            self._states.refused()

    def _not_asked(self, error: PymqError) -> None:
        self._stays()
        self._said.warn(
            "controller",
            "members %s of the group cannot leave the sync state set, nor others join: %s",
            sorted(self._states.members.broker_ids),
            error,
        )

    def told(self, members: SyncStateSet) -> None:
        """Take the set that the controller has."""
        states, now_s = self._states, asyncio.get_running_loop().time()
        if states.changed(members):
            _log.info("sync state set: %s", sorted(members.broker_ids))
            self._unknown_since_s = None
            self._said.over("controller")
            self._said.over("unknown")
            self.update()
        elif self._unknown_since_s is not None and now_s - self._unknown_since_s > FORGOTTEN_S:
            self._unknown_since_s = None
            states.refused()

    async def close(self) -> None:
        """Stop; idempotent."""
        self._steering.members_listener(None, term=self._term)
        await self._tasks.close()


def in_sync_of(
    config: ReplicationConfig, group: ReplicaGroup | None, replication: Replication, clock: Clock
) -> InSync | None:
    """Return what keeps the sync state set of a master; None for others, and without one."""
    if group is None or not group.term.is_master:
        return None
    states = SyncStates(
        group.term.own_id,
        group.epochs.epochs.entries[-1].first,
        group.term.members,
        asyncio.get_running_loop().time(),
        lag_max_s=config.sync_state_lag_ms / 1000,
    )
    progress = None
    if config.role is Role.SYNC_MASTER:
        progress = GroupProgress(ReplicaRules.of(config), clock, states)
    return InSync(
        states,
        group.steering,
        replication,
        progress,
        term=group.term.number,
        interval_s=config.sync_state_interval_ms / 1000,
    )
