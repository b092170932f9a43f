"""Readers of the source, driven as Spark drives them, without a Spark."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from tests.spark.two_brokers import DEADLINE_S, Stored, TwoBrokers, wait_until

from pyspark_pymq.source.batch_reader import PymqBatchReader
from pyspark_pymq.source.columns import default_schema
from pyspark_pymq.source.option_checks import source_options
from pyspark_pymq.source.options import SourceOptions
from pyspark_pymq.source.reader import PymqStreamReader

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable
except ImportError:
    ReadAllAvailable = None  # type: ignore[assignment,misc]

#: From 4.2 on Spark tells a source where it stands, how much to read, and of AvailableNow.
HAS_LIMITS = ReadAllAvailable is not None

TOPIC = "T"
SCHEMA = default_schema(("pymq", "brokerName"), properties=False)
COLUMNS = ("brokerName", "queueId", "queueOffset", "body")
#: A broker that must answer is not taken for one that is away because it has to wait its turn.
ANSWER_MS = "30000"


def options(name_server: str, **more: str) -> SourceOptions:
    topics = {} if {"subscribepattern", "assign"} & more.keys() else {"subscribe": TOPIC}
    usual = {"nameserver": name_server}
    if "retrytimeoutms" not in more:  # of which it is a part
        usual["requesttimeoutms"] = ANSWER_MS
    return source_options({**usual, **topics, **more})


def stream(bed: TwoBrokers, **more: str) -> PymqStreamReader:
    return PymqStreamReader(options(bed.name_server, **more), SCHEMA)


def batch(bed: TwoBrokers, **more: str) -> PymqBatchReader:
    return PymqBatchReader(options(bed.name_server, **more), SCHEMA)


def rows(reader: Any, partitions: Any) -> list[Stored]:
    """Return, sorted, what the tasks of some partitions read."""
    found = []
    for partition in partitions:
        for table in reader.read(partition):
            columns = (table[name].to_pylist() for name in COLUMNS)
            found += [Stored(*values) for values in zip(*columns, strict=True)]
    return sorted(found)


def all_there_is(reader: PymqStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    """Return the end of a batch of all there is after ``start``."""
    if HAS_LIMITS:
        return reader.latestOffset(start, ReadAllAvailable())
    reader.partitions(start, start)  # so a restarted query says where it stands
    return reader.latestOffset()


def read_on(
    reader: PymqStreamReader, start: dict[str, Any], *, batches: int = 100
) -> tuple[list[Stored], dict[str, Any]]:
    """Run batches until there is nothing new; return their rows and where they end."""
    found: list[Stored] = []
    for _ in range(batches):
        end = all_there_is(reader, start)
        if end == start:
            break
        found += rows(reader, reader.partitions(start, end))
        start = end
    return sorted(found), start


def read_until(
    reader: PymqStreamReader, start: dict[str, Any], count: int
) -> tuple[list[Stored], dict[str, Any]]:
    """Run batches until there are that many rows, or more; return them and where they end.

    A broker that answers late may be left out of a batch, and then has its rows in a later one.
    """
    found: list[Stored] = []

    def is_there() -> bool:
        nonlocal start
        some, start = read_on(reader, start)
        found.extend(some)
        return len(found) >= count

    wait_until(is_there, f"{count} rows")
    return sorted(found), start


@contextmanager
def in_background(action: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
    """Run something while the block goes on; yields what waits for its result."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(action)
        yield lambda: future.result(DEADLINE_S)
