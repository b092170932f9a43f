"""The driver's side: what Spark calls, in the order in which its versions call it."""

import json
import pickle

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from tests.unit.connector.fake import FakeBroker, FakeClient
from tests.unit.connector.reading import (
    B0,
    Q0,
    Q1,
    Q2,
    SINCE,
    Time,
    batch,
    offsets,
    planned,
    stream,
)

from pymq.errors import (
    ConfigurationError,
    ConnectionFailed,
    OffsetOutOfRange,
    RouteNotFound,
)
from pyspark_pymq.offsets import QueueRange
from pyspark_pymq.source import query_start, subscribed_topics
from pyspark_pymq.source import reader as readers
from pyspark_pymq.source.reader import PymqStreamReader
from pyspark_pymq.source.source import QueuesPartition
from pyspark_pymq.source.subscribed_topics import SubscribedTopics


def test_a_latest_start_loses_nothing(broker: FakeBroker, clock: Time) -> None:
    """The order of 4.2 and later; messages arrive between any two calls."""
    reader = stream()
    initial = reader.initialOffset()
    assert initial == offsets(15, 10, init=True, since=SINCE)
    clock.now_s += 10
    broker.add(Q0, (b"early", {}))
    first_end = reader.latestOffset(initial, ReadAllAvailable())
    assert first_end == offsets(15, 10, since=SINCE)
    assert json.dumps(first_end) != json.dumps(initial)
    assert reader.initialOffset() == initial
    assert reader.partitions(initial, first_end) == []
    # Killed after offsets/0 was written: another process asks again, later.
    again = stream()
    assert again.initialOffset() == offsets(16, 10, init=True, since=SINCE + 10_000)
    assert again.partitions(again.initialOffset(), first_end) == []
    end = again.latestOffset(first_end, ReadAllAvailable())
    assert planned(again.partitions(first_end, end)) == [(0, 15, 16)]


