"""Timer messages driven by random operations against a table, with faults, restarts and crashes.

The clock is virtual, files are real. A process may die at any operation on a file, and the power
may be lost. What must hold in the end: every message that was acknowledged (and, after lost power,
flushed) was delivered, none before its time, none that was cancelled in time; and none twice,
except those that were delivered between the last flush and a crash, or were further away than the
wheel reaches when a process died without having flushed since a long downtime, or were delivered
before the clock was set back, or waited when a process died without having flushed since then.
"""

import functools
import logging
import random
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.disks import in_memory
from tests.unit.broker.timers.waits import Waits
from tests.unit.store.stores import FakeClock, QuickFiles

from pymq.protocol.names import TIMER_TOPIC
from pymq.protocol.record import NewRecord
from pymq.store import Files
from pymq.store.timer import timer_recovery
from pymq.store.timer.timer_log import UNIT_BYTES
from pymq.store.timer.timer_wheel import TimerWheel
from pymq.testing.faulty_files import Crashed, Fault, FaultyFiles, Keep
from pymq.testing.lost_power import Disk

#: Half of the wheel's slots; of these, 60 are never used for rounds.
WINDOW = 160
TOPICS = ("A", "B")
KEEPS = (Keep.NOTHING, Keep.BYTES, Keep.SECTORS, Keep.ALL)


@dataclass
class Sent:
    """A message that was acknowledged, or may be there."""

    topic: str
    delivery_ms: int
    #: Where its record ends in the log; None: nobody was told.
    physical_end: int | None = None
    is_cancelled: bool = False
    may_be_cancelled: bool = False
    #: Before the clock was set back: then it was delivered already.
    was_due: bool = False
    #: How often it may have been delivered at most.
    times_max: int = 1


