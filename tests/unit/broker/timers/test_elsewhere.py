"""A slave that acts delivers in its master's place, and the master leaves that out."""

import random
import shutil
from collections import Counter
from pathlib import Path

import pytest
from tests.unit.broker.timers.waits import NOW_MS, Waits
from tests.unit.store.stores import FailingFiles, FakeClock

from pymq.errors import DiskFull
from pymq.protocol.names import TIMER_TOPIC
from pymq.store import checkpoint_now


def test_messages_for_another_round_stay_in_the_wheel(tmp_path: Path, clock: FakeClock) -> None:
    waits = Waits(tmp_path / "store", clock, keeps_rounds=True, timer_roll_window_slots=6)
    clock.now_ms += 450
    waits.delay(b"9", 9000)
    waits.delay(b"20", 20_000)
    waits.delay(b"cancelled", 20_000)
    waits.cancel(b"cancelled", clock.now_ms + 20_000)
    waits.deliver()
    seen: dict[int, list[bytes]] = {}
    for second in range(1, 30):
        clock.now_ms = NOW_MS + 1000 * second
        before = len(waits.bodies())
        if new := waits.deliver()[before:]:
            seen[second] = new
    assert seen == {10: [b"9"], 21: [b"20"]}
    assert len(waits.records(TIMER_TOPIC)) == 4
    assert waits.files.waiting_count == 0


def test_a_full_disk_loses_no_message_for_another_round(tmp_path: Path, clock: FakeClock) -> None:
    files = FailingFiles()
    waits = Waits(
        tmp_path / "store", clock, files=files, keeps_rounds=True, timer_roll_window_slots=6
    )
    waits.delay(b"9", 9000)
    waits.delay(b"20", 20_000)
    waits.deliver()
    files.on_write = lambda path: 28 if path.parent.name == "timerlog" else 0
    failures = 0
    for _ in range(8):
        try:
            waits.deliver(1000)
        except DiskFull:
            failures += 1
    assert failures
    files.on_write = lambda path: 0
    for _ in range(20):
        waits.deliver(1000)
    assert waits.bodies() == [b"9", b"20"]
    assert waits.files.waiting_count == 0


@pytest.mark.parametrize("rolls", [False, True])
def test_each_message_is_delivered_by_one_of_the_two(
    tmp_path: Path, clock: FakeClock, seed: int, rolls: bool
) -> None:
    dice = random.Random(seed)
    settings = {"timer_roll_window_slots": 6} if rolls else {}
    for turn in range(4):
        roots = tmp_path / f"master {turn}", tmp_path / f"slave {turn}"
        master = Waits(roots[0], clock, **settings)
        wanted = {b"%d" % number for number in range(dice.randrange(60))}
        for body in sorted(wanted):
            master.delay(body, dice.randrange(1, 40_000))
            if dice.random() < 0.1:
                master.deliver(dice.randrange(1500))
        cancelled = {body for body in sorted(wanted) if dice.random() < 0.1}
        for body in sorted(cancelled):
            master.delay(body + b"x", 45_000)
            master.cancel(body + b"x", clock.now_ms + 45_000)
        master.deliver(dice.randrange(10_000))
        master.flush()
        found = Counter(master.bodies())
        shared_end = master.store.log_end
        shutil.copytree(roots[0], roots[1])
        # What the slave did not get any more; it is due before the slave hands over.
        for number in range(dice.randrange(4)):
            master.delay(b"late %d" % number, dice.randrange(1, 3000))
            wanted.add(b"late %d" % number)
        master.stop()

        slave = Waits(roots[1], clock, keeps_rounds=True, **settings)
        before = len(slave.bodies())
        for _ in range(dice.randrange(1, 30)):
            slave.deliver(dice.randrange(2000))
        found.update(slave.bodies()[before:])
        told = checkpoint_now(slave.files)
        slave.stop()

        master = Waits(roots[0], clock, **settings)
        master.timers.take_back(told.read_ms, shared_end)
        assert not master.timers.take_back(told.read_ms - 1000, shared_end)  # another slave
        before = len(master.bodies())
        if dice.random() < 0.5:
            master.deliver()
            master.flush()
        for _ in range(30):
            master.deliver(2000)
        found.update(master.bodies()[before:])
        assert found == Counter(dict.fromkeys(wanted, 1)), f"turn {turn}"
        assert master.files.waiting_count == 0
        master.stop()
