"""The source while brokers are away, silent, or lack messages: real brokers, and what they hold.

Most run what Spark would run (the driver's readers, the reading of a task) without a Spark.
"""

import dataclasses
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.played import PlayedNameServer
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
from tests.spark.two_brokers import EXPIRY_S, TwoBrokers, numbers, wait_until

from pymq.client.operations import PreparedMessage
from pymq.errors import (
    ConnectionFailed,
    OffsetOutOfRange,
    PymqError,
    RemoteProtocolError,
    RouteNotFound,
)
from pymq.protocol.bodies import BrokerData, MessageQueue, QueueData, TopicRoute
from pymq.protocol.message import Message
from pyspark_pymq.source import outages
from pyspark_pymq.source.reader import PymqStreamReader

#: Routes are kept for 30 s where nobody doubts them.
KEPT_S = 25.0

# ------------------------------------------------------------------------- brokers that are away


def test_a_task_waits_for_a_broker_that_restarts(
    two_brokers: TwoBrokers, caplog: pytest.LogCaptureFixture
) -> None:
    """Also a task of a query that has just been restarted, whose driver has no route yet."""
    bed = two_brokers
    bed.create_topic(TOPIC)
    bed.send(TOPIC, numbers(80))
    reader = batch(bed)
    parts = reader.partitions()
    for broker, routes in (("broker-b", parts[0].routes), ("broker-a", ())):
        wanted = [dataclasses.replace(part, routes=routes) for part in parts]
        bed.stop(broker)
        with in_background(lambda some=wanted: rows(reader, some)) as result:
            wait_until(lambda: "trying again" in caplog.text, "the task has waited for a second")
            bed.start(broker)
            assert result() == bed.acknowledged(TOPIC)
        caplog.clear()
    bed.stop("broker-b")
    with pytest.raises(PymqError, match="broker-b"):
        rows(batch(bed, retrytimeoutms="200"), parts)


def test_a_batch_names_the_broker_that_is_missing(two_brokers: TwoBrokers) -> None:
    bed = two_brokers
    bed.create_topic(TOPIC)
    bed.send(TOPIC, numbers(80))
    expecting = {"expectedbrokers": "broker-a,broker-b", "retrytimeoutms": "500"}
    reader = batch(bed, **expecting)
    assert rows(reader, reader.partitions()) == bed.acknowledged(TOPIC)
    bed.stop("broker-b")
    with pytest.raises(RouteNotFound, match="expectedBrokers: broker-b not found"):
        batch(bed, **expecting).partitions()
    bed.start("broker-b")
    bed.freeze("broker-b")  # in the route, and silent: known to be missing without the option
    with pytest.raises(ConnectionFailed, match=r"broker-b has given no answer.*T/broker-b/0"):
        batch(bed, retrytimeoutms="1500", requesttimeoutms="1500").partitions()
    bed.thaw("broker-b")


