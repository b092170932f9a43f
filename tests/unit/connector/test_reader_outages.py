"""The driver's side while brokers are away: nothing is lost, nothing is told twice or too late."""

from typing import Any

import pytest
from tests.unit.connector.fake import FakeBroker, FakeClient
from tests.unit.connector.reading import (
    B0,
    B1,
    Q0,
    SINCE,
    Time,
    batch,
    both,
    offsets,
    planned,
    stream,
)

from pymq.errors import (
    BrokerError,
    ConnectionFailed,
    OffsetOutOfRange,
    PymqError,
    RouteNotFound,
)
from pymq.protocol.bodies import MessageQueue
from pyspark_pymq.source.subscribed_topics import SubscribedTopics


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


@pytest.mark.parametrize("is_back", [True, False])
@pytest.mark.parametrize("lenient", [True, False])
def test_an_outage_between_questions_that_are_far_apart(
    two: FakeBroker,
    gone: set[str],
    clock: Time,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_back: bool,
    lenient: bool,
) -> None:
    """With long trigger intervals a broker may restart whenever it is asked, and be there else."""
    back_s = float("inf")

    def wait(seconds: float) -> None:
        clock.wait(seconds)
        if clock.now_s >= back_s:
            gone.clear()

    monkeypatch.setitem(SubscribedTopics.__init__.__kwdefaults__, "wait", wait)
    reader = stream(retrytimeoutms="60000", failondataloss="false" if lenient else "true")
    gone.add("broker-b")
    position = reader.latestOffset(both(5, 0, 3))
    assert position == both(15, 10, 3)
    gone.clear()
    clock.now_s += 600
    gone.add("broker-b")
    asked_s = clock.now_s
    if is_back:
        back_s = asked_s + 5
        assert reader.latestOffset(position) == both(15, 10, 10)
        return
    wanted = "broker-b has given no answer about orders/broker-b/0 for 60 s"
    if lenient:
        assert reader.latestOffset(position) == position
        assert "continuing (failOnDataLoss=false)" in caplog.text and wanted in caplog.text
    else:
        with pytest.raises(ConnectionFailed, match=wanted):
            reader.latestOffset(position)
    assert 60 <= clock.now_s - asked_s < 62
    if lenient:
        clock.now_s += 600
        asked_s = clock.now_s
        assert reader.latestOffset(position) == position  # It was waited for once.
        assert clock.now_s - asked_s < 1


def test_a_backlog_hides_no_outage(two: FakeBroker, gone: set[str], clock: Time) -> None:
    """The other broker alone fills every batch."""
    two.add(Q0, *[(b"x", {})] * 5000)
    reader = stream(maxoffsetspertrigger="5", retrytimeoutms="60000")
    gone.add("broker-b")
    position = both(5, 0, 3)
    for _ in range(20):
        position = reader.latestOffset(position)
        clock.now_s += 2
    assert position["orders"]["broker-b"] == {"0": 3}
    gone.clear()
    for _ in range(20):
        position = reader.latestOffset(position)
        clock.now_s += 2
    assert position["orders"]["broker-b"] == {"0": 10}
    gone.add("broker-b")
    started_s = clock.now_s
    with pytest.raises(ConnectionFailed, match="broker-b has given no answer"):
        while clock.now_s < started_s + 100:
            position = reader.latestOffset(position)
            clock.now_s += 2
    assert 60 <= clock.now_s - started_s < 66


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


def test_available_now_does_not_end_before_it_knows_where_a_new_queue_begins(
    two: FakeBroker,
    clock: Time,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = both(15, 10, None, since=SINCE)
    asked = FakeClient.offset_by_time

    def fails(client: FakeClient, queue: MessageQueue, timestamp_ms: int) -> int:
        if queue == B0 and clock.now_s < until_s:
            raise ConnectionFailed("reset by peer")
        return asked(client, queue, timestamp_ms)

    monkeypatch.setattr(FakeClient, "offset_by_time", fails)
    until_s = clock.now_s + 20
    reader = stream()
    reader.prepareForTriggerAvailableNow()
    position = reader.latestOffset(before)
    assert position == both(15, 10, 0, since=SINCE)
    two.add(Q0, (b"late", {}))
    assert reader.latestOffset(position) == both(15, 10, 10, since=SINCE)
    assert caplog.text.count("queues of broker broker-b are new, and are looked at later") == 1
    assert len(two.calls) < 1000
    # It does not wait for ever.
    for lenient in (False, True):
        until_s = clock.now_s + 1000
        started_s = clock.now_s
        reader = stream(failondataloss="false" if lenient else "true", retrytimeoutms="60000")
        reader.prepareForTriggerAvailableNow()
        wanted = r"broker-b \(reset by peer\): for 60 s there was no answer about where queues"
        if lenient:
            position = both(16, 10, None, since=SINCE)
            assert reader.latestOffset(position) == position
            assert "ending without them (failOnDataLoss=false): broker-b" in caplog.text
        else:
            with pytest.raises(ConnectionFailed, match=wanted):
                reader.latestOffset(both(16, 10, None, since=SINCE))
        assert 60 <= clock.now_s - started_s < 61


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


def test_expected_brokers(two: FakeBroker, clock: Time, caplog: pytest.LogCaptureFixture) -> None:
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


def test_a_slave_that_acts_for_its_master_is_no_loss_either(
    two: FakeBroker, clock: Time, caplog: pytest.LogCaptureFixture
) -> None:
    """Routes have it in the master's place; the list of brokers tells, also when it is silent."""
    two.acting.add("broker-b")
    for lenient in ("true", "false"):
        reader = stream(failondataloss=lenient)
        assert reader.latestOffset(both(15, 10, 14)) == both(15, 10, 14)
        assert reader.latestOffset(both(15, 10, 9)) == both(15, 10, 9)  # asked again later
        clock.now_s += 40
        assert reader.latestOffset(both(15, 10, 9)) == both(15, 10, 10)
    assert "its slave lags behind" in caplog.text and "data loss" not in caplog.text
    two.acting.clear()
    with pytest.raises(OffsetOutOfRange, match="ends at 10"):
        stream().latestOffset(both(15, 10, 14))
    assert stream(failondataloss="false").latestOffset(both(15, 10, 14)) == both(15, 10, 10)


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
