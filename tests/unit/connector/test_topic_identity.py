"""Topics that are deleted and created again, at brokers that give each an id."""

import json
from typing import Any

import pytest
from tests.unit.connector.fake import FakeBroker, FakeClient
from tests.unit.connector.reading import (
    B0,
    Q0,
    Q1,
    Q2,
    Time,
    batch,
    both,
    offsets,
    planned,
    stream,
)

from pymq.errors import ConnectionFailed, OffsetOutOfRange
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.headers.offsets import NO_ID
from pyspark_pymq.source import read_task

AT_A = ("orders", "broker-a")
WANTED = (
    "topic orders on broker-a: deleted, and created again, since the query has read from it.*"
    "failOnDataLoss to false; to start elsewhere, use another checkpoint"
)


@pytest.fixture(autouse=True)
def ids(broker: FakeBroker) -> None:
    broker.topic_ids = {AT_A: "first", ("orders", "broker-b"): "b"}


def create_again(broker: FakeBroker, topic_id: str = "second", count: int = 40) -> None:
    """As long as the old one was, or longer."""
    for queue in (Q0, Q1):
        broker.queues[queue] = []
        broker.first[queue] = 0
        broker.add(queue, *[(b"new", {})] * count)
    broker.topic_ids[AT_A] = topic_id


def with_id(position: dict[str, Any], topic_id: str) -> dict[str, Any]:
    return {**position, "%": {**position["%"], "ids": {"orders": {"broker-a": topic_id}}}}


def test_a_position_has_the_ids_of_its_topics(broker: FakeBroker, clock: Time) -> None:
    reader = stream(startingoffsets="earliest")
    initial = reader.initialOffset()
    assert initial == with_id(offsets(5, 0, init=True), "first")
    position = reader.latestOffset(reader.latestOffset(initial))
    assert position == with_id(offsets(15, 10), "first")
    assert reader.latestOffset(position) == position
    clock.now_s += 60
    broker.add(B0, (b"x", {}))
    found = reader.latestOffset(position)
    assert found["%"]["ids"] == {"orders": {"broker-a": "first", "broker-b": "b"}}


def test_checkpoints_without_ids_get_them_with_the_next_messages(
    broker: FakeBroker, clock: Time
) -> None:
    reader = stream()
    assert reader.latestOffset(offsets(15, 10)) == offsets(15, 10)  # No batch for that alone.
    broker.add(Q0, (b"x", {}))
    clock.now_s += 1
    position = reader.latestOffset(offsets(15, 10))
    assert position == with_id(offsets(16, 10), "first")
    create_again(broker)
    with pytest.raises(OffsetOutOfRange, match=WANTED):
        stream().latestOffset(position)


def test_a_topic_that_was_created_again_is_a_loss(broker: FakeBroker, clock: Time) -> None:
    """Whether the query was stopped meanwhile, or runs."""
    running = stream()
    position = running.latestOffset(with_id(offsets(5, 0), "first"))
    create_again(broker)
    for reader in (running, stream()):
        clock.now_s += 1
        with pytest.raises(OffsetOutOfRange, match=WANTED):
            reader.latestOffset(position)


@pytest.mark.parametrize("trigger", ["other", "availableNow"])
def test_the_new_topic_is_read_from_its_first_message_on(
    broker: FakeBroker, clock: Time, caplog: pytest.LogCaptureFixture, trigger: str
) -> None:
    running = stream(failondataloss="false")
    position = running.latestOffset(with_id(offsets(5, 0), "first"))
    create_again(broker)
    broker.trim(Q1, 3)
    for reader in (running, stream(failondataloss="false")):
        caplog.clear()
        if trigger == "availableNow":
            reader.prepareForTriggerAvailableNow()
        clock.now_s += 1
        begun = reader.latestOffset(position)
        assert begun == with_id(offsets(0, 3), "second")
        assert reader.partitions(position, begun) == []
        end = reader.latestOffset(begun)
        assert end == with_id(offsets(40, 40), "second")
        assert planned(reader.partitions(begun, end)) == [(0, 0, 40), (1, 3, 40)]
        assert reader.latestOffset(end) == end
        (warned,) = (r.getMessage() for r in caplog.records if r.levelname == "WARNING")
        assert "the first message of the new topic: topic orders on broker-a: deleted" in warned


