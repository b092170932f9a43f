"""The limits of micro-batches, as the reader applies them."""

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.unit.connector.fake import FakeBroker, record
from tests.unit.connector.reading import Q0, Q2, Time, batch, offsets, planned, stream

from pyspark_pymq.source import reader as readers
from pyspark_pymq.source.batch_bytes import ASK_AGAIN_S
from pyspark_pymq.source.subscribed_topics import ANSWER_AGE_S

SIZE = len(record(b"x"))


def test_a_backlog_hides_neither_new_queues_nor_the_lag(broker: FakeBroker, clock: Time) -> None:
    broker.add(Q0, *[(b"x", {})] * 1000)
    reader = stream(maxoffsetspertrigger="10")
    position = reader.latestOffset(offsets(5, 0))
    broker.add(Q0, *[(b"x", {})] * 500)
    broker.add(Q2, (b"x", {}))
    clock.now_s += ANSWER_AGE_S
    position = reader.latestOffset(position)
    assert position["orders"]["broker-a"]["2"] == 0
    assert reader.reportLatestOffset() == offsets(1515, 10, 1)
    assert reader.latestOffset(position)["orders"]["broker-a"]["2"] == 1


def test_few_messages_wait(broker: FakeBroker, clock: Time) -> None:
    reader = stream(minoffsetspertrigger="25", maxtriggerdelay="90s")
    position = offsets(5, 0)
    assert reader.latestOffset(position) == position  # 20 wait
    clock.now_s += 89
    assert reader.latestOffset(position) == position
    clock.now_s += 1
    position = reader.latestOffset(position)
    assert position == offsets(15, 10)
    clock.now_s += 60
    broker.add(Q0, *[(b"x", {})] * 24)
    assert reader.latestOffset(position) == position
    broker.add(Q0, (b"x", {}))
    assert reader.latestOffset(position) == offsets(40, 10)


def test_new_queues_do_not_wait(broker: FakeBroker) -> None:
    """They are journaled, so that what they have counts."""
    reader = stream(minoffsetspertrigger="25")
    broker.add(Q2, *[(b"x", {})] * 5)
    position = reader.latestOffset(offsets(5, 0))
    assert position == offsets(5, 0, 0)
    assert reader.latestOffset(position) == offsets(15, 10, 5)


