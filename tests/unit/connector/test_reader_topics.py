"""Topics by pattern and by queue: new ones, deleted ones, none at all."""

import logging

import pytest
from tests.unit.connector.fake import FakeBroker
from tests.unit.connector.reading import B0, Q0, Q1, SINCE, Time, batch, offsets, planned, stream

from pymq.errors import ConfigurationError, ConnectionFailed, OffsetOutOfRange, RouteNotFound
from pymq.protocol.bodies import MessageQueue
from pyspark_pymq.source.reader import PymqStreamReader
from pyspark_pymq.source.source import Source

NEW = MessageQueue("orders-eu", "broker-a", 0)


def pattern(text: str = "orders.*", **options: str) -> PymqStreamReader:
    return stream(subscribe="", subscribepattern=text, **options)


def listings(broker: FakeBroker) -> int:
    return sum(call[0] == "topic_names" for call in broker.calls)


def test_a_new_topic_is_found_and_read_once(broker: FakeBroker, clock: Time) -> None:
    broker.own_topics = {"TBW102", "broker-a"}
    reader = pattern(startingoffsets="earliest")
    initial = reader.initialOffset()
    assert initial == offsets(5, 0, init=True)
    position = reader.latestOffset(reader.latestOffset(initial))
    assert position == offsets(15, 10)
    broker.add(NEW, *[(b"x", {})] * 3)
    clock.now_s += 29
    assert reader.latestOffset(position) == position
    clock.now_s += 1
    discovered = reader.latestOffset(position)
    assert discovered == {**offsets(15, 10), "orders-eu": {"broker-a": {"0": 0}}}
    assert reader.partitions(position, discovered) == []
    # Restarted here, another process reads on from what is journaled.
    for one in (reader, pattern()):
        end = one.latestOffset(discovered)
        assert end["orders-eu"] == {"broker-a": {"0": 3}}
        (part,) = one.partitions(discovered, end)
        assert [(r.queue, r.first, r.end) for r in part.ranges] == [(NEW, 0, 3)]


def test_topics_are_looked_for_now_and_then(broker: FakeBroker, clock: Time) -> None:
    reader = pattern(topicrefreshms="5000", maxoffsetspertrigger="1")
    position = offsets(5, 0)
    started_s = clock.now_s
    for _ in range(100):  # a backlog that fills every batch, which needs no question otherwise
        clock.now_s += 0.2
        reader.latestOffset(position)
    assert clock.now_s - started_s == pytest.approx(20, abs=1)
    assert listings(broker) == 4
    broker.calls.clear()
    by_name = stream()
    for _ in range(100):
        clock.now_s += 1
        by_name.latestOffset(position)
    assert listings(broker) == 0


def test_a_latest_start_reads_all_of_a_topic_that_is_created_later(
    broker: FakeBroker, clock: Time
) -> None:
    reader = pattern()
    position = reader.latestOffset(reader.initialOffset())
    assert position == offsets(15, 10, since=SINCE)
    broker.add(NEW, *[(b"x", {})] * 3)
    clock.now_s += 31
    assert reader.latestOffset(position)["orders-eu"] == {"broker-a": {"0": 0}}


def test_a_stream_waits_for_topics(
    broker: FakeBroker, clock: Time, caplog: pytest.LogCaptureFixture
) -> None:
    reader = pattern("invoices", startingoffsets="earliest")
    initial = reader.initialOffset()
    position = reader.latestOffset(initial)
    assert position == {"%": {"v": 1}} and initial != position
    assert reader.partitions(initial, position) == []
    for _ in range(20):
        clock.now_s += 10
        assert reader.latestOffset(position) == position
    text = "subscribePattern=invoices: no topic matches yet; the query waits for one"
    assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == [text]
    broker.add(MessageQueue("invoices", "broker-a", 0), (b"x", {}))
    clock.now_s += 30
    position = reader.latestOffset(position)
    assert position["invoices"] == {"broker-a": {"0": 0}}
    assert reader.latestOffset(position)["invoices"] == {"broker-a": {"0": 1}}


