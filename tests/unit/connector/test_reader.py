"""The driver's side: what Spark calls, in the order in which its versions call it."""

import json
import pickle
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from tests.unit.connector.fake import FakeBroker, FakeClient

from pymq.errors import (
    BrokerError,
    ConfigurationError,
    ConnectionFailed,
    OffsetOutOfRange,
    PymqError,
    RouteNotFound,
)
from pymq.protocol.bodies import MessageQueue
from pyspark_pymq import reader as readers
from pyspark_pymq import subscribed_topics
from pyspark_pymq.offsets import QueueRange
from pyspark_pymq.options import source_options
from pyspark_pymq.reader import PymqBatchReader, PymqStreamReader, QueuesPartition
from pyspark_pymq.source_columns import default_schema
from pyspark_pymq.subscribed_topics import SubscribedTopics

Q0, Q1, Q2 = (MessageQueue("orders", "broker-a", number) for number in range(3))
OPTIONS = {"nameserver": "a:1", "subscribe": "orders"}
SCHEMA = default_schema(properties=False)
SINCE = 1_000_000 - readers.CLOCK_SKEW_MS  # of a start at the latest messages


class Time:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> None:
        assert 0 < seconds < subscribed_topics.PAUSE_MAX_S + 1e-6
        self.now_s += seconds


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch, clock: Time) -> FakeBroker:
    fake = FakeBroker(first={Q0: 5})
    fake.add(Q0, *[(b"x", {})] * 10)
    fake.add(Q1, *[(b"x", {})] * 10)
    monkeypatch.setitem(SubscribedTopics.__init__.__kwdefaults__, "connect", fake.client)
    monkeypatch.setitem(SubscribedTopics.__init__.__kwdefaults__, "monotonic_s", clock)
    monkeypatch.setitem(SubscribedTopics.__init__.__kwdefaults__, "wait", clock.wait)
    monkeypatch.setitem(PymqStreamReader.__init__.__kwdefaults__, "wall_s", clock)
    return fake


def stream(**options: str) -> PymqStreamReader:
    return PymqStreamReader(source_options({**OPTIONS, **options}), SCHEMA)


def batch(**options: str) -> PymqBatchReader:
    return PymqBatchReader(source_options({**OPTIONS, **options}), SCHEMA)


def offsets(*values: int, **mark: int) -> dict[str, Any]:
    queues = {str(number): value for number, value in enumerate(values)}
    return {"%": {"v": 1, **mark}, "orders": {"broker-a": queues}}


def planned(partitions: Any) -> list[tuple[int, int, int]]:
    return [(r.queue.queue_id, r.first, r.end) for part in partitions for r in part.ranges]


# ------------------------------------------------------------------------------------ streams


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
    # But a name server that has just started knows nothing of any topic.
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
    monkeypatch.setattr(subscribed_topics, "START_DEADLINE_S", 0.2)
    broker.errors = [ConnectionFailed("refused")] * 100
    with pytest.raises(ConnectionFailed, match="refused"):
        stream().initialOffset()
    broker.errors = [ConnectionFailed("refused")]
    assert stream().initialOffset() == offsets(15, 10, init=True, since=SINCE + 200)


# ------------------------------------------------------------------------ brokers that are away

B0, B1 = (MessageQueue("orders", "broker-b", number) for number in range(2))


@pytest.fixture
def two(broker: FakeBroker) -> FakeBroker:
    """One more broker, with ten messages."""
    broker.add(B0, *[(b"x", {})] * 10)
    return broker


def both(a0: int, a1: int, b0: int | None, **mark: int) -> dict[str, Any]:
    value = offsets(a0, a1, **mark)
    if b0 is not None:
        value["orders"]["broker-b"] = {"0": b0}
    return value


@pytest.fixture(params=["away", "unrouted"])
def gone(request: pytest.FixtureRequest, two: FakeBroker) -> set[str]:
    """Brokers that do not answer; for one that no name server knows that is the same."""
    names: set[str] = getattr(two, request.param)
    if request.param == "unrouted":
        two.away = names
    return names


