"""Timer messages: parked, delivered when they are due, once, and as they were sent."""

import functools
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.broker.timers.waits import DAY_MS, Waits
from tests.unit.store.stores import BORN, HOST, FailingFiles, FakeClock, crashed_copy

from pymq.errors import BrokerError, DiskFull
from pymq.protocol.codes import ResponseCode
from pymq.protocol.hashes import java_hash
from pymq.protocol.message import decode_properties, parse_properties
from pymq.protocol.names import TIMER_TOPIC
from pymq.protocol.record import NewRecord
from pymq.store.timer import timer_recovery
from pymq.store.timer.timer_log import UNIT_BYTES
from pymq.store.timer.timer_wheel import TimerWheel

NOW_MS = 1_700_000_000_000


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW_MS)


@pytest.fixture
def waits(tmp_path: Path, clock: FakeClock) -> Waits:
    return Waits(tmp_path / "store", clock)


# --- parking: what RocketMQ 5.3.3 was seen to do


@pytest.mark.parametrize(
    ("text", "due_ms"),
    [
        ("TIMER_DELAY_SEC\x013\x02", 2000),
        ("TIMER_DELAY_MS\x012500\x02", 2000),
        ("TIMER_DELAY_MS\x01+2000\x02", 1000),
        (f"TIMER_DELIVER_MS\x01{NOW_MS + 4001}\x02", 4000),
        (f"TIMER_DELIVER_MS\x01{NOW_MS + 1}\x02", 0),
        (f"TIMER_DELAY_SEC\x013\x02TIMER_DELAY_MS\x019\x02TIMER_DELIVER_MS\x01{NOW_MS}\x02", 2000),
        (f"TIMER_DELIVER_MS\x01{NOW_MS + 9999}\x02TIMER_DELAY_MS\x015000\x02", 4000),
        ("TIMER_DELAY_SEC\x01259200\x02", 259_199_000),
        # At once: the time has come.
        (f"TIMER_DELIVER_MS\x01{NOW_MS}\x02", None),
        ("TIMER_DELIVER_MS\x011000\x02", None),
        ("TIMER_DELAY_SEC\x010\x02", None),
        ("TIMER_DELAY_SEC\x01-5\x02TIMER_DELIVER_MS\x01{NOW_MS + 9000}\x02", None),
        ("TIMER_DELAY_MS\x01-9223372036854775808\x02", None),
        ("TIMER_DELAY_SEC\x019\x02TIMER_OUT_MS\x015\x02", None),
    ],
)
def test_when_a_message_is_due(waits: Waits, text: str, due_ms: int | None) -> None:
    text += "WAIT\x01false\x02k\x01v\x02"
    sent = NewRecord("Orders", 5, b"body", text.encode(), BORN, 17, 3, 1, 4, tag_code=9)
    parked = waits.parking.park(sent, parse_properties(text))
    if due_ms is None:
        assert parked is sent
        return
    assert (parked.topic, parked.queue_id) == (TIMER_TOPIC, 0)
    assert decode_properties(parked.properties) == parse_properties(text) | {
        "TIMER_OUT_MS": str(NOW_MS + due_ms),
        "REAL_TOPIC": "Orders",
        "REAL_QID": "5",
    }
    assert (parked.body, parked.flag, parked.sys_flag, parked.reconsume_times) == (b"body", 3, 1, 4)


@pytest.mark.parametrize(
    "text",
    [
        "TIMER_DELAY_SEC\x01259201\x02",
        f"TIMER_DELIVER_MS\x01{NOW_MS + 259_200_001}\x02",
        "TIMER_DELAY_SEC\x01x\x02",
        "TIMER_DELAY_SEC\x01 2\x02",
        "TIMER_DELAY_MS\x011.5\x02",
        "TIMER_DELAY_MS\x01\u0663\x02",
        "TIMER_DELAY_SEC\x0199999999999999999999\x02",
        "TIMER_DELAY_SEC\x01" + "9" * 5000 + "\x02",
        "TIMER_DELAY_SEC\x019223372036854775807\x02",  # RocketMQ counts over, and delivers it
        "TIMER_DELIVER_MS\x011000\x02TIMER_DEL_UNIQKEY\x01T+U\x02",
    ],
)
def test_a_time_that_cannot_be_is_refused(waits: Waits, text: str) -> None:
    with pytest.raises(BrokerError, match="timer message illegal") as refused:
        waits.send(b"x", text)
    assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL
    assert "max delay 259200000ms" in str(refused.value)


