"""Topics, starts, ends and limits of the source at real brokers, one of which is restarting.

What Spark would run, without a Spark; ``test_positions_in_spark`` has the rest.
"""

import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from tests.administration import admin_of
from tests.spark.readers import (
    HAS_LIMITS,
    SCHEMA,
    TOPIC,
    batch,
    in_background,
    options,
    read_on,
    read_until,
    rows,
    stream,
)
from tests.spark.two_brokers import NAMES, TwoBrokers, numbers, wait_until

from pymq.client.sockets.blocking_client import BlockingClient
from pymq.errors import ConfigurationError, OffsetOutOfRange, RouteNotFound
from pymq.protocol.message import Message
from pymq.testing import Cluster
from pyspark_pymq.source.batch_reader import PymqBatchReader
from pyspark_pymq.source.reader import PymqStreamReader

GROUP = "readers"


def moment(bed: TwoBrokers) -> str:
    """Return a moment (ms) before which everything sent so far is stored, and nothing later."""
    time.sleep(0.05)
    return str(round(1000 * time.time()) - 20)


def commit(bed: TwoBrokers, offset: int) -> None:
    with bed.client() as client:
        admin_of(client).groups.create(GROUP)
        for queue in client.read_queues(TOPIC):
            client.commit_offset(GROUP, queue, offset)


@pytest.mark.by_turns("outage")
@pytest.mark.parametrize(
    ("start", "outage"),
    [
        *itertools.product(["time", "group", "pattern"], ["restart", "late", "freeze"]),
        # It names the broker, and so waits for it: there is no "late".
        *itertools.product(["json"], ["restart", "freeze"]),
    ],
)
def test_a_broker_is_away_while_a_stream_starts(
    two_brokers: TwoBrokers, start: str, outage: str
) -> None:
    """Restarting, out of all routes, or silent: its queues begin where the others do."""
    bed = two_brokers
    bed.create_topic(TOPIC)
    bed.send(TOPIC, numbers(80))  # ten for each of the queues
    since = moment(bed)
    commit(bed, 10)
    bed.send(TOPIC, numbers(80, 160))
    begins = json.dumps({TOPIC: {name: dict.fromkeys("0123", 10) for name in NAMES}})
    given, first = {
        "time": ({"startingtimestamp": since}, 10),
        "group": ({"startingoffsets": "group", "consumergroup": GROUP}, 10),
        "json": ({"startingoffsets": begins}, 10),
        "pattern": ({"subscribepattern": "T|U", "startingoffsets": "earliest"}, 0),
    }[start]
    wanted = [one for one in bed.acknowledged(TOPIC) if one.offset >= first]
    reader = stream(bed, requesttimeoutms="500", **given)
    if outage == "freeze":
        bed.freeze("broker-b")
        with in_background(reader.initialOffset) as initial:
            time.sleep(1)
            bed.thaw("broker-b")
            position = initial()
    elif outage == "restart":
        bed.stop("broker-b")
        with in_background(reader.initialOffset) as initial:
            bed.start("broker-b")
            position = initial()
    else:
        bed.stop("broker-b")
        position = reader.initialOffset()
        assert "broker-b" not in position[TOPIC]
        bed.start("broker-b")
    found, position = read_on(reader, position)
    # Until routes have the broker.
    some, position = read_until(stream(bed, **given), position, len(wanted) - len(found))
    found += some
    assert sorted(found) == wanted
    bed.send(TOPIC, numbers(160, 240))
    more, _ = read_until(stream(bed, **given), position, 80)
    assert sorted(found + more) == [one for one in bed.stored(TOPIC) if one.offset >= first]


def test_times_are_those_of_the_store(two_brokers: TwoBrokers) -> None:
    bed = two_brokers
    bed.create_topic(TOPIC)
    marks = [moment(bed)]
    for number in range(3):
        bed.send(TOPIC, numbers(80 * number, 80 * number + 80))
        marks.append(moment(bed))
    stored = bed.stored(TOPIC)

    def read(**given: str) -> list[Any]:
        reader = batch(bed, **given)
        return rows(reader, reader.partitions())

    assert read(startingtimestamp=marks[0]) == stored
    for first in range(3):
        for end in range(first, 4):
            found = read(startingtimestamp=marks[first], endingtimestamp=marks[end])
            assert found == [one for one in stored if 10 * first <= one.offset < 10 * end]
    by_queue = json.dumps({TOPIC: {"broker-b": {"2": int(marks[1])}}})
    found = read(startingoffsetsbytimestamp=by_queue, endingoffsetsbytimestamp=by_queue)
    assert found == [one for one in stored if (one.broker, one.queue_id) != ("broker-b", 2)]
    with pytest.raises(OffsetOutOfRange, match="no message was stored at or after"):
        read(startingtimestamp=marks[3])
    assert read(startingtimestamp=marks[3], startingoffsetsbytimestampstrategy="latest") == []