def test_what_does_not_wait(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    ending = stream(minoffsetspertrigger="25")
    ending.prepareForTriggerAvailableNow()
    assert ending.latestOffset(offsets(5, 0)) == offsets(15, 10)
    reader = stream(minoffsetspertrigger="25")
    assert reader.latestOffset(offsets(5, 0), ReadAllAvailable()) == offsets(15, 10)
    # Before 4.2 the first batch may be the only one.
    monkeypatch.setattr(readers, "ReadAllAvailable", None)
    early = stream(minoffsetspertrigger="25")
    early.partitions(offsets(5, 0), offsets(5, 0))
    assert early.latestOffset() == offsets(15, 10)
    early.partitions(offsets(5, 0), offsets(15, 10))
    broker.add(Q0, (b"x", {}))
    assert early.latestOffset() == offsets(15, 10)


def test_least_and_most(broker: FakeBroker) -> None:
    reader = stream(minoffsetspertrigger="20", maxoffsetspertrigger="20")
    assert reader.latestOffset(offsets(5, 0)) == offsets(15, 10)
    reader = stream(minoffsetspertrigger="10", maxoffsetspertrigger="12")
    position = reader.latestOffset(offsets(5, 0))
    assert position == offsets(11, 6)
    assert reader.latestOffset(position) == position  # 8 are left
    assert reader.latestOffset(position, ReadAllAvailable()) == offsets(15, 10)


IS_PYMQ = pytest.mark.parametrize("is_pymq", [True, False], ids=["pymq", "RocketMQ"])


def of_kind(broker: FakeBroker, *, is_pymq: bool) -> None:
    broker.official = set() if is_pymq else {"broker-a"}


@IS_PYMQ
def test_most_bytes(broker: FakeBroker, is_pymq: bool) -> None:
    of_kind(broker, is_pymq=is_pymq)
    reader = stream(maxbytespertrigger=str(10 * SIZE))
    assert reader.latestOffset(offsets(5, 0)) == offsets(10, 5)
    assert reader.latestOffset(offsets(5, 0), ReadAllAvailable()) == offsets(15, 10)
    both = stream(maxbytespertrigger=str(10 * SIZE), maxoffsetspertrigger="4")
    assert both.latestOffset(offsets(5, 0)) == offsets(7, 2)
    large = stream(maxbytespertrigger="1")
    assert large.latestOffset(offsets(5, 0)) == offsets(6, 1)  # one of each queue


@IS_PYMQ
def test_most_bytes_reach_the_end(broker: FakeBroker, is_pymq: bool) -> None:
    of_kind(broker, is_pymq=is_pymq)
    broker.add(Q0, *[(b"x" * 5000, {})] * 10)
    reader = stream(maxbytespertrigger="10000")
    reader.prepareForTriggerAvailableNow()
    position, read = offsets(5, 0), []
    for _ in range(50):
        end = reader.latestOffset(position, reader.getDefaultReadLimit())
        if end == position:
            break
        read.append(planned(reader.partitions(position, end)))
        position = end
    assert position == offsets(25, 10)
    assert sum(end - first for some in read for _, first, end in some) == 30
    of_large = [(max(first, 15), end) for some in read for q, first, end in some if q == 0]
    assert max(end - first for first, end in of_large) <= 3
    samples = [call for call in broker.calls if call[0] == "pull"]
    assert bool(samples) is not is_pymq


def test_a_broker_is_replaced_by_one_of_another_kind(broker: FakeBroker, clock: Time) -> None:
    reader = stream(maxbytespertrigger=str(10 * SIZE))
    position, takes = offsets(5, 0), []
    for is_pymq in (True, False, False, True):
        of_kind(broker, is_pymq=is_pymq)
        broker.add(Q0, *[(b"x", {})] * 20)
        clock.now_s += ASK_AGAIN_S / 2
        end = reader.latestOffset(position)
        takes.append(sum(b - a for _, a, b in planned(reader.partitions(position, end))))
        position = end
    assert takes == [10, 9, 9, 10]  # estimates are rounded down
    asked = [call[0] for call in broker.calls if call[0] in ("fitting", "pull")]
    assert asked[0] == "fitting" and asked[-1] == "fitting" and asked.count("pull") > 1


def test_a_broker_that_goes_away_fails_no_query(broker: FakeBroker, clock: Time) -> None:
    reader = stream(maxbytespertrigger=str(10 * SIZE))
    reader.prepareForTriggerAvailableNow()
    position = reader.latestOffset(offsets(5, 0))
    assert position == offsets(10, 5)
    broker.away.add("broker-a")
    broker.calls.clear()
    assert reader.latestOffset(position) == offsets(15, 10)  # by the sizes it has told
    assert [call[0] for call in broker.calls].count("fitting") == 1
    assert "pull" not in [call[0] for call in broker.calls]


def test_a_broker_that_gives_no_sample(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = stream(maxbytespertrigger=str(5 * 4096))
    reader.prepareForTriggerAvailableNow()
    reader.latestOffset(offsets(15, 10))
    broker.away.add("broker-a")
    assert reader.latestOffset(offsets(5, 0)) == offsets(7, 2)  # 4 KiB each are assumed


def test_most_rows_of_a_task(broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    reader = stream(maxrecordsperpartition="4")
    parts = reader.partitions(offsets(5, 0), offsets(15, 10))
    assert [sum(map(len, part.ranges)) for part in parts] == [4] * 5
    assert not caplog.text
    few = stream(maxrecordsperpartition="4", maxpartitions="2")
    for _ in range(2):
        assert len(few.partitions(offsets(5, 0), offsets(15, 10))) == 5
    assert caplog.text.count("maxRecordsPerPartition=4 comes before maxPartitions=2") == 1
    assert len(few.partitions(offsets(5, 0), offsets(9, 2))) == 2
    assert len(batch(maxrecordsperpartition="7").partitions()) == 3


def test_a_batch_says_that_it_has_no_triggers(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    batch(maxbytespertrigger="1", maxoffsetspertrigger="1").partitions()
    assert "maxOffsetsPerTrigger, maxBytesPerTrigger does nothing" in caplog.text
