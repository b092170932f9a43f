"""How much a micro-batch takes of what waits, and whether it is worth one at all. No I/O."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from pymq.protocol.bodies import MessageQueue
from pyspark_pymq.offsets import Bounds, Position

Counts = Mapping[MessageQueue, int]
#: By queue: where a batch begins, and how many messages wait there -> how many it takes.
Takes = Callable[[Counts, Counts], Counts]
_Item = TypeVar("_Item")


def take_all(_: Counts, waiting: Counts) -> Counts:
    """Take whatever waits."""
    return waiting


def end_of_batch(
    start: Position,
    bounds: Bounds,
    *,
    discovered: Mapping[MessageQueue, int] | None = None,
    takes: Takes = take_all,
) -> Position:
    """Return where the batch that starts at ``start`` ends.

    Args:
        start: where the stream stands. Every queue it knows is kept, with or without bounds:
            a queue of a broker that is away for a while is neither lost nor started again.
        bounds: of the queues there are now.
        discovered: where queues begin that the stream does not know yet; None: at their first
            message. Those that are not named are left for a later batch.
        takes: how much of what waits.
    """
    if start.initial:
        return replace(start, initial=False)
    # Where the first messages are gone already there is nothing to count before the next ones.
    offsets = {
        queue: max(offset, bounds[queue][0]) if queue in bounds else offset
        for queue, offset in start.offsets.items()
    }
    for queue, count in takes(dict(offsets), backlog(offsets, bounds)).items():
        offsets[queue] += count
    # What is new is journaled first and read from the next batch on, see ``offsets``.
    if discovered is None:
        discovered = {queue: first for queue, (first, _) in bounds.items()}
    return replace(start, offsets={**discovered, **offsets})


def backlog(offsets: Mapping[MessageQueue, int], bounds: Bounds) -> dict[MessageQueue, int]:
    """Return how many messages wait in each queue that has any."""
    return {
        queue: bounds[queue][1] - offset
        for queue, offset in offsets.items()
        if queue in bounds and bounds[queue][1] > offset
    }


def share(waiting: Mapping[_Item, int], most: int | None) -> dict[_Item, int]:
    """Return how much of what waits each gets when ``most`` are shared out in proportion.

    Everybody who has something gets one at least, so that a small queue beside a large one
    does not starve; the sum may exceed ``most`` by that.
    """
    total = sum(waiting.values())
    if most is None or total <= most:
        return dict(waiting)
    return {
        item: min(count, max(1, most * count // total)) for item, count in waiting.items() if count
    }


def share_bytes(
    waiting: Mapping[_Item, int], sizes: Mapping[_Item, float], bytes_max: int
) -> dict[_Item, int]:
    """Return how many messages each gets when ``bytes_max`` are shared out in proportion.

    Args:
        waiting: messages.
        sizes: bytes of one of them, on average.
        bytes_max: as in ``share``, everybody gets one message at least.
    """
    total = sum(count * sizes[item] for item, count in waiting.items())
    if total <= bytes_max:
        return dict(waiting)
    return {
        item: min(count, max(1, int(count * (bytes_max / total))))
        for item, count in waiting.items()
        if count
    }


def bounded(bounds: Bounds, target: Mapping[MessageQueue, int]) -> Bounds:
    """Return ``bounds`` as they were when ``target`` was taken: nothing newer, no newer queue."""
    return {
        queue: (first, min(end, target[queue]))
        for queue, (first, end) in bounds.items()
        if queue in target
    }


def capped(bounds: Bounds, ends: Mapping[MessageQueue, int]) -> Bounds:
    """Return ``bounds``, those of queues that ``ends`` names not beyond it."""
    return {
        queue: (first, min(end, ends.get(queue, end))) for queue, (first, end) in bounds.items()
    }


class TriggerDelay:
    """Holds batches of few messages back, for a while.

    Args:
        offsets_min: messages that are worth a batch.
        delay_max_s: after the last batch, or the start of this query, any message is.
        monotonic_s: the clock.
    """

    def __init__(
        self, offsets_min: int | None, delay_max_s: float, monotonic_s: Callable[[], float]
    ) -> None:
        self._offsets_min = offsets_min
        self._delay_max_s = delay_max_s
        self._monotonic_s = monotonic_s
        self._since_s = monotonic_s()

    def holds_back(self, waiting_count: int) -> bool:
        """Say whether what waits is not worth a batch yet; if it is, the delay begins again."""
        if self._offsets_min is None:
            return False
        now_s = self._monotonic_s()
        is_due = now_s - self._since_s >= self._delay_max_s
        if waiting_count and (is_due or waiting_count >= self._offsets_min):
            self._since_s = now_s
            return False
        return True
