"""Readers of a fake broker, as Spark makes them on its driver."""

from typing import Any

from pymq.protocol.bodies import MessageQueue
from pyspark_pymq.source import positions, subscribed_topics
from pyspark_pymq.source.batch_reader import PymqBatchReader
from pyspark_pymq.source.columns import default_schema
from pyspark_pymq.source.option_checks import source_options
from pyspark_pymq.source.reader import PymqStreamReader

Q0, Q1, Q2 = (MessageQueue("orders", "broker-a", number) for number in range(3))
OPTIONS = {"nameserver": "a:1", "subscribe": "orders"}
SCHEMA = default_schema(properties=False)
NOW_S = 200_000_000  # when tests begin: 1976-05-03T19:33:20Z
SINCE = 1000 * NOW_S - positions.CLOCK_SKEW_MS  # of a start at the latest messages


class Time:
    def __init__(self) -> None:
        self.now_s = float(NOW_S)

    def __call__(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> None:
        assert 0 < seconds < subscribed_topics.PAUSE_MAX_S + 1e-6
        self.now_s += seconds


def given(options: dict[str, str]) -> dict[str, str]:
    """Return ``OPTIONS`` changed; an empty text takes one away."""
    return {name: text for name, text in {**OPTIONS, **options}.items() if text}


def stream(**options: str) -> PymqStreamReader:
    return PymqStreamReader(source_options(given(options)), SCHEMA)


def batch(**options: str) -> PymqBatchReader:
    return PymqBatchReader(source_options(given(options)), SCHEMA)


def offsets(*values: int, **mark: int) -> dict[str, Any]:
    queues = {str(number): value for number, value in enumerate(values)}
    return {"%": {"v": 1, **mark}, "orders": {"broker-a": queues}}


def planned(partitions: Any) -> list[tuple[int, int, int]]:
    return [(r.queue.queue_id, r.first, r.end) for part in partitions for r in part.ranges]


B0, B1 = (MessageQueue("orders", "broker-b", number) for number in range(2))


def both(a0: int, a1: int, b0: int | None, **mark: int) -> dict[str, Any]:
    value = offsets(a0, a1, **mark)
    if b0 is not None:
        value["orders"]["broker-b"] = {"0": b0}
    return value