def test_a_group_that_has_committed_nothing(two_brokers: TwoBrokers) -> None:
    """Brokers say 0 of queues that still have their first message, if they are not told not to."""
    bed = two_brokers
    bed.create_topic(TOPIC)
    bed.send(TOPIC, numbers(80))
    given = {"startingoffsets": "group", "consumergroup": GROUP}
    for fallback, wanted in (("earliest", 0), ("latest", 10)):
        initial = stream(bed, **given, groupoffsetfallback=fallback).initialOffset()
        assert {*initial[TOPIC]["broker-a"].values()} == {wanted}
    with pytest.raises(ConfigurationError, match=f"{GROUP} has committed nothing in T/broker-a/0"):
        stream(bed, **given, groupoffsetfallback="fail").initialOffset()


def test_a_stream_that_ends_at_a_time_to_come(two_brokers: TwoBrokers) -> None:
    bed = two_brokers
    bed.create_topic(TOPIC)
    bed.send(TOPIC, numbers(40))
    end_s = time.time() + 1.5
    given = {"startingoffsets": "earliest", "endingtimestamp": str(round(1000 * end_s))}
    reader = stream(bed, **given)
    found, position = read_on(reader, reader.initialOffset())
    assert len(found) == 40
    with bed.load(TOPIC) as load:
        bed.restart("broker-b")
        while time.time() < end_s + 0.5:
            some, position = read_on(reader, position)
            found += some
        load.wait_acknowledged(100)
    for again in (reader, stream(bed, **given)):
        some, position = read_on(again, position)
        found += some
    bodies = sorted(one.body for one in found)
    assert len(set(bodies)) == len(bodies)
    by_time = batch(bed, endingtimestamp=given["endingtimestamp"])
    assert sorted(found) == rows(by_time, by_time.partitions())
    assert len(found) < len(bed.stored(TOPIC))


def test_assigned_queues(two_brokers: TwoBrokers) -> None:
    bed = two_brokers
    bed.create_topic(TOPIC)
    bed.send(TOPIC, numbers(80))
    assign = json.dumps({TOPIC: {"broker-a": [0, 3], "broker-b": [1]}})
    reader = stream(bed, assign=assign, startingoffsets="earliest")
    found, position = read_on(reader, reader.initialOffset())
    wanted = {("broker-a", 0), ("broker-a", 3), ("broker-b", 1)}
    assert found == [one for one in bed.stored(TOPIC) if (one.broker, one.queue_id) in wanted]
    bed.send(TOPIC, numbers(80, 160))
    everywhere = stream(bed, assign=json.dumps({TOPIC: [1]}))
    more, _ = read_on(everywhere, position)
    assert {(one.broker, one.queue_id) for one in more} == {("broker-a", 1), ("broker-b", 1)}
    assert [one.offset for one in more if one.broker == "broker-b"] == [*range(10, 20)]
    with pytest.raises(ConfigurationError, match="assign names queues that do not exist: T/broker"):
        stream(bed, assign=json.dumps({TOPIC: {"broker-a": [4]}})).initialOffset()


