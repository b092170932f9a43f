"""Delayed messages: parked, delivered when they are due, once, and as they were sent."""

import asyncio
import logging
from pathlib import Path

import pytest
from tests.unit.broker.delays.delays import LEVELS_MS, Delays
from tests.unit.store.stores import (
    BORN,
    HOST,
    FailingFiles,
    FakeClock,
    crashed_copy,
    failing_in,
    queue_path,
)

from pymq.broker.delays.level import BATCH_COUNT
from pymq.broker.delays.parking import delay_level, park_delayed
from pymq.broker.log_writer import GATHERED_COUNT_MAX
from pymq.errors import BrokerSystemError, StoreError
from pymq.protocol.hashes import java_hash
from pymq.protocol.message import decode_properties, parse_properties
from pymq.protocol.names import SCHEDULE_TOPIC
from pymq.protocol.record import NewRecord
from pymq.store import PutStatus


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def delays(tmp_path: Path, clock: FakeClock) -> Delays:
    return Delays(tmp_path / "store", clock)


# --- parking


@pytest.mark.parametrize(
    ("text", "queue_id", "expected"),
    [
        ("DELAY\x012\x02", 1, {"DELAY": "2"}),
        ("DELAY\x0118\x02", 2, {"DELAY": "3"}),  # the highest level there is
        ("DELAY\x012147483647", 2, {"DELAY": "3"}),
        ("DELAY\x01+1\x02", 0, {"DELAY": "1"}),
        ("DELAY\x0102\x02", 1, {"DELAY": "2"}),
        (
            "TIMER_DELAY_SEC\x0110\x02DELAY\x011\x02TIMER_DELIVER_MS\x019\x02TIMER_DELAY_MS\x011",
            0,
            {"DELAY": "1"},
        ),
        ("REAL_TOPIC\x01Old\x02DELAY\x011\x02REAL_QID\x019\x02a\x01b", 0, {"DELAY": "1", "a": "b"}),
    ],
)
def test_a_message_with_a_level_waits_in_the_queue_of_that_level(
    text: str, queue_id: int, expected: dict[str, str]
) -> None:
    sent = NewRecord("Orders", 5, b"body", text.encode(), BORN, 17, 3, 1, 4, tag_code=9)
    parked = park_delayed(len(LEVELS_MS), sent, parse_properties(text))
    assert (parked.topic, parked.queue_id) == (SCHEDULE_TOPIC, queue_id)
    assert decode_properties(parked.properties) == {
        **expected,
        "REAL_TOPIC": "Orders",
        "REAL_QID": "5",
    }
    assert (parked.body, parked.flag, parked.sys_flag, parked.reconsume_times) == (b"body", 3, 1, 4)


@pytest.mark.parametrize(
    "text", ["soon", "1.5", "1_0", " 1", "", "2147483648", "٣", "9" * 5000, "0x1"]
)
def test_a_level_that_is_not_a_number_is_refused(text: str) -> None:
    with pytest.raises(BrokerSystemError, match="is not a number of 32 bits"):
        delay_level(text)


# --- delivering


def test_a_message_is_delivered_when_it_is_due_and_not_before(delays: Delays) -> None:
    delays.park(b"late", 2, more="TAGS\x01t\x02")
    delays.park(b"soon", 1)
    assert delays.deliver() == delays.deliver(999) == 0
    assert delays.deliver(1) == 1
    assert delays.bodies() == [b"soon"]
    assert delays.deliver(3999) == 0
    assert delays.deliver(1) == 1
    assert delays.bodies() == [b"soon", b"late"]
    assert delays.deliver(100_000) == 0
    assert delays.cursors() == {1: 1, 2: 1, 3: 0}


def test_what_is_delivered_is_the_message_that_was_sent(delays: Delays, clock: FakeClock) -> None:
    text = "TAGS\x01t\x02DELAY\x011\x02WAIT\x01true\x02k\x01v\x02"
    sent = NewRecord("Orders", 3, b"\0body", text.encode(), BORN, 17, 5, 0x8 | 0x1, 4, 77)
    parked = park_delayed(3, sent, parse_properties(text))
    (result,) = delays.store.put([parked], HOST)
    (waiting,) = delays.records(SCHEDULE_TOPIC)
    assert delays.deliver(1000) == 1
    (record,) = delays.records("Orders", 3)
    assert (record.body, record.flag, record.sys_flag) == (b"\0body", 5, 0x9)
    assert (record.born_timestamp, record.born_host, record.reconsume_times) == (17, BORN, 4)
    assert record.prepared_transaction_offset == 0
    assert record.properties == waiting.properties
    assert record.store_timestamp == clock.now_ms == waiting.store_timestamp + 1000
    assert delays.store.entries.tag_codes("Orders", 3, 0, 9)[0].tolist() == [java_hash("t")]