def test_a_stream_goes_on_without_a_broker_and_then_fails(
    two: FakeBroker, gone: set[str], clock: Time, caplog: pytest.LogCaptureFixture
) -> None:
    reader = stream(retrytimeoutms="60000")
    gone.add("broker-b")
    assert reader.latestOffset(both(5, 0, 3)) == both(15, 10, 3)
    assert "start it within 60 s (option retryTimeoutMs), or the query fails" in caplog.text
    started_s = clock.now_s
    wanted = "broker-b has given no answer about orders/broker-b/0 for 60 s"
    with pytest.raises(ConnectionFailed, match=wanted):
        while clock.now_s < started_s + 100:
            clock.now_s += 0.1
            assert reader.latestOffset(both(15, 10, 3)) == both(15, 10, 3)
    assert 60 <= clock.now_s - started_s < 62
    warnings = [r for r in caplog.records if r.levelname == "WARNING"]
    assert [r.message for r in warnings if "broker broker-b gives no answer" in r.message] and (
        len(warnings) == 1
    )


def test_a_broker_that_is_back_is_read_where_the_stream_stood(
    two: FakeBroker, gone: set[str], clock: Time
) -> None:
    reader = stream()
    gone.add("broker-b")
    for _ in range(3):
        clock.now_s += 40
        assert reader.latestOffset(both(15, 10, 3)) == both(15, 10, 3)
    gone.clear()
    clock.now_s += 40
    assert reader.latestOffset(both(15, 10, 3)) == both(15, 10, 10)
    gone.add("broker-b")
    clock.now_s += 170  # patience begins again
    assert reader.latestOffset(both(15, 10, 10)) == both(15, 10, 10)


def test_a_broker_that_is_gone_for_good_can_be_left_behind(
    two: FakeBroker, gone: set[str], clock: Time, caplog: pytest.LogCaptureFixture
) -> None:
    reader = stream(failondataloss="false", retrytimeoutms="60000")
    gone.add("broker-b")
    for _ in range(100):
        clock.now_s += 10
        assert reader.latestOffset(both(15, 10, 3)) == both(15, 10, 3)
    assert caplog.text.count("continuing (failOnDataLoss=false)") == 1


def test_a_topic_that_is_deleted(broker: FakeBroker, clock: Time) -> None:
    """Its broker says so, and what else the broker has is read at once."""
    deleted = MessageQueue("gone", "broker-a", 0)
    position = offsets(5, 0)
    position["gone"] = {"broker-a": {"0": 3}}
    broker.add(deleted, *[(b"x", {})] * 3)
    broker.deleted.add("gone")
    with pytest.raises(OffsetOutOfRange, match="queue 0 of gone on broker-a.*topic was deleted"):
        stream(subscribe="orders,gone").latestOffset(position)
    reader = stream(subscribe="orders,gone", failondataloss="false")
    position = reader.latestOffset(position)
    assert position["orders"] == offsets(15, 10)["orders"]
    assert position["gone"] == {"broker-a": {"0": 0}}
    before, started_s = len(broker.calls), clock.now_s
    for number in range(16, 30):
        broker.add(Q0, (b"x", {}))
        position = reader.latestOffset(position)
        assert position["orders"] == offsets(number, 10)["orders"]
    assert clock.now_s - started_s < 0.2
    assert not [call for call in broker.calls[before:] if call[0] == "ask"]  # for a second
    broker.deleted.clear()
    broker.queues[deleted].clear()
    broker.add(deleted, (b"again", {}))
    assert reader.latestOffset(position)["gone"] == {"broker-a": {"0": 1}}


def test_a_topic_whose_broker_has_just_registered(two: FakeBroker, clock: Time) -> None:
    """Name servers know the broker, but not all of its topics yet: nothing is lost."""
    two.unrouted.add("broker-b")
    two.registered.add("broker-b")
    position = both(15, 10, 3)
    assert stream().latestOffset(position) == both(15, 10, 10)
    two.away.add("broker-b")
    assert stream().latestOffset(position) == position


