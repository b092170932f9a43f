"""Stores whose offsets are asked for by time, and where the official answers are kept.

``vectors/offset_by_time.json`` holds, per case, the store times (ms, from ``EPOCH_MS`` on), how
many leading commit-log files retention took, and per queue its bounds and the answers as
[time asked for, lower, upper]. RocketMQ 5.3.3 gave them: ``test_offset_by_time.py`` asks it again
and compares.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tests.unit.store.stores import (
    TOPIC,
    FakeClock,
    log_files,
    open_store,
    put_ok,
    queue_path,
    record_of_size,
)

from pymq.store.config import ENTRY_BYTES

VECTORS = Path(__file__).parent / "vectors" / "offset_by_time.json"
EPOCH_MS = 1_700_000_000_000
SEGMENT_BYTES = 1024
QUEUE_FILE_BYTES = 200
Case = dict[str, Any]


def cases() -> dict[str, Case]:
    """Return all cases without their answers, by name."""
    dice = random.Random(13)
    walk = [0]
    while len(walk) < 60:
        walk.append(walk[-1] + dice.choice([0, 0, 1, 5, 100]))
    found: dict[str, tuple[list[int], int]] = {
        "one": ([0], 0),
        "steps": (list(range(0, 350, 10)), 0),
        "a full file": (list(range(0, 100, 10)), 0),
        "two full files": (list(range(0, 200, 10)), 0),
        "all at once": ([0] * 25, 0),
        "fours": ([number // 4 * 10 for number in range(35)], 0),
        "duplicates over files": ([0] * 5 + [10] * 22 + [20] * 8, 0),
        "gaps": ([n * 10 + 1000 * (n >= 10) + 5000 * (n >= 23) for n in range(35)], 0),
        "walk": (walk, 0),
        "steps, some expired": (list(range(0, 350, 10)), 2),
        "steps, a file expired": (list(range(0, 350, 10)), 6),
        "fours, some expired": ([number // 4 * 10 for number in range(35)], 4),
        "walk, some expired": (walk, 7),
    }
    return {
        name: {"times": times, "dropped_files": dropped}
        for name, (times, dropped) in found.items()
    }


def build(root: Path, case: Case) -> None:
    """Write a store: every message into queue 0, every third time one into queue 1, too."""
    clock = FakeClock()
    store = open_store(root, clock, segment_bytes=SEGMENT_BYTES, queue_file_bytes=QUEUE_FILE_BYTES)
    for number, time in enumerate(case["times"]):
        clock.now_ms = EPOCH_MS + time
        put_ok(store, record_of_size(250))
        if number % 3 == 0:
            put_ok(store, record_of_size(120, queue_id=1))
    ends = [
        [store.physical_offset(TOPIC, queue_id, offset) or 0 for offset in range(end)]
        for queue_id in (0, 1)
        for end in (store.queue_bounds(TOPIC, queue_id)[1],)
    ]
    store.close()
    if not case["dropped_files"]:
        return
    (root / "queues.json").unlink()
    for path in log_files(root)[: case["dropped_files"]]:
        path.unlink()
    log_first = int(log_files(root)[0].name)
    for queue_id, places in enumerate(ends):
        for path in sorted(queue_path(root, TOPIC, queue_id).iterdir())[:-1]:
            last = (int(path.name) + QUEUE_FILE_BYTES) // ENTRY_BYTES - 1
            if places[last] < log_first:
                path.unlink()


def questions(case: Case) -> list[int]:
    """Return the times to ask for: every store time and its neighbours, and far ones."""
    times = {EPOCH_MS + time + step for time in case["times"] for step in (-1, 0, 1)}
    return sorted(times | {0, 1, EPOCH_MS - 10**6, EPOCH_MS + 10**6, 1 << 62})


def official_answers() -> dict[str, Case]:
    """Return the cases with the answers that were kept."""
    found: dict[str, Case] = json.loads(VECTORS.read_text())
    return found
