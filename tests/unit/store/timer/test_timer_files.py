"""Timer log, wheel and checkpoint: the bytes that RocketMQ 5.3.3 writes, and what reads them."""

import errno
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.interop.timer_files import CHECKPOINT, EPOCH_MS, Case, official_files
from tests.unit.store.stores import FakeClock, QuickFiles

from pymq.errors import FlushFailed, StoreMismatch
from pymq.protocol.hashes import java_hash
from pymq.store import StoreConfig
from pymq.store.log.commit_log import CommitLog
from pymq.store.log.segments import Segments
from pymq.store.queues.queue_table import QueueTable
from pymq.store.timer.timer_checkpoint import TimerCheckpoint
from pymq.store.timer.timer_log import UNIT, UNIT_BYTES, TimerLog
from pymq.store.timer.timer_queue import Waiting
from pymq.store.timer.timer_store import LOG_NAME, WHEEL_NAME, TimerStore
from pymq.store.timer.timer_wheel import SLOT, TimerWheel
from pymq.testing.faulty_files import Fault, FaultyFiles
from pymq.testing.lost_power import Disk

OFFICIAL = official_files()
NAMES = [name for name in OFFICIAL if name != "checkpoint"]


def make_timers(root: Path, case: Case) -> TimerStore:
    """Return an empty timer store in a directory, as a case has it."""
    config = StoreConfig(
        root_path=root,
        timer_log_file_bytes=case["log_file_bytes"],
        timer_roll_window_slots=case["roll_window_slots"],
        timer_precision_ms=case.get("precision_ms", 1000),
    )
    files = QuickFiles()
    return TimerStore(
        config,
        files,
        FakeClock(EPOCH_MS),
        CommitLog(files, Segments(files, config.log_paths, config.segment_bytes)),
        QueueTable(
            files, root / "consumequeue", file_bytes=2000, open_max=9, extensions=root / "ext",
            extension_file_bytes=None,
        ),
        checkpoint=TimerCheckpoint(),
        log=TimerLog(files, root / LOG_NAME, config.timer_log_file_bytes),
        wheel=TimerWheel(files, root / WHEEL_NAME),
        read_ms=EPOCH_MS,
        queue_offset=0,
        known=np.empty(0, np.int64),
        units_from=0,
    )