def test_many_messages_are_delivered_in_order_and_in_batches(delays: Delays) -> None:
    bodies = [b"%d" % number for number in range(3 * BATCH_COUNT + 5)]
    for body in bodies:
        delays.park(body, 1)
    delays.clock.now_ms += 1000
    counts = []

    async def deliver() -> None:
        while count := await delays.schedule.step(delays.schedule.levels[0]):
            counts.append(count)

    asyncio.run(deliver())
    assert counts == [BATCH_COUNT] * 3 + [5]
    assert delays.bodies() == bodies


def test_a_batch_is_delivered_once_while_others_fill_the_writer(
    tmp_path: Path, clock: FakeClock
) -> None:
    """The writer writes when it has gathered enough, in the middle of a batch."""
    delays = Delays(tmp_path / "store", clock, joins=False)
    bodies = [b"%d" % number for number in range(40)]
    for body in bodies:
        delays.park(body, 1)
    delays.clock.now_ms += 1000

    async def deliver() -> None:
        for _ in range(GATHERED_COUNT_MAX - 10):
            other = NewRecord("other", 0, b"x", b"", BORN, 1, 0, 0, 0)
            delays.writer.append(other, lambda *_: None)
        while await delays.schedule.step(delays.schedule.levels[0]):
            pass

    asyncio.run(deliver())
    assert delays.bodies() == bodies
    assert not delays.schedule.ahead()


def test_large_messages_make_small_batches(tmp_path: Path, clock: FakeClock) -> None:
    delays = Delays(tmp_path / "store", clock, segment_bytes=1 << 24)
    for number in range(5):
        delays.park(b"%d" % number * 400_000, 1)
    delays.clock.now_ms += 1000
    first = delays.schedule.levels[0]
    assert asyncio.run(delays.schedule.step(first)) == 2
    assert asyncio.run(delays.settle()) == 3
    assert len(delays.bodies()) == 5


HOUR_MS = 3_600_000


def test_a_clock_that_was_set_back_delivers_nothing_early_and_holds_nothing_up(
    delays: Delays,
) -> None:
    delays.park(b"before", 2)
    delays.clock.now_ms -= HOUR_MS
    assert delays.deliver() == delays.deliver(4999) == 0
    assert delays.deliver(1) == 1
    for number in range(16):  # retries: each is stored by the log's clock, which does not go back
        delays.park(b"retry %d" % number, 3)
        assert delays.deliver() == delays.deliver(9999) == 0
        assert delays.deliver(1) == 1
    delays.clock.now_ms += HOUR_MS
    delays.park(b"later", 2)
    assert delays.deliver(4999) == 0
    assert delays.deliver(1) == 1


def test_each_arrival_waits_from_when_it_came_if_the_clock_was_set_back(delays: Delays) -> None:
    delays.store.dispatch.listener = delays.schedule.take
    delays.park(b"before", 2)
    delays.clock.now_ms -= HOUR_MS
    for number in range(4):  # nobody looks meanwhile
        delays.park(b"%d" % number, 3)
        delays.clock.now_ms += 3000
    seen: dict[int, list[bytes]] = {}
    for second in range(12, 30):
        before = len(delays.bodies())
        if delays.deliver():
            seen[second] = delays.bodies()[before:]
        delays.clock.now_ms += 1000
    # What nobody has seen before begins to wait when somebody looks.
    assert seen == {12: [b"0"], 13: [b"1"], 16: [b"2"], 17: [b"before"], 19: [b"3"]}


def test_little_is_remembered_of_what_arrives_while_the_clock_is_behind(delays: Delays) -> None:
    delays.store.dispatch.listener = delays.schedule.take
    delays.park(b"before", 3)
    delays.clock.now_ms -= HOUR_MS
    for number in range(500):
        delays.park(b"%d" % number, 3)
        delays.clock.now_ms += 10
    level = delays.schedule.levels[2]
    assert 5 <= len(level._latest) <= 6
    assert delays.deliver(4000) == 0
    for _ in range(10):
        delays.deliver(1000)
    assert len(delays.bodies()) == 501
    for _ in range(30):  # nobody delivers here, as at a slave
        delays.park(b"again", 3)
        delays.clock.now_ms += 1000
    assert 10 <= len(level._latest) <= 12