def test_a_pattern_at_real_name_servers(two_brokers: TwoBrokers) -> None:
    """System topics, retry topics, topics that come and go, and a broker that restarts."""
    bed = two_brokers
    bed.create_topic(TOPIC)
    bed.create_topic(f"%RETRY%{GROUP}")
    bed.send(TOPIC, numbers(80))
    with bed.client() as client:
        client.send(Message(f"%RETRY%{GROUP}", b"again"))
    retried = batch(bed, subscribepattern="%RETRY%.*").partitions()
    assert {part.queue.topic for task in retried for part in task.ranges} == {f"%RETRY%{GROUP}"}
    with pytest.raises(RouteNotFound, match="no topic matches; there are .*T"):
        batch(bed, subscribepattern="no.*").partitions()

    reader = stream(
        bed, subscribepattern=".*", startingoffsets="earliest", topicrefreshms="100"
    )
    found, position = read_on(reader, reader.initialOffset())
    assert found == bed.acknowledged(TOPIC) and set(position) == {"%", TOPIC}
    bed.stop("broker-b")
    bed.create_topic("new", on=["broker-a"])
    bed.send("new", numbers(40))
    wait_until(lambda: "new" in reader.latestOffset(position), "the new topic")
    bed.start("broker-b")
    bed.create_topic("new")
    bed.send("new", numbers(40, 120))
    again = stream(bed, subscribepattern=".*", startingoffsets="earliest", topicrefreshms="100")
    news: list[Any] = []
    while len(news) < 120:
        some, position = read_on(again, position)
        news += some
    assert sorted(news) == bed.stored("new")


@pytest.mark.skipif(not HAS_LIMITS, reason="drives a reader as Spark does from 4.2 on")
@pytest.mark.parametrize("size", [20, 20_000])
def test_bytes_of_a_batch(two_brokers: TwoBrokers, size: int) -> None:
    """Messages of two sizes, one in each half of the queues."""
    bed = two_brokers
    bed.create_topic(TOPIC, queue_count=1)
    with bed.client() as client:
        for queue in client.write_queues(TOPIC):
            for body in (b"x" * 1000, b"y" * size):
                for _ in range(6):
                    client.send_batch(queue, [Message(TOPIC, body)] * 100)
    most = 600_000
    reader = stream(bed, startingoffsets="earliest", maxbytespertrigger=str(most))
    position = reader.latestOffset(reader.initialOffset())
    sizes = []
    count = 0
    while (end := reader.latestOffset(position)) != position:
        parts = reader.partitions(position, end)
        found = rows(reader, parts)
        sizes.append(sum(len(one.body) + 150 for one in found))
        count += len(found)
        position = end
    assert count == 2400
    assert max(sizes) < 2 * most, sizes
    assert len(sizes) < 6 * sum(sizes) / most, sizes


SEGMENT_BYTES = 1 << 20


def test_messages_that_the_broker_has_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By its age, before the query or its task has read them."""
    store = {
        "segment_bytes": SEGMENT_BYTES,
        "reserved_hours": 0,
        "clean_interval_ms": 200,
        "clean_pause_ms": 0,
        "queue_flush_interval_ms": 200,
    }
    with (
        Cluster(tmp_path / "store", store_settings=store) as cluster,
        BlockingClient(cluster.name_server, timeout_s=30.0) as client,
    ):
        admin = admin_of(client)
        for topic in (TOPIC, "other"):
            admin.topics.create(topic, queue_count=1)
        (queue,) = client.read_queues(TOPIC)
        client.send_batch(queue, [Message(TOPIC, body) for body in numbers(20)])

        def reader(**more: str) -> PymqStreamReader:
            given = options(cluster.name_server, startingoffsets="earliest", **more)
            return PymqStreamReader(given, SCHEMA)

        first = reader()
        some, position = read_on(first, first.initialOffset())
        assert len(some) == 20
        client.send_batch(queue, [Message(TOPIC, body) for body in numbers(20, 40)])
        late = PymqBatchReader(options(cluster.name_server), SCHEMA)
        planned = late.partitions()
        for _ in range(3 * SEGMENT_BYTES // 100_000):
            client.send(Message("other", os.urandom(100_000)))

        def is_deleted() -> bool:
            admin.brokers.delete_expired_log(queue.broker_name)
            return client.bounds([queue])[queue] == (40, 40)

        wait_until(is_deleted, "the broker deletes what is in its first segments")
        client.send_batch(queue, [Message(TOPIC, body) for body in numbers(40, 45)])
        with pytest.raises(OffsetOutOfRange, match=r"20\.\.39 are gone.*failOnDataLoss"):
            read_on(reader(), position)
        with pytest.raises(OffsetOutOfRange, match=r"0\.\.39 are gone"):
            rows(late, planned)
        found, _ = read_on(reader(failondataloss="false"), position)
    assert [(one.offset, one.body) for one in found] == list(enumerate(numbers(40, 45), 40))
    assert "20..39 are gone" in caplog.text
