"""Members that are at another address than the one before with their id: another broker, perhaps.

The master says who has caught up, by the connections of its slaves. It may mean the one before,
which stood still, say, and whose connection stands. So one that is new at its address does not join
the sync state set before it says itself that it has what the master had after it came.

Nothing here is kept anywhere: another controller goes by what the master says.
"""

from collections.abc import Collection
from dataclasses import dataclass

from pymq.controller.groups import GroupState
from pymq.controller.liveness import Liveness

#: Groups whose new holders are known.
GROUP_COUNT_MAX = 1_000


@dataclass(slots=True, kw_only=True)
class _NewHolder:
    address: str
    since_s: float
    #: Physical offset at which the master's log ended, in a term that has this epoch.
    end: int = -1
    master_epoch: int = 0


class NewHolders:
    """Those that did not say yet that they have everything.

    Args:
        liveness: what brokers say.
    """

    def __init__(self, liveness: Liveness) -> None:
        self._liveness = liveness
        #: Name of a group -> id -> who has it.
        self._groups: dict[str, dict[int, _NewHolder]] = {}

    def came(self, name: str, broker_id: int, address: str, now_s: float) -> None:
        """An id is at another address from now on."""
        if len(self._groups) >= GROUP_COUNT_MAX and name not in self._groups:
            self._groups.clear()
        new = _NewHolder(address=address, since_s=now_s)
        self._groups.setdefault(name, {})[broker_id] = new

    def joined(self, name: str, broker_ids: Collection[int]) -> None:
        """Brokers have joined the sync state set: they have everything."""
        for broker_id in broker_ids:
            self._liveness.caught_up(name, broker_id)
            self._groups.get(name, {}).pop(broker_id, None)
        if not self._groups.get(name, True):
            del self._groups[name]

    def unconfirmed(self, state: GroupState) -> set[int]:
        """Return the members that may not join the sync state set yet."""
        return {
            broker_id
            for broker_id, new in self._groups.get(state.name, {}).items()
            if state.address_of(broker_id) == new.address
            and not self._has_caught_up(state, broker_id, new)
        }

    def _has_caught_up(self, state: GroupState, broker_id: int, new: _NewHolder) -> bool:
        alive = self._liveness.alive(state.name)
        master = state.master
        if master is None or master not in alive or broker_id not in alive:
            return False
        if new.master_epoch != state.master_epoch:
            heard = self._liveness.holder(state.name, master)
            if heard is None or heard[1] <= new.since_s:
                return False  # it may have acknowledged more before this one came
            new.master_epoch, new.end = state.master_epoch, alive[master].max_offset
        return alive[broker_id].max_offset >= new.end