def waiting(messages: list[list[Any]]) -> Waiting:
    rows = list(zip(*messages, strict=True))
    return Waiting(
        np.array(rows[2], np.int64),
        np.array(rows[3], np.int64),
        np.array(rows[1], np.int64) + EPOCH_MS,
        np.array(rows[5], np.bool_),
        np.array([java_hash(topic) for topic in rows[4]], np.int32),
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_what_is_written_is_what_the_official_store_writes(
    tmp_path: Path, name: str, at_once: int
) -> None:
    case = OFFICIAL[name]
    timers = make_timers(tmp_path, case)
    messages = case["messages"]
    first = 0
    while first < len(messages):
        now = messages[first][0]
        end = first + 1
        while end < min(first + at_once, len(messages)) and messages[end][0] == now:
            end += 1
        timers.add(waiting(messages[first:end]), EPOCH_MS + now)
        first = end
    timers.flush()
    timers.close()
    written = {path.name: path.read_bytes().hex() for path in (tmp_path / LOG_NAME).iterdir()}
    assert written == case["log"]
    slots = np.fromfile(tmp_path / WHEEL_NAME, SLOT)
    used = np.flatnonzero(slots["moment"])
    assert [[int(at), *slots[at].item()] for at in used] == case["slots"]


def test_the_checkpoint_is_that_of_the_official_store(tmp_path: Path) -> None:
    path = tmp_path / "config" / "timercheck"
    files = QuickFiles()
    assert TimerCheckpoint.load(files, path) is None
    checkpoint = TimerCheckpoint(*CHECKPOINT)
    checkpoint.save(files, path)
    assert path.read_bytes()[:64].hex() == OFFICIAL["checkpoint"]
    assert path.stat().st_size == 4096
    assert TimerCheckpoint.load(files, path) == checkpoint
    assert TimerCheckpoint.decode(checkpoint.encode()) == checkpoint
    assert TimerCheckpoint.decode(checkpoint.encode()[:-1]) is None
    path.write_bytes(bytes(4096))  # as RocketMQ creates it
    assert TimerCheckpoint.load(files, path) is None


def units_of(count: int, *, first: int = 0) -> Any:
    units = np.zeros(count, UNIT)
    units["size"], units["magic"], units["write_ms"] = UNIT_BYTES, 1, EPOCH_MS
    units["previous"] = -1
    units["physical_offset"] = (np.arange(count) + first) * 100
    units["record_bytes"] = 100
    return units


def scanned(log: TimerLog, first: int = 0, physical_end: int = 1 << 40) -> tuple[list[int], int]:
    """Return (positions, end) of the units from a position on."""
    found: list[int] = []
    for positions, units in log.scan(first, physical_end):
        assert len(positions) == len(units)
        found += positions.tolist()
    return found, log.end


@pytest.mark.parametrize("file_bytes", [52 + 16, 192, 1000, 1 << 16])
def test_units_are_found_again_however_they_were_written(
    tmp_path: Path, file_bytes: int, seed: int
) -> None:
    dice = random.Random(seed)
    files = QuickFiles()
    log = TimerLog(files, tmp_path / LOG_NAME, file_bytes)
    log.load()
    positions: list[int] = []
    while len(positions) < 100:
        units = units_of(dice.choice([0, 1, 2, 7, 30]), first=len(positions))
        expected = log.positions(len(units)).tolist()
        log.append(units)
        positions += expected
    log.close()
    again = TimerLog(files, tmp_path / LOG_NAME, file_bytes)
    again.load()
    found, end = scanned(again)
    assert found == positions
    assert end in (positions[-1] + UNIT_BYTES, again.after(positions[-1], 1))
    assert not again.cut()
    some = dice.choice(positions)
    assert scanned(again, some)[0] == positions[positions.index(some) :]
    # It goes on where it was.
    again.append(units_of(40, first=len(positions)))
    again.close()
    last = TimerLog(files, tmp_path / LOG_NAME, file_bytes)
    last.load()
    assert len(scanned(last)[0]) == len(positions) + 40


@pytest.mark.parametrize("file_bytes", [192, 1 << 16])
def test_a_torn_end_is_cut_off(tmp_path: Path, file_bytes: int) -> None:
    files = QuickFiles()
    log = TimerLog(files, tmp_path / LOG_NAME, file_bytes)
    log.append(units_of(20))
    number = 17
    torn = scanned(log)[0][number]
    path = log.path_of(torn - torn % file_bytes)
    with path.open("r+b") as file:
        file.seek(torn % file_bytes + 30)  # inside of the physical offset
        file.write(bytes(22))
    found, end = scanned(log)
    assert len(found) == number and end == torn
    assert log.cut()
    assert not log.cut()
    log.append(units_of(1, first=number))
    found, _ = scanned(log)
    assert len(found) == number + 1, "what was after the torn unit must not come back"
    log.close()


def test_units_whose_flush_failed_are_written_again(tmp_path: Path) -> None:
    """The system takes their pages for clean, so the next flush would succeed without them."""
    place, lost = tmp_path / "place", tmp_path / "lost"
    place.mkdir()
    disk = Disk(place)
    files = FaultyFiles(disk=disk)
    log = TimerLog(files, place / LOG_NAME, 1000)
    log.append(units_of(5))
    log.begin_flush().run()
    flushed = log.end
    log.append(units_of(60, first=5))
    failing = FaultyFiles(Fault(at=1, code=errno.EIO, count=99), disk=disk)
    for path in sorted((place / LOG_NAME).iterdir()):
        with pytest.raises(FlushFailed):
            failing.fsync(failing.open(path))
    log.close()
    again = TimerLog(files, place / LOG_NAME, 1000)
    again.load()
    assert len(scanned(again)[0]) == 65
    again.flush_later(flushed)
    again.append(units_of(5, first=65))
    again.begin_flush().run()
    again.close()
    failing.abandon()
    disk.lose_power(random.Random(0), lost)
    last = TimerLog(QuickFiles(), lost / LOG_NAME, 1000)
    last.load()
    assert len(scanned(last)[0]) == 70


@pytest.mark.parametrize("flushed", [5, 12, 15, 65])
def test_what_is_cut_off_stays_so_whatever_flush_failed(tmp_path: Path, flushed: int) -> None:
    """Its zeros are only in memory after that, and the next start finds nothing to cut."""
    place, lost = tmp_path / "place", tmp_path / "lost"
    place.mkdir()
    disk = Disk(place)
    files = FaultyFiles(disk=disk)
    log = TimerLog(files, place / LOG_NAME, 1000)
    log.append(units_of(65))
    log.begin_flush().run()
    position = log.after(0, flushed)
    log.close()
    failing = FaultyFiles(Fault(at=1, code=errno.EIO, count=99), disk=disk)
    for is_failing in (True, False):
        again = TimerLog(files, place / LOG_NAME, 1000)
        again.load()
        scanned(again, physical_end=1234)  # the commit log has lost the others
        again.cut()
        again.flush_later(position)
        flush = again.begin_flush()
        if is_failing:
            with pytest.raises(FlushFailed):
                failing.fsync(failing.open(again.path_of(0)))
        else:
            flush.run()
        again.close()
    failing.abandon()
    disk.lose_power(random.Random(0), lost)
    last = TimerLog(QuickFiles(), lost / LOG_NAME, 1000)
    last.load()
    assert len(scanned(last)[0]) == 12


def test_units_of_messages_that_the_commit_log_lost_are_the_end(tmp_path: Path) -> None:
    log = TimerLog(QuickFiles(), tmp_path / LOG_NAME, 1 << 16)
    log.append(units_of(20))
    found, end = scanned(log, physical_end=1234)
    assert len(found) == 12 and end == 12 * UNIT_BYTES
    log.close()


def test_files_of_another_size_are_refused(tmp_path: Path) -> None:
    log = TimerLog(QuickFiles(), tmp_path / LOG_NAME, 192)
    log.append(units_of(7))
    log.close()
    other = TimerLog(QuickFiles(), tmp_path / LOG_NAME, 1000)
    with pytest.raises(StoreMismatch, match="mappedFileSizeTimerLog"):
        other.load()
    (tmp_path / LOG_NAME / "notes").write_bytes(bytes(192))
    with pytest.raises(StoreMismatch, match="not a file of a timer log"):
        TimerLog(QuickFiles(), tmp_path / LOG_NAME, 192).load()


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_log_ends_before_a_file_that_is_missing_or_empty(tmp_path: Path, is_gone: bool) -> None:
    log = TimerLog(QuickFiles(), tmp_path / LOG_NAME, 192)
    log.append(units_of(10))
    log.close()
    path = tmp_path / LOG_NAME / f"{192:020d}"
    path.unlink()
    if not is_gone:
        path.touch()
    log = TimerLog(QuickFiles(), tmp_path / LOG_NAME, 192)
    log.load()
    assert scanned(log)[0] == [0, 52, 104]
    assert log.cut()
    log.append(units_of(7, first=3))
    assert len(scanned(log)[0]) == 10
    log.close()


def test_files_of_deleted_messages_are_deleted(tmp_path: Path) -> None:
    log = TimerLog(QuickFiles(), tmp_path / LOG_NAME, 192)
    log.append(units_of(10))
    assert log.delete_expired(200) is None
    assert log.delete_expired(201) == 192
    assert log.delete_expired(1 << 40) == 3 * 192, "never the last one"
    log.forget_before(3 * 192)
    assert log.first == 3 * 192 and [path.name for path in (tmp_path / LOG_NAME).iterdir()] == [
        f"{3 * 192:020d}"
    ]
    assert scanned(log, log.first)[0] == [3 * 192]
    log.close()


class WheelModel:
    """A wheel as a dictionary."""

    def __init__(self) -> None:
        self.slots: dict[int, list[int]] = {}

    def add(self, moments: list[int], positions: list[int], steps: list[int]) -> list[int]:
        """Return the previous position of each."""
        found = []
        for moment, position, step in zip(moments, positions, steps, strict=True):
            slot = self.slots.setdefault(moment, [position, -1, 0])
            found.append(slot[1])
            slot[1], slot[2] = position, slot[2] + step
        return found


def test_the_wheel_against_a_model(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    window = dice.choice([5, 64, 300])
    path = tmp_path / WHEEL_NAME
    wheel, model = TimerWheel(QuickFiles(), path, window), WheelModel()
    now, position = dice.randrange(1, 10_000), 0
    for _ in range(300):
        now += dice.choice([0, 0, 1, 1, 2, window // 2, 3 * window])
        for moment in [one for one in model.slots if one < now]:
            del model.slots[moment]
        count = dice.choice([0, 1, 2, 10])
        moments = [now + dice.randrange(window) for _ in range(count)]
        positions = [position + 52 * n for n in range(count)]
        position += 52 * count
        steps = [dice.choice([1, 1, -1]) for _ in range(count)]
        arrays = np.array(moments, np.int64), np.array(positions, np.int64)
        previous = wheel.previous(*arrays).tolist()
        wheel.add(*arrays, np.array(steps, np.int64))
        assert previous == model.add(moments, positions, steps)
        if dice.random() < 0.1:
            end = now + dice.randrange(window)
            wheel.erase(now, end)
            model.slots = {moment: slot for moment, slot in model.slots.items() if moment >= end}
        if dice.random() < 0.2:
            flush = wheel.begin_flush()
            flush.run()
            wheel.finish_flush(flush, is_done=True)
            again = TimerWheel(QuickFiles(), path, window)
            assert again.load() == path.exists()
            if path.exists():
                wheel = again
        far = now + window
        due = wheel.next_used(now, far)
        assert due == min((one for one in model.slots if one < far), default=None)
        used, slots = wheel.in_use(now)
        assert dict(zip(used.tolist(), slots["count"].tolist(), strict=True)) == {
            moment: slot[2] for moment, slot in model.slots.items()
        }
        for moment in moments:
            found = wheel.find(moment)
            assert (None if found is None else list(found)) == model.slots.get(moment)
    assert not path.exists() or path.stat().st_size == 2 * window * 32


def test_a_flush_that_failed_is_left_to_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / WHEEL_NAME
    wheel = TimerWheel(QuickFiles(), path, 1000)
    one = np.array([5], np.int64)
    wheel.add(one, one, one)
    wheel.finish_flush(wheel.begin_flush(), is_done=False)
    for moment in (6, 1500):
        wheel.add(np.array([moment], np.int64), one, one)
        flush = wheel.begin_flush()
        flush.run()
        wheel.finish_flush(flush, is_done=True)
    assert not wheel.begin_flush().pieces
    again = TimerWheel(QuickFiles(), path, 1000)
    assert again.load()
    assert sorted(again.in_use(1)[0].tolist()) == [5, 6, 1500]
    assert not TimerWheel(QuickFiles(), path, 999).load(), "another length"
    again.reset()
    assert again.next_used(1, 2000) is None
    again.add(one, one, one)
    again.begin_flush().run()
    assert again.load() and again.in_use(1)[0].tolist() == [5], "the file is replaced"
