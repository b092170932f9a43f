"""Epochs of a replicated log: which master wrote which part of it.

Each master begins an epoch, greater than all before, where its log ends at that moment. Two logs
are the same up to the end of the last epoch that both have, from the same physical offset on.

Source: RocketMQ EpochEntry, EpochFileCache.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Self


class Epoch(NamedTuple):
    """One epoch: its number, and the physical offset of its first byte."""

    number: int
    first: int


@dataclass(frozen=True, slots=True)
class Epochs:
    """The epochs of one log, in ascending order of both numbers and offsets."""

    entries: tuple[Epoch, ...] = ()

    @classmethod
    def of(cls, entries: Iterable[Epoch]) -> Self:
        """Return a list of epochs that was read or received.

        Raises:
            ValueError: they are not in ascending order.
        """
        found = tuple(entries)
        for before, after in zip(found, found[1:], strict=False):
            if after.number <= before.number or after.first < before.first:
                raise ValueError(f"epoch {after} follows {before}: expected an ascending order")
        return cls(found)

    @property
    def last_number(self) -> int:
        """The last epoch; -1 if there is none."""
        return self.entries[-1].number if self.entries else -1

    def begun(self, number: int, first: int) -> Self:
        """Return the list with an epoch that begins at a physical offset.

        Epochs that have not got a byte of the log are left out. One that goes on, because its
        master has restarted, stays as it is.

        Raises:
            ValueError: bytes before that offset belong to a later epoch.
        """
        if self.last_number == number:
            return self
        kept = [one for one in self.entries if one.number < number and one.first < first]
        later = [one for one in self.entries if one.number > number and one.first < first]
        if later:
            raise ValueError(f"epoch {number} at {first}: the log has bytes of epoch {later[-1]}")
        return type(self)((*kept, Epoch(number, first)))

    def cut(self, end: int) -> Self:
        """Return the epochs of a log that was cut at a physical offset."""
        return type(self)(tuple(one for one in self.entries if one.first < end))

    def at(self, physical_offset: int) -> tuple[Epoch, int | None] | None:
        """Return the epoch of a byte, and where it ends (None: it goes on); None: unknown."""
        found = None
        for number, one in enumerate(self.entries):
            if one.first > physical_offset:
                break
            following = self.entries[number + 1 : number + 2]
            found = one, following[0].first if following else None
        return found

    def common_end(self, own_end: int, other: "Epochs", other_end: int) -> int | None:
        """Return the physical offset up to which two logs are the same; None: nothing is known.

        Two logs that begin with different epochs, each at the very beginning, have nothing in
        common: the first master lost all it had, or was never followed. (RocketMQ's slaves give up
        then.) That is believed of a log only if the other one is later.

        Args:
            own_end, other_end: where the logs end.
        """
        theirs = dict(other._with_ends(other_end))
        for one, end in reversed(self._with_ends(own_end)):
            if one in theirs:
                return min(end, theirs[one])
        is_older = self.last_number < other.last_number
        return 0 if is_older and self._begins_at_0 and other._begins_at_0 else None

    @property
    def _begins_at_0(self) -> bool:
        return bool(self.entries) and self.entries[0].first == 0

    def _with_ends(self, end: int) -> list[tuple[Epoch, int]]:
        firsts = [one.first for one in self.entries[1:]]
        return list(zip(self.entries, [*firsts, end], strict=True)) if self.entries else []
