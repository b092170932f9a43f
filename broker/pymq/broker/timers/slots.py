"""What is being delivered of timer messages: a slot that is over, and what came after its slot."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from pymq.broker.timers.delivery import Cancelled, Due, Mask
from pymq.store import TimerMagic, TimerUnits, WaitingTimers


@dataclass(slots=True)
class Late:
    """Messages that came after their slot, and the offset after all that came with them."""

    waiting: WaitingTimers
    is_done: Mask
    end: int


@dataclass(slots=True)
class Slot:
    """A slot that is being delivered.

    Attributes:
        due_ms: its time.
        units, due: its messages.
        is_delete: which of them cancel others.
        cancelled: those of its messages that are.
        is_done: which of them are done; those that cancel others are.
    """

    due_ms: int
    units: TimerUnits
    due: Due
    is_delete: Mask
    cancelled: Cancelled
    is_done: Mask = field(init=False)

    def __post_init__(self) -> None:
        self.is_done = self.is_delete.copy()

    def waiting(self, due_ms: Mapping[int, int], least_ms: int) -> WaitingTimers:
        """Return some of its messages as those that wait, by their physical offsets.

        Args:
            due_ms: when each is due.
            least_ms: none of them waits for an earlier time.
        """
        physical_offsets = self.due.physical_offsets
        rows = np.isin(physical_offsets, np.fromiter(due_ms, np.int64))
        times = [max(due_ms[one], least_ms) for one in physical_offsets[rows].tolist()]
        return WaitingTimers(
            physical_offsets[rows],
            self.due.record_bytes[rows],
            np.array(times, np.int64),
            self.units["magic"][rows] & TimerMagic.DELETE != 0,
            self.units["topic_hash"][rows].astype(np.int32),
        )
