"""Where queries start and end: by time, by what a group has committed, by offsets."""

import json
import logging

import pytest
from tests.unit.connector.fake import FakeBroker, FakeClient
from tests.unit.connector.reading import (
    B0,
    NOW_S,
    Q0,
    Q1,
    Q2,
    SINCE,
    Time,
    batch,
    both,
    offsets,
    planned,
    stream,
)

from pymq.errors import ConfigurationError, ConnectionFailed, OffsetOutOfRange
from pymq.protocol.bodies import MessageQueue
from pyspark_pymq.source import reader as readers
from pyspark_pymq.source.subscribed_topics import SubscribedTopics

T = 1000 * NOW_S - 100_000  # 1976-05-03T19:31:40Z
TIME = {"startingtimestamp": str(T)}
GROUP = {"startingoffsets": "group", "consumergroup": "G"}


# --------------------------------------------------------------------------------- start by time


def test_a_start_by_time_is_journaled(broker: FakeBroker, clock: Time) -> None:
    broker.offset_at[T] = 8
    reader = stream(**TIME)
    initial = reader.initialOffset()
    assert initial == offsets(8, 8, init=True, since=T)
    first_end = reader.latestOffset(initial)
    broker.trim(Q0, 7)
    broker.offset_at[T] = 9  # would be another one by now
    again = stream(**TIME)
    assert again.partitions(again.initialOffset(), first_end) == []
    end = again.latestOffset(first_end)
    assert planned(again.partitions(first_end, end)) == [(0, 8, 15), (1, 8, 10)]


def test_a_start_before_the_first_message(broker: FakeBroker) -> None:
    broker.offset_at[T] = 0
    assert stream(**TIME).initialOffset() == offsets(5, 0, init=True, since=T)


def test_times_with_nothing_behind_them(broker: FakeBroker) -> None:
    broker.offset_at[T] = 12  # beyond all of queue 1
    wanted = r"at or after 1976-05-03T19:31:40\.000Z in orders/broker-a/1\..*Strategy to latest"
    for reader in (stream(**TIME), batch(**TIME)):
        with pytest.raises(OffsetOutOfRange, match=wanted):
            reader.initialOffset() if hasattr(reader, "initialOffset") else reader.partitions()
    lenient = {**TIME, "startingoffsetsbytimestampstrategy": "latest"}
    assert stream(**lenient).initialOffset() == offsets(12, 10, init=True, since=T)
    assert planned(batch(**lenient).partitions()) == [(0, 12, 15)]


