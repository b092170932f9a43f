"""The sync state set of one master: whom it waits for, and who may succeed it. Pure.

A message is confirmed when all members of the set have it, and the controller elects none but
members, so a new master has everything that was confirmed. While a change of the set is asked for,
and until its outcome is known, members of either set are waited for: either may be the one that
the controller goes by.

Source: RocketMQ AutoSwitchHAService (maybeExpandInSyncStateSet, maybeShrinkSyncStateSet,
computeConfirmOffset).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pymq.protocol.controller import SyncStateSet


@dataclass(frozen=True, slots=True)
class Position:
    """A slave that is connected.

    Attributes:
        end: physical offset up to which it has confirmed the log.
        caught_up_s: when it last had everything.
        is_learner: whether it never becomes a member.
        has_promised: whether it has what was acknowledged outside of the log.
    """

    end: int
    caught_up_s: float
    is_learner: bool = False
    has_promised: bool = True


class SyncStates:
    """The set during one term.

    Args:
        own_id: the master's id.
        first: physical offset at which the term began.
        members: the set, as the controller had it then.
        now_s: the time; a member that has not connected yet is given ``lag_max_s`` from here on.
        lag_max_s: a member that has not had everything for so long leaves the set.

    Attributes:
        members: the set that the controller has, as far as is known.
        confirmed_end: physical offset up to which all members have the log.
    """

    def __init__(
        self, own_id: int, first: int, members: SyncStateSet, now_s: float, *, lag_max_s: float
    ) -> None:
        self._own_id = own_id
        self._first = first
        self._lag_max_s = lag_max_s
        #: Members of sets that were asked for; the outcome is not known.
        self._asked: frozenset[int] = frozenset()
        #: Who is about to join: waited for already, so that there is an end to what they lack.
        self._joining: frozenset[int] = frozenset()
        #: Where each slave has been, also if it is away now.
        self._ends: dict[int, int] = {}
        self._caught_up_s = dict.fromkeys(members.broker_ids, now_s)
        self._positions: Mapping[int, Position] = {}
        self.members = members
        self.confirmed_end = 0

    @property
    def awaited(self) -> frozenset[int]:
        """Who must have a message, besides the master."""
        return (self.members.broker_ids | self._asked | self._joining) - {self._own_id}

    def update(self, positions: Mapping[int, Position], log_end: int) -> int:
        """Take where the connected slaves are; return the physical offset that is confirmed.

        Args:
            positions: by broker id.
            log_end: physical offset at which the master's log ends.
        """
        self._positions = positions
        for broker_id, position in positions.items():
            self._ends[broker_id] = position.end
            known_s = self._caught_up_s.get(broker_id, -math.inf)
            self._caught_up_s[broker_id] = max(known_s, position.caught_up_s)
        end = min((self._ends.get(one, 0) for one in self.awaited), default=log_end)
        self.confirmed_end = max(self.confirmed_end, end)
        return self.confirmed_end

    def wanted(self, now_s: float) -> frozenset[int] | None:
        """Return the set that should be asked for; None: the one that there is."""
        latest = now_s - self._lag_max_s
        kept = {
            one
            for one in self.members.broker_ids
            if self._caught_up_s[one] >= latest and not self._may_not_stay(one)
        }
        close = {
            broker_id
            for broker_id, one in self._positions.items()
            if not one.is_learner and one.caught_up_s >= latest
        }
        least = max(self.confirmed_end, self._first)
        self._joining = frozenset(close)
        joined = {
            one
            for one in close
            if self._positions[one].end >= least and self._positions[one].has_promised
        }
        found = frozenset(kept | joined | {self._own_id})
        return found if found != self.members.broker_ids else None

    def instead(self, wanted: frozenset[int]) -> list[frozenset[int]]:
        """Return which sets to ask for, one after the other, when a controller refuses one.

        It refuses a set for one broker that it does not know, or does not see. That one shall keep
        nobody else from joining, and above all nobody from leaving: messages wait for members.
        """
        now = self.members.broker_ids
        kept = wanted & now
        if kept == now:
            found = [kept | {one} for one in sorted(wanted - now)]
        else:
            # RocketMQ's controller has to see those who stay as well. One that leaves for that is
            # not elected unseen, either, and joins again when it is seen.
            staying = sorted(kept - {self._own_id})
            found = [kept, *(kept - {one} for one in staying), frozenset({self._own_id})]
        return [one for one in dict.fromkeys(found) if one != wanted]

    def _may_not_stay(self, broker_id: int) -> bool:
        """Has a member come back as a learner, or with less than it had confirmed?"""
        position = self._positions.get(broker_id)
        return position is not None and (
            position.is_learner or position.end < self.confirmed_end
        )

    def ask(self, broker_ids: frozenset[int]) -> None:
        """A change is asked for: its members are waited for, too, from now on."""
        self._asked |= broker_ids

    def refused(self) -> None:
        """The change was certainly not made, and will not be."""
        self._asked = frozenset()

    def changed(self, members: SyncStateSet) -> bool:
        """Take the set that the controller has; return whether it is a later one."""
        if members.epoch <= self.members.epoch:
            return False
        for broker_id in members.broker_ids - self._caught_up_s.keys():
            self._caught_up_s[broker_id] = -math.inf
        self.members = members
        self._asked = frozenset()
        return True