def test_too_many_messages_in_one_slot_are_refused(tmp_path: Path, clock: FakeClock) -> None:
    waits = Waits(tmp_path / "store", clock, congestion_max=100)
    sent = 0
    with pytest.raises(BrokerError, match="flow control, max num limit is 200") as refused:
        while sent < 201:
            waits.delay(b"%d" % sent, 5000)
            waits.deliver()
            sent += 1
    assert refused.value.code == ResponseCode.SYSTEM_ERROR
    assert sent > 100
    waits.delay(b"other", 6000)
    assert len(waits.deliver(7000)) == sent + 1


def test_properties_that_leave_no_room_are_refused_at_once(
    tmp_path: Path, clock: FakeClock
) -> None:
    waits = Waits(tmp_path / "store", clock, segment_bytes=1 << 16)
    waits.delay(b"ok", 1000, more="k\x01" + "v" * 32500 + "\x02")
    with pytest.raises(BrokerError, match="leave no room") as refused:
        waits.delay(b"no", 1000, more="k\x01" + "v" * 32600 + "\x02")
    assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL
    assert waits.deliver(1000) == [b"ok"]


# --- delivering


def test_a_message_is_delivered_when_it_is_due_and_not_before(waits: Waits) -> None:
    waits.delay(b"late", 3000)
    waits.delay(b"soon", 1000)
    waits.delay(b"odd", 1001)
    assert waits.deliver() == waits.deliver(999) == []
    assert waits.deliver(1) == [b"soon"]
    assert waits.deliver(999) == [b"soon"]
    assert waits.deliver(1) == [b"soon", b"odd"]
    assert waits.deliver(1000) == [b"soon", b"odd", b"late"]
    assert waits.deliver(100_000) == [b"soon", b"odd", b"late"]
    assert waits.files.waiting_count == 0


def test_what_is_delivered_is_the_message_that_was_sent(waits: Waits, clock: FakeClock) -> None:
    text = "TAGS\x01t\x02TIMER_DELAY_SEC\x013\x02WAIT\x01false\x02k\x01v\x02"
    sent = NewRecord("Orders", 3, b"\0body", text.encode(), BORN, 17, 5, 0x8 | 0x1, 4, 77)
    waits.store.put([waits.parking.park(sent, parse_properties(text))], HOST)
    waits.deliver(100)
    clock.now_ms = NOW_MS + 3007
    waits.deliver()
    (record,) = waits.records("Orders", 3)
    assert (record.body, record.flag, record.sys_flag) == (b"\0body", 5, 0x9)
    assert (record.born_timestamp, record.born_host, record.reconsume_times) == (17, BORN, 4)
    assert record.prepared_transaction_offset == 0
    assert decode_properties(record.properties) == parse_properties(text) | {
        "TIMER_OUT_MS": str(NOW_MS + 2000),
        "REAL_TOPIC": "Orders",
        "REAL_QID": "3",
        "TIMER_ENQUEUE_MS": str(NOW_MS),
        "TIMER_DEQUEUE_MS": str(NOW_MS + 3007),
    }
    assert waits.store.entries.tag_codes("Orders", 3, 0, 9)[0].tolist() == [java_hash("t")]


def test_a_message_that_comes_after_its_slot_is_delivered_at_once(
    waits: Waits, clock: FakeClock
) -> None:
    text = "TIMER_DELAY_MS\x012000"
    sent = NewRecord("T", 0, b"late", text.encode(), BORN, 1)
    parked = waits.parking.park(sent, parse_properties(text))
    waits.deliver(60_000)
    waits.store.put([parked], HOST)
    assert waits.deliver() == [b"late"]
    (record,) = waits.records()
    assert decode_properties(record.properties)["TIMER_ENQUEUE_MS"] == str((1 << 63) - 1)