class Run:
    """One random schedule."""

    def __init__(self, path: Path, dice: random.Random) -> None:
        self.home = path
        self.path = path / "0"
        self.dice = dice
        self.clock = FakeClock(1_700_000_000_000 + dice.randrange(1000))
        self.precision_ms = dice.choice([1000, 1000, 1000, 100, 200])
        self.settings: dict[str, Any] = {
            "segment_bytes": dice.choice([1 << 13, 1 << 15]),
            "queue_file_bytes": dice.choice([400, 6000]),
            "key_index": False,
            "timer_precision_ms": self.precision_ms,
            "timer_roll_window_slots": dice.choice([5, 20, 60, 100]),
            "timer_log_file_bytes": UNIT_BYTES * dice.choice([4, 7, 50]) + dice.choice([16, 40]),
        }
        self.sent: dict[bytes, Sent] = {}
        #: How many records of each message there were, parked or delivered, when timers were last
        #: flushed.
        self.safe: Counter[bytes] = Counter()
        self.stored: Counter[bytes] = Counter()
        self.count = 0
        self.losses = 0
        #: How far the clock was set back, all in all.
        self.back_ms = 0
        self.is_open = False
        self.disk: Disk | None = None

    # --- starts and ends

    def open(self, files: Files | None = None) -> None:
        self.waits = Waits(self.path, self.clock, files=files, **self.settings)
        self.waits.stored = self.stored
        self.is_open = True

    def stop(self) -> None:
        self.waits.stop()
        self.is_open = False
        self.is_safe()

    def is_safe(self) -> None:
        """Record that timers were flushed."""
        self.safe = self.stored.copy()

    def crash(self) -> None:
        """Go on with a process that dies at some operation, then start another one."""
        self.stop()
        disk = Disk(self.path) if self.dice.random() < 0.4 else None
        fault = Fault(at=self.dice.randrange(1, 200), keep=self.dice.choice(KEEPS))
        files = _Faulty(fault, disk=disk)
        try:
            self.open(files)
            for _ in range(40):
                self.step()
        except Crashed:
            pass
        files.abandon()
        if self.is_open:
            flushed = self.waits.store.durability.flushed_end
            self.waits.abandon()
            self.is_open = False
        else:
            flushed = 0
        if disk is not None:
            self.lose_power(disk, flushed)
        self.pass_downtime()
        self.open()
        self.stored.clear()
        self.stored.update(self.records())
        for body, times in self.stored.items():
            # Each record since then may have been made of one that is put back once more.
            self.sent[body].times_max += max(0, times - max(1, self.safe[body]))
        # The unit of a message beyond the ring has no room in the wheel: the message is taken up
        # once more, and a wheel that is made again from the timer log finds both units.
        ring_end_ms = self.waits.files.read_ms + 2 * WINDOW * self.precision_ms
        # So has one of a slot that counts as over, when the clock was set back before the crash.
        is_back = self.waits.files.read_ms > self.waits.files.slot_ms(self.clock.now_ms)
        for body, one in self.sent.items():
            one.times_max += max(one.delivery_ms >= ring_end_ms, is_back * self.stored[body])
        self.is_safe()

    def lose_power(self, disk: Disk, flushed: int) -> None:
        self.losses += 1
        self.path = self.home / str(self.losses)
        disk.lose_power(self.dice, self.path)
        for one in self.sent.values():
            if one.physical_end is not None and one.physical_end > flushed:
                one.physical_end = None

    def damage(self) -> None:
        """Have a part of the files removed or damaged while nobody has them open."""
        self.stop()
        kind = self.dice.choice(["wheel", "log", "unit", "both", "zeros", "checkpoint"])
        if kind == "checkpoint":
            (self.path / "config" / "timercheck").unlink(missing_ok=True)
            for body, one in self.sent.items():
                one.times_max += self.stored[body]  # What was put back is not known any more.
        if kind in ("wheel", "both"):
            (self.path / "timerwheel").unlink(missing_ok=True)
        if kind in ("log", "both"):
            shutil.rmtree(self.path / "timerlog", ignore_errors=True)
        if kind == "zeros" and (self.path / "timerwheel").exists():
            size = (self.path / "timerwheel").stat().st_size
            (self.path / "timerwheel").write_bytes(bytes(size))
        paths = sorted((self.path / "timerlog").glob("*"))
        if kind == "unit" and paths:
            # Of more than two files only the end is read by every start.
            path = self.dice.choice(paths) if len(paths) <= 2 else paths[-1]
            with path.open("r+b") as file:
                at = UNIT_BYTES * self.dice.randrange(4) + self.dice.randrange(16)
                file.seek(at)
                size = min(self.dice.choice([1, 8, 60]), path.stat().st_size - at)
                file.write(b"\xff" * size)
        self.pass_downtime()
        self.open()

    # --- steps

    def step(self) -> None:
        dice = self.dice
        action = dice.random()
        if action < 0.45:
            for _ in range(dice.choice([1, 1, 3, 12])):
                self.send()
        elif action < 0.6:
            self.cancel()
        elif action < 0.7:
            self.refuse()
        elif action < 0.8:
            self.waits.store.durability.flush()
        elif action < 0.9:
            self.waits.flush()
            self.is_safe()
        if dice.random() < 0.6:
            self.pass_time()
        elif dice.random() < 0.1:
            self.set_back()
        self.waits.deliver()

    def set_back(self) -> None:
        """Set the clock back; if the wheel is made again, what was put back may wait again."""
        before_ms = self.waits.files.read_ms
        back_ms = int(self.dice.choice([0.3, 1, 2, 30, 200, 500]) * self.precision_ms)
        self.clock.now_ms -= back_ms
        self.back_ms += back_ms
        for body, one in self.sent.items():
            if one.delivery_ms > self.clock.now_ms - self.precision_ms:
                one.was_due |= one.delivery_ms <= before_ms + self.precision_ms
                one.times_max += self.stored[body]  # each round is one

    def pass_time(self) -> None:
        slots = self.dice.choice([0.01, 0.5, 1, 1, 2, 7, 30])
        self.clock.now_ms += int(slots * self.precision_ms)

    def pass_downtime(self) -> None:
        """Let time pass between two processes: more than the wheel turns, now and then."""
        if self.dice.random() < 0.5:
            self.clock.now_ms += self.dice.choice([20, 90, 200, 400, 5000]) * self.precision_ms

    def send(self) -> None:
        dice = self.dice
        delay_ms = int(dice.choice([0.3, 1, 2, 3, 10, 30, 90, 150]) * self.precision_ms)
        delay_ms += dice.choice([0, 0, dice.randrange(self.precision_ms)])
        body = b"m%d" % self.count + bytes(dice.choice([0, 10, 700]))
        self.count += 1
        topic = dice.choice(TOPICS)
        now_ms = self.waits.timers.now_ms()
        self.sent[body] = one = Sent(topic, now_ms + delay_ms)
        key = f"UNIQ_KEY\x01{body[:20].rstrip(bytes(1)).decode()}\x02"
        result = self.waits.send(body, f"TIMER_DELAY_MS\x01{delay_ms}\x02{key}", topic)
        one.physical_end = result.physical_end
        self.stored[body] += 1

    def cancel(self) -> None:
        """Cancel a message that is not due yet; what cancels it waits as soon as it is flushed."""
        slot_ms = self.waits.files.slot_ms(self.waits.timers.now_ms())
        bodies = [
            body
            for body, one in self.sent.items()
            if (one.delivery_ms - 1) // self.precision_ms * self.precision_ms > slot_ms
            and not one.was_due
        ]
        if bodies:
            body = self.dice.choice(bodies)
            one = self.sent[body]
            one.may_be_cancelled = True
            key = body[:20].rstrip(bytes(1))
            self.waits.cancel(key, one.delivery_ms, one.topic)
            self.waits.deliver()
            if one.physical_end is not None:
                self.waits.store.durability.flush()
                # A process that dies before it has flushed that slots are filled again takes both
                # for late.
                one.is_cancelled = not self.back_ms

    def refuse(self) -> None:
        """Have the log refuse some of what is due."""
        refused = self.dice.random() * 0.8

        def refuses(record: NewRecord) -> bool:
            return self.dice.random() < refused

        self.waits.refuses = refuses
        self.pass_time()
        self.waits.deliver()
        self.waits.refuses = lambda record: False

    # --- what must hold

    def records(self, *, parked: bool = True) -> Counter[bytes]:
        """Return how many records of each message there are; none is delivered before its time."""
        found: Counter[bytes] = Counter()
        for topic, queue_id in self.waits.store.queues():
            if topic != TIMER_TOPIC or parked:
                for record in self.waits.records(topic, queue_id):
                    one = self.sent.get(record.body)
                    if one is None:
                        assert record.body == b"0" and topic == TIMER_TOPIC
                        continue
                    if topic != TIMER_TOPIC:
                        assert record.topic == one.topic
                        assert record.store_timestamp >= one.delivery_ms, record.body
                    found[record.body] += 1
        return found

    def check(self) -> None:
        for _ in range(6 + self.back_ms // (50 * self.precision_ms)):
            self.clock.now_ms += 50 * self.precision_ms
            self.waits.deliver()
        found = self.records(parked=False)
        for body, one in self.sent.items():
            times = found[body]
            assert times <= one.times_max, (body, times, one)
            if one.is_cancelled:
                assert not times, (body, times, one)
            elif one.physical_end is not None and not one.may_be_cancelled:
                assert times, (body, one)


class _Faulty(FaultyFiles, QuickFiles):
    """Fails, and flushes nothing but in the model of the disk."""


@pytest.fixture(autouse=True)
def small_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        timer_recovery, "TimerWheel", functools.partial(TimerWheel, window_slots=WINDOW)
    )
    monkeypatch.setattr("pymq.broker.timers.delivery.RETRY_S", 0.0)


def test_random_schedules(
    tmp_path: Path, seed: int, crash_rounds: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    with in_memory("pymq-timers-", tmp_path) as memory:
        for number in range(20 * crash_rounds):
            print(f"schedule {number} of seed {seed}")
            run = Run(memory / str(number), random.Random(seed * 1_000_003 + number))
            run.open()
            for _ in range(8):
                action = run.dice.random()
                if action < 0.8:
                    run.step()
                elif action < 0.85:
                    run.stop()
                    run.pass_downtime()
                    run.open()
                elif action < 0.9:
                    run.damage()
                else:
                    run.crash()
            run.check()
            run.stop()
            shutil.rmtree(run.home)
