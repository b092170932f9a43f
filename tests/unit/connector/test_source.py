"""The driver's side: what Spark calls, in the order in which its versions call it."""

import json
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from tests.unit.connector.fake import FakeBroker, FakeClient

from pymq.errors import ConfigurationError, ConnectionFailed, OffsetOutOfRange, RouteNotFound
from pymq.protocol.bodies import MessageQueue
from pyspark_pymq import patience, source, watch
from pyspark_pymq.offsets import QueueRange
from pyspark_pymq.options import source_options
from pyspark_pymq.rows import default_schema
from pyspark_pymq.source import PymqBatchReader, PymqStreamReader, QueuesPartition
from pyspark_pymq.watch import QueueWatch

Q0, Q1, Q2 = (MessageQueue("orders", "broker-a", number) for number in range(3))
OPTIONS = {"nameserver": "a:1", "subscribe": "orders"}
SCHEMA = default_schema(properties=False)


class Time:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> None:
        assert 0 < seconds < watch.PAUSE_MAX_S + 1e-6
        self.now_s += seconds


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch, clock: Time) -> FakeBroker:
    fake = FakeBroker(first={Q0: 5})
    fake.add(Q0, *[(b"x", {})] * 10)
    fake.add(Q1, *[(b"x", {})] * 10)
    monkeypatch.setitem(QueueWatch.__init__.__kwdefaults__, "connect", fake.client)
    monkeypatch.setitem(QueueWatch.__init__.__kwdefaults__, "monotonic_s", clock)
    monkeypatch.setitem(QueueWatch.__init__.__kwdefaults__, "wait", clock.wait)
    return fake


def stream(**options: str) -> PymqStreamReader:
    return PymqStreamReader(source_options({**OPTIONS, **options}), SCHEMA)


def batch(**options: str) -> PymqBatchReader:
    return PymqBatchReader(source_options({**OPTIONS, **options}), SCHEMA)


def offsets(*values: int, **mark: bool) -> dict[str, Any]:
    queues = {str(number): value for number, value in enumerate(values)}
    return {"%": {"v": 1, **mark}, "orders": {"broker-a": queues}}


def planned(partitions: Any) -> list[tuple[int, int, int]]:
    return [(r.queue.queue_id, r.first, r.end) for part in partitions for r in part.ranges]


# ------------------------------------------------------------------------------------ streams


def test_a_latest_start_loses_nothing(broker: FakeBroker, clock: Time) -> None:
    """The order of 4.2 and later; messages arrive between any two calls."""
    reader = stream()
    initial = reader.initialOffset()
    assert initial == offsets(15, 10, init=True)
    clock.now_s += 10
    broker.add(Q0, (b"early", {}))
    first_end = reader.latestOffset(initial, ReadAllAvailable())
    assert first_end == offsets(15, 10)
    assert json.dumps(first_end) != json.dumps(initial)
    assert reader.initialOffset() == initial
    assert reader.partitions(initial, first_end) == []
    # Killed after offsets/0 was written: another process asks again, later.
    again = stream()
    assert again.initialOffset() == offsets(16, 10, init=True)
    assert again.partitions(again.initialOffset(), first_end) == []
    end = again.latestOffset(first_end, ReadAllAvailable())
    assert planned(again.partitions(first_end, end)) == [(0, 15, 16)]


def test_the_order_of_calls_before_4_2(broker: FakeBroker, clock: Time) -> None:
    reader = stream()
    first_end = reader.latestOffset()
    assert first_end == offsets(15, 10)
    assert reader.initialOffset() == offsets(15, 10, init=True)
    assert reader.partitions(reader.initialOffset(), first_end) == []
    broker.add(Q1, (b"new", {}))
    clock.now_s += 10
    assert reader.latestOffset() == offsets(15, 11)
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
    monkeypatch.setattr(source, "ReadAllAvailable", None)
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
    assert stream().getDefaultReadLimit() == ReadAllAvailable()


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
    assert clock.now_s - started_s < watch.PAUSE_MIN_S + 1e-6


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
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RouteNotFound, match="topic nowhere"):
        stream(subscribe="nowhere").initialOffset()
    monkeypatch.setattr(watch, "START_PATIENCE_S", 0.2)
    broker.errors = [ConnectionFailed("refused")] * 100
    with pytest.raises(ConnectionFailed, match="refused"):
        stream().initialOffset()
    broker.errors = [ConnectionFailed("refused")]
    assert stream().initialOffset() == offsets(15, 10, init=True)


