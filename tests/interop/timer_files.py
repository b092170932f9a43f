"""What goes into the files of timers, and where the official files are kept.

``vectors/timer_files.json`` holds, per case, the messages that were made to wait, and the files
that RocketMQ 5.3.3 wrote for them: timer log (hex, per file), the slots of the wheel that are in
use, and the checkpoint. ``test_timer_files.py`` has them written again and compares.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).parent / "vectors" / "timer_files.json"
EPOCH_MS = 1_700_000_000_000
Case = dict[str, Any]

#: Bytes of a timer log's file that holds three units, with some to spare.
THREE_UNITS = 3 * 52 + 16 + 20


def cases() -> dict[str, Case]:
    """Return all cases without their answers, by name.

    A message is [ms after EPOCH_MS when it was made to wait, when it is due, physical offset,
    size of its record, topic, whether it cancels another one].
    """
    dice = random.Random(17)
    many: list[list[Any]] = []
    now = 0
    for number in range(60):
        now += dice.choice([0, 0, 0, 1000])
        due = now + dice.choice([0, 0, 1000, 2000, 3500, 9000, 12_000, 15_000, 30_000])
        topic = dice.choice(["TopicTest", "标签", "%RETRY%group"])
        many.append([now, due, 1000 + 300 * number, 280 + number, topic, not dice.randrange(5)])
    return {
        "one": {
            "messages": [[0, 3000, 182, 270, "timert", False]],
            "log_file_bytes": 1000,
            "roll_window_slots": 172_800,
        },
        "a chain over files": {
            "messages": [[0, 5000, 100 * n, 90, "TopicTest", False] for n in range(8)],
            "log_file_bytes": THREE_UNITS,
            "roll_window_slots": 172_800,
        },
        "cancelled": {
            "messages": [
                [0, 5000, 0, 90, "TopicTest", False],
                [0, 5000, 100, 120, "TopicTest", True],
                [1000, 7000, 300, 120, "TopicTest", True],
            ],
            "log_file_bytes": 1000,
            "roll_window_slots": 172_800,
        },
        "rounds": {
            "messages": [
                [0, 1000 * seconds, 100 * seconds, 90, "TopicTest", seconds == 9]
                for seconds in range(20)
            ],
            "log_file_bytes": 10_000,
            "roll_window_slots": 7,
        },
        "many": {"messages": many, "log_file_bytes": 20 * 52 + 16, "roll_window_slots": 10},
        "precision of 100 ms": {
            "messages": [[50 * n // 100 * 100, 70 * n + 900, 100 * n, 90, "T", False]
                         for n in range(30)],
            "log_file_bytes": 10_000,
            "roll_window_slots": 172_800,
            "precision_ms": 100,
        },
    }  # fmt: skip


#: read time, flushed, queue offset, queue offset of the master, state version, time, counter
CHECKPOINT = [1_700_000_003_000, 1008, 17, 18, 3, 1_700_000_003_461, 24]


def official_files() -> dict[str, Any]:
    """Return the cases with the files that were kept, and the checkpoint."""
    found: dict[str, Any] = json.loads(VECTORS.read_text())
    return found
