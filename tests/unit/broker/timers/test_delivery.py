"""Timer messages are delivered when they are due, once, and as they were sent."""

from pathlib import Path

import pytest
from tests.unit.broker.timers.waits import DAY_MS, NOW_MS, Waits
from tests.unit.store.stores import BORN, HOST, FakeClock

from pymq.protocol.hashes import java_hash
from pymq.protocol.message import decode_properties, parse_properties
from pymq.protocol.names import TIMER_TOPIC
from pymq.protocol.record import NewRecord


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
    waits.delay(b"a", 2000)
    assert waits.deliver(100_000) == [b"a"]
    clock.now_ms -= 50_000
    waits.delay(b"b", 2000)
    assert waits.deliver(1999) == [b"a"]
    assert waits.deliver(1) == [b"a", b"b"]
    waits.deliver(500_000)
    clock.now_ms -= 400_000
    waits.delay(b"c", 3000)
    assert waits.deliver(2000) == [b"a", b"b"]
    assert waits.deliver(1000) == [b"a", b"b", b"c"]
    assert waits.deliver(1_000_000) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("ahead_ms", [3_600_000, 400 * DAY_MS])
def test_a_clock_that_was_ahead_for_a_moment(
    tmp_path: Path, clock: FakeClock, ahead_ms: int, is_restarted: bool
) -> None:
    """Whatever was stored then: the store's own times stay ahead until the clock is there."""
    waits = Waits(tmp_path / "store", clock)
    waits.delay(b"before", 2000)
    waits.deliver()
    clock.now_ms += ahead_ms
    waits.store.put([NewRecord("U", 0, b"x", b"", BORN, 1)], HOST)
    waits.delay(b"ahead", 1, topic="U")
    assert waits.deliver() == [b"before"]
    waits.deliver(1000)
    assert waits.bodies("U") == [b"x", b"ahead"]
    clock.now_ms -= ahead_ms
    if is_restarted:
        waits.stop()
        waits = Waits(tmp_path / "store", clock)
    waits.send(b"absolute", f"TIMER_DELIVER_MS\x01{clock.now_ms + 1_800_000}\x02")
    waits.delay(b"relative", 60_000)
    assert waits.deliver(59_999) == [b"before"]
    assert waits.deliver(1) == [b"before", b"relative"]
    assert waits.deliver(1_739_999) == [b"before", b"relative"]
    assert waits.deliver(1) == [b"before", b"relative", b"absolute"]
    assert waits.files.read_behind_ms == 0


def test_messages_that_waited_while_the_clock_was_days_ahead_are_not_lost(
    waits: Waits, clock: FakeClock
) -> None:
    """The wheel has no room for them beside those that are due now: timers stay ahead."""
    clock.now_ms += 30 * DAY_MS
    waits.delay(b"far", 2 * DAY_MS)
    waits.deliver()
    clock.now_ms -= 30 * DAY_MS
    for number in range(20):
        waits.delay(b"%d" % number, DAY_MS // 10 * number + 1000)
        waits.deliver()
    waits.deliver(18 * DAY_MS)
    assert b"far" not in waits.bodies()
    # From now on there is.
    waits.delay(b"later", 1000)
    waits.deliver()
    assert waits.deliver(1000)[-1] == b"later"
    for _ in range(20):
        waits.deliver(DAY_MS)
    assert sorted(waits.bodies()) == sorted([b"far", b"later", *(b"%d" % n for n in range(20))])


def test_a_clock_that_is_set_back_makes_nothing_early(waits: Waits, clock: FakeClock) -> None:
    """Messages are taken up before anybody has looked whether slots are due."""
    waits.delay(b"a", 2000)
    waits.deliver(2000)
    waits.deliver(600_000)
    clock.now_ms -= 400_000
    waits.delay(b"b", 30_000)
    waits.run(waits.timers.enqueue)
    assert waits.deliver(29_999) == [b"a"]
    assert waits.deliver(1) == [b"a", b"b"]


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