def test_a_batch_without_topics_fails(broker: FakeBroker, clock: Time) -> None:
    started_s = clock.now_s
    wanted = r"subscribePattern=order: no topic matches; there are orders\. .*orders\.\* rather"
    with pytest.raises(RouteNotFound, match=wanted):
        batch(subscribe="", subscribepattern="order").partitions()
    assert clock.now_s == started_s
    broker.unrouted.add("broker-a")  # the name servers have just started
    with pytest.raises(RouteNotFound, match="no topic matches"):
        batch(subscribe="", subscribepattern="order").partitions()
    assert 29 < clock.now_s - started_s <= 30
    broker.unrouted.clear()
    found = batch(subscribe="", subscribepattern="ord.*").partitions()
    assert planned(found) == [(0, 5, 15), (1, 0, 10)]


def test_name_servers_that_are_away_when_topics_are_looked_for(
    broker: FakeBroker, clock: Time, caplog: pytest.LogCaptureFixture
) -> None:
    position = offsets(15, 10)
    broker.add(NEW, (b"x", {}))
    short = {"retrytimeoutms": "60000"}  # which is for brokers, and for starts
    for reader in (pattern(**short), pattern(**short)):
        for _ in range(4):
            broker.errors = [ConnectionFailed("refused")]
            assert reader.latestOffset(position) == position
            clock.now_s += 31
        assert caplog.text.count("looking for new topics is tried again later: refused") == 1
        caplog.clear()
        assert reader.latestOffset(position)["orders-eu"] == {"broker-a": {"0": 0}}
    broker.errors = [ConnectionFailed("refused")] * 100
    with pytest.raises(ConnectionFailed, match="refused"):
        pattern().initialOffset()  # a wrong address is likelier than a restart


def test_name_servers_that_are_away_while_a_stream_waits_for_topics(
    broker: FakeBroker, clock: Time
) -> None:
    reader = pattern("invoices", retrytimeoutms="100000", startingoffsets="earliest")
    position = reader.latestOffset(reader.initialOffset())
    for again in (reader, pattern("invoices", retrytimeoutms="100000")):
        broker.errors = [ConnectionFailed("refused")] * 100
        for _ in range(3):
            clock.now_s += 31
            assert again.latestOffset(position) == position
        clock.now_s += 60
        with pytest.raises(ConnectionFailed, match="refused"):
            again.latestOffset(position)
        broker.errors = []
        clock.now_s += 31
        assert again.latestOffset(position) == position


def test_a_topic_that_vanishes(broker: FakeBroker, clock: Time) -> None:
    broker.add(NEW, *[(b"x", {})] * 3)
    reader = pattern()
    position = {**offsets(15, 10), "orders-eu": {"broker-a": {"0": 1}}}
    assert reader.latestOffset(position)["orders-eu"] == {"broker-a": {"0": 3}}
    broker.deleted.add("orders-eu")
    for again in (reader, pattern()):
        clock.now_s += 31
        with pytest.raises(OffsetOutOfRange, match="orders-eu on broker-a.*topic was deleted"):
            again.latestOffset(position)
    lenient = pattern(failondataloss="false")
    position = lenient.latestOffset(position)
    assert position["orders-eu"] == {"broker-a": {"0": 0}}
    clock.now_s += 31
    broker.add(Q0, (b"x", {}))
    assert lenient.latestOffset(position)["orders"] == offsets(16, 10)["orders"]


def test_a_topic_that_has_no_route_yet(broker: FakeBroker, clock: Time) -> None:
    broker.own_topics.add("orders-soon")  # listed, and no broker has it
    reader = pattern()
    position = offsets(15, 10)
    assert reader.latestOffset(position) == position
    soon = MessageQueue("orders-soon", "broker-a", 0)
    broker.add(soon)
    assert reader.latestOffset(position) == position
    clock.now_s += 31
    assert reader.latestOffset(position)["orders-soon"] == {"broker-a": {"0": 0}}


