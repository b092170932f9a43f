"""Delayed messages driven by random operations against a list, with faults, restarts and crashes.

The clock is virtual. The model knows when each message is due, and how often it must have been
delivered by now: once, and once more for every crash that came before its delivery was recorded.
"""

import errno
import logging
import random
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.disks import in_memory
from tests.unit.broker.delays.delays import Delays
from tests.unit.store.stores import FailingFiles, FakeClock, crashed_copy, failing_in, never

from pymq.errors import StoreError
from pymq.protocol.message import decode_properties
from pymq.protocol.names import SCHEDULE_TOPIC
from pymq.store import FlushMode

TOPICS = ("A", "B", "%RETRY%g")
LEVEL_TABLES = ((1000, 5000, 10_000), (300, 1000, 2000), (1000, 5000, 10_000, 60_000))


@dataclass
class Parked:
    body: bytes
    level: int
    entry_ms: int  #: when it is due, as its entry says
    due_ms: int  #: the same, or earlier because the clock was set back


class Model:
    """What waits in each level, and how often each message was delivered."""

    def __init__(self) -> None:
        self.queues: dict[int, list[Parked]] = {}
        self.delivered: Counter[bytes] = Counter()
        #: Queue offsets delivered at least once since the last start, by level.
        self.done: dict[int, set[int]] = {}

    def park(self, one: Parked) -> None:
        self.queues.setdefault(one.level, []).append(one)

    def settle(self, now_ms: int, levels_ms: tuple[int, ...]) -> None:
        """Deliver what is due: the first one that is not ends a level.

        What waits is due at the latest when the delay has passed from now on, rounded up to a
        second.
        """
        for level, waiting in self.queues.items():
            if level > len(levels_ms):
                continue
            done = self.done.setdefault(level, set())
            latest_ms = -(-(now_ms + levels_ms[level - 1]) // 1000) * 1000
            for one in waiting:
                one.due_ms = min(one.due_ms, latest_ms)
            for offset, one in enumerate(waiting):
                if offset in done:
                    continue
                if now_ms < one.due_ms:
                    break
                done.add(offset)
                self.delivered[one.body] += 1

    def restart(self, saved: dict[int, int]) -> None:
        """Forget what was delivered and not saved."""
        self.done = {level: set(range(saved.get(level, 0))) for level in self.queues}
        for waiting in self.queues.values():
            for one in waiting:
                one.due_ms = one.entry_ms


class Run:
    """One random schedule."""

    def __init__(self, path: Path, dice: random.Random) -> None:
        self.path = path
        self.dice = dice
        self.clock = FakeClock()
        self.model = Model()
        self.levels_ms = LEVEL_TABLES[0]
        self.settings = {
            "segment_bytes": dice.choice([1 << 14, 1 << 16]),
            "queue_file_bytes": dice.choice([400, 6000]),
            "key_index": False,
            "queue_extension": dice.random() < 0.2,
            "queue_extension_file_bytes": 6000,
            "flush_mode": dice.choice([FlushMode.ASYNC, FlushMode.ASYNC, FlushMode.SYNC]),
        }
        #: After a crash, recovery may work out delivery times again, by the table of that time.
        self.changes_levels = dice.random() < 0.3
        #: What was found delivered since the last start, and up to which offset of each queue.
        self.found: Counter[bytes] = Counter()
        self.read_to: dict[tuple[str, int], int] = {}
        self.count = self.crashes = 0
        self.root = path / "0"
        self.files = FailingFiles()
        self.delays = self.open(None)

    def open(self, saved: str | None) -> Delays:
        # What was delivered is there after every start: it is read again.
        self.found, self.read_to = Counter(), {}
        return Delays(
            self.root,
            self.clock,
            levels_ms=self.levels_ms,
            saved=saved,
            files=self.files,
            **self.settings,
        )

    def step(self) -> None:
        dice, delays = self.dice, self.delays
        action = dice.random()
        if action < 0.4:
            for _ in range(dice.choice([1, 1, 3, 20])):
                self.park()
            delays.store.durability.flush()
        elif action < 0.7:
            self.pass_time()
        elif action < 0.72:
            self.clock.now_ms -= dice.choice([100, 5000, 100_000])
        elif action < 0.8:
            delays.flush_failure = dice.choice([None, None, "the disk failed"])
            delays.save()
            delays.flush_failure = None
        elif action < 0.86:
            self.settle_with_refusals()
        elif action < 0.88:
            self.settle_on_a_full_disk()
        elif action < 0.93 or self.changes_levels:
            self.restart()
        else:
            self.crash()
        self.settle()

    def pass_time(self) -> None:
        """Let time pass, often until a message is due or almost."""
        waiting = [
            one.due_ms
            for level, queue in self.model.queues.items()
            for offset, one in enumerate(queue)
            if one.due_ms > self.clock.now_ms and offset not in self.model.done.get(level, ())
        ]
        if waiting and self.dice.random() < 0.7:
            self.clock.now_ms = self.dice.choice(waiting) - self.dice.choice([0, 0, 1])
        else:
            self.clock.now_ms += self.dice.choice([1, 100, 1000, 5000, 30_000])

    def park(self) -> None:
        dice = self.dice
        level = dice.randint(1, 6)
        body = b"%d " % self.count + bytes(dice.choice([0, 10, 3000]))
        self.count += 1
        result = self.delays.park(body, level, dice.choice(TOPICS), dice.randrange(2))
        level = min(level, len(self.levels_ms))
        due_ms = result.store_timestamp + self.levels_ms[level - 1]
        self.model.park(Parked(body, level, due_ms, due_ms))

    def settle_with_refusals(self) -> None:
        self.pass_time()
        refused = self.dice.random()
        self.delays.refuses = lambda record: self.dice.random() < refused
        for _ in range(3):
            try:
                self.delays.deliver()
            except StoreError as error:
                assert "refused by the test" in str(error)
        self.delays.refuses = lambda record: False

    def settle_on_a_full_disk(self) -> None:
        """Have a delivery fail, perhaps in the middle of a write, and make room again."""
        self.pass_time()
        self.files.half = self.dice.random() < 0.5
        self.files.on_write = failing_in("commitlog", errno.ENOSPC)
        for _ in range(2):
            try:
                self.delays.deliver()
            except StoreError as error:
                assert "not stored" in str(error)
        self.files.on_write = never
        self.clock.now_ms += 1000  # the store does not try again before

    def restart(self) -> None:
        self.delays.save()
        self.model.restart(self.delays.saved_cursors())
        self.delays.store.close()
        if self.changes_levels:
            self.levels_ms = self.dice.choice(LEVEL_TABLES)
        self.delays = self.open(self.delays.saved)

    def crash(self) -> None:
        """End in the middle of a delivery; some of the batch is in the log."""
        self.crashes += 1
        self.clock.now_ms += self.dice.choice([0, 1000])
        if self.dice.random() < 0.5:
            self.settle()
        self.root = crashed_copy(self.root, self.path / str(self.crashes))
        self.model.restart(self.delays.saved_cursors())
        self.delays.store.close()
        self.delays = self.open(self.delays.saved)

    def settle(self) -> None:
        self.delays.deliver()
        self.delays.store.durability.flush()
        self.model.settle(self.clock.now_ms, self.levels_ms)
        assert self.delivered() == self.model.delivered

    def delivered(self) -> Counter[bytes]:
        for topic, queue_id in self.delays.store.queues():
            if topic == SCHEDULE_TOPIC:
                continue
            first = self.read_to.get((topic, queue_id), 0)
            records = self.delays.records(topic, queue_id, first)
            self.read_to[topic, queue_id] = first + len(records)
            for record in records:
                self.found[record.body] += 1
                properties = decode_properties(record.properties)
                assert properties["REAL_TOPIC"] == topic
                assert properties["REAL_QID"] == str(queue_id)
        return self.found

    def whole(self) -> None:
        """Do some steps at random; in the end all that waits is delivered."""
        for _ in range(15):
            self.step()
        self.clock.now_ms += 10_000_000
        self.settle()
        waiting = sum(
            len(queue) for level, queue in self.model.queues.items() if level <= len(self.levels_ms)
        )
        assert len(self.model.delivered) >= waiting
        self.delays.store.close()


def test_random_schedules(
    tmp_path: Path, seed: int, crash_rounds: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    with in_memory("pymq-delays-", tmp_path) as memory:
        for number in range(20 * crash_rounds):
            print(f"schedule {number} of seed {seed}")
            run = Run(memory / str(number), random.Random(seed * 1_000_003 + number))
            run.whole()
            shutil.rmtree(run.path)
