"""What ``Reader.read`` is asked for and is not there: an error, not nothing."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pymq import ConfigurationError, Message, MessageQueue, OffsetOutOfRange, blocking
from pymq.client.cluster.live_routes import ROUTE_READ_MIN_S
from pymq.testing import Cluster, wait_until

TOPIC = "bounds"
COUNT = 25
QUEUE = MessageQueue(TOPIC, "broker-a", 0)
MISSING = MessageQueue(TOPIC, "broker-a", 77)


@pytest.fixture(scope="module")
def reader() -> Iterator[blocking.Reader]:
    """Of a topic of one queue with 25 messages."""
    with Cluster() as cluster:
        with blocking.Admin(cluster.name_server) as admin:
            admin.topics.create(TOPIC, queue_count=1)
        with blocking.Producer(cluster.name_server) as producer:
            for number in range(COUNT):
                producer.send(Message(TOPIC, b"%d" % number))
        with blocking.Reader(cluster.name_server, deadline_s=30) as reader:
            yield reader


def count(reader: blocking.Reader, *bounds: Any, **arguments: Any) -> int:
    return sum(map(len, reader.read(TOPIC, *bounds, **arguments)))


@pytest.mark.parametrize("start", [5000, {QUEUE: 5000}, COUNT + 1])
@pytest.mark.parametrize("end", ["last", "first", np.datetime64("2100-01-01")])
def test_a_start_behind_the_end_of_a_queue(reader: blocking.Reader, start: Any, end: Any) -> None:
    with pytest.raises(OffsetOutOfRange, match="the queue ends at 25"):
        count(reader, start, end)


def test_an_end_behind_the_end_of_a_queue(reader: blocking.Reader) -> None:
    with pytest.raises(OffsetOutOfRange):
        count(reader, 0, COUNT + 1)


@pytest.mark.parametrize("end", [2, {QUEUE: 2}])
def test_an_end_before_the_start(reader: blocking.Reader, end: Any) -> None:
    with pytest.raises(ConfigurationError, match="end=2 is before start=5"):
        count(reader, 5, end)


@pytest.mark.parametrize(
    "arguments", [{"queues": [MISSING]}, {"start": {MISSING: 0}}, {"end": {MISSING: 3}}]
)
def test_a_queue_that_is_not_there(reader: blocking.Reader, arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"queue_id=77.* has queues \[0\]"):
        count(reader, **arguments)


@pytest.mark.parametrize("place", ["first", None, 1.5, True, np.array([1, 2])])
@pytest.mark.parametrize("name", ["start", "end"])
def test_a_mapping_to_something_else(reader: blocking.Reader, name: str, place: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} of .*expected an offset"):
        count(reader, **{name: {QUEUE: place}})


def test_bounds_that_are_there(reader: blocking.Reader) -> None:
    assert count(reader) == COUNT
    assert count(reader, COUNT) == 0  # what comes next
    assert count(reader, 5, 5) == 0
    assert count(reader, {QUEUE: np.int64(20)}, np.int64(22)) == 2
    assert count(reader, 20, queues=[QUEUE]) == 5
    assert count(reader, 20, "first") == 0  # a place that only the broker knows


def test_a_queue_that_is_new() -> None:
    """The route that the reader knows is older than the queue."""
    later = MessageQueue("grows", "broker-a", 1)
    with Cluster() as cluster, blocking.Admin(cluster.name_server) as admin:
        admin.topics.create("grows", queue_count=1)
        with blocking.Reader(cluster.name_server) as reader:
            assert sum(map(len, reader.read("grows"))) == 0
            admin.topics.create("grows", queue_count=2)
            wait_until(lambda: later in admin.topics.route("grows").read_queues, timeout_s=60)
            time.sleep(2 * ROUTE_READ_MIN_S)
            assert sum(map(len, reader.read("grows", queues=[later]))) == 0