def test_many_messages_wait_no_longer_than_their_delay_once_the_clock_was_set_back(
    delays: Delays,
) -> None:
    for number in range(3 * BATCH_COUNT):
        delays.park(b"%d" % number, 3)
    delays.clock.now_ms -= 8 * HOUR_MS
    assert delays.deliver() == delays.deliver(5000) == 0
    delays.clock.now_ms -= 8 * HOUR_MS  # once more
    delays.park(b"last", 3)
    assert delays.deliver() == delays.deliver(9999) == 0
    assert delays.deliver(1) == 3 * BATCH_COUNT + 1


@pytest.mark.parametrize("crashes", [False, True])
def test_after_a_restart_with_a_clock_behind_the_log_messages_wait_their_delay(
    tmp_path: Path, clock: FakeClock, crashes: bool
) -> None:
    delays = Delays(tmp_path / "store", clock)
    delays.park(b"0", 1)
    delays.deliver(1000)
    delays.save()
    for number in range(4):
        delays.park(b"%d" % number, 3)
        clock.now_ms += 1000
    root = tmp_path / "store"
    if crashes:
        root = crashed_copy(root, tmp_path / "copy")
    delays.store.close()
    clock.now_ms -= HOUR_MS  # or another broker, whose clock is behind
    delays = Delays(root, clock, saved=delays.saved)
    delays.park(b"own", 3)
    assert delays.deliver() == delays.deliver(9999) == 0
    assert delays.deliver(1) == 5


def test_a_clock_a_little_behind_the_log_is_no_reason_to_deliver(
    tmp_path: Path, clock: FakeClock
) -> None:
    delays = Delays(tmp_path / "store", clock)
    delays.park(b"before", 3)
    delays.store.close()
    clock.now_ms -= 3000
    delays = Delays(tmp_path / "store", clock, saved='{"offsetTable":{3:0}}')
    delays.park(b"own", 3)
    assert delays.deliver() == delays.deliver(9999) == 0
    assert delays.deliver(1) == 2


def test_the_log_may_refuse_one_message_and_take_the_next(tmp_path: Path, clock: FakeClock) -> None:
    delays = Delays(tmp_path / "store", clock, joins=False)
    for body in (b"a", b"b", b"c", b"d"):
        delays.park(body, 1)
    delays.refuses = lambda record: isinstance(record, NewRecord) and record.body == b"b"
    with pytest.raises(StoreError, match="refused by the test"):
        delays.deliver(1000)
    assert delays.bodies() == [b"a", b"c", b"d"]
    assert delays.cursors()[1] == 1
    with pytest.raises(StoreError, match="refused by the test"):
        delays.deliver(1000)
    delays.park(b"e", 1)
    delays.refuses = lambda record: False
    assert delays.deliver(1000) == 4
    assert delays.bodies() == [b"a", b"c", b"d", b"b", b"e"]


def test_what_was_delivered_ahead_is_not_delivered_again_after_a_restart(
    tmp_path: Path, clock: FakeClock
) -> None:
    delays = Delays(tmp_path / "store", clock, joins=False)
    for body in (b"a", b"b", b"c", b"d"):
        delays.park(body, 1)
    delays.refuses = lambda record: isinstance(record, NewRecord) and record.body == b"b"
    with pytest.raises(StoreError, match="refused by the test"):
        delays.deliver(1000)
    delays.save()
    delays.store.close()
    again = Delays(tmp_path / "store", clock, joins=False, saved=delays.saved)
    again.deliver(1000)
    assert again.bodies() == [b"a", b"c", b"d", b"b"]
    assert again.cursors()[1] == 4
    again.save()
    assert again.saved is not None and "pymqAhead" not in again.saved
    again.store.close()


