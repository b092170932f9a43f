"""Brokers of rows that name a queue alone, where other rows name its broker."""

import random
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pymq.client.sockets.bulk_client import BulkClient
from pymq.protocol.bodies import MessageQueue
from pyspark_pymq.sink import keyed_queues
from pyspark_pymq.sink.keyed_queues import KeyedQueues

#: Topic -> broker -> how many queues it has there.
QUEUES = {"one": {"a": 2, "b": 4}, "two": {"b": 3, "c": 5}, "many": {"a": 64, "b": 64}}
Row = tuple[str | None, int | None, str | None]


class Routes:
    """A client that knows the topics; ``asked`` has those that it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def write_queues(self, topic: str) -> list[MessageQueue]:
        self.asked.append(topic)
        return [
            MessageQueue(topic, broker, number)
            for broker, count in reversed(QUEUES[topic].items())
            for number in range(count)
        ]


class Counting:
    """Counts the calls of functions that look at all rows."""

    def __init__(self) -> None:
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        self.calls += 1
        return getattr(pc, name)


def named(rows: list[Row], topic: str | None = None) -> tuple[list[str | None], list[str]]:
    """Return the brokers that the rows have afterwards, and the topics that were asked for."""
    routes = Routes()
    columns = {
        "queueId": pa.array([row[1] for row in rows], pa.int32()),
        "brokerName": pa.array([row[2] and row[2].encode() for row in rows], pa.binary()),
    }
    if topic is None:
        columns["topic"] = pa.array([row[0] and row[0].encode() for row in rows], pa.binary())
    KeyedQueues(cast(BulkClient, routes), topic, None, 1.0).name_brokers(columns)
    assert columns["brokerName"].type == pa.binary()
    found = columns["brokerName"].to_pylist()
    return [name if name is None else name.decode() for name in found], routes.asked


def expected(rows: list[Row]) -> list[str | None]:
    there = set(rows)
    found = []
    for topic, number, name in rows:
        if not name and topic is not None and number is not None:
            brokers = [one for one, count in QUEUES[topic].items() if 0 <= number < count]
            first = min(brokers, default=None)
            name = first if (topic, number, first) in there else None
        found.append(name or None)
    return found


def test_rows_against_a_model(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(100):
        rows: list[Row] = [
            (
                dice.choice(("one", "two", None)),
                dice.choice((None, -1, 0, 1, 2, 3, 4, 5)),
                dice.choice((None, None, "", "a", "b", "c")),
            )
            for _ in range(dice.randrange(30))
        ]
        assert named(rows)[0] == expected(rows)


def test_topics_are_asked_for_only_if_rows_name_the_broker_of_such_a_queue() -> None:
    rows: list[Row] = [("two", 1, None), ("two", 2, "b"), ("one", 1, "b"), ("one", 1, None)]
    assert named(rows) == ([None, "b", "b", None], ["one"])
    assert named(rows[:3]) == ([None, "b", "b"], [])


def test_the_work_does_not_grow_with_the_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows are looked at as often for many queues as for one."""
    calls = []
    for count in (1, 64):
        counting = Counting()
        monkeypatch.setattr(keyed_queues, "pc", counting)
        rows: list[Row] = [("many", n, name) for n in range(count) for name in ("a", "b", None)]
        assert named(rows, "many")[0] == ["a", "b", "a"] * count
        calls.append(counting.calls)
    assert calls[0] == calls[1]
