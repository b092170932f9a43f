"""What brokers that are alive say of themselves: pure values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

#: The priority that is elected last; whoever says none has it.
LAST_PRIORITY = (1 << 31) - 1


class LogEnd(NamedTuple):
    """How far a log goes; of two of one group, the later one goes further."""

    #: The last one in the log; -1: it is not known.
    epoch: int
    #: Physical offset.
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a broker that is alive said of itself: the furthest of all its heartbeats."""

    #: The last one in its log; None: it did not say.
    epoch: int | None = None
    #: Physical offset at which its log ends.
    max_offset: int = -1
    #: Of brokers that are equally far the one with the least is elected.
    priority: int = LAST_PRIORITY
    #: ``host:port`` at which it listens; empty: it did not say.
    address: str = ""
    #: Where the log of another broker with its id ended, at another address, if this one's does not
    #: go as far.
    had: LogEnd | None = None

    @property
    def end(self) -> LogEnd:
        """How far its log goes."""
        return LogEnd(-1 if self.epoch is None else self.epoch, self.max_offset)

    @property
    def has_less(self) -> bool:
        """Does it have less than another broker with its id had, which was at another address?"""
        return self.had is not None


#: Who is alive: broker id -> what it said.
Alive = Mapping[int, Report]