@pytest.mark.parametrize("is_routed_between", [True, False])
def test_a_route_that_comes_and_goes_within_a_moment(
    broker: FakeBroker, is_routed_between: bool
) -> None:
    """What the master said while there was no route is older than where the query stands now."""
    reader = stream()
    position = offsets(15, 10)
    broker.registered.add("broker-a")
    broker.unrouted.add("broker-a")
    assert reader.latestOffset(position) == position
    broker.add(Q0, *[(b"x", {})] * 3)
    if is_routed_between:
        broker.registered.clear()
        broker.unrouted.clear()
        assert reader.latestOffset(position) == offsets(18, 10)
        broker.registered.add("broker-a")
        broker.unrouted.add("broker-a")
    assert reader.latestOffset(offsets(18, 10)) == offsets(18, 10)


def test_available_now_reads_the_topics_of_its_start(broker: FakeBroker, clock: Time) -> None:
    broker.add(NEW, *[(b"x", {})] * 3)
    reader = pattern(startingoffsets="earliest", topicrefreshms="100")
    reader.prepareForTriggerAvailableNow()
    position = reader.latestOffset(reader.initialOffset())
    broker.add(MessageQueue("orders-late", "broker-a", 0), (b"x", {}))
    for _ in range(5):
        clock.now_s += 10
        position = reader.latestOffset(position)
    assert position == {**offsets(15, 10), "orders-eu": {"broker-a": {"0": 3}}}
    again = pattern()
    again.prepareForTriggerAvailableNow()
    position = again.latestOffset(position)
    assert position["orders-late"] == {"broker-a": {"0": 0}}
    assert again.latestOffset(position)["orders-late"] == {"broker-a": {"0": 1}}


# ------------------------------------------------------------------------- checkpoints of others


def test_a_checkpoint_of_another_topic_is_refused(broker: FakeBroker) -> None:
    broker.add(NEW, *[(b"x", {})] * 3)
    position = offsets(15, 10)
    wanted = "positions in orders, and {} chooses none.*Use another checkpoint"
    for reader, choice in (
        (stream(subscribe="orders-eu,more"), "subscribe=orders-eu,more"),
        (pattern("orders-.*"), "subscribePattern=orders-.*"),
        (assign('{"orders-eu": [0]}'), "assign=queue 0 of orders-eu on any broker"),
    ):
        assert isinstance(reader, PymqStreamReader)
        with pytest.raises(ConfigurationError, match=wanted.format(choice)):
            reader.latestOffset(position)
        # Spark first runs a batch again that was not done.
        with pytest.raises(ConfigurationError, match=wanted.format(choice)):
            reader.partitions(offsets(5, 0), position)


@pytest.mark.parametrize("mark", [{"init": True}, {}], ids=["as today", "before Spark 4.2"])
def test_a_first_batch_of_another_topic_is_refused(
    broker: FakeBroker, mark: dict[str, int]
) -> None:
    """It was not done; Spark asks once more where the query starts, and options choose that."""
    broker.add(NEW, *[(b"x", {})] * 3)
    reader = stream(subscribe="orders-eu", startingoffsets="latest")
    assert reader.initialOffset()["orders-eu"] == {"broker-a": {"0": 3}}
    begin = {"%": {"v": 1, **mark}, "orders-eu": {"broker-a": {"0": 3}}}
    with pytest.raises(ConfigurationError, match="positions in orders, and subscribe=orders-eu"):
        reader.partitions(begin, offsets(5, 0))
    both = stream(subscribe="orders,orders-eu")
    assert planned(both.partitions(begin, offsets(5, 0))) == []


