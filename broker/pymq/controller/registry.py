"""Changes groups in the store: read, decide, replace if it is still what was read."""

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeAlias
from weakref import WeakValueDictionary

from pymq.controller.groups import GroupState, Outcome
from pymq.controller.stores.interface import ControllerStore, Stored
from pymq.errors import refusal
from pymq.protocol.codes import ResponseCode

#: How often a change is decided again because somebody else was faster.
ATTEMPT_COUNT = 5

#: Decides about a group; may be called several times, with the group as it is then.
Decision: TypeAlias = Callable[[GroupState | None], Outcome]


class Registry:
    """The groups of a store.

    Args:
        store: keeps them.
        follow: called with each group that is in the store, before anything is decided about it:
            another process may have changed it.
    """

    def __init__(self, store: ControllerStore, follow: Callable[[GroupState], None]) -> None:
        self._store = store
        self._follow = follow
        #: One decision about a group at a time: others of this process would only be repeated.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def is_leader(self) -> bool:
        """May this process change anything, to its knowledge?"""
        return self._store.is_leader

    async def read(self, name: str) -> GroupState | None:
        """Return a group, as it is after the changes that were begun before.

        A master whose request for another sync state set was not answered in time asks for the
        group; what it is told must not be overtaken by that request.

        Raises:
            BrokerError: this process does not lead, or the store cannot be reached.
        """
        async with self._lock(name):
            return (await self._read(name)).state

    async def _read(self, name: str) -> Stored:
        stored = await self._store.read(name)
        if stored.state is not None:
            self._follow(stored.state)
        return stored

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

    async def read_all(self) -> Mapping[str, GroupState]:
        """Return every group, as it is about now: changes of this process may overtake it.

        Raises:
            BrokerError: as ``read``.
        """
        stored = await self._store.read_all()
        return {name: one.state for name, one in stored.items() if one.state is not None}

    async def change(self, name: str, decide: Decision) -> Outcome:
        """Return what was decided; what it changes is stored then.

        Raises:
            BrokerError: as ``read``, then it is not known whether a change was made; or others
                change the group all the time.
        """
        async with self._lock(name):
            for _ in range(ATTEMPT_COUNT):
                stored = await self._read(name)
                outcome = decide(stored.state)
                if outcome.state == stored.state:
                    return outcome
                if await self._store.replace(name, stored.revision, outcome.state):
                    if outcome.state is not None:
                        self._follow(outcome.state)
                    return outcome
        raise refusal(
            ResponseCode.SYSTEM_BUSY,
            f"group {name} was changed by others {ATTEMPT_COUNT} times in between; try again",
        )
