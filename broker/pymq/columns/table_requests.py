"""A table of messages as bodies of batches, without a Python statement per message."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pymq.columns.arrow_arrays import contents, fixed_width
from pymq.columns.arrow_package import pa, pc
from pymq.columns.encoding import encode_messages
from pymq.columns.table import as_table, check_table, pieces
from pymq.columns.unique_key_arrays import UniqueKeyArrays
from pymq.errors import LocalProtocolError
from pymq.protocol.java_hashes import java_hashes
from pymq.protocol.record_batch import Longs
from pymq.protocol.records_body import RecordsBody


@dataclass(frozen=True, slots=True)
class TableRequest:
    """The body of one batch.

    Attributes:
        topic: of its messages.
        body: entries of SEND_BATCH, or pre-encoded records.
        rows: their numbers in the table.
        key_hash: of their sharding keys, modulo the topic's queues; ``None``: they have none.
    """

    topic: str
    body: bytes | RecordsBody
    rows: Longs
    key_hash: int | None


class TableRequests:
    """The requests of one table.

    Args:
        table: as the user gave it.
        topic: of all rows; ``None``: a column says it.
        address, pid, salt: for the ids, see ``UniqueKeyArrays``.
        month_ms: the time, see there.
        batch_bytes: of one request, at most, but for a single message.
        message_bytes_max: of one message.

    Raises:
        ConfigurationError: it is no table, or a column does not fit.
    """

    def __init__(
        self,
        table: Any,
        *,
        topic: str | None,
        keys: UniqueKeyArrays,
        month_ms: int,
        batch_bytes: int,
        message_bytes_max: int,
    ) -> None:
        self._table = as_table(table)
        check_table(self._table, topic)
        self._topic = topic
        self._keys = keys
        self._month_ms = month_ms
        self._batch_bytes = batch_bytes
        self._message_bytes_max = message_bytes_max
        count = len(self._table)
        self._ids = keys.ids(count, month_ms=month_ms)

    def __len__(self) -> int:
        return len(self._table)

    @property
    def message_ids(self) -> npt.NDArray[np.bytes_]:
        """The id of each row."""
        width = self._ids.shape[1]
        return np.ascontiguousarray(self._ids).view(f"S{width}").reshape(-1)

    def topics(self) -> list[str]:
        """Return the topics of the rows.

        Raises:
            LocalProtocolError: a row has none, or no text; the error names it.
        """
        if self._topic is not None:
            return [self._topic]
        try:
            column = self._table.column("topic").cast(pa.binary())
        except pa.ArrowException as error:
            kind = self._table.column("topic").type
            raise LocalProtocolError(
                f"column topic: {kind}, expected the names of topics as strings"
            ) from error
        if column.null_count:
            row = int(column.is_null().to_numpy().argmax())
            raise LocalProtocolError(f"row {row}: topic is null, and a message needs one")
        return [_decoded(name, column) for name in pc.unique(column)]

    def parts(
        self, queue_count: Callable[[str], int], takes_records: Callable[[str], bool]
    ) -> Iterator[list[TableRequest]]:
        """Yield the requests of one part of the table after the other.

        Args:
            queue_count: returns how many queues a topic has, for sharding keys.
            takes_records: says whether its brokers take pre-encoded records.

        Raises:
            LocalProtocolError: a row cannot be sent; the text names it.
        """
        first = 0
        try:
            for first, columns in pieces(self._table):
                requests: list[TableRequest] = []
                for topic, rows in self._by_topic(columns):
                    of_topic = columns
                    if rows is not None:
                        of_topic = {name: one.take(pa.array(rows)) for name, one in columns.items()}
                    else:
                        rows = np.arange(len(columns["body"]))
                    requests += self._requests(
                        topic, of_topic, rows + first, queue_count(topic), takes_records(topic)
                    )
                yield requests
        except pa.ArrowException as error:  # of its limits, such as offsets of 32 bits
            raise LocalProtocolError(
                f"rows from row {first} on cannot be encoded together: {error}"
            ) from error

    def _by_topic(self, columns: dict[str, Any]) -> list[tuple[str, Longs | None]]:
        if self._topic is not None:
            return [(self._topic, None)]
        encoded = columns.pop("topic").dictionary_encode()
        names = [name.decode() for name in encoded.dictionary.to_pylist()]
        if len(names) == 1:
            return [(names[0], None)]
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        return [(name, np.flatnonzero(codes == code)) for code, name in enumerate(names)]

    def _requests(
        self,
        topic: str,
        columns: dict[str, Any],
        rows: Longs,
        queue_count: int,
        as_records: bool,
    ) -> Iterator[TableRequest]:
        groups: list[tuple[int | None, int, int]] = [(None, 0, len(rows))]
        if "shardingKey" in columns:
            order, groups = _by_key(columns["shardingKey"], queue_count)
            columns = {name: one.take(pa.array(order)) for name, one in columns.items()}
            rows = rows[order]
        ids = fixed_width(np.ascontiguousarray(self._ids[rows]))
        messages = encode_messages(
            {**columns, "dedupKey": ids},
            self._keys,
            month_ms=self._month_ms,
            message_bytes_max=self._message_bytes_max,
            place=lambda row: f"row {rows[row]}",
        )
        encoded = messages.records(topic.encode()) if as_records else messages.entries()
        if as_records and int(np.diff(encoded.start).max()) > self._message_bytes_max:
            # A record takes more than an entry, and one may be too large for that alone.
            encoded = messages.entries()
        for key_hash, low, high in groups:
            at = low
            for body in encoded.requests(low, high, bytes_max=self._batch_bytes):
                if isinstance(body, RecordsBody):
                    end = at + body.record_count
                    kept: bytes | RecordsBody = body._replace(body=memoryview(bytes(body.body)))
                else:
                    end = int(np.searchsorted(encoded.start, encoded.start[at] + len(body)))
                    kept = bytes(body)
                yield TableRequest(topic, kept, rows[at:end], key_hash)
                at = end


def _decoded(name: Any, column: Any) -> str:
    """Return a topic's name, a scalar of a column.

    Raises:
        LocalProtocolError: it is not UTF-8.
    """
    raw: bytes = name.as_py()
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        row = pc.index(column, name).as_py()
        raise LocalProtocolError(f"row {row}: topic {raw!r:.80} is not UTF-8") from error


def _by_key(
    keys: Any, queue_count: int
) -> tuple[Longs, list[tuple[int | None, int, int]]]:
    """Return an order in which rows of one queue are neighbours, and where they begin and end.

    The queue is that of Java's SelectMessageQueueByHash. Rows without a key come last.
    """
    text, start = contents(keys)
    lengths = np.diff(start)
    hashes = java_hashes(text, start[:-1], lengths).view(np.int32).astype(np.int64)
    queue = np.where(lengths > 0, np.abs(hashes) % queue_count, queue_count)
    order = np.argsort(queue, kind="stable")
    borders = np.searchsorted(queue[order], np.arange(queue_count + 2))
    groups = [
        (number if number < queue_count else None, int(low), int(high))
        for number, (low, high) in enumerate(zip(borders[:-1], borders[1:], strict=True))
        if low < high
    ]
    return order, groups
