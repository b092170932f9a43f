"""Timer messages whose files are damaged or gone: made again from the messages."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.broker.timers.waits import DAY_MS, NOW_MS, Waits
from tests.unit.store.stores import FailingFiles, FakeClock, crashed_copy

from pymq.store.timer.timer_log import UNIT_BYTES


def flushed(tmp_path: Path, clock: FakeClock, **settings: Any) -> Path:
    """Return a stopped store in which a, b, c, ... wait 10, 11, 12, ... s; a was delivered."""
    root = tmp_path / "store"
    waits = Waits(root, clock, **settings)
    for number in range(20):
        waits.delay(b"%c" % (ord("a") + number), 10_000 + 1000 * number)
        waits.deliver()
    assert waits.deliver(10_000) == [b"a"]
    waits.stop()
    return root


REST = [b"%c" % (ord("a") + number) for number in range(20)]


@pytest.mark.parametrize("units_in_file", [5, 1000])
@pytest.mark.parametrize("damage", ["gone", "zeros", "noise", "short", "a bit", "all gone"])
def test_a_damaged_wheel_is_rebuilt(
    tmp_path: Path, clock: FakeClock, damage: str, units_in_file: int
) -> None:
    settings = {"timer_log_file_bytes": units_in_file * UNIT_BYTES + 16}
    root = flushed(tmp_path, clock, **settings)
    wheel = root / "timerwheel"
    if damage == "gone":
        wheel.unlink()
    elif damage == "zeros":
        wheel.write_bytes(bytes(wheel.stat().st_size))
    elif damage == "noise":
        slots = np.fromfile(wheel, ">i8")
        slots[1::4] += 52
        slots[2::4] -= 104
        slots.tofile(wheel)
    elif damage == "short":
        wheel.write_bytes(wheel.read_bytes()[:-32])
    elif damage == "a bit":
        data = bytearray(wheel.read_bytes())
        data[data.index(b"\1", 1 << 20)] ^= 1
        wheel.write_bytes(data)
    else:
        wheel.unlink()
        shutil.rmtree(root / "timerlog")
    waits = Waits(root, clock, **settings)
    assert waits.files.waiting_count == 19
    assert waits.deliver(100_000) == REST


@pytest.mark.parametrize("position", [0, 5, 19])
def test_units_that_are_damaged_are_made_again(
    tmp_path: Path, clock: FakeClock, position: int, caplog: pytest.LogCaptureFixture
) -> None:
    root = flushed(tmp_path, clock)
    path = root / "timerlog" / f"{0:020d}"
    with path.open("r+b") as file:
        file.seek(UNIT_BYTES * position)
        file.write(b"\xff" * 30)
    assert Waits(root, clock).deliver(100_000) == REST
    assert "are made again from the messages" in caplog.text


@pytest.mark.parametrize("written", range(1, UNIT_BYTES))
def test_a_unit_that_was_written_in_part_is_written_again(
    tmp_path: Path, clock: FakeClock, written: int
) -> None:
    """Also one whose size of the record has only its first bytes: another size, not none."""
    waits = Waits(tmp_path / "store", clock)
    waits.delay(b"a", 5_000)
    waits.deliver()
    waits.flush()
    waits.delay(b"b" * 800, 10_000)
    waits.deliver()
    left = crashed_copy(tmp_path / "store", tmp_path / "left")
    waits.stop()
    with (left / "timerlog" / f"{0:020d}").open("r+b") as file:
        file.seek(UNIT_BYTES + written)
        file.write(bytes(UNIT_BYTES - written))
    assert Waits(left, clock).deliver(100_000) == [b"a", b"b" * 800]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_file_that_is_gone_is_made_again(tmp_path: Path, clock: FakeClock, number: int) -> None:
    settings = {"timer_log_file_bytes": 5 * UNIT_BYTES + 16}
    root = flushed(tmp_path, clock, **settings)
    (root / "timerlog" / f"{number * 276:020d}").unlink()
    assert Waits(root, clock, **settings).deliver(100_000) == REST


def test_a_missing_first_file_is_said_with_its_cure(
    tmp_path: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """It looks like one that was deleted because its messages were."""
    settings = {"timer_log_file_bytes": 5 * UNIT_BYTES + 16}
    root = flushed(tmp_path, clock, **settings)
    (root / "timerlog" / f"{0:020d}").unlink()
    waits = Waits(root, clock, **settings)
    assert waits.deliver(1000) == [b"a"]
    assert "delete the directory timerlog" in caplog.text
    waits.stop()
    shutil.rmtree(root / "timerlog")
    assert Waits(root, clock, **settings).deliver(100_000) == [b"a", *REST[2:]]


def test_a_timer_log_that_is_gone_is_made_again_without_what_was_delivered(
    tmp_path: Path, clock: FakeClock
) -> None:
    """Of a message on its second round only the last copy counts."""
    waits = Waits(tmp_path / "store", clock, timer_roll_window_slots=6)
    waits.delay(b"a", 20_000)
    waits.delay(b"b", 3000)
    waits.deliver()
    for _ in range(8):
        waits.deliver(1000)
    waits.delay(b"c", 20_000)
    waits.deliver()
    waits.stop()
    assert waits.clock.now_ms == NOW_MS + 8000
    shutil.rmtree(tmp_path / "store" / "timerlog")
    waits = Waits(tmp_path / "store", clock, timer_roll_window_slots=6)
    for _ in range(40):
        waits.deliver(1000)
    assert waits.bodies() == [b"b", b"a", b"c"]


def test_a_timer_log_that_is_gone_is_made_again_with_what_cancels(
    tmp_path: Path, clock: FakeClock
) -> None:
    """It has the unique key of its message, which is on its third round."""
    waits = Waits(tmp_path / "store", clock, timer_roll_window_slots=6)
    waits.delay(b"a", 20_000)
    waits.delay(b"b", 20_000)
    for _ in range(14):
        waits.deliver(1000)
    waits.cancel(b"a", NOW_MS + 20_000)
    waits.deliver()
    waits.stop()
    shutil.rmtree(tmp_path / "store" / "timerlog")
    waits = Waits(tmp_path / "store", clock, timer_roll_window_slots=6)
    for _ in range(40):
        waits.deliver(1000)
    assert waits.bodies() == [b"b"]


def test_a_timer_log_that_is_gone_is_made_again_after_the_clock_was_set_back(
    tmp_path: Path, clock: FakeClock
) -> None:
    """By the time of the store, which does not go back, b was due before it came.

    What was delivered before the clock was set back may come once more.
    """
    waits = Waits(tmp_path / "store", clock)
    waits.delay(b"a", 1000)
    waits.deliver(1000)
    clock.now_ms -= DAY_MS
    waits.delay(b"b", 20_000)
    waits.deliver()
    waits.stop()
    shutil.rmtree(tmp_path / "store" / "timerlog")
    clock.now_ms += 20 * DAY_MS
    assert Waits(tmp_path / "store", clock).deliver() == [b"a", b"b", b"a"]


def test_a_timer_log_is_made_again_whatever_number_of_rounds_a_client_made_up(
    tmp_path: Path, clock: FakeClock
) -> None:
    waits = Waits(tmp_path / "store", clock, segment_bytes=1 << 16)
    rolls = "1" * 5000
    waits.delay(b"a", 3000, f"TIMER_ROLL_TIMES\x01{rolls}\x02")
    waits.deliver()
    waits.stop()
    shutil.rmtree(tmp_path / "store" / "timerlog")
    waits = Waits(tmp_path / "store", clock, segment_bytes=1 << 16)
    assert waits.deliver(4000) == [b"a"]


def test_without_the_checkpoint_nothing_is_lost(
    tmp_path: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    root = flushed(tmp_path, clock)
    (root / "config" / "timercheck").unlink()
    bodies = Waits(root, clock).deliver(100_000)
    assert sorted(set(bodies)) == REST and bodies.count(b"a") == 2 and len(bodies) == 21
    assert "may be delivered once more" in caplog.text


def test_a_large_log_is_not_read_as_a_whole(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"timer_log_file_bytes": 5 * UNIT_BYTES + 16}
    root = flushed(tmp_path, clock, **settings)
    reads: list[int] = []
    read_part = FailingFiles.read_part

    class Counting(FailingFiles):
        def read_part(self, path: Path, size: int, position: int) -> bytes:
            if path.parent.name == "timerlog" and size > UNIT_BYTES:
                reads.append(int(path.name))
            return read_part(self, path, size, position)

    waits = Waits(root, clock, files=Counting(), **settings)
    assert set(reads) == {3 * 276}
    assert waits.deliver(100_000) == REST
    assert waits.files.waiting_count == 0


def test_a_wheel_of_another_checkpoint_is_not_trusted(tmp_path: Path, clock: FakeClock) -> None:
    """RocketMQ writes its numbers, and leaves what is after them in the file."""
    root = flushed(tmp_path, clock)
    path = root / "config" / "timercheck"
    data = bytearray(path.read_bytes())
    assert data[64:72] == b"pymqTime"
    data[47] ^= 1  # the time of the data version
    path.write_bytes(data)
    wheel = np.fromfile(root / "timerwheel", ">i8")
    wheel[:] = 0
    wheel.tofile(root / "timerwheel")
    assert Waits(root, clock).deliver(100_000) == REST