def test_a_broker_that_comes_late_is_waited_for(
    two_brokers: TwoBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else whoever had to wait for an answer, on a busy machine, waits ten times as long to ask.
    monkeypatch.setattr(outages, "ASK_AGAIN_MAX_S", 1.0)
    bed = two_brokers
    bed.create_topic(TOPIC)
    bed.send(TOPIC, numbers(80))
    bed.stop("broker-b")
    # Routes that lack a broker must not be kept for their usual 30 s meanwhile.
    reader = batch(bed, expectedbrokers="broker-a,broker-b")
    with in_background(reader.partitions) as parts:
        bed.start("broker-b")
        began_s = time.monotonic()
        assert rows(reader, parts()) == bed.acknowledged(TOPIC)
    assert time.monotonic() - began_s < KEPT_S
    # A stream that was started again knows no route that broker-b was in.
    first = stream(bed, startingoffsets="earliest")
    _, position = read_on(first, first.initialOffset())
    bed.wait_route("broker-b")
    bed.send(TOPIC, numbers(80, 160))
    bed.stop("broker-b")
    again = stream(bed)
    found, position = read_on(again, position)
    assert len(found) == 40
    bed.start("broker-b")
    began_s = time.monotonic()
    wait_until(lambda: again.latestOffset(position) != position, "broker-b's rows")
    assert time.monotonic() - began_s < KEPT_S
    more, _ = read_on(again, position)
    assert len(more) == 40


def test_a_stream_reads_on_while_one_broker_is_frozen(
    two_brokers: TwoBrokers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outages, "ASK_AGAIN_MAX_S", 3.0)
    bed = two_brokers
    bed.create_topic(TOPIC)
    bed.send(TOPIC, numbers(80))
    reader = stream(bed, startingoffsets="earliest", requesttimeoutms="1500")
    found, position = read_until(reader, reader.initialOffset(), 80)
    assert found == bed.acknowledged(TOPIC)
    caplog.clear()
    bed.freeze("broker-a")
    bed.send(TOPIC, numbers(100, 120), to="broker-b")
    more, position = read_until(reader, position, 20)
    assert sorted(one.body for one in more) == sorted(numbers(100, 120))
    assert caplog.text.count("broker broker-a gives no answer") == 1
    bed.thaw("broker-a")
    bed.send(TOPIC, numbers(200, 220))
    late, _ = read_until(reader, position, 20)
    assert sorted(found + more + late) == bed.acknowledged(TOPIC) == bed.stored(TOPIC)
    reader.stop()


@pytest.mark.skipif(not HAS_LIMITS, reason="drives a reader as Spark does from 4.2 on")
def test_a_broker_that_is_frozen_for_longer_than_name_servers_wait(tmp_path: Path) -> None:
    """They forget it, and so does every route; its messages are read when it goes on."""
    with TwoBrokers(tmp_path / "bed", expiry_s=EXPIRY_S) as bed:
        bed.create_topic(TOPIC)
        bed.send(TOPIC, numbers(80))
        reader = stream(bed, startingoffsets="earliest", requesttimeoutms="1500")
        start = reader.latestOffset(reader.initialOffset())
        ends: list[dict[str, Any]] = []

        def has_all() -> bool:
            ends.append(reader.latestOffset(start))
            queues = ends[-1][TOPIC].values()
            return sum(sum(of_broker.values()) for of_broker in queues) == 80

        wait_until(has_all, "the end of each queue")
        end = ends[-1]
        bed.freeze("broker-a")
        with in_background(lambda: rows(reader, reader.partitions(start, end))) as result:
            bed.wait_route("broker-a", gone=True)
            assert reader.latestOffset(end) == end
            bed.thaw("broker-a")
            assert result() == bed.acknowledged(TOPIC)
        reader.stop()


def test_a_stream_fails_when_a_broker_stays_away(two_brokers: TwoBrokers) -> None:
    bed = two_brokers
    bed.create_topic(TOPIC)
    bed.send(TOPIC, numbers(80))
    settings = {"startingoffsets": "earliest", "retrytimeoutms": "500"}
    reader = stream(bed, **settings)
    _, position = read_on(reader, reader.initialOffset())
    bed.stop("broker-b")
    with pytest.raises(ConnectionFailed, match=r"broker-b has given no answer.*retryTimeoutMs"):
        wait_until(lambda: reader.latestOffset(position) != position, "never")
    for name in ("broker-a", "broker-b"):
        if bed.broker(name).is_running:
            bed.stop(name)
    restarted = stream(bed, **settings)  # nothing has a route at all
    with pytest.raises(ConnectionFailed, match=r"broker-a has given.*broker-b has") as caught:
        wait_until(lambda: restarted.latestOffset(position) != position, "never")
    assert "topic create" not in str(caught.value)  # it is there


@pytest.mark.skipif(not HAS_LIMITS, reason="drives a reader as Spark does from 4.2 on")
def test_available_now_ends_with_all_brokers(two_brokers: TwoBrokers) -> None:
    bed = two_brokers
    bed.create_topic(TOPIC)
    bed.send(TOPIC, numbers(80))
    reader = stream(bed, startingoffsets="earliest")
    checkpoint = reader.latestOffset(reader.initialOffset())
    bed.stop("broker-b")
    reader = stream(bed)
    reader.prepareForTriggerAvailableNow()
    with in_background(lambda: read_on(reader, checkpoint)) as result:
        away = MessageQueue(TOPIC, "broker-b", 0)
        wait_until(lambda: reader._topics.waits_for([away]), "the query waits for broker-b")
        bed.start("broker-b")
        found, _ = result()
    assert found == bed.acknowledged(TOPIC)


def test_a_latest_start_does_not_replay_a_broker_that_was_away(two_brokers: TwoBrokers) -> None:
    bed = two_brokers
    bed.create_topic(TOPIC)
    bed.send(TOPIC, numbers(80))
    bed.stop("broker-b")
    hour_s = 3600.0
    clock = {"wall_s": lambda: time.time() + hour_s}
    reader = PymqStreamReader(options(bed.name_server), SCHEMA, **clock)
    position = reader.latestOffset(reader.initialOffset())
    bed.start("broker-b")
    reader = stream(bed)  # restarted: what counts is the time in the checkpoint
    found, position = read_on(reader, position)
    assert found == [] and "broker-b" in position[TOPIC]
    bed.send(TOPIC, numbers(80, 120))
    found, _ = read_on(reader, position)
    assert sorted(one.body for one in found) == sorted(numbers(80, 120))
    reader.stop()

    # Had it begun an hour ago, all of them would have come since.
    position["%"]["since"] -= int(2 * hour_s * 1000)
    del position[TOPIC]["broker-b"]
    again, _ = read_on(stream(bed), position)
    assert {one for one in bed.acknowledged(TOPIC) if one.broker == "broker-b"} <= set(again)


# ---------------------------------------------------------------------- messages that are missing


def test_a_gap_in_a_queue(two_brokers: TwoBrokers, caplog: pytest.LogCaptureFixture) -> None:
    """Blank entries, with which a recovery fills the places of lost messages."""
    bed = two_brokers
    bed.create_topic(TOPIC, queue_count=1, on=["broker-a"])
    bed.send(TOPIC, numbers(100))
    queue = bed.store("broker-a") / "consumequeue" / TOPIC / "0"
    (path,) = queue.iterdir()
    with path.open("r+b") as file:
        for first, count in ((0, 2), (10, 3), (50, 1), (98, 2)):
            file.seek(20 * first)
            file.write(struct.pack(">qiq", 0, 0x7FFFFFFF, 0) * count)
    gone = {0, 1, 10, 11, 12, 50, 98, 99}
    wanted = [one for one in bed.acknowledged(TOPIC) if one.offset not in gone]
    for pull_bytes in ("1024", "8388608"):
        lenient = batch(bed, failondataloss="false", pullbytes=pull_bytes)
        assert rows(lenient, lenient.partitions()) == wanted
        with pytest.raises(OffsetOutOfRange, match="first at 0.*failOnDataLoss"):
            strict = batch(bed, pullbytes=pull_bytes)
            rows(strict, strict.partitions())
    assert "data loss accepted" in caplog.text


def test_what_a_slave_lacks_is_not_lost(two_brokers: TwoBrokers) -> None:
    """A name server that has lost the master names a slave; here broker-b plays it."""
    bed = two_brokers
    bed.create_topic(TOPIC, queue_count=1)
    bed.send(TOPIC, numbers(80))

    def route(broker_id: int, broker: str) -> TopicRoute:
        counts = {"read_queue_count": 1, "write_queue_count": 1}
        return TopicRoute(
            queues=[QueueData(broker_name="broker-a", perm=6, **counts)],
            brokers=[
                BrokerData(
                    broker_name="broker-a", addresses={broker_id: bed.broker(broker).address}
                )
            ],
        )

    bed.send(TOPIC, numbers(80, 100), to="broker-a")  # of which the slave has nothing yet
    wanted = [one for one in bed.acknowledged(TOPIC) if one.broker == "broker-a"]
    master, slave = route(0, "broker-a"), route(1, "broker-b")
    end = {"%": {"v": 1}, TOPIC: {"broker-a": {"0": len(wanted)}}}
    start = {"%": {"v": 1}, TOPIC: {"broker-a": {"0": len(wanted) - 20}}}
    with PlayedNameServer({TOPIC: slave}) as name_server:
        for lenient in ("false", "true"):
            name_server.routes[TOPIC] = slave
            settings = options(name_server.address, failondataloss=lenient)
            reader = PymqStreamReader(settings, SCHEMA)
            assert reader.latestOffset(end) == end  # neither an error nor a step back
            parts = reader.partitions(start, end)
            back = threading.Timer(0.3, name_server.routes.__setitem__, (TOPIC, master))
            back.start()
            assert rows(reader, parts) == wanted[-20:]
            back.join()
            reader.stop()
        name_server.routes[TOPIC] = slave
        settings = options(name_server.address, failondataloss="false", retrytimeoutms="300")
        impatient = PymqStreamReader(settings, SCHEMA)
        with pytest.raises(OffsetOutOfRange, match="Only a slave of broker broker-a answers"):
            rows(impatient, impatient.partitions(start, end))


# ------------------------------------------------------------------------------ compressed bodies


def test_compressed_bodies_from_a_broker(two_brokers: TwoBrokers) -> None:
    """A hundred times as large as what is stored, and one that is not what it says."""
    bed = two_brokers
    bed.create_topic(TOPIC, queue_count=1, on=["broker-a"])
    body = b"0123456789abcdef" * (1 << 16)
    with bed.client() as client:
        (queue,) = client.read_queues(TOPIC)
        for _ in range(40):
            client.send(Message(TOPIC, body), queue)
        junk = PreparedMessage(TOPIC, b"junk", "TAGS\x01T\x02", None, sys_flag=1)
        client._sender.send(junk, queue)
        client.send(Message(TOPIC, b"after it"), queue)
        stored = client.pull(queue, 0, count_max=100, bytes_max=8 << 20)
        assert len(stored.body) < 1 << 20  # one answer, which was one batch
    reader = batch(bed, corruptbodies="null")
    (part,) = reader.partitions()
    batches = list(reader.read(part))
    bodies = [found for table in batches for found in table["body"].to_pylist()]
    assert bodies == [body] * 40 + [None, b"after it"]
    assert max(table.nbytes for table in batches) < 10 << 20
    strict = batch(bed)
    with pytest.raises(RemoteProtocolError, match="offset 40 of queue 0 of T on broker-a"):
        rows(strict, strict.partitions())
