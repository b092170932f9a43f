"""Has reads whose filters take long give way to everybody else.

A filter of thousands of comparisons takes milliseconds for one message, and a read looks at
hundreds. All reads whose turn has lasted long enough stand in one queue: in a turn of the event
loop one of them goes on, for as long as one turn may last.
"""

import asyncio
from time import perf_counter

#: How long a read may look into records before others have a turn.
TURN_S = 0.003
#: How long one that takes turns goes on; then its answer is what it has found by then.
READ_S = 0.5
#: Filters of a larger weight (``SqlFilter.weight``) take turns from the start.
COSTLY_WEIGHT = 64


class TurnBudget:
    """How much time one request has.

    Args:
        weight: of its filter.
    """

    __slots__ = ("_ends_s", "_turn_ends_s")

    def __init__(self, weight: int) -> None:
        self._turn_ends_s = 0.0 if weight > COSTLY_WEIGHT else perf_counter() + TURN_S
        self._ends_s: float | None = None

    @property
    def is_spent(self) -> bool:
        """Is it the turn of others?"""
        return perf_counter() >= self._turn_ends_s

    @property
    def is_over(self) -> bool:
        """Has it taken turns for long enough?"""
        return self._ends_s is not None and perf_counter() >= self._ends_s

    def renew(self) -> None:
        """Begin a turn."""
        now_s = perf_counter()
        self._turn_ends_s = now_s + TURN_S
        if self._ends_s is None:
            self._ends_s = now_s + READ_S


class FilterTurns:
    """Whose turn it is, among the reads of one broker."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def wait(self, budget: TurnBudget) -> None:
        """Return when it is a read's turn, if its last one is over."""
        if not budget.is_spent:
            return
        async with self._turn:
            await asyncio.sleep(0)
        budget.renew()