def test_stop_closes(broker: FakeBroker) -> None:
    reader = stream()
    reader.latestOffset(offsets(15, 10), None)
    reader.latestOffset(offsets(15, 10), None)
    reader.stop()
    reader.stop()
    assert broker.open_clients == 0


# ------------------------------------------------------------------------------------ batches


def test_batch_bounds(broker: FakeBroker) -> None:
    assert planned(batch().partitions()) == [(0, 5, 15), (1, 0, 10)]
    assert planned(batch(startingoffsets="latest").partitions()) == []
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


def test_batch_bounds_that_are_not_there(broker: FakeBroker) -> None:
    for options, text in (
        ({"startingoffsets": '{"orders": {"broker-a": {"0": 1}}}'}, r"1\.\.4 are gone"),
        ({"startingoffsets": '{"orders": {"broker-a": {"1": 11}}}'}, "ends at 10"),
        ({"endingoffsets": '{"orders": {"broker-a": {"1": 11}}}'}, "11 was asked for"),
    ):
        with pytest.raises(OffsetOutOfRange, match=text):
            batch(**options).partitions()
        found = planned(batch(**options, failondataloss="false").partitions())
        assert all(5 <= first < end <= 15 for queue, first, end in found if queue == 0)
        assert all(0 <= first < end <= 10 for queue, first, end in found if queue == 1)


def test_readers_travel_without_connections(broker: FakeBroker) -> None:
    reader = stream()
    reader.latestOffset(offsets(15, 10), None)
    reader.latestOffset(offsets(15, 10), None)
    copy = pickle.loads(pickle.dumps(reader))
    assert isinstance(copy, PymqStreamReader)
    assert copy.reportLatestOffset() is None
    part = QueuesPartition((QueueRange(Q0, 1, 2),))
    assert pickle.loads(pickle.dumps(part)) == part
    assert list(copy.read(None)) == []  # Spark's placeholder for a batch without partitions


def test_partitions_know_nothing_but_offsets() -> None:
    """No broker is there: what a batch reads follows from its two offsets alone."""
    reader = stream(minpartitions="3")
    tasks = reader.partitions(offsets(0, 0), offsets(6, 3))
    assert planned(tasks) == [(0, 0, 3), (0, 3, 6), (1, 0, 3)]
    assert reader.partitions(offsets(0, 0), offsets(6, 3)) == tasks
    assert reader.partitions(offsets(4), offsets(4)) == []


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    pauses: list[float] = []
    monkeypatch.setattr(patience.select, "select", lambda r, w, x, pause: pauses.append(pause))
    yield pauses


def test_patience_has_an_end(no_pause: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Time()
    monkeypatch.setattr(patience.time, "monotonic", lambda: clock.now_s + sum(no_pause))

    def never() -> None:
        raise ConnectionFailed("away")

    with pytest.raises(ConnectionFailed):
        patience.persist(never, limit_s=10, what="trying")
    assert 9 <= sum(no_pause) <= 10
    assert max(no_pause) == patience.PAUSE_MAX_S


def test_a_missing_route_passes_only_for_a_topic_that_exists(
    no_pause: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[Exception] = []

    def ask() -> str:
        if answers:
            raise answers.pop(0)
        return "there"

    answers = [RouteNotFound("no route")] * 3
    with pytest.raises(RouteNotFound):
        patience.persist(ask, limit_s=10, what="asking")
    answers = [RouteNotFound("no route")] * 3 + [ConnectionFailed("refused")] * 2
    assert patience.persist(ask, limit_s=10, what="asking", awaits_routes=True) == "there"
    assert len(no_pause) == 5
    assert caplog.text.count("no route") == caplog.text.count("refused") == 1


def test_tries_of_a_send_fill_the_time() -> None:
    for limit_s in (0.1, 1.0, 30.0, 300.0):
        pauses = [0.05 * 2**n for n in range(patience.send_retries(limit_s))]
        assert limit_s <= sum(pauses) <= 2.1 * limit_s
