"""The queues of the subscribed topics as a table."""

from typing import Any

import pytest
from pyspark.sql.types import StructType
from tests.unit.connector.fake import FakeBroker
from tests.unit.connector.reading import B0, OPTIONS, Q0, Q1

from pymq.errors import ConnectionFailed
from pyspark_pymq.source import metadata
from pyspark_pymq.source.metadata import QueueStatesReader, queue_schema
from pyspark_pymq.source.option_checks import source_options


@pytest.fixture(autouse=True)
def connect(monkeypatch: pytest.MonkeyPatch, two: FakeBroker) -> None:
    monkeypatch.setattr(metadata, "BulkClient", two.client)


def rows(schema: StructType | None = None, **options: str) -> list[tuple[Any, ...]]:
    given = source_options({**OPTIONS, "metadata": "topics", **options})
    reader = QueueStatesReader(given, schema or queue_schema())
    (partition,) = reader.partitions()
    (batch,) = reader.read(partition)
    batch.validate(full=True)
    return [tuple(row.values()) for row in batch.to_pylist()]


def test_one_row_for_each_queue(two: FakeBroker) -> None:
    assert rows() == [
        ("orders", "broker-a", 0, 5, 15, None, None),
        ("orders", "broker-a", 1, 0, 10, None, None),
        ("orders", "broker-b", 0, 0, 10, None, None),
    ]
    assert not any(call[0] == "QUERY_CONSUMER_OFFSET" for call in two.calls)
    assert two.open_clients == 0


def test_how_far_a_group_is(two: FakeBroker) -> None:
    """Where it committed nothing it has no lag; beyond the end it has none left."""
    two.committed = {("G", Q0): 7, ("G", B0): 12, ("other", Q1): 3}
    found = [(row[1], row[2], *row[5:]) for row in rows(consumergroup="G")]
    assert found == [("broker-a", 0, 7, 8), ("broker-a", 1, None, None), ("broker-b", 0, 12, 0)]
    assert two.open_clients == 0


def test_some_of_its_columns(two: FakeBroker) -> None:
    two.committed = {("G", B0): 4}
    schema = StructType().add("lag", "long").add("brokerName", "string")
    assert rows(schema, consumergroup="G") == [(None, "broker-a")] * 2 + [(6, "broker-b")]


def test_a_broker_that_is_away(two: FakeBroker) -> None:
    two.away.add("broker-b")
    with pytest.raises(ConnectionFailed, match="broker-b"):
        rows(retrytimeoutms="1000")