def test_brokers_that_give_the_last_message(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocketMQ 4.9 does where nothing is late enough; the message itself tells which it is."""
    asked = FakeClient.offset_by_time

    def like_4_9(client: FakeClient, queue: object, timestamp_ms: int) -> int:
        found = asked(client, queue, timestamp_ms)  # type: ignore[arg-type]
        return min(found, client._bounds(queue)[1] - 1)  # type: ignore[arg-type]

    monkeypatch.setattr(FakeClient, "offset_by_time", like_4_9)
    broker.offset_at = {T: 99, T - 1: 14}
    with pytest.raises(OffsetOutOfRange, match="no message was stored"):
        stream(**TIME).initialOffset()
    lenient = {"startingtimestamp": str(T - 1), "startingoffsetsbytimestampstrategy": "latest"}
    assert stream(**lenient).initialOffset()["orders"] == offsets(14, 10)["orders"]
    broker.queues[Q1].clear()
    with pytest.raises(OffsetOutOfRange, match="orders/broker-a/1"):
        stream(startingtimestamp=str(T - 1)).initialOffset()


def test_times_by_queue(broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    broker.offset_at = {T: 8, T + 1000: 9}
    times = json.dumps({"orders": {"broker-a": {"0": T, "1": "1976-05-03T20:31:41+01:00"}}})
    by_queue = {"startingoffsetsbytimestamp": times, "startingoffsets": "latest"}
    assert stream(**by_queue).initialOffset() == offsets(8, 9, init=True)
    assert "startingOffsetsByTimestamp takes precedence over startingOffsets" in caplog.text
    caplog.clear()
    assert stream(**by_queue, **TIME).initialOffset()["orders"] == offsets(8, 8)["orders"]
    assert "startingTimestamp takes precedence over startingOffsetsByTimestamp and" in caplog.text
    one = json.dumps({"orders": {"broker-a": {"1": T}}})
    assert stream(startingoffsetsbytimestamp=one).initialOffset() == offsets(5, 8, init=True)
    with pytest.raises(ConfigurationError, match="orders/broker-a/7"):
        seventh = json.dumps({"orders": {"broker-a": {"7": T}}})
        stream(startingoffsetsbytimestamp=seventh).initialOffset()


def test_a_broker_that_comes_late_begins_at_that_time_too(two: FakeBroker, clock: Time) -> None:
    two.offset_at[T] = 7
    two.unrouted.add("broker-b")
    reader = stream(**TIME)
    position = reader.latestOffset(reader.initialOffset())
    assert position == both(7, 7, None, since=T)
    two.unrouted.clear()
    clock.now_s += 1
    assert reader.latestOffset(position)["orders"]["broker-b"] == {"0": 7}


def test_a_start_just_now_is_not_earlier_for_later_queues(broker: FakeBroker) -> None:
    just_now = 1000 * NOW_S - 1
    broker.offset_at[just_now] = 9
    found = stream(startingtimestamp=str(just_now)).initialOffset()
    assert found == offsets(9, 9, init=True, since=just_now)


def test_a_start_in_the_future_passes_over_no_later_queue(broker: FakeBroker, clock: Time) -> None:
    future = 2000 * NOW_S
    broker.offset_at[future] = 99
    reader = stream(startingtimestamp=str(future), startingoffsetsbytimestampstrategy="latest")
    assert reader.initialOffset() == offsets(15, 10, init=True, since=SINCE)


def test_a_broker_that_restarts_while_starts_are_asked_for(
    two: FakeBroker, clock: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers about bounds, and is away just after that."""
    try_bounds = FakeClient.try_bounds
    two.offset_at[T] = 7
    two.committed = {("G", queue): 6 for queue in (Q0, Q1, B0)}
    for options, wanted in ((TIME, 7), (GROUP, 6)):
        for limit_s in (10, 100):
            started_s = clock.now_s

            def wait(seconds: float, until_s: float = started_s + limit_s) -> None:
                clock.wait(seconds)
                if clock.now_s > until_s:
                    two.away.clear()

            def stops(client: FakeClient, queues: object, **more: object) -> object:
                found = try_bounds(client, queues, **more)  # type: ignore[arg-type]
                two.away.add("broker-b")
                return found

            with monkeypatch.context() as patch:
                patch.setitem(SubscribedTopics.__init__.__kwdefaults__, "wait", wait)
                patch.setattr(FakeClient, "try_bounds", stops)
                reader = stream(**options)
                if limit_s > 30:
                    with pytest.raises(ConnectionFailed, match="broker-b is away"):
                        reader.initialOffset()
                    assert 29 < clock.now_s - started_s <= 30
                else:
                    found = reader.initialOffset()["orders"]
                    assert found == both(wanted, wanted, wanted)["orders"]
                    assert clock.now_s - started_s < 11
            two.away.clear()


def test_named_queues_of_a_broker_that_is_away_are_waited_for(
    two: FakeBroker, clock: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = json.dumps({"orders": {"broker-b": {"0": 4}}})
    two.unrouted.add("broker-b")
    started_s = clock.now_s

    def wait(seconds: float) -> None:
        clock.wait(seconds)
        if clock.now_s > started_s + 10:
            two.unrouted.clear()

    monkeypatch.setitem(SubscribedTopics.__init__.__kwdefaults__, "wait", wait)
    assert stream(startingoffsets=text).initialOffset() == both(5, 0, 4, init=True)
    two.unrouted.add("broker-b")
    started_s = clock.now_s
    assert planned(batch(endingoffsets=text).partitions())[-1] == (0, 0, 4)


# -------------------------------------------------------------------------------- start by group


def test_a_start_where_a_group_stands(broker: FakeBroker, clock: Time) -> None:
    broker.committed = {("G", Q0): 9, ("G", Q1): 3, ("other", Q0): 1}
    reader = stream(**GROUP)
    initial = reader.initialOffset()
    assert initial["orders"] == offsets(9, 3)["orders"]
    assert initial["%"] == {"v": 1, "init": True, "group": "G"}
    first_end = reader.latestOffset(initial)
    broker.committed[("G", Q0)] = 15  # the group goes on consuming
    again = stream(**GROUP)
    assert again.partitions(again.initialOffset(), first_end) == []
    end = again.latestOffset(first_end)
    assert planned(again.partitions(first_end, end)) == [(0, 9, 15), (1, 3, 10)]
    assert planned(batch(**GROUP).partitions()) == [(1, 3, 10)]


def test_queues_in_which_the_group_has_committed_nothing(broker: FakeBroker) -> None:
    broker.committed = {("G", Q1): 3}
    for fallback, first, mark in (
        ({}, 5, {}),
        ({"groupoffsetfallback": "earliest"}, 5, {}),
        ({"groupoffsetfallback": "latest"}, 15, {"since": SINCE}),
    ):
        found = stream(**GROUP, **fallback).initialOffset()
        assert found["orders"] == offsets(first, 3)["orders"]
        assert found["%"] == {"v": 1, "init": True, "group": "G", **mark}
    strict = stream(**GROUP, groupoffsetfallback="fail")
    wanted = "consumerGroup G has committed nothing in orders/broker-a/0; check its name"
    with pytest.raises(ConfigurationError, match=wanted):
        strict.initialOffset()


def test_what_a_group_has_not_consumed_in_time_is_lost(broker: FakeBroker) -> None:
    broker.committed = {("G", Q0): 2, ("G", Q1): 3}
    reader = stream(**GROUP)
    position = reader.latestOffset(reader.initialOffset())
    with pytest.raises(OffsetOutOfRange, match=r"2\.\.4 are gone"):
        reader.latestOffset(position)
    with pytest.raises(OffsetOutOfRange, match=r"2\.\.4 are gone"):
        batch(**GROUP).partitions()


def test_a_late_broker_begins_where_the_group_stands(
    two: FakeBroker, clock: Time, caplog: pytest.LogCaptureFixture
) -> None:
    two.committed = {("G", queue): 6 for queue in (Q0, Q1, B0)}
    two.unrouted.add("broker-b")
    reader = stream(**GROUP)
    position = reader.latestOffset(reader.initialOffset())
    two.unrouted.clear()
    two.add(Q2, (b"x", {}))
    for away in (True, False):
        clock.now_s += 60
        patch = pytest.MonkeyPatch()
        if away:  # between two questions

            def fails(*_: object) -> int:
                raise ConnectionFailed("refused")

            patch.setattr(FakeClient, "stored_commit", fails)
        # Only what is journaled counts, not the options of the day.
        end = stream(startingoffsets="latest").latestOffset(position)
        patch.undo()
        if away:
            assert "broker-b" not in end["orders"] and "2" not in end["orders"]["broker-a"]
            assert "queues of broker broker-b are new, and are looked at later" in caplog.text
    assert end["orders"]["broker-b"] == {"0": 6}
    assert end["orders"]["broker-a"]["2"] == 0  # of which the group knows nothing
    assert end["%"] == {"v": 1, "group": "G"}


def test_a_commit_beyond_a_new_queue_is_moved_to_it(
    two: FakeBroker, clock: Time, caplog: pytest.LogCaptureFixture
) -> None:
    """It is of another topic of that name, or too old; nothing of that is to be journaled."""
    two.trim(B0, 4)
    position = both(15, 10, None)
    position["%"]["group"] = "G"
    for committed, begins in ((500, 10), (2, 4), (10, 10), (4, 4), (7, 7)):
        caplog.clear()
        two.committed = {("G", B0): committed}
        reader = stream()
        found = reader.latestOffset(position)
        assert found["orders"]["broker-b"] == {"0": begins}
        warned = f"queue 0 of orders on broker-b is new, and group G has committed {committed} "
        assert (warned in caplog.text) == (begins != committed)
        clock.now_s += 1
        assert reader.latestOffset(found)["orders"]["broker-b"] == {"0": 10}
    # What the group has consumed since the last answer, or beyond where the query ends, is not so.
    two.committed = {("G", B0): 9}
    caplog.clear()
    ending = json.dumps({"orders": {"broker-b": {"0": 6}}})
    assert stream(endingoffsets=ending).latestOffset(position)["orders"]["broker-b"] == {"0": 9}
    assert "has committed" not in caplog.text
    # A slave that lags behind knows nothing of it.
    two.committed = {("G", B0): 12}
    two.only_slaves.add("broker-b")
    reader = stream()
    assert reader.latestOffset(position) == position
    assert "and its slave lags" in caplog.text
    two.only_slaves.clear()
    two.add(B0, *[(b"x", {})] * 5)
    clock.now_s += 1
    assert reader.latestOffset(position)["orders"]["broker-b"] == {"0": 12}


def test_starts_that_move_are_journaled_before_4_2(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "ReadAllAvailable", None)
    broker.committed = {("G", Q0): 9, ("G", Q1): 3}
    broker.offset_at[T] = 8
    for options, wanted in ((GROUP, (9, 3)), (TIME, (8, 8))):
        reader = stream(**options)
        end = reader.latestOffset()
        assert end["orders"] == offsets(*wanted)["orders"]
        initial = reader.initialOffset()
        assert initial["%"]["init"] is True
        assert reader.partitions(initial, end) == []
        assert planned(reader.partitions(end, reader.latestOffset()))


# ------------------------------------------------------------------------------------------ ends


def test_batches_end_at_times(broker: FakeBroker) -> None:
    broker.offset_at = {T: 7, T + 1: 12}
    assert planned(batch(endingtimestamp=str(T)).partitions()) == [(0, 5, 7), (1, 0, 7)]
    # Nothing was stored so late in queue 1: all of it.
    assert planned(batch(endingtimestamp=str(T + 1)).partitions()) == [(0, 5, 12), (1, 0, 10)]
    between = batch(**TIME, endingtimestamp=str(T + 1))
    assert planned(between.partitions()) == [(0, 7, 12), (1, 7, 10)]
    one = json.dumps({"orders": {"broker-a": {"0": T}}})
    found = batch(endingoffsetsbytimestamp=one).partitions()
    assert planned(found) == [(0, 5, 7), (1, 0, 10)]
    assert planned(batch(**TIME, endingtimestamp=str(T)).partitions()) == []


@pytest.mark.parametrize("start", ["earliest", "time"])
@pytest.mark.parametrize("end", ["latest", "time"])
def test_batches_of_queues_that_grow_while_moments_are_looked_up(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, start: str, end: str
) -> None:
    """Nothing was stored so late, so a batch ends where its queues do, as of one of its answers."""
    broker.offset_at[T] = broker.offset_at[T + 1] = 1000
    offset_by_time = FakeClient.offset_by_time

    def grows(client: FakeClient, queue: MessageQueue, timestamp_ms: int) -> int:
        broker.add(queue, (b"x", {}))
        return offset_by_time(client, queue, timestamp_ms)

    monkeypatch.setattr(FakeClient, "offset_by_time", grows)
    options = {"endingtimestamp": str(T + 1)} if end == "time" else {}
    if start == "time":
        options |= {**TIME, "startingoffsetsbytimestampstrategy": "latest"}
    found = planned(batch(**options).partitions())
    if start == "time":
        assert found == []
    else:
        assert found == [(0, 5, 15), (1, 0, 10)]


def test_a_stream_ends_at_offsets(
    broker: FakeBroker, clock: Time, caplog: pytest.LogCaptureFixture
) -> None:
    text = json.dumps({"orders": {"broker-a": {"0": 12, "1": 4}}})
    reader = stream(startingoffsets="earliest", endingoffsets=text)
    position = reader.latestOffset(reader.initialOffset())
    position = reader.latestOffset(position)
    assert position == offsets(12, 4)
    for again in (reader, stream(endingoffsets=text)):
        caplog.clear()
        broker.add(Q0, (b"late", {}))
        clock.now_s += 1
        assert again.latestOffset(position) == position
        assert again.latestOffset(position) == position
        if again is reader:
            assert caplog.text.count("every queue has been read up to the end") == 1
    # A checkpoint that is beyond it already stays where it is.
    assert stream(endingoffsets=text).latestOffset(offsets(14, 2)) == offsets(14, 4)
    one = json.dumps({"orders": {"broker-a": {"0": 12}}})
    assert stream(endingoffsets=one).latestOffset(offsets(5, 0)) == offsets(12, 10)


@pytest.mark.parametrize("how", ["offset", "time"])
def test_what_becomes_of_a_queue_after_its_end_is_no_loss(
    two: FakeBroker, clock: Time, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    two.offset_at[T] = 8
    text = json.dumps({"orders": {"broker-a": {"0": 8, "1": 8}, "broker-b": {"0": 8}}})
    options = {"endingoffsets": text} if how == "offset" else {"endingtimestamp": str(T)}
    running, lenient = stream(**options), stream(**options, failondataloss="false")
    for reader in (running, lenient):
        assert reader.latestOffset(both(5, 0, 0)) == both(8, 8, 8)
    two.trim(Q0, 12)  # they expire
    two.queues[Q1].clear()  # its topic is created again
    del two.queues[B0]
    two.away.add("broker-b")
    readers_of_both = [running, lenient]
    if how == "offset":  # at a moment messages that are gone could have been stored before it
        readers_of_both.append(stream(**options))
    caplog.clear()
    for reader in readers_of_both:
        clock.now_s += 60
        assert reader.latestOffset(both(8, 8, 8)) == both(8, 8, 8)
        reader.prepareForTriggerAvailableNow()
        assert reader.latestOffset(both(8, 8, 8)) == both(8, 8, 8)
    assert "data loss" not in caplog.text
    with pytest.raises(OffsetOutOfRange, match=r"queue 0 of orders on broker-a: messages 7\.\."):
        running.latestOffset(both(7, 8, 8))


def test_a_stream_ends_at_a_time(two: FakeBroker, clock: Time) -> None:
    end_ms = 1000 * NOW_S + 30_000  # half a minute from now
    reader = stream(startingoffsets="earliest", endingtimestamp=str(end_ms), retrytimeoutms="60000")
    two.offset_at[end_ms] = 99  # nothing is so late yet
    position = reader.latestOffset(reader.initialOffset())
    position = reader.latestOffset(position)
    assert position == both(15, 10, 10)
    clock.now_s += 40
    two.offset_at[end_ms] = 16
    two.add(Q0, (b"before", {}), (b"after", {}))
    position = reader.latestOffset(position)
    assert position == both(16, 10, 10)
    two.offset_at[end_ms] = 99  # it is not asked about any more
    two.add(Q0, (b"after", {}))
    clock.now_s += 1
    assert reader.latestOffset(position) == position
    two.offset_at[end_ms] = 16
    two.add(B0, *[(b"x", {})] * 8)
    assert stream(endingtimestamp=str(end_ms)).latestOffset(position) == both(16, 10, 16)


def test_an_end_far_ahead_is_not_asked_about(broker: FakeBroker, clock: Time) -> None:
    reader = stream(endingtimestamp=str(2000 * NOW_S))
    assert reader.latestOffset(offsets(5, 0)) == offsets(15, 10)
    assert not [call for call in broker.calls if call[0] == "offset_by_time"]


def test_an_end_that_cannot_be_looked_up_now(
    two: FakeBroker, clock: Time, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is read beyond it, and nothing is left out."""
    two.offset_at[T] = 7
    asked = FakeClient.offset_by_time
    until_s = clock.now_s + 5

    def fails(client: FakeClient, queue: object, timestamp_ms: int) -> int:
        if queue == B0 and clock.now_s < until_s:
            raise ConnectionFailed("refused")
        return asked(client, queue, timestamp_ms)  # type: ignore[arg-type]

    monkeypatch.setattr(FakeClient, "offset_by_time", fails)
    reader = stream(endingtimestamp=str(T))
    assert reader.latestOffset(both(5, 0, 3)) == both(7, 7, 3)
    assert caplog.text.count("where queues of broker broker-b end is looked up later") == 1
    clock.now_s += 6
    assert reader.latestOffset(both(7, 7, 3)) == both(7, 7, 7)
    until_s = clock.now_s + 5
    ending = stream(endingtimestamp=str(T))
    ending.prepareForTriggerAvailableNow()
    assert ending.latestOffset(both(5, 0, 3)) == both(7, 7, 3)
    assert ending.latestOffset(both(7, 7, 3)) == both(7, 7, 7)  # having waited
    assert clock.now_s > until_s


def test_available_now_ends_at_the_end(broker: FakeBroker, clock: Time) -> None:
    broker.offset_at[T] = 7
    reader = stream(startingoffsets="earliest", endingtimestamp=str(T), maxoffsetspertrigger="3")
    reader.prepareForTriggerAvailableNow()
    position = reader.latestOffset(reader.initialOffset())
    seen = 0
    for _ in range(20):
        end = reader.latestOffset(position, reader.getDefaultReadLimit())
        if end == position:
            break
        seen += sum(last - first for _, first, last in planned(reader.partitions(position, end)))
        position = end
    assert position == offsets(7, 7) and seen == 9


# ------------------------------------------------------------------------------------------- log


def test_a_start_says_where_and_why(broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    broker.committed = {("G", Q0): 9}
    broker.offset_at[T] = 8
    one = json.dumps({"orders": {"broker-a": {"0": 7}}})
    cases = (
        ({}, "orders/broker-a/0 at 15 (latest, 0 messages follow); orders/broker-a/1 at 10"),
        (TIME, "0 at 8 (timestamp 1976-05-03T19:31:40.000Z, 7 messages follow)"),
        (GROUP, "0 at 9 (group G committed it, 6 messages follow)"),
        (GROUP, "1 at 0 (group G committed nothing: earliest, 10 messages follow)"),
        ({"startingoffsets": one}, "0 at 7 (startingOffsets, 8"),
        ({"startingoffsets": one}, "1 at 0 (earliest, 10"),
    )
    for options, text in cases:
        caplog.clear()
        with caplog.at_level(logging.INFO):
            reader = stream(**options)
            end = reader.latestOffset(reader.initialOffset())
            reader.latestOffset(end)
        (told,) = (r.getMessage() for r in caplog.records if "stream of" in r.getMessage())
        assert told.startswith("stream of subscribe=orders: ") and text in told
        caplog.clear()
        with caplog.at_level(logging.INFO):
            again = stream(**options)
            again.initialOffset()  # as when Spark runs batch 0 again
            again.latestOffset(offsets(11, 3))
            again.latestOffset(offsets(11, 3))
        (told,) = (r.getMessage() for r in caplog.records if "stream of" in r.getMessage())
        assert "0 at 11 (checkpoint, 4 messages follow)" in told and "1 at 3 (checkpoint" in told
    caplog.clear()
    with caplog.at_level(logging.INFO):
        batch().partitions()
    assert "batch of subscribe=orders: orders/broker-a/0 at 5 (earliest, 10 messages" in caplog.text