def test_rounds(tmp_path: Path, clock: FakeClock) -> None:
    """The times at which RocketMQ 5.3.3 put back messages of 9 and 20 s, in a wheel of 6."""
    waits = Waits(tmp_path / "store", clock, timer_roll_window_slots=6)
    clock.now_ms += 450
    waits.delay(b"9", 9000)
    waits.delay(b"20", 20_000)
    seen: dict[int, list[tuple[int, bytes, str | None]]] = {}
    waits.deliver()
    known = 2
    for second in range(1, 25):
        clock.now_ms = NOW_MS + 1000 * second
        waits.deliver()
        for record in [*waits.records(TIMER_TOPIC)[known:], *waits.records()]:
            rolls = decode_properties(record.properties).get("TIMER_ROLL_TIMES")
            if record.store_timestamp == clock.now_ms:
                seen.setdefault(second, []).append((len(record.topic), record.body, rolls))
        known = len(waits.records(TIMER_TOPIC))
    back, out = len(TIMER_TOPIC), len("T")
    assert seen == {
        7: [(back, b"9", "1"), (back, b"20", "1")],
        10: [(out, b"9", "1")],
        14: [(back, b"20", "2")],
        18: [(back, b"20", "3")],
        21: [(out, b"20", "3")],
    }


@pytest.mark.parametrize("precision_ms", [100, 200, 500])
def test_finer_precision(tmp_path: Path, clock: FakeClock, precision_ms: int) -> None:
    waits = Waits(tmp_path / "store", clock, timer_precision_ms=precision_ms)
    for delay_ms in (50, precision_ms, 3 * precision_ms + 1):
        waits.delay(b"%d" % delay_ms, delay_ms)
    waits.deliver()
    seen = {}
    for time_ms in range(0, 5 * precision_ms, 10):
        clock.now_ms = NOW_MS + time_ms
        for body in waits.deliver():
            seen.setdefault(body, time_ms)
    assert seen == {
        b"50": precision_ms,
        b"%d" % precision_ms: precision_ms,
        b"%d" % (3 * precision_ms + 1): 4 * precision_ms,
    }


def test_a_message_can_be_cancelled(waits: Waits) -> None:
    deliver_ms = NOW_MS + 5000
    for body in (b"a", b"b", b"c"):
        waits.delay(body, 5000)
    waits.delay(b"a", 5000, topic="U")
    waits.deliver(1000)
    waits.cancel(b"b", deliver_ms)
    waits.cancel(b"a", deliver_ms, topic="U")
    waits.cancel(b"none", deliver_ms)
    waits.cancel(b"c", deliver_ms + 1000)  # another slot: it does not count
    waits.deliver()
    assert waits.metrics.body().counts["T"].count == 0
    assert waits.deliver(10_000) == [b"a", b"c"]
    assert waits.bodies("U") == []
    counts = {topic: metric.count for topic, metric in waits.metrics.body().counts.items()}
    assert counts == {"T": 0, "U": 0}


def test_a_message_may_be_cancelled_in_another_round(tmp_path: Path, clock: FakeClock) -> None:
    waits = Waits(tmp_path / "store", clock, timer_roll_window_slots=6)
    waits.delay(b"a", 20_000)
    waits.delay(b"b", 20_000)
    waits.deliver(8000)
    waits.cancel(b"a", NOW_MS + 20_000)
    for _ in range(20):
        waits.deliver(1000)
    assert waits.bodies() == [b"b"]
    assert waits.metrics.body().counts["T"].count == 0


def test_many_messages_of_one_slot(waits: Waits) -> None:
    bodies = [b"%d" % number for number in range(2345)]
    for number, body in enumerate(bodies):
        waits.delay(body, 5000 if number % 3 else 6000)
    waits.cancel(b"7", NOW_MS + 5000)
    waits.deliver()
    assert waits.deliver(5000) == [
        body for number, body in enumerate(bodies) if number % 3 and number != 7
    ]
    assert len(waits.deliver(1000)) == 2344


