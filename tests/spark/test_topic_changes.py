"""The source while topics are changed under it: more queues, fewer, deleted, created again."""

import pytest
from tests.administration import admin_of
from tests.spark.readers import HAS_LIMITS, TOPIC, all_there_is, read_on, rows, stream
from tests.spark.two_brokers import TwoBrokers, numbers, wait_until

from pymq.client import operations
from pymq.errors import BrokerError, OffsetOutOfRange
from pymq.protocol.bodies import TopicConfig


def delete(bed: TwoBrokers, topic: str = TOPIC) -> None:
    with bed.client() as client:
        admin_of(client).topics.delete(topic)


def set_queues(bed: TwoBrokers, broker: str, count: int) -> None:
    """Change a topic on one broker, and wait until name servers know."""
    config = TopicConfig(topic=TOPIC, read_queue_count=count, write_queue_count=count)
    with bed.client() as client:
        client.ask(bed.broker(broker).address, operations.update_topic(config))

        def holds() -> bool:
            client.forget_route(TOPIC)
            found = [q for q in client.read_queues(TOPIC) if q.broker_name == broker]
            return len(found) == count

        wait_until(holds, f"{count} queues on {broker}")


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_queues_and_brokers_that_are_added(two_brokers: TwoBrokers, start: str) -> None:
    bed = two_brokers
    bed.create_topic(TOPIC, queue_count=2, on=["broker-a"])
    bed.send(TOPIC, numbers(20))
    reader = stream(bed, startingoffsets=start)
    found, position = read_on(reader, reader.initialOffset())
    assert found == (bed.acknowledged(TOPIC) if start == "earliest" else [])
    before = bed.acknowledged(TOPIC)
    set_queues(bed, "broker-a", 4)
    bed.send(TOPIC, numbers(20, 60))
    more, position = read_on(stream(bed), position)  # the query is restarted each time
    bed.create_topic(TOPIC, queue_count=4)
    bed.send(TOPIC, numbers(60, 140))
    last, position = read_on(stream(bed), position)
    assert sorted(before + more + last) == bed.acknowledged(TOPIC) == bed.stored(TOPIC)
    assert len(position[TOPIC]["broker-b"]) == 4


@pytest.mark.skipif(not HAS_LIMITS, reason="drives a reader as Spark does from 4.2 on")
def test_a_queue_that_can_no_longer_be_read(two_brokers: TwoBrokers) -> None:
    bed = two_brokers
    bed.create_topic(TOPIC, queue_count=2, on=["broker-a"])
    bed.send(TOPIC, numbers(20))
    reader = stream(bed, startingoffsets="earliest")
    start = all_there_is(reader, reader.initialOffset())
    set_queues(bed, "broker-a", 1)
    with pytest.raises(BrokerError, match="readQueueNums") as caught:
        read_on(stream(bed), start)
    (note,) = caught.value.__notes__
    assert "queue 1 of T on broker-a" in note and "raise its readQueueNums" in note
    set_queues(bed, "broker-a", 2)
    found, _ = read_on(stream(bed), start)
    assert found == bed.acknowledged(TOPIC)


def test_a_topic_that_is_deleted(
    two_brokers: TwoBrokers, caplog: pytest.LogCaptureFixture
) -> None:
    """Its brokers run on and have another topic of the query."""
    bed = two_brokers
    for topic in (TOPIC, "other"):
        bed.create_topic(topic)
        bed.send(topic, numbers(80))
    settings = {"subscribe": f"{TOPIC},other", "retrytimeoutms": "1500"}
    running = stream(bed, startingoffsets="earliest", **settings)
    _, position = read_on(running, running.initialOffset())
    bed.send(TOPIC, numbers(80, 160))
    planned = running.latestOffset(position)
    parts = running.partitions(position, planned)
    delete(bed)
    wanted = r"ends at 0: the topic was deleted.*and likewise 4 more queues.*failOnDataLoss"
    for reader in (running, stream(bed, **settings)):  # the second one finds no route
        with pytest.raises(OffsetOutOfRange, match=wanted):
            reader.latestOffset(planned)
    # Restarted, and the batch that was planned is run again.
    restarted = stream(bed, failondataloss="false", **settings)
    for reader, some in ((running, parts), (restarted, restarted.partitions(position, planned))):
        if reader is running:
            with pytest.raises(OffsetOutOfRange, match="the queue ends at 0"):
                rows(reader, some)
        else:
            assert rows(reader, some) == []
    bed.send("other", numbers(80, 160))
    caplog.clear()
    found, position = read_on(restarted, planned)
    assert len(found) == 80
    assert [r.getMessage()[:18] for r in caplog.records if r.levelname == "WARNING"] == [
        "data loss accepted"
    ]
    bed.create_topic(TOPIC)
    bed.send(TOPIC, numbers(300, 340))
    found, position = read_on(restarted, position)
    while len(found) < 40:
        some, position = read_on(restarted, position)
        found += some
    assert sorted(one.body for one in found) == sorted(numbers(300, 340))


def test_a_topic_that_is_created_again(two_brokers: TwoBrokers) -> None:
    bed = two_brokers
    bed.create_topic(TOPIC, queue_count=2)
    bed.send(TOPIC, numbers(80))
    settings = {"startingoffsets": "earliest", "failondataloss": "false"}
    reader = stream(bed, **settings)
    found, position = read_on(reader, reader.initialOffset())
    assert len(found) == 80
    delete(bed)
    none, position = read_on(reader, position)  # a query that runs sees that it is empty
    assert none == [] and set(position[TOPIC]["broker-a"].values()) == {0}
    bed.create_topic(TOPIC, queue_count=2)
    bed.send(TOPIC, numbers(100, 120))
    again, position = read_on(stream(bed, **settings), position)
    assert sorted(one.body for one in again) == sorted(numbers(100, 120))
    assert again == bed.stored(TOPIC)
    # One that is restarted later: the new topic is shorter than the old one, or longer.
    for first, end in ((200, 204), (300, 400)):
        delete(bed)
        bed.create_topic(TOPIC, queue_count=2)
        bed.send(TOPIC, numbers(first, end))
        with pytest.raises(OffsetOutOfRange, match="T on broker-a, topic T on broker-b: deleted"):
            stream(bed, startingoffsets="earliest").latestOffset(position)
        found, position = read_on(stream(bed, **settings), position)
        assert sorted(one.body for one in found) == sorted(numbers(first, end))
        assert found == bed.stored(TOPIC)


def test_a_topic_that_only_changes_is_the_same(two_brokers: TwoBrokers) -> None:
    bed = two_brokers
    bed.create_topic(TOPIC, queue_count=2)
    bed.send(TOPIC, numbers(40))
    reader = stream(bed, startingoffsets="earliest")
    _, position = read_on(reader, reader.initialOffset())
    assert set(position["%"]["ids"][TOPIC]) == {"broker-a", "broker-b"}
    set_queues(bed, "broker-a", 4)
    bed.stop("broker-b")
    bed.start("broker-b")
    bed.send(TOPIC, numbers(40, 80))
    found, _ = read_on(stream(bed), position)
    assert len(found) == 40