def test_a_full_disk_delays_and_loses_nothing(tmp_path: Path, clock: FakeClock) -> None:
    files = FailingFiles()
    delays = Delays(tmp_path / "store", clock, files=files)
    delays.park(b"a", 1)
    files.on_write = failing_in("commitlog", 28)
    with pytest.raises(StoreError, match="not stored"):
        delays.deliver(1000)
    assert delays.cursors()[1] == 0
    files.on_write = lambda path: 0
    assert delays.deliver(10_000) == 1
    assert delays.bodies() == [b"a"]


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        (b"DELAY\x011\x02", "for which queue"),
        (b"DELAY\x011\x02REAL_TOPIC\x01T\x02REAL_QID\x01x\x02", "for which queue"),
        (b"DELAY\x011\x02REAL_TOPIC\x01../T\x02REAL_QID\x010\x02", "for which queue"),
        (
            b"DELAY\x011\x02REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC\x02REAL_QID\x010\x02",
            "half messages",
        ),
        (b"DELAY\x011\x02REAL_TOPIC\x01" + b"x" * 128 + b"\x02REAL_QID\x010\x02", "topic of 128 B"),
    ],
)
def test_what_cannot_be_delivered_is_said_and_passed_over(
    delays: Delays, properties: bytes, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    foreign = NewRecord(SCHEDULE_TOPIC, 0, b"x", properties, BORN, 1)
    assert delays.store.put([foreign], HOST)[0].status is PutStatus.OK
    delays.park(b"good", 1)
    assert delays.deliver(1000) == 2
    assert delays.bodies() == [b"good"]
    assert said in caplog.text and "message 0" in caplog.text
    assert ("RMQ_SYS_TRANS_HALF_TOPIC", 0) not in delays.store.queues()


def test_a_damaged_message_is_said_and_passed_over(
    delays: Delays, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    delays.park(b"damaged", 1)
    delays.park(b"good", 1)
    (log,) = (tmp_path / "store" / "commitlog").iterdir()
    data = log.read_bytes()
    with log.open("r+b") as file:
        file.seek(data.index(b"damaged"))
        file.write(b"DAMAGED")
    assert delays.deliver(1000) == 2
    assert delays.bodies() == [b"good"]
    assert "message 0 (physical offset 0) is damaged" in caplog.text


def test_an_entry_of_another_message_stops_the_level(delays: Delays, tmp_path: Path) -> None:
    delays.park(b"a", 1)
    (path,) = queue_path(tmp_path / "store", SCHEDULE_TOPIC).iterdir()
    with path.open("r+b") as file:
        file.seek(8)
        file.write((99).to_bytes(4, "big"))
    with pytest.raises(StoreError, match="damaged"):
        delays.deliver(1000)
    assert delays.cursors()[1] == 0


# --- restarts


def test_a_restart_goes_on_where_the_file_says(tmp_path: Path, clock: FakeClock) -> None:
    root = tmp_path / "store"
    delays = Delays(root, clock)
    for number in range(6):
        delays.park(b"%d" % number, 1)
        delays.park(b"%d" % number, 3)
        delays.clock.now_ms += 500
    assert delays.deliver() == 5
    delays.save()
    assert delays.saved_cursors() == {1: 5, 3: 0}
    delays.store.close()
    delays = Delays(root, clock, saved=delays.saved)
    assert delays.deliver(100_000) == 7
    assert sorted(delays.bodies()) == sorted([b"%d" % number for number in range(6)] * 2)


def test_what_was_not_saved_is_delivered_again(tmp_path: Path, clock: FakeClock) -> None:
    root = tmp_path / "store"
    delays = Delays(root, clock)
    delays.park(b"a", 1)
    delays.deliver(1000)
    delays.save()
    delays.park(b"b", 1)
    delays.deliver(1000)
    delays.store.close()
    delays = Delays(root, clock, saved=delays.saved)
    assert delays.deliver() == 1
    assert delays.bodies() == [b"a", b"b", b"b"]


def test_offsets_are_not_saved_ahead_of_the_copies(
    delays: Delays, caplog: pytest.LogCaptureFixture
) -> None:
    delays.park(b"a", 1)
    delays.deliver(1000)
    delays.flush_failure = "the disk failed"
    delays.save()
    assert delays.saved is None
    assert "the disk failed; after a crash" in caplog.text
    delays.flush_failure = None
    delays.save()
    assert delays.saved_cursors() == {1: 1}
    assert delays.store.durability.flushed_end == delays.store.log_end


def test_a_missing_file_means_that_everything_is_delivered(
    tmp_path: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    delays = Delays(tmp_path / "store", clock)
    delays.park(b"a", 1)
    delays.deliver(1000)
    delays.store.close()
    delays = Delays(tmp_path / "store", clock)
    assert "delay level 1: delayOffset.json does not say" in caplog.text
    assert "level 2" not in caplog.text
    assert delays.deliver() == 1


def test_an_offset_beyond_the_queue_is_corrected(
    tmp_path: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "store"
    delays = Delays(root, clock, saved='{"offsetTable":{1:5,2:7}}')
    assert delays.saved_cursors() == {1: 0, 2: 0}  # saved at once: new messages will have these
    assert "delay level 2: delayOffset.json says 7, its queue ends at 0" in caplog.text
    # A slave never gets what had expired before.
    assert "lost" not in caplog.text
    assert all(one.levelno == logging.WARNING for one in caplog.records)
    for number in range(9):
        delays.park(b"%d" % number, 1)
    delays.store.close()
    delays = Delays(root, clock, saved=delays.saved)
    assert delays.deliver(1000) == 9
    delays.store.close()
    delays = Delays(root, clock, saved='{"offsetTable":{1:10,2:0}}')
    assert "delayOffset.json says 10, its queue ends at 9" in caplog.text
    assert "the store has lost messages" in caplog.text


def test_messages_that_went_with_the_log_are_given_up_aloud(
    tmp_path: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "store"
    delays = Delays(root, clock, reserved_hours=1, segment_bytes=4096)
    for number in range(40):
        delays.park(b"%d" % number, 3)
    delays.clock.now_ms += 10 * 3_600_000
    for path in sorted((root / "commitlog").iterdir())[:-1]:
        path.unlink()
    delays.store.close()
    delays = Delays(root, clock, segment_bytes=4096)
    first, end = delays.store.queue_bounds(SCHEDULE_TOPIC, 2)
    assert 0 < first < end == 40
    assert delays.deliver() == end - first
    assert delays.bodies() == [b"%d" % number for number in range(first, end)]


def test_segments_deleted_while_running(
    tmp_path: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    delays = Delays(tmp_path / "store", clock)
    for number in range(40):
        delays.park(b"%d" % number, 3)
    queue = delays.store._queues.by_key[SCHEDULE_TOPIC, 2]
    queue.min_offset = 30
    assert delays.deliver(10_000) == 10
    assert "messages 0..29 were deleted before they were delivered" in caplog.text


def test_another_table_of_levels(
    tmp_path: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "store"
    delays = Delays(root, clock)
    delays.park(b"a", 2)
    delays.park(b"b", 3)
    delays.store.close()
    delays = Delays(root, clock, levels_ms=(100, 200))
    # 5 s are more than the level's delay can be: it waits for that, rounded up to a second.
    assert delays.deliver() == delays.deliver(199) == 0
    assert delays.deliver(801) == 1
    assert delays.bodies() == [b"a"]
    assert "1 delayed messages wait in level 3, but messageDelayLevel has 2 levels" in caplog.text
    delays.save()
    delays.store.close()
    delays = Delays(root, clock, levels_ms=(100, 200, 60_000), saved=delays.saved)
    assert delays.deliver(8_999) == 0
    assert delays.deliver(1) == 1


def test_the_file_keeps_levels_that_are_not_configured(tmp_path: Path, clock: FakeClock) -> None:
    delays = Delays(tmp_path / "store", clock, saved='{"offsetTable":{1:0,18:5}}')
    delays.park(b"a", 1)
    delays.deliver(1000)
    delays.save()
    assert delays.saved_cursors() == {1: 1, 18: 5}


# --- the duty


async def wait_for(delays: Delays, count: int) -> None:
    deadline_s = asyncio.get_running_loop().time() + 60
    while len(delays.bodies()) != count:
        found = len(delays.bodies())
        assert asyncio.get_running_loop().time() < deadline_s, f"{found}, expected {count}"
        await asyncio.sleep(0.005)


def test_the_duty_waits_for_what_is_there_and_for_what_arrives(
    delays: Delays, caplog: pytest.LogCaptureFixture
) -> None:
    delays.store.dispatch.listener = delays.schedule.take
    delays.park(b"old", 1)

    async def check() -> None:
        delays.schedule.start()
        await asyncio.sleep(0.02)
        delays.clock.now_ms += 1000
        await wait_for(delays, 1)
        delays.park(b"new", 2)
        delays.park(b"newer", 2)
        await asyncio.sleep(0.02)
        assert len(delays.bodies()) == 1
        delays.refuses = lambda record: True
        delays.clock.now_ms += 5000
        while "refused by the test" not in caplog.text:
            await asyncio.sleep(0.005)
        delays.refuses = lambda record: False
        await wait_for(delays, 3)
        # The log has them before the level goes on, which a stop would keep it from.
        while "delivering again" not in caplog.text:
            await asyncio.sleep(0.005)
        await delays.schedule.close()
        await delays.schedule.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(asyncio.wait_for(check(), 120))
    assert delays.bodies() == [b"old", b"new", b"newer"]
    assert caplog.text.count("refused by the test") == 1
    assert "delivering again" in caplog.text
    assert delays.saved_cursors() == {1: 1, 2: 2}