@pytest.mark.parametrize("stops", ["stops_enqueue", "stops_dequeue"])
def test_what_is_stopped_goes_on_with_the_next_start(
    tmp_path: Path, clock: FakeClock, stops: str
) -> None:
    stopped = Waits(tmp_path / "store", clock, **{stops: True})
    stopped.delay(b"a", 2000)
    assert stopped.deliver() == stopped.deliver(5000) == []
    stopped.stop()
    assert Waits(tmp_path / "store", clock).deliver() == [b"a"]


def test_a_clock_that_is_set_back(waits: Waits, clock: FakeClock) -> None:
    """Time is that of the store; it goes back only when nothing was stored meanwhile."""
    waits.delay(b"a", 2000)
    assert waits.deliver(100_000) == [b"a"]
    clock.now_ms -= 50_000
    waits.delay(b"b", 2000)
    waits.deliver()
    stored_ms = waits.store.dispatch.store_timestamp
    clock.now_ms = stored_ms + 1999
    assert waits.deliver() == [b"a"]
    assert waits.deliver(1) == [b"a", b"b"]
    # The wheel was read far ahead of the last message stored.
    waits.deliver(500_000)
    clock.now_ms -= 400_000
    waits.delay(b"c", 3000)
    assert waits.deliver(2000) == [b"a", b"b"]
    assert waits.deliver(1000) == [b"a", b"b", b"c"]
    assert waits.deliver(1_000_000) == [b"a", b"b", b"c"]