def test_topics_that_are_no_longer_chosen(
    broker: FakeBroker, clock: Time, caplog: pytest.LogCaptureFixture
) -> None:
    broker.add(NEW, *[(b"x", {})] * 3)
    position = {**offsets(12, 8), "orders-eu": {"broker-a": {"0": 1}}}
    reader = stream(subscribe="orders-eu")
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            end = reader.latestOffset(position)
            assert end == {**offsets(12, 8), "orders-eu": {"broker-a": {"0": 3}}}
    (warned,) = (r.getMessage() for r in caplog.records if r.levelname == "WARNING")
    wanted = "does not choose orders/broker-a/0, orders/broker-a/1, which the checkpoint has: they"
    assert wanted in warned
    assert "orders/broker-a/1 at 8 (no longer chosen)" in caplog.text
    both = stream(subscribe="orders,orders-eu")
    assert both.latestOffset(end) == {**offsets(15, 10), "orders-eu": {"broker-a": {"0": 3}}}


# ---------------------------------------------------------------------------------------- assign


def assign(text: str, kind: type[Source] = PymqStreamReader, **options: str) -> Source:
    make = stream if kind is PymqStreamReader else batch
    return make(subscribe="", assign=text, **options)


def test_assigned_queues_alone_are_read(two: FakeBroker, clock: Time) -> None:
    reader = assign('{"orders": {"broker-a": [1]}}', startingoffsets="earliest")
    assert isinstance(reader, PymqStreamReader)
    wanted = {"%": {"v": 1, "init": True}, "orders": {"broker-a": {"1": 0}}}
    assert reader.initialOffset() == wanted
    position = reader.latestOffset(wanted)
    two.add(MessageQueue("orders", "broker-a", 2), (b"x", {}))
    clock.now_s += 60
    assert reader.latestOffset(position)["orders"] == {"broker-a": {"1": 10}}
    everywhere = assign('{"orders": [0]}', batch)
    assert sorted(
        r.queue
        for part in everywhere.partitions()
        for r in part.ranges  # type: ignore[attr-defined]
    ) == [Q0, B0]


def test_queues_that_are_no_longer_assigned_keep_their_place(
    two: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    reader = assign('{"orders": {"broker-a": [0]}}')
    assert isinstance(reader, PymqStreamReader)
    end = reader.latestOffset(offsets(5, 3))
    assert end == offsets(15, 3)
    assert "does not choose orders/broker-a/1, which the checkpoint has" in caplog.text


def test_assigned_queues_that_are_not_there(
    broker: FakeBroker, clock: Time, caplog: pytest.LogCaptureFixture
) -> None:
    started_s = clock.now_s
    wanted = "assign names queues that do not exist: orders/.*there are orders/broker-a/0, orders"
    for text, limit_s in (('{"orders": {"broker-a": [7]}}', 0), ('{"orders": [0, 9]}', 30)):
        reader = assign(text)
        assert isinstance(reader, PymqStreamReader)
        with pytest.raises(ConfigurationError, match=wanted):
            reader.initialOffset()
        assert limit_s - 1 < clock.now_s - started_s <= limit_s
    started_s = clock.now_s
    # A broker may be about to start.
    broker.add(B0, (b"x", {}))
    broker.unrouted.add("broker-b")
    reader = assign('{"orders": {"broker-b": [0], "broker-a": [1]}}')
    assert isinstance(reader, PymqStreamReader)
    with pytest.raises(ConfigurationError, match="not exist: orders/broker-b/0; there are orders"):
        reader.initialOffset()
    assert clock.now_s - started_s > 29
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        end = reader.latestOffset(offsets(5, 3))  # restarted with another choice
    assert "assign: queue 0 of orders on broker-b not found; reading begins when" in caplog.text
    broker.unrouted.clear()
    clock.now_s += 1
    assert reader.latestOffset(end)["orders"]["broker-b"] == {"0": 0}
    assert Q1 in broker.queues
