"""Stands for the reader of a stream whose options are wrong."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pymq.errors import PymqError


class RefusedStreamReader(DataSourceStreamReader):
    """Says at the first question why there is no reader.

    An error of ``DataSource.streamReader`` itself Spark 4.0 to 4.3 show behind one of their own.

    Args:
        reason: what is wrong.
    """

    def __init__(self, reason: PymqError) -> None:
        self._reason = reason

    def initialOffset(self) -> dict[str, Any]:
        """Raise the reason."""
        raise self._reason

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        """Raise the reason."""
        raise self._reason

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        """Raise the reason."""
        raise self._reason

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raise the reason."""
        raise self._reason
