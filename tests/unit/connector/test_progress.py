"""What a stream has consumed, as the progress of a consumer group."""

import logging

import pytest
from tests.unit.connector.fake import FakeBroker
from tests.unit.connector.reading import B0, OPTIONS, Q0, Q1, SCHEMA, Time, both, offsets

from pymq.errors import ClientClosed
from pymq.protocol.bodies import MessageQueue
from pyspark_pymq.source import progress
from pyspark_pymq.source.option_checks import source_options
from pyspark_pymq.source.progress import AWAY_S, INTERVAL_S, REPEAT_S, GroupProgress
from pyspark_pymq.source.reader import PymqStreamReader

GROUP = {"consumergroup": "G", "commitoffsetstobroker": "true"}
RETRIES = [MessageQueue("%RETRY%G", name, 0) for name in ("broker-a", "broker-b")]


@pytest.fixture
def known(two: FakeBroker) -> FakeBroker:
    """Brokers that know the group, because it has had members."""
    two.groups.add("G")
    two.queues |= {queue: [] for queue in RETRIES}
    return two


def published(broker: FakeBroker, clock: Time, **options: str) -> GroupProgress:
    given = source_options({**OPTIONS, **GROUP, **options})
    return GroupProgress(given, monotonic_s=clock, connect=broker.client)


def calls(broker: FakeBroker) -> list[str]:
    """Take what brokers were asked since the last time."""
    found = [f"{name} {at[0]}" for name, *at in broker.calls if name.isupper()]
    broker.calls.clear()
    return found


def routes(broker: FakeBroker) -> list:  # type: ignore[type-arg]
    return FakeBroker.client(broker, ()).known_routes()


def test_what_has_changed_is_committed_now_and_then(known: FakeBroker, clock: Time) -> None:
    told = published(known, clock)
    told.publish({Q0: 7, Q1: 3, B0: 2}, routes(known))
    assert known.committed == {("G", Q0): 7, ("G", Q1): 3, ("G", B0): 2}
    assert len(calls(known)) == 3
    told.publish({Q0: 8, Q1: 3, B0: 2}, routes(known))
    assert calls(known) == []
    told.publish({Q0: 8, Q1: 3, B0: 2}, routes(known), at_once=True)
    assert calls(known) == ["UPDATE_CONSUMER_OFFSET broker-a"]
    clock.now_s += INTERVAL_S
    told.publish({Q0: 8, Q1: 3, B0: 2}, routes(known))
    assert calls(known) == []
    clock.now_s += REPEAT_S  # a broker that was killed has forgotten some
    told.publish({Q0: 8, Q1: 3, B0: 2}, routes(known))
    assert len(calls(known)) == 3
    known.errors = [ClientClosed("closed")] * 3  # whatever it is, the query goes on
    told.publish({Q0: 9, Q1: 3, B0: 2}, routes(known), at_once=True)


def test_nothing_without_the_option(known: FakeBroker, clock: Time) -> None:
    published(known, clock, commitoffsetstobroker="false").publish({Q0: 7}, routes(known))
    assert known.committed == {} and known.calls == []


def test_a_group_that_tools_do_not_know_is_introduced_once(two: FakeBroker, clock: Time) -> None:
    told = published(two, clock)
    told.publish({Q0: 7, B0: 2}, routes(two))
    assert sorted(calls(two)) == [
        *("HEART_BEAT broker-a", "HEART_BEAT broker-b"),
        *("UNREGISTER_CLIENT broker-a", "UNREGISTER_CLIENT broker-b"),
        *("UPDATE_CONSUMER_OFFSET broker-a", "UPDATE_CONSUMER_OFFSET broker-b"),
    ]
    told.publish({Q0: 8, B0: 2}, routes(two), at_once=True)
    assert calls(two) == ["UPDATE_CONSUMER_OFFSET broker-a"]


def test_members_of_a_group_are_not_disturbed(known: FakeBroker, clock: Time) -> None:
    """A broker that has the retry topic knows the group."""
    del known.queues[RETRIES[1]]
    published(known, clock).publish({Q0: 7, B0: 2}, routes(known))
    assert [call for call in calls(known) if "OFFSET" not in call] == [
        "HEART_BEAT broker-b",
        "UNREGISTER_CLIENT broker-b",
    ]


def test_a_broker_that_is_away_is_told_later(
    known: FakeBroker, clock: Time, caplog: pytest.LogCaptureFixture
) -> None:
    known.away.add("broker-b")
    told = published(known, clock)
    for offset in range(5):
        told.publish({Q0: offset, B0: offset}, routes(known))
        clock.now_s += INTERVAL_S
    assert known.committed == {("G", Q0): 4}
    assert calls(known).count("UPDATE_CONSUMER_OFFSET broker-b") == 1
    told.publish({Q0: 4, B0: 4}, routes(known), at_once=True)
    assert calls(known).count("UPDATE_CONSUMER_OFFSET broker-b") == 1
    clock.now_s += AWAY_S
    told.publish({Q0: 5, B0: 5}, routes(known))
    assert len(caplog.records) == 1 and "not committed at broker broker-b" in caplog.text
    clock.now_s += AWAY_S
    known.away.clear()
    with caplog.at_level(logging.INFO):
        told.publish({Q0: 6, B0: 6}, routes(known))
    assert known.committed[("G", B0)] == 6
    assert "broker broker-b takes the progress of group G again" in caplog.text


def test_a_group_that_must_be_created(
    known: FakeBroker, clock: Time, caplog: pytest.LogCaptureFixture
) -> None:
    known.groups.clear()
    published(known, clock).publish({Q0: 7}, routes(known))
    assert "updateSubGroup -g G" in caplog.text and "autoCreateSubscriptionGroup" in caplog.text


def test_a_master_without_a_route_is_left_out(known: FakeBroker, clock: Time) -> None:
    known.only_slaves.add("broker-b")
    published(known, clock).publish({Q0: 7, B0: 2}, routes(known))
    assert known.committed == {("G", Q0): 7}


def test_a_stream_publishes_what_is_done(
    known: FakeBroker, clock: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a batch reads is told when the next one is planned; the last one's at the end."""
    defaults = GroupProgress.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "connect", known.client)
    monkeypatch.setitem(defaults, "monotonic_s", clock)
    options = source_options({**OPTIONS, **GROUP, "startingoffsets": "earliest"})
    reader = PymqStreamReader(options, SCHEMA)
    reader.prepareForTriggerAvailableNow()
    start = reader.latestOffset(reader.initialOffset())
    assert start == both(5, 0, 0) and known.committed == {}
    end = reader.latestOffset(start)
    assert end == both(15, 10, 10)
    assert known.committed == {("G", Q0): 5, ("G", Q1): 0, ("G", B0): 0}
    assert reader.latestOffset(end) == end
    assert known.committed == {("G", Q0): 15, ("G", Q1): 10, ("G", B0): 10}
    assert "%RETRY%G" not in end and offsets(15, 10)
    reader.stop()
    assert progress.TIMEOUT_S < 1 and known.open_clients == 0
