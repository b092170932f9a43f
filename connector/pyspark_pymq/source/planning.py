"""What a batch reads, cut into tasks; pure functions of its two offsets and the user's bounds."""

import math
from collections.abc import Sequence

from pyspark_pymq.offsets import Position, QueueRange

#: A task takes 12 to 60 ms to start and end, in which a core reads 100,000 rows: with fewer, one
#: more task costs more than it brings.
TASK_ROWS_MIN = 100_000
#: A task above this is cut, so that several cores, and a retry, have less to do.
TASK_ROWS_MAX = 1_000_000


def ranges(start: Position, end: Position) -> list[QueueRange]:
    """Return what a batch consists of, the queues in order; a pure function of both offsets.

    Queues that only ``end`` knows have just been discovered: they are read from the next
    batch on. A queue that moved back (a loss the user accepted) has nothing to read.
    """
    if start.initial:
        return []
    return [
        QueueRange(queue, start.offsets[queue], offset)
        for queue, offset in sorted(end.offsets.items())
        if start.offsets.get(queue, offset) < offset
    ]


def plan(
    wanted: Sequence[QueueRange],
    *,
    tasks_min: int = 1,
    tasks_max: int | None = None,
    rows_max: int | None = None,
) -> list[list[QueueRange]]:
    """Cut ranges into tasks of nearly equal size: small queues together, large ones in parts.

    How many cores there are is not known here. So there are as many tasks as queues, but none
    below ``TASK_ROWS_MIN`` or above ``TASK_ROWS_MAX`` rows; the user's bounds come before these.

    Args:
        wanted: what to read, in order; every row lands in exactly one task.
        tasks_min: lower bound on their number, as long as each has a row.
        tasks_max: upper bound.
        rows_max: no task has more rows, whatever ``tasks_max`` says.
    """
    rows = sum(map(len, wanted))
    if not rows:
        return []
    worthwhile = min(len(wanted), math.ceil(rows / TASK_ROWS_MIN))
    count = max(worthwhile, math.ceil(rows / TASK_ROWS_MAX), min(tasks_min, rows))
    if tasks_max is not None:
        count = min(count, tasks_max)
    if rows_max is not None:
        count = max(count, math.ceil(rows / rows_max))
    tasks: list[list[QueueRange]] = []
    parts = (part for part in wanted if len(part))
    part = next(parts)
    for number in range(count):
        room = rows * (number + 1) // count - rows * number // count
        task = []
        while room:
            if not len(part):
                part = next(parts)
            taken = min(room, len(part))
            task.append(QueueRange(part.queue, part.first, part.first + taken))
            part = QueueRange(part.queue, part.first + taken, part.end)
            room -= taken
        tasks.append(task)
    return tasks