def test_what_other_brokers_have_of_the_topic_stays(broker: FakeBroker) -> None:
    broker.add(B0, *[(b"x", {})] * 10)
    create_again(broker)
    end = stream(failondataloss="false").latestOffset(with_id(both(15, 10, 4), "first"))
    assert end["orders"] == both(0, 0, 10)["orders"]


def test_what_is_not_known_is_no_loss(broker: FakeBroker, clock: Time) -> None:
    create_again(broker)
    position = offsets(15, 10)
    for before, now, after in (
        (None, NO_ID, NO_ID),  # A broker of before, and one that has been updated.
        ("first", NO_ID, "first"),  # It lost the id in a crash.
        ("first", None, "first"),  # A slave answers that knows none.
        (None, "second", "second"),
        ("second", "second", "second"),
    ):
        broker.topic_ids = {} if now is None else {AT_A: now}
        start = position if before is None else with_id(position, before)
        assert stream().latestOffset(start) == with_id(offsets(40, 40), after)
    broker.topic_ids[AT_A] = "second"
    with pytest.raises(OffsetOutOfRange, match=WANTED):  # An id that was not there: a new topic.
        stream().latestOffset(with_id(position, NO_ID))


def test_a_topic_of_which_nothing_was_read_may_be_any(
    broker: FakeBroker, clock: Time, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether the old one held anything is not known. That it is another one is told, once."""
    create_again(broker, count=0)
    reader = stream()
    for _ in range(2):
        assert reader.latestOffset(with_id(offsets(0, 0), "first")) == with_id(
            offsets(0, 0), "first"
        )
    (warned,) = (r.getMessage() for r in caplog.records if r.levelname == "WARNING")
    assert "topic orders on broker-a: deleted, and created again, before anything" in warned
    create_again(broker)
    clock.now_s += 1
    assert stream().latestOffset(with_id(offsets(0, 0), "first")) == with_id(
        offsets(40, 40), "second"
    )
    with pytest.raises(OffsetOutOfRange, match=WANTED):
        stream().latestOffset(with_id(offsets(0, 1), "first"))


def test_a_queue_that_was_read_to_its_end_is_done_with(broker: FakeBroker) -> None:
    create_again(broker)
    text = json.dumps({"orders": {"broker-a": {"0": 8, "1": 8}}})
    reader = stream(endingoffsets=text)
    assert reader.latestOffset(with_id(offsets(8, 8), "first")) == with_id(offsets(8, 8), "first")
    with pytest.raises(OffsetOutOfRange, match=WANTED):
        reader.latestOffset(with_id(offsets(8, 0), "first"))
    lenient = stream(endingoffsets=text, failondataloss="false")
    begun = lenient.latestOffset(with_id(offsets(8, 7), "first"))
    assert begun == with_id(offsets(8, 0), "second")
    assert lenient.latestOffset(begun) == with_id(offsets(8, 8), "second")


def test_an_end_by_time_is_looked_for_in_the_new_topic(broker: FakeBroker, clock: Time) -> None:
    broker.offset_at[900_000] = 8
    reader = stream(
        endingtimestamp="1970-01-01T00:15:00Z", failondataloss="false", maxoffsetspertrigger="8"
    )
    position = reader.latestOffset(with_id(offsets(5, 0), "first"))
    assert position == with_id(offsets(7, 5), "first")
    create_again(broker)
    broker.offset_at[900_000] = 2
    clock.now_s += 1
    begun = reader.latestOffset(position)
    assert begun == with_id(offsets(0, 0), "second")
    assert reader.latestOffset(begun) == with_id(offsets(2, 2), "second")


def test_available_now_ends_where_the_new_topic_does(broker: FakeBroker, clock: Time) -> None:
    """It asks again only for a broker that is away."""
    broker.add(B0, *[(b"x", {})] * 10)
    broker.away.add("broker-b")
    reader = stream(failondataloss="false")
    reader.prepareForTriggerAvailableNow()
    position = reader.latestOffset(with_id(both(5, 0, 3), "first"))
    create_again(broker)
    clock.now_s += 1
    begun = reader.latestOffset(position)
    assert begun == with_id(both(0, 0, 3), "second")
    assert reader.latestOffset(begun) == with_id(both(40, 40, 3), "second")


def test_an_answer_of_before_and_after(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic is created again while its queues are asked about, one after the other."""
    create_again(broker)
    try_bounds = FakeClient.try_bounds
    asked = []

    def mixed(client: FakeClient, queues: Any, **more: Any) -> Any:
        answer = try_bounds(client, queues, **more)
        asked.append(answer)
        if len(asked) == 1:
            answer.found[Q0] = (5, 50)
        return answer

    monkeypatch.setattr(FakeClient, "try_bounds", mixed)
    lenient = stream(failondataloss="false")
    assert lenient.latestOffset(with_id(offsets(15, 10), "first")) == with_id(
        offsets(0, 0), "second"
    )


def test_more_queues_than_before(broker: FakeBroker) -> None:
    create_again(broker)
    broker.add(Q2, (b"x", {}))
    begun = stream(failondataloss="false").latestOffset(with_id(offsets(15, 10), "first"))
    assert begun == with_id(offsets(0, 0, 0), "second")


def test_a_batch_that_is_run_again_reads_nothing_of_another_topic(broker: FakeBroker) -> None:
    """Spark first runs the batch again that was not done when the query ended."""
    start, end = with_id(offsets(5, 0), "first"), with_id(offsets(15, 10), "first")
    assert planned(stream().partitions(start, end)) == [(0, 5, 15), (1, 0, 10)]
    create_again(broker)
    with pytest.raises(OffsetOutOfRange, match=WANTED):
        stream().partitions(start, end)
    lenient = stream(failondataloss="false")
    assert lenient.partitions(start, end) == []
    assert lenient.latestOffset(end) == with_id(offsets(0, 0), "second")
    # A batch of this process is of what it has just been told.
    reader = stream()
    begun = with_id(offsets(15, 10), "second")
    end = reader.latestOffset(begun)
    before = len(broker.calls)
    assert planned(reader.partitions(begun, end)) == [(0, 15, 40), (1, 10, 40)]
    assert len(broker.calls) == before


@pytest.mark.parametrize("lenient", [False, True])
def test_a_topic_that_is_created_while_a_loss_is_looked_into(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, lenient: bool
) -> None:
    """At first there is no such topic, and its queues are empty."""
    create_again(broker)
    known, records = dict(broker.topic_ids), dict(broker.queues)
    broker.topic_ids.clear()
    broker.queues = {queue: [] for queue in records}
    try_bounds = FakeClient.try_bounds

    def then_there(client: FakeClient, queues: Any, **more: Any) -> Any:
        answer = try_bounds(client, queues, **more)
        broker.topic_ids, broker.queues = known, records
        return answer

    monkeypatch.setattr(FakeClient, "try_bounds", then_there)
    reader = stream(failondataloss="false" if lenient else "true")
    position = with_id(offsets(15, 10), "first")
    if lenient:
        assert reader.latestOffset(position) == with_id(offsets(0, 0), "second")
    else:
        with pytest.raises(OffsetOutOfRange, match=WANTED):
            reader.latestOffset(position)


def test_many_topics_are_told_in_short(broker: FakeBroker) -> None:
    position = offsets(15, 10)
    names = [f"orders-{number}" for number in range(12)]
    for name in names:
        broker.add(MessageQueue(name, "broker-a", 0), *[(b"x", {})] * 9)
        broker.topic_ids[name, "broker-a"] = "second"
        position[name] = {"broker-a": {"0": 3}}
    position["%"]["ids"] = {name: {"broker-a": "first"} for name in names}
    with pytest.raises(OffsetOutOfRange, match="orders-5 on broker-a, 4 more: deleted") as caught:
        stream(subscribe=",".join(["orders", *names])).latestOffset(position)
    assert len(str(caught.value)) < 1000


def test_a_topic_that_is_created_again_while_available_now_reads_what_there_was(
    broker: FakeBroker, clock: Time
) -> None:
    """Where it ends was settled at its first question; whether it is the same topic was not."""
    reader = stream(maxoffsetspertrigger="4")
    reader.prepareForTriggerAvailableNow()
    position = reader.latestOffset(with_id(offsets(5, 0), "first"))
    asked = len(broker.calls)
    following = reader.latestOffset(position)
    assert len(broker.calls) == asked  # An answer serves for a moment.
    broker.add(Q0, (b"later", {}))
    clock.now_s += 60
    while following != position:
        position, following = following, reader.latestOffset(following)
    assert following == with_id(offsets(15, 10), "first")
    clock.now_s += 60
    create_again(broker)
    with pytest.raises(OffsetOutOfRange, match=WANTED):
        reader.latestOffset(with_id(offsets(7, 2), "first"))


# ------------------------------------------------------------------------------ in a task


@pytest.fixture
def tasks(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> FakeBroker:
    monkeypatch.setattr(read_task, "BulkClient", broker.client)
    return broker


def numbers_read(reader: Any, parts: Any) -> list[int]:
    found = (rows["queueOffset"].to_pylist() for part in parts for rows in reader.read(part))
    return [number for some in found for number in some]


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_task_of_a_topic_that_was_created_again_since_it_was_planned(
    tasks: FakeBroker, caplog: pytest.LogCaptureFixture, is_stream: bool
) -> None:
    def parts_of(reader: Any) -> Any:
        if not is_stream:
            return reader.partitions()
        start = with_id(offsets(5, 0), "first")
        return reader.partitions(start, reader.latestOffset(start))

    make = stream if is_stream else batch
    reader, lenient = make(), make(failondataloss="false")
    parts, accepted = parts_of(reader), parts_of(lenient)
    asked = len(tasks.calls)
    assert numbers_read(reader, parts) == [*range(5, 15), *range(10)]
    assert sum(call[0] == "bounds" for call in tasks.calls[asked:]) == 2 * len(parts)
    create_again(tasks)
    with pytest.raises(OffsetOutOfRange, match="orders on broker-a: deleted, and created again"):
        numbers_read(reader, parts)
    assert numbers_read(lenient, accepted) == []
    assert "data loss accepted" in caplog.text and "created again" in caplog.text


@pytest.mark.parametrize("lenient", [False, True])
def test_a_topic_that_is_created_again_while_a_task_reads_it(
    tasks: FakeBroker, caplog: pytest.LogCaptureFixture, lenient: bool
) -> None:
    reader = stream(failondataloss="false" if lenient else "true")
    start = with_id(offsets(5, 0), "first")
    (part,) = reader.partitions(start, reader.latestOffset(start))
    rows = reader.read(part)
    assert next(rows).num_rows == 10  # one queue of two
    create_again(tasks)
    if lenient:
        assert sum(some.num_rows for some in rows) == 10
        assert "may be read twice" in caplog.text
    else:
        with pytest.raises(OffsetOutOfRange, match="created again"):
            list(rows)


@pytest.mark.parametrize("now", [None, NO_ID, "first"])
def test_a_task_reads_what_may_be_the_topic(tasks: FakeBroker, now: str | None) -> None:
    """A broker that tells no id, one that has lost it, and one that does not answer at first."""
    reader = stream()
    start = with_id(offsets(5, 0), "first")
    parts = reader.partitions(start, reader.latestOffset(start))
    tasks.topic_ids = {} if now is None else {AT_A: now}
    if now == "first":
        tasks.errors = [ConnectionFailed("away")]
    assert numbers_read(reader, parts) == [*range(5, 15), *range(10)]
    tasks.topic_ids = {}
    (part,) = stream().partitions(offsets(5, 0), offsets(15, 10))
    asked = len(tasks.calls)
    assert numbers_read(reader, [part]) == [*range(5, 15), *range(10)]
    assert all(call[0] == "pull" for call in tasks.calls[asked:])
