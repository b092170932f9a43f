"""Timer messages that cannot be delivered, and disks that refuse: it is said once."""

import logging
from pathlib import Path

import pytest
from tests.unit.broker.timers.waits import Waits
from tests.unit.store.stores import BORN, HOST, FailingFiles, FakeClock, crashed_copy

from pymq.errors import DiskFull
from pymq.protocol.message import decode_properties
from pymq.protocol.names import TIMER_TOPIC
from pymq.protocol.parking import copy_of
from pymq.protocol.record import NewRecord, Record


def test_messages_that_the_log_has_lost_are_reported(
    tmp_path: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    waits = Waits(tmp_path / "store", clock, segment_bytes=1 << 12)
    for number in range(60):
        waits.delay(b"%d" % number, 60_000)
    waits.deliver()
    waits.stop()
    first, *_, last = sorted((tmp_path / "store" / "commitlog").iterdir())
    assert first != last
    first.unlink()
    (tmp_path / "store" / "queues.json").unlink()
    bodies = Waits(tmp_path / "store", clock, segment_bytes=1 << 12).deliver(60_000)
    assert 0 < len(bodies) < 60
    assert caplog.text.count("is lost and cannot be delivered") == 60 - len(bodies)


def test_messages_that_did_not_come_from_a_broker_hold_nothing_up(
    waits: Waits, caplog: pytest.LogCaptureFixture
) -> None:
    """A client of RocketMQ can send to the timer topic, which stops its timers for good."""
    for text in ("", "TIMER_OUT_MS\x01x\x02REAL_TOPIC\x01T\x02", "TIMER_OUT_MS\x011700000001000"):
        record = NewRecord(TIMER_TOPIC, 0, b"x", text.encode(), BORN, 1)
        waits.store.put([record], HOST)
    text = "TIMER_OUT_MS\x011700000001000\x02REAL_TOPIC\x01T\x02"
    waits.store.put([NewRecord(TIMER_TOPIC, 0, b"no queue", text.encode(), BORN, 1)], HOST)
    waits.delay(b"a", 3000)
    assert waits.deliver() == []
    assert waits.deliver(3000) == [b"a"]
    assert caplog.text.count("cannot be delivered") == 3
    assert "no time in TIMER_OUT_MS" in caplog.text and "no topic in REAL_TOPIC" in caplog.text
    assert "does not say for which queue" in caplog.text


def test_a_full_disk_holds_timers_up_and_loses_none(tmp_path: Path, clock: FakeClock) -> None:
    files = FailingFiles()
    waits = Waits(tmp_path / "store", clock, files=files)
    waits.delay(b"a", 3000)
    files.on_create = lambda path: 28 if path.parent.name == "timerlog" else 0
    for _ in range(3):
        with pytest.raises(DiskFull):
            waits.deliver()
    files.on_create = lambda path: 0
    waits.deliver()
    waits.delay(b"b", 3000)
    files.on_write = lambda path: 28 if path.parent.name == "timerlog" else 0
    with pytest.raises(DiskFull):
        waits.deliver()
    files.on_write = lambda path: 0
    assert waits.deliver(3000) == [b"a", b"b"]


def test_a_flush_that_fails_for_good_is_said_and_costs_nothing(
    tmp_path: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    files = FailingFiles()
    waits = Waits(tmp_path / "store", clock, files=files)
    waits.delay(b"a", 3000)
    waits.deliver()
    waits.flush()
    waits.delay(b"b", 3000)
    waits.deliver()
    files.on_fsync = lambda path: 5 if path.parent.name == "timerlog" else 0
    waits.flush()
    assert "not saved any more" in caplog.text
    files.on_fsync = lambda path: 0
    waits.flush()
    root = crashed_copy(tmp_path / "store", tmp_path / "copy")
    assert Waits(root, clock).deliver(3000) == [b"a", b"b"]


def test_a_flush_that_fails_again_later_is_said_again(
    tmp_path: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    files = FailingFiles()
    waits = Waits(tmp_path / "store", clock, files=files)
    for count in (1, 2):
        waits.delay(b"%d" % count, 3000)
        waits.deliver()
        files.on_write = lambda path: 28 if path.parent.name == "config" else 0
        for _ in range(3):
            waits.flush()
        assert caplog.text.count("timers are not saved until this succeeds") == count
        files.on_write = lambda path: 0
        waits.flush()


def test_log_lines_are_few(waits: Waits, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pymq.broker")
    waits.delay(b"a", 3000)
    waits.deliver(3000)
    assert not [one for one in caplog.records if one.name.startswith("pymq.broker.timer")]


def test_numbers_of_rounds_that_clients_make_up_hold_nothing_up(
    tmp_path: Path, clock: FakeClock
) -> None:
    waits = Waits(tmp_path, clock, timer_roll_window_slots=6, segment_bytes=1 << 16)
    made_up = {b"long": "1" * 5000, b"most": "9" * 9, b"other": "\u0663", b"few": "3"}
    for body, rolls in made_up.items():
        waits.delay(body, 9000, f"TIMER_ROLL_TIMES\x01{rolls}\x02")
    waits.delay(b"good", 9000)
    waits.delay(b"later", 15_000)
    waits.deliver()
    for _ in range(20):
        waits.deliver(1000)
    assert sorted(waits.bodies()) == sorted([*made_up, b"good", b"later"])
    seen = {
        record.body: decode_properties(record.properties)["TIMER_ROLL_TIMES"]
        for record in waits.records()
    }
    assert (seen[b"long"], seen[b"other"], seen[b"few"]) == ("1", "1", "4")
    waits.stop()
    waits = Waits(tmp_path, clock, timer_roll_window_slots=6, segment_bytes=1 << 16)
    waits.delay(b"last", 1000)
    waits.deliver()
    assert waits.deliver(2000)[-1] == b"last"


def test_a_message_of_which_no_copy_can_be_made_is_said_and_holds_nothing_up(
    waits: Waits, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(record: Record, topic: str, queue_id: int) -> NewRecord:
        if record.body == b"bad":
            raise ValueError("it cannot be")
        return copy_of(record, topic, queue_id)

    monkeypatch.setattr("pymq.broker.timers.delivery.copy_of", refusing)
    waits.delay(b"good", 2000)
    place = waits.delay(b"bad", 2000).physical_offset
    waits.delay(b"later", 3000)
    waits.deliver()
    assert sorted(waits.deliver(2000)) == [b"good"]
    assert sorted(waits.deliver(1000)) == [b"good", b"later"]
    assert caplog.text.count("is not delivered: it cannot be") == 1
    assert f"physical offset {place}" in caplog.text


def test_a_log_that_takes_nothing_is_said_once_and_that_it_does_again(
    waits: Waits, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "pymq.broker.timers.delivery")
    monkeypatch.setattr("pymq.broker.timers.delivery.RETRY_S", 0.0)
    for turn in range(2):
        caplog.clear()
        for body in (b"a", b"b"):
            waits.delay(body, 1000)
        tries = 0

        def refuses(record: NewRecord) -> bool:
            nonlocal tries
            tries += 1
            return tries <= 10

        waits.refuses = refuses
        assert len(waits.deliver(1000)) == 2 * (turn + 1)
        assert tries == 12
        assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
            (
                "WARNING",
                "timer messages that are due cannot be stored (refused by the test); trying again",
            ),
            ("INFO", "timer messages that are due are stored again"),
        ]
