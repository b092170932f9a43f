"""ColumnBatch: messages as columns, without a Python object for each message.

This module needs neither numpy nor pyarrow; ``pymq.columns``, which it shows, does.
"""

import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any  # Any: what extras know

from pymq.client.ranges import PullChunk
from pymq.errors import ConfigurationError
from pymq.protocol.bodies import MessageQueue

if TYPE_CHECKING:
    from pymq.columns.values import ColumnValues

#: All columns, with their names as in ``ReceivedMessage``.
COLUMNS = (
    *("topic", "broker_name", "queue_id", "queue_offset", "body", "tags", "keys", "message_id"),
    *("born_timestamp", "store_timestamp", "reconsume_times", "flag", "sys_flag", "properties"),
)
#: Of an Arrow table, when nothing else is asked for: a map of all properties costs as much as all
#: other columns together.
USUAL_COLUMNS = tuple(name for name in COLUMNS if name not in ("sys_flag", "properties"))


class ColumnBatch:
    """Messages of one queue, column by column.

    ::

        batch["queue_offset"]            # numpy, int64
        batch["store_timestamp"]         # numpy, datetime64[ms], UTC
        batch["body"][0]                 # bytes; batch["body"].data, .start, .end are numpy
        batch.to_arrow("body", "tags")   # pyarrow.RecordBatch
        batch.to_polars(), batch.to_pandas()

    ``topic``, ``broker_name`` (the same in all rows), ``queue_id``, ``queue_offset``, ``flag``,
    ``sys_flag``, ``reconsume_times`` and the two times are numpy arrays of shape (n,). ``body``,
    ``tags``, ``keys`` (joined by blanks), ``message_id`` (``None`` where its producer gave
    none; the broker's id in Arrow)
    and ``properties`` (as they are stored) are ``BinaryColumn``. Columns are made when they are
    asked for. The batch keeps what was received in memory as long as it lives.

    Attributes:
        queue: where the messages are.
        first: offset from which they were looked for.
        next_offset: offset up to which they were: where the next batch of the queue begins.
    """

    def __init__(
        self, values: "ColumnValues", queue: MessageQueue, *, first: int, next_offset: int
    ) -> None:
        self.queue = queue
        self.first = first
        self.next_offset = next_offset
        self._values = values

    def __len__(self) -> int:
        return self._values.count

    def __repr__(self) -> str:
        queue = self.queue
        return (
            f"<ColumnBatch of {len(self)} messages, topic {queue.topic!r}, "
            f"{queue.broker_name}:{queue.queue_id}, offsets {self.first}..{self.next_offset}>"
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns."""
        return COLUMNS

    def __getitem__(self, name: str) -> Any:
        """Return a column.

        Raises:
            KeyError: there is none of this name.
            RemoteProtocolError: a body cannot be decompressed.
            ConfigurationError: a package is missing to decompress it.
        """
        if name not in COLUMNS:
            raise KeyError(f"{name!r}: there are {', '.join(COLUMNS)}")
        return self._values.column(name)

    # --- other forms

    def to_arrow(self, *names: str) -> Any:
        """Return columns as an Arrow record batch.

        Args:
            names: in their order; by default all but ``sys_flag`` and ``properties``.

        Raises:
            ConfigurationError: pyarrow is not installed, or there is no such column.
            RemoteProtocolError: a body cannot be decompressed.
        """
        from pymq.columns.arrow_batches import arrow_batch

        return arrow_batch(self._values, _checked(names))

    def to_pandas(self, *names: str) -> Any:
        """Return columns as a pandas DataFrame. Arguments and errors as ``to_arrow``."""
        from pymq.columns.arrow_batches import pandas_frame

        return pandas_frame(self.to_arrow(*names))

    def to_polars(self, *names: str) -> Any:
        """Return columns as a Polars DataFrame. Arguments and errors as ``to_arrow``."""
        from pymq.columns.arrow_batches import polars_frame

        return polars_frame(self.to_arrow(*names))


def column_batch(
    queue: MessageQueue, chunk: PullChunk, tags: frozenset[str] = frozenset()
) -> ColumnBatch:
    """Return a chunk as columns.

    Args:
        queue: where it is from.
        chunk: what was pulled.
        tags: keep only messages with exactly one of these; empty: all.

    Raises:
        ConfigurationError: numpy is not installed.
        CorruptRecord: the chunk does not consist of records.
    """
    from pymq.columns.values import column_values

    values = column_values(chunk.buffer, queue, tags)
    return ColumnBatch(values, queue, first=chunk.first, next_offset=chunk.next_offset)


def check_columns() -> None:
    """Accept a call that will return columns.

    Raises:
        ConfigurationError: numpy is not installed; the text says what to install.
    """
    importlib.import_module("pymq.columns")


def _checked(names: Iterable[str]) -> tuple[str, ...]:
    wanted = tuple(names) or USUAL_COLUMNS
    for name in wanted:
        if name not in COLUMNS:
            raise ConfigurationError(
                f"there is no column {name!r:.80}, expected some of {', '.join(COLUMNS)}"
            )
    return wanted