def test_the_log_may_refuse_some_messages(waits: Waits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pymq.broker.timers.delivery.RETRY_S", 0.0)
    for body in (b"a", b"b", b"c", b"d"):
        waits.delay(body, 1000)
    waits.deliver()
    refusals = [b"b", b"c", b"b", b"b"]

    def refuses(record: NewRecord) -> bool:
        if record.body in refusals:
            refusals.remove(bytes(record.body))
            return True
        return False

    waits.refuses = refuses
    assert sorted(waits.deliver(1000)) == [b"a", b"b", b"c", b"d"]
    assert not refusals


def test_what_waits_survives_restarts(tmp_path: Path, clock: FakeClock) -> None:
    waits = Waits(tmp_path / "store", clock)
    waits.delay(b"a", 10_000)
    waits.deliver()
    waits.delay(b"b", 10_000)  # not taken up yet
    for _ in range(3):
        waits.stop()
        waits = Waits(tmp_path / "store", clock)
        waits.deliver(1000)
    waits.delay(b"c", 7000)
    assert waits.deliver(6999) == []
    waits.stop()
    clock.now_ms += 1
    waits = Waits(tmp_path / "store", clock)
    assert waits.deliver() == [b"a", b"b", b"c"]
    waits.stop()
    waits = Waits(tmp_path / "store", clock)
    assert waits.deliver(10_000_000) == [b"a", b"b", b"c"]


def test_a_stop_in_the_middle_of_a_slot_repeats_nothing(tmp_path: Path, clock: FakeClock) -> None:
    waits = Waits(tmp_path / "store", clock)
    for number in range(250):
        waits.delay(b"%d" % number, 1000)
    waits.cancel(b"240", NOW_MS + 1000)
    waits.deliver()

    def stops(record: NewRecord) -> bool:
        if record.body == b"150":
            waits.timers._is_stopped.set()
        return False

    waits.refuses = stops
    assert len(waits.deliver(1000)) == 200
    waits.stop()
    waits = Waits(tmp_path / "store", clock)
    assert waits.deliver(1000) == [b"%d" % number for number in range(250) if number != 240]


def test_downtime_longer_than_the_wheel(tmp_path: Path, clock: FakeClock) -> None:
    """RocketMQ gives up what is older than seven days."""
    waits = Waits(tmp_path / "store", clock)
    waits.delay(b"a", 2 * DAY_MS)
    waits.delay(b"b", 5000)
    waits.deliver()
    waits.stop()
    clock.now_ms += 30 * DAY_MS
    waits = Waits(tmp_path / "store", clock)
    waits.delay(b"c", 2000)
    assert waits.deliver() == [b"b", b"a"]
    assert waits.deliver(2000) == [b"b", b"a", b"c"]


def test_new_messages_do_not_take_the_slots_of_what_is_overdue(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = 2 * 160
    monkeypatch.setattr(
        timer_recovery, "TimerWheel", functools.partial(TimerWheel, window_slots=slots // 2)
    )
    waits = Waits(tmp_path / "store", clock)
    waits.delay(b"a", 50_000)
    waits.deliver()
    waits.stop()
    clock.now_ms += 10 * slots * 1000
    waits = Waits(tmp_path / "store", clock)
    for delay_ms in (49_000, 50_000, 51_000):
        waits.delay(b"%d" % delay_ms, delay_ms)
    assert waits.deliver() == [b"a"]
    assert waits.deliver(60_000) == [b"a", b"49000", b"50000", b"51000"]


@pytest.mark.parametrize("idle_ms", [0, 40 * DAY_MS])
@pytest.mark.parametrize("is_taken_up", [True, False])
def test_timers_that_die_before_a_flush_and_stay_down_for_days(
    tmp_path: Path, clock: FakeClock, *, idle_ms: int, is_taken_up: bool
) -> None:
    """What was recorded last is from before the days without timer messages, or nothing is."""
    waits = Waits(tmp_path / "store", clock)
    if idle_ms:
        waits.delay(b"old", 1000)
        waits.deliver(1000)
        waits.flush()
        waits.deliver(idle_ms)
    waits.delay(b"a", 20_000)
    waits.delay(b"b", 20_000)
    waits.cancel(b"a", clock.now_ms + 20_000)
    waits.store.durability.flush()
    if is_taken_up:
        waits.deliver()
    root = crashed_copy(tmp_path / "store", tmp_path / "left")
    clock.now_ms += 20 * DAY_MS
    expected = [b"old", b"b"] if idle_ms else [b"b"]
    assert Waits(root, clock).deliver() == expected


def test_a_file_that_lost_its_content_hides_no_units(tmp_path: Path, clock: FakeClock) -> None:
    """Power was lost after the timer log began a file, and before it was flushed."""
    settings = {"timer_log_file_bytes": 5 * UNIT_BYTES + 16}
    waits = Waits(tmp_path / "store", clock, **settings)
    waits.flush()
    for number in range(20):
        waits.delay(b"%d" % number, 10_000)
    waits.deliver()
    waits.run(waits.timers.flush)  # The messages are not flushed: they count as not taken up.
    root = crashed_copy(tmp_path / "store", tmp_path / "left")
    Waits(root, clock, **settings).stop()  # It records that the log ends where a file does.
    (root / "timerlog" / f"{4 * 276:020d}").write_bytes(bytes(276))
    waits = Waits(root, clock, **settings)
    waits.deliver()
    assert waits.files.waiting_count == 20
    assert len(waits.deliver(10_000)) == 20


def test_what_is_overdue_by_a_month_can_be_put_off(tmp_path: Path, clock: FakeClock) -> None:
    """A unit has 4 bytes for the time from when it was written to when it is due."""
    waits = Waits(tmp_path / "store", clock)
    for body in (b"a", b"b"):
        waits.delay(body, 1000)
    waits.deliver()
    waits.stop()
    clock.now_ms += 40 * DAY_MS
    waits = Waits(tmp_path / "store", clock)

    def stops(record: NewRecord) -> bool:
        waits.timers._is_stopped.set()
        return True

    waits.refuses = stops
    assert waits.run(waits.timers.dequeue) and waits.bodies() == []
    waits.stop()
    assert Waits(tmp_path / "store", clock).deliver() == [b"a", b"b"]


# --- damage


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


def test_log_lines_are_few(waits: Waits, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pymq.broker")
    waits.delay(b"a", 3000)
    waits.deliver(3000)
    assert not [one for one in caplog.records if one.name.startswith("pymq.broker.timer")]