def test_a_first_batch_of_trigger_once_is_not_silent(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """It has no rows, and Spark says nothing but that the query has ended."""
    for options in ({}, {"maxoffsetspertrigger": "3"}):
        for trigger, limit in (("other", None), ("once", ReadAllAvailable())):
            caplog.clear()
            reader = stream(**options)
            limit = limit or reader.getDefaultReadLimit()
            end = reader.latestOffset(reader.initialOffset(), limit)
            assert ("trigger(availableNow=True)" in caplog.text) == (trigger == "once")
            caplog.clear()
            stream(**options).latestOffset(end, limit)  # later batches have rows
            assert not caplog.text


def test_tags_that_look_like_a_list(broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    stream(tags="A || B").initialOffset()
    assert not caplog.text
    stream(tags="A,B || C").initialOffset()
    batch(tags="A,B").partitions()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and all("'A,B' is one tag" in text and "||" in text for text in said)


def test_the_order_of_calls_before_4_2(broker: FakeBroker, clock: Time) -> None:
    reader = stream()
    first_end = reader.latestOffset()
    assert first_end == offsets(15, 10, since=SINCE)
    assert reader.initialOffset() == offsets(15, 10, init=True, since=SINCE)
    assert reader.partitions(reader.initialOffset(), first_end) == []
    broker.add(Q1, (b"new", {}))
    clock.now_s += 10
    assert reader.latestOffset() == offsets(15, 11, since=SINCE)
    assert planned(reader.partitions(first_end, offsets(15, 11))) == [(1, 10, 11)]
    restarted = stream(maxoffsetspertrigger="1")
    assert restarted.partitions(offsets(15, 11), offsets(15, 11)) == []
    broker.add(Q1, *[(b"new", {})] * 4)
    clock.now_s += 10
    assert restarted.latestOffset() == offsets(15, 12)


def test_the_first_batch_before_4_2_is_not_empty_where_it_need_not_be(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trigger AvailableNow runs a single batch there, also the first time."""
    monkeypatch.setattr(readers, "ReadAllAvailable", None)
    json_start = json.dumps({"orders": {"broker-a": {"0": 7, "1": -2}}})
    for starting, first in (("earliest", 5), (json_start, 7)):
        reader = stream(startingoffsets=starting)
        end = reader.latestOffset()
        assert end == offsets(15, 10)
        initial = reader.initialOffset()
        assert initial == offsets(first, 0)
        wanted = planned(reader.partitions(initial, end))
        assert wanted == [(0, first, 15), (1, 0, 10)]
        # Killed before the batch was done: it is planned again, the same.
        again = stream(startingoffsets=starting)
        assert again.partitions(end, end) == []
        assert planned(again.partitions(again.initialOffset(), end)) == wanted
        assert again.latestOffset() == end
    capped = stream(startingoffsets="earliest", maxoffsetspertrigger="10")
    end = capped.latestOffset()
    assert planned(capped.partitions(capped.initialOffset(), end)) == [(0, 5, 10), (1, 0, 5)]


def test_a_first_batch_before_4_2_that_is_run_again_without_a_broker(
    broker: FakeBroker, clock: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it starts is asked for again, and the broker that is away then has its rows, too."""
    monkeypatch.setattr(readers, "ReadAllAvailable", None)
    broker.add(B0, *[(b"x", {})] * 10)
    first = stream(startingoffsets="earliest")
    end = first.latestOffset()
    wanted = planned(first.partitions(first.initialOffset(), end))
    assert len(wanted) == 3
    broker.unrouted.add("broker-b")
    broker.away.add("broker-b")
    again = stream(startingoffsets="earliest", retrytimeoutms="60000")
    start = again.initialOffset()
    with pytest.raises(ConnectionFailed, match="broker-b has given no answer.*for 60 s"):
        again.partitions(start, end)
    lenient = stream(startingoffsets="earliest", failondataloss="false")
    start = lenient.initialOffset()
    assert planned(lenient.partitions(start, end)) == wanted[:2]
    last = stream(startingoffsets="earliest")
    start = last.initialOffset()
    broker.unrouted.clear()
    broker.away.clear()
    assert planned(last.partitions(start, end)) == wanted


def test_starting_offsets(broker: FakeBroker) -> None:
    assert stream(startingoffsets="earliest").initialOffset() == offsets(5, 0, init=True)
    text = json.dumps({"orders": {"broker-a": {"0": 7, "1": -1}}})
    assert stream(startingoffsets=text).initialOffset() == offsets(7, 10, init=True)
    with pytest.raises(ConfigurationError, match="orders/broker-a/7"):
        stream(startingoffsets='{"orders": {"broker-a": {"7": 7}}}').initialOffset()


def test_caps(broker: FakeBroker) -> None:
    reader = stream(maxoffsetspertrigger="10")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(10)
    assert reader.latestOffset(offsets(5, 0), limit) == offsets(10, 5)
    assert reader.latestOffset(offsets(5, 0), ReadAllAvailable()) == offsets(15, 10)
    assert stream().getDefaultReadLimit() == ReadMaxRows(readers.NO_LIMIT)  # not what once has


def test_available_now_ends_where_it_began(broker: FakeBroker, clock: Time) -> None:
    reader = stream(startingoffsets="earliest", maxoffsetspertrigger="7")
    reader.prepareForTriggerAvailableNow()
    position = reader.initialOffset()
    seen = []
    for _ in range(20):
        clock.now_s += 10
        broker.add(Q0, (b"late", {}))
        broker.add(Q2, (b"in a queue that appeared late", {}))
        end = reader.latestOffset(position, reader.getDefaultReadLimit())
        if end == position:
            break
        seen += planned(reader.partitions(position, end))
        position = end
    assert position == offsets(15, 10)
    assert sum(end - first for _, first, end in seen) == 20


def test_available_now_after_a_restart_reads_new_queues_too(broker: FakeBroker) -> None:
    broker.add(Q2, (b"x", {}), (b"y", {}))
    reader = stream()
    reader.prepareForTriggerAvailableNow()
    discovered = reader.latestOffset(offsets(15, 10), ReadAllAvailable())
    assert discovered == offsets(15, 10, 0)
    assert reader.latestOffset(discovered, ReadAllAvailable()) == offsets(15, 10, 2)


def test_data_loss(broker: FakeBroker, clock: Time, caplog: pytest.LogCaptureFixture) -> None:
    broker.trim(Q0, 12)
    with pytest.raises(OffsetOutOfRange, match=r"7\.\.11 are gone.*failOnDataLoss"):
        stream().latestOffset(offsets(7, 10), None)
    with pytest.raises(OffsetOutOfRange, match="ends at 10"):
        stream().latestOffset(offsets(13, 11), None)
    patient = stream(failondataloss="false")
    assert patient.latestOffset(offsets(7, 12), None) == offsets(15, 10)
    assert "7..11 are gone" in caplog.text and "ends at 10" in caplog.text


def test_an_old_answer_is_no_loss(broker: FakeBroker) -> None:
    reader = stream(maxoffsetspertrigger="1")
    reader.prepareForTriggerAvailableNow()
    broker.add(Q0, (b"x", {}))
    assert reader.latestOffset(offsets(16, 10), None) == offsets(16, 10)


def test_an_idle_query_asks_rarely(broker: FakeBroker, clock: Time) -> None:
    reader = stream()
    reader.latestOffset(offsets(15, 10), None)
    before, started_s = len(broker.calls), clock.now_s
    while clock.now_s < started_s + 10:
        clock.now_s += 0.01  # Spark's own pause
        assert reader.latestOffset(offsets(15, 10), None) == offsets(15, 10)
        assert reader.reportLatestOffset() == offsets(15, 10)
    asked = sum(call[0] == "bounds" for call in broker.calls[before:])
    assert 40 <= asked <= 65
    broker.add(Q0, (b"x", {}))  # and yet no answer is older than its question
    assert reader.latestOffset(offsets(15, 10), None) == offsets(16, 10)
    started_s = clock.now_s
    reader.latestOffset(offsets(16, 10), None)
    assert clock.now_s - started_s < subscribed_topics.PAUSE_MIN_S + 1e-6


def test_a_backlog_is_worked_off_without_asking(broker: FakeBroker, clock: Time) -> None:
    reader = stream(maxoffsetspertrigger="4")
    limit = reader.getDefaultReadLimit()
    position = reader.latestOffset(offsets(5, 0), limit)
    before, started_s = len(broker.calls), clock.now_s
    for _ in range(4):
        position = reader.latestOffset(position, limit)
    assert position == offsets(15, 10)
    assert len(broker.calls) == before and clock.now_s == started_s


def test_the_progress_of_a_query_without_an_answer_yet() -> None:
    assert stream().reportLatestOffset() is None


def test_name_servers_that_are_away_do_not_stop_a_query(broker: FakeBroker, clock: Time) -> None:
    reader = stream()
    reader.latestOffset(offsets(15, 10), None)
    broker.errors = [ConnectionFailed("no name server")]
    clock.now_s += 10
    broker.add(Q0, (b"x", {}))
    assert reader.latestOffset(offsets(15, 10), None) == offsets(16, 10)


def test_a_start_without_a_cluster_fails_soon(
    broker: FakeBroker, clock: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    started_s = clock.now_s
    with pytest.raises(RouteNotFound, match="topic nowhere"):
        stream(subscribe="nowhere").initialOffset()
    assert clock.now_s == started_s
    # But one that gives no answer may know it.
    broker.name_servers["ns-2:9876"] = False
    with pytest.raises(RouteNotFound, match="topic nowhere"):
        stream(subscribe="nowhere").initialOffset()
    assert 29 < clock.now_s - started_s <= 30
    broker.name_servers["ns-2:9876"] = True
    # And one that has just started knows nothing of any topic.
    clock.now_s = started_s
    broker.unrouted.add("broker-a")
    with pytest.raises(RouteNotFound, match="topic orders"):
        stream().initialOffset()
    assert 29 < clock.now_s - started_s <= 30
    wait = SubscribedTopics.__init__.__kwdefaults__["wait"]

    def wait_for_the_broker(seconds: float) -> None:
        wait(seconds)
        broker.unrouted.clear()

    monkeypatch.setitem(SubscribedTopics.__init__.__kwdefaults__, "wait", wait_for_the_broker)
    assert len(planned(batch().partitions())) == 2
    monkeypatch.setitem(SubscribedTopics.__init__.__kwdefaults__, "wait", wait)
    clock.now_s = started_s
    monkeypatch.setattr(query_start, "DEADLINE_S", 0.2)
    broker.errors = [ConnectionFailed("refused")] * 100
    with pytest.raises(ConnectionFailed, match="refused"):
        stream().initialOffset()
    broker.errors = [ConnectionFailed("refused")]
    assert stream().initialOffset() == offsets(15, 10, init=True, since=SINCE + 200)


def test_stop_closes(broker: FakeBroker) -> None:
    reader = stream()
    reader.latestOffset(offsets(15, 10), None)
    reader.latestOffset(offsets(15, 10), None)
    reader.stop()
    reader.stop()
    assert broker.open_clients == 0


def test_batch_bounds(broker: FakeBroker) -> None:
    assert planned(batch().partitions()) == [(0, 5, 15), (1, 0, 10)]
    text = '{"orders": {"broker-a": {"0": 7, "1": 3}}}'
    assert planned(batch(endingoffsets=text).partitions()) == [(0, 5, 7), (1, 0, 3)]
    assert planned(batch(startingoffsets=text).partitions()) == [(0, 7, 15), (1, 3, 10)]
    assert len(batch(minpartitions="4").partitions()) == 4
    assert broker.open_clients == 0


def test_a_queue_that_loses_its_route_while_a_job_is_planned(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left of it is for the tasks to find out: they are the ones who are patient."""
    routes = iter([[Q0, Q1], [Q0]])
    monkeypatch.setattr(FakeClient, "_queues", lambda *_: next(routes))
    starts = json.dumps({"orders": {"broker-a": {"0": 2}}})
    reader = batch(startingoffsets=starts, failondataloss="false")
    assert planned(reader.partitions()) == [(0, 5, 15), (1, 0, 10)]


def test_batch_bounds_that_are_not_there(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.offset_at[1] = 99
    late = {"startingtimestamp": "1970-01-01T00:00:00.001Z"}
    late["startingoffsetsbytimestampstrategy"] = "latest"
    for options, text in (
        ({"startingoffsets": '{"orders": {"broker-a": {"0": 1}}}'}, r"1\.\.4 are gone"),
        ({"startingoffsets": '{"orders": {"broker-a": {"1": 11}}}'}, "ends at 10"),
        ({"endingoffsets": '{"orders": {"broker-a": {"1": 11}}}'}, "11 was asked for"),
        # Nothing to read, but not because there is nothing new: that is no success.
        ({"endingoffsets": '{"orders": {"broker-a": {"0": 4}}}'}, "starts at 5, after the end.*4"),
        (
            {**late, "endingoffsets": '{"orders": {"broker-a": {"1": 2}}}'},
            "queue 1 of orders on broker-a: reading starts at 10",
        ),
    ):
        with pytest.raises(OffsetOutOfRange, match=text) as caught:
            batch(**options).partitions()
        assert "checkpoint" not in str(caught.value)  # a batch has none
        caplog.clear()
        found = planned(batch(**options, failondataloss="false").partitions())
        assert all(5 <= first < end <= 15 for queue, first, end in found if queue == 0)
        assert all(0 <= first < end <= 10 for queue, first, end in found if queue == 1)
        assert "data loss accepted" in caplog.text


def test_readers_travel_without_connections(broker: FakeBroker) -> None:
    reader = stream()
    reader.latestOffset(offsets(15, 10), None)
    reader.latestOffset(offsets(15, 10), None)
    copy = pickle.loads(pickle.dumps(reader))
    assert isinstance(copy, PymqStreamReader)
    assert copy.reportLatestOffset() is None
    part = QueuesPartition((QueueRange(Q0, 1, 2),), (), {})
    assert pickle.loads(pickle.dumps(part)) == part
    assert list(copy.read(None)) == []  # Spark's placeholder for a batch without partitions


def test_partitions_know_nothing_but_offsets() -> None:
    """No broker is there: what a batch reads follows from its two offsets alone."""
    reader = stream(minpartitions="3")
    tasks = reader.partitions(offsets(0, 0), offsets(6, 3))
    assert planned(tasks) == [(0, 0, 3), (0, 3, 6), (1, 0, 3)]
    assert reader.partitions(offsets(0, 0), offsets(6, 3)) == tasks
    assert reader.partitions(offsets(4), offsets(4)) == []
