"""What a check of a store says of the files of timers; it changes nothing."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.unit.broker.timers.waits import NOW_MS, Waits
from tests.unit.store.stores import FakeClock, crashed_copy

from pymq.store import StoreConfig
from pymq.store.inspection import Kind, Report, Severity, check_store
from pymq.store.timer.timer_log import UNIT_BYTES

FILE_BYTES = 5 * UNIT_BYTES + 16
COUNT = 23


def check(root: Path) -> Report:
    """Check a store, and that this changed nothing."""
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    report = check_store(StoreConfig(root_path=root))
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    return report


def found(report: Report) -> dict[tuple[Severity, Kind], int]:
    """Return how many findings there are of each severity and kind."""
    groups = report.findings.groups()
    return {(severity, kind): count for severity, kind, count, _ in groups}


DAMAGE = {(Severity.DAMAGE, Kind.TIMER_LOG): 1}


def waiting_store(root: Path, clock: FakeClock) -> Waits:
    """Return a store where messages wait, on rounds, too; some are delivered or cancelled."""
    waits = Waits(root, clock, timer_log_file_bytes=FILE_BYTES, timer_roll_window_slots=20)
    for number in range(COUNT):
        waits.delay(b"%d" % number, 1000 * (number + 1))
        waits.deliver()
    waits.cancel(b"22", clock.now_ms + 23_000)
    waits.deliver(3000)
    waits.flush()
    return waits


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store that was stopped cleanly; its timer log has five files."""
    waiting_store(tmp_path / "store", FakeClock(NOW_MS)).stop()
    return tmp_path / "store"


def files(root: Path) -> list[Path]:
    return sorted((root / "timerlog").iterdir())


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def test_a_store_that_was_stopped_has_nothing_wrong(root: Path) -> None:
    assert len(files(root)) == 5
    assert found(check(root)) == {}


def test_a_store_in_use_and_a_killed_one_have_no_damage(tmp_path: Path) -> None:
    clock = FakeClock(NOW_MS)
    waits = waiting_store(tmp_path / "store", clock)
    for number in range(COUNT, COUNT + 9):
        waits.delay(b"%d" % number, 9000)
        waits.deliver(500)
        copy = crashed_copy(tmp_path / "store", tmp_path / str(number))
        for report in (check_store(StoreConfig(root_path=tmp_path / "store")), check(copy)):
            assert report.is_whole, list(report.findings.groups())
    waits.stop()
    assert found(check(tmp_path / "store")) == {}


def test_timers_flushed_before_the_log_was_have_no_damage(tmp_path: Path) -> None:
    clock = FakeClock(NOW_MS)
    waits = Waits(tmp_path / "store", clock)
    for number in range(3):
        waits.delay(b"%d" % number, 4000 + 1000 * number)
    waits.deliver()
    # No record is flushed, so that the checkpoint has no read time that it could promise.
    waits.run(waits.timers.flush)
    copy = crashed_copy(tmp_path / "store", tmp_path / "copy")
    assert waits.files.checkpoint.read_ms == 0 and waits.files.checkpoint.wheel_digest is not None
    assert check(copy).is_whole
    assert len(Waits(copy, clock).deliver(6000)) == 3


def cut_log(root: Path) -> None:
    files(root)[-1].unlink()


def lose_a_file(root: Path) -> None:
    files(root)[2].unlink()


def damage_the_end(root: Path) -> None:
    overwrite(files(root)[-1], 0, b"\xff" * 8)


@pytest.mark.parametrize("harm", [cut_log, lose_a_file, damage_the_end])
def test_what_the_next_start_makes_again_is_no_damage(
    root: Path, harm: Callable[[Path], None]
) -> None:
    harm(root)
    report = check(root)
    assert report.is_whole and report.findings.count(Severity.REPAIR, Kind.TIMER_LOG)
    waits = Waits(root, FakeClock(NOW_MS), timer_log_file_bytes=FILE_BYTES)
    assert len(waits.deliver(100_000)) == COUNT - 1
    waits.stop()
    assert found(check(root)) == {}


@pytest.mark.parametrize("harm", ["gone", "short", "a bit"])
def test_a_wheel_is_made_again(root: Path, harm: str) -> None:
    wheel = root / "timerwheel"
    if harm == "gone":
        wheel.unlink()
    elif harm == "short":
        wheel.write_bytes(wheel.read_bytes()[:-33])
    else:
        at = int(np.flatnonzero(np.fromfile(wheel, np.uint8))[0])
        overwrite(wheel, at, b"\x55")
    assert found(check(root)) == {(Severity.REPAIR, Kind.TIMER_WHEEL): 1}


@pytest.mark.parametrize(("at", "data"), [(0, b"\xff"), (15, b"\0"), (39, b"\xff")])
def test_a_damaged_unit_that_a_start_does_not_read_is_damage(
    root: Path, at: int, data: bytes
) -> None:
    overwrite(files(root)[1], 2 * UNIT_BYTES + at, data)
    groups = check(root).findings.groups()
    (finding,) = [one for *_, kept in groups for one in kept if one.position is not None]
    assert finding.kind is Kind.TIMER_LOG and finding.severity is Severity.DAMAGE
    assert (finding.path, finding.position) == (files(root)[1], 2 * UNIT_BYTES)
    assert "delete the directory" in finding.advice


def test_a_unit_that_leads_elsewhere_leaves_a_message_without_one(root: Path) -> None:
    overwrite(files(root)[1], 2 * UNIT_BYTES + 31, b"\xff")
    assert found(check(root)) == DAMAGE


def test_units_of_a_first_file_that_is_gone_are_missed(root: Path) -> None:
    files(root)[0].unlink()
    report = check(root)
    assert report.findings.count(Severity.DAMAGE, Kind.TIMER_LOG) == 2  # 3 of 5 were delivered
    shutil.rmtree(root / "timerlog")  # as it advises
    assert check(root).is_whole
    waits = Waits(root, FakeClock(NOW_MS), timer_log_file_bytes=FILE_BYTES)
    assert len(waits.deliver(100_000)) == COUNT - 1


def test_a_missing_checkpoint_is_damage(root: Path) -> None:
    (root / "config" / "timercheck").unlink()
    assert found(check(root)) == {(Severity.DAMAGE, Kind.TIMER_CHECKPOINT): 1}


def test_a_foreign_file_is_damage(root: Path) -> None:
    (root / "timerlog" / "note").write_bytes(b"x")
    assert found(check(root)) == DAMAGE