def test_what_was_lost_is_told_of_some_queues(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(40):
        broker.add(MessageQueue("orders", "broker-a", number), (b"x", {}))
    beyond = offsets(*[100] * 40)
    with pytest.raises(OffsetOutOfRange, match="and likewise 36 more queues") as caught:
        stream().latestOffset(beyond)
    assert len(str(caught.value)) < 1500
    end = stream(failondataloss="false").latestOffset(beyond)
    assert end["orders"]["broker-a"]["39"] == 1
    assert [record.levelname for record in caplog.records].count("WARNING") == 1


def test_a_silent_broker_is_asked_rarely(
    two: FakeBroker, clock: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not keep the other's messages back: a tenth of the time at most."""
    two.away.add("broker-b")
    asked: list[float] = []
    try_bounds = FakeClient.try_bounds

    def slow(client: FakeClient, queues: Any, *, timeout_s: float | None = None) -> Any:
        some = list(queues)
        if B0 in some:
            asked.append(timeout_s or 3.0)
            clock.now_s += timeout_s or 3.0
        return try_bounds(client, some)

    monkeypatch.setattr(FakeClient, "try_bounds", slow)
    reader = stream()
    started_s = clock.now_s
    while clock.now_s < started_s + 100:
        clock.now_s += 0.1
        reader.latestOffset(both(15, 10, 3))
    assert asked[:3] == [3.0, 0.5, 1.0] and max(asked) == 3.0
    assert sum(asked[1:]) < 0.1 * (clock.now_s - started_s)
    # A query that starts has no others to serve: it goes on as soon as the broker does.
    started_s = clock.now_s

    def back(seconds: float) -> None:
        clock.wait(seconds)
        if clock.now_s > started_s + 10:
            two.away.clear()

    monkeypatch.setitem(SubscribedTopics.__init__.__kwdefaults__, "wait", back)
    assert len(planned(batch().partitions())) == 3
    assert clock.now_s - started_s < 15


def test_available_now_does_not_end_without_a_broker(
    two: FakeBroker, gone: set[str], clock: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone.add("broker-b")
    reader = stream(retrytimeoutms="60000")
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(both(5, 0, 3)) == both(15, 10, 3)  # what is there first
    two.add(Q0, (b"late", {}))
    with pytest.raises(ConnectionFailed, match="broker-b has given no answer"):
        reader.latestOffset(both(15, 10, 3))

    again = stream(retrytimeoutms="60000")
    again.prepareForTriggerAvailableNow()
    came_back_s = clock.now_s + 5

    def wait(seconds: float) -> None:
        clock.wait(seconds)
        if clock.now_s > came_back_s:
            gone.clear()

    monkeypatch.setattr(again._topics, "_wait", wait)
    assert again.latestOffset(both(16, 10, 3)) == both(16, 10, 10)
    two.add(B0, (b"later", {}))
    assert again.latestOffset(both(16, 10, 10)) == both(16, 10, 10)


def test_a_latest_start_without_a_broker_does_not_replay_its_history(
    two: FakeBroker, clock: Time
) -> None:
    two.unrouted.add("broker-b")
    reader = stream()
    initial = reader.initialOffset()
    assert initial == both(15, 10, None, init=True, since=SINCE)
    position = reader.latestOffset(initial)
    clock.now_s += 500
    two.unrouted.clear()
    two.offset_at[SINCE] = 7  # three of its ten messages came after the start
    position = reader.latestOffset(position)
    assert position == both(15, 10, 7, since=SINCE)
    assert reader.latestOffset(position) == both(15, 10, 10, since=SINCE)
    # The journaled offsets alone tell it: another process begins at the same message.
    again = stream().latestOffset(both(15, 10, None, since=SINCE))
    assert again == both(15, 10, 7, since=SINCE)
    # Checkpoints of earlier versions do not have the time: nothing is left out.
    assert stream().latestOffset(both(15, 10, None)) == both(15, 10, 0)
    assert stream(startingoffsets="earliest").initialOffset() == both(5, 0, 0, init=True)


def test_a_queue_whose_start_cannot_be_asked_for_is_met_later(
    two: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = stream()
    before = both(15, 10, None, since=SINCE)

    starting = BrokerError.of(14, "starting", peer="b:1", request="the offset")
    for failure in (ConnectionFailed("refused"), starting):

        def fails(*_: Any, error: PymqError = failure) -> int:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(FakeClient, "offset_by_time", fails)
            assert reader.latestOffset(before) == before
    assert reader.latestOffset(before) == both(15, 10, 0, since=SINCE)


def test_expected_brokers(
    two: FakeBroker, clock: Time, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"expectedbrokers": "broker-a, broker-b", "retrytimeoutms": "60000"}
    assert len(planned(batch(**options).partitions())) == 3
    two.unrouted.add("broker-b")
    started_s = clock.now_s
    with pytest.raises(RouteNotFound, match=r"expectedBrokers: broker-b not found.*on broker-a"):
        batch(**options).partitions()
    assert 59 < clock.now_s - started_s <= 60
    (said,) = (record.getMessage() for record in caplog.records)  # a minute is long without a word
    assert said.startswith("the query waits up to 60 s") and "broker-b not found" in said
    with pytest.raises(RouteNotFound, match="expectedBrokers: broker-b"):
        stream(**options).initialOffset()
    two.unrouted.add("broker-a")
    with pytest.raises(RouteNotFound, match="topic orders"):
        batch(**options).partitions()
    two.unrouted.clear()
    two.away.add("broker-b")
    started_s = clock.now_s
    with pytest.raises(ConnectionFailed, match=r"broker broker-b has given no answer.*broker-b/0"):
        batch().partitions()
    assert 29 < clock.now_s - started_s <= 30


def test_a_broker_that_name_servers_forget_during_a_start(
    two: FakeBroker, clock: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its queues have been seen: going on without them would be silent."""
    two.away.add("broker-b")
    started_s = clock.now_s

    def wait(seconds: float) -> None:
        clock.wait(seconds)
        if clock.now_s > started_s + 5:
            two.unrouted.add("broker-b")
        if clock.now_s > returns_s:
            two.away.clear()
            two.unrouted.clear()

    monkeypatch.setitem(SubscribedTopics.__init__.__kwdefaults__, "wait", wait)
    returns_s = started_s + 10
    assert len(planned(batch().partitions())) == 3
    started_s, returns_s = clock.now_s, clock.now_s + 100
    two.away.add("broker-b")
    wanted = "broker-b had queues of the topics when the query began.*start it"
    with pytest.raises(RouteNotFound, match=wanted):
        stream().initialOffset()
    assert 29 < clock.now_s - started_s <= 30


def test_a_lagging_slave_is_no_loss(
    two: FakeBroker, clock: Time, caplog: pytest.LogCaptureFixture
) -> None:
    two.only_slaves.add("broker-b")
    for lenient in ("true", "false"):
        reader = stream(failondataloss=lenient)
        assert reader.latestOffset(both(15, 10, 14)) == both(15, 10, 14)
        assert reader.latestOffset(both(15, 10, 9)) == both(15, 10, 9)  # asked again later
        clock.now_s += 40
        assert reader.latestOffset(both(15, 10, 9)) == both(15, 10, 10)
    assert "its slave lags behind" in caplog.text and "data loss" not in caplog.text
    two.add(B1, *[(b"x", {})] * 4)  # of which the slave has everything
    reader = stream()
    wanted = both(15, 10, 14)
    wanted["orders"]["broker-b"]["1"] = 4
    assert reader.latestOffset(wanted) == wanted
    two.add(B1, (b"x", {}))
    end = reader.latestOffset(wanted)
    assert end["orders"]["broker-b"] == {"0": 14, "1": 5}
    assert "no answer about orders/broker-b/0, which" in caplog.text
    del two.queues[B1]
    two.trim(B0, 5)
    assert stream(failondataloss="false").latestOffset(both(15, 10, 3)) == both(15, 10, 3)
    two.only_slaves.clear()
    assert stream(failondataloss="false").latestOffset(both(15, 10, 3)) == both(15, 10, 10)
    with pytest.raises(OffsetOutOfRange, match="ends at 10"):
        stream().latestOffset(both(15, 10, 14))


def test_the_drivers_routes_travel_to_the_tasks(two: FakeBroker) -> None:
    reader = stream(minpartitions="2")
    assert [part.routes for part in reader.partitions(both(5, 0, 3), both(6, 0, 4))] == [(), ()]
    reader.latestOffset(both(5, 0, 3))
    parts = reader.partitions(both(5, 0, 3), both(6, 0, 4))
    assert [[sorted(route.addresses) for route in part.routes] for part in parts] == [
        [["broker-a"]],
        [["broker-b"]],
    ]
    (part,) = batch(maxpartitions="1").partitions()
    assert sorted(part.routes[0].addresses) == ["broker-a", "broker-b"]


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


def test_batch_bounds_that_are_not_there(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    for options, text in (
        ({"startingoffsets": '{"orders": {"broker-a": {"0": 1}}}'}, r"1\.\.4 are gone"),
        ({"startingoffsets": '{"orders": {"broker-a": {"1": 11}}}'}, "ends at 10"),
        ({"endingoffsets": '{"orders": {"broker-a": {"1": 11}}}'}, "11 was asked for"),
        # Nothing to read, but not because there is nothing new: that is no success.
        ({"endingoffsets": '{"orders": {"broker-a": {"0": 4}}}'}, "starts at 5, after the end.*4"),
        (
            {"startingoffsets": "latest", "endingoffsets": '{"orders": {"broker-a": {"1": 2}}}'},
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
