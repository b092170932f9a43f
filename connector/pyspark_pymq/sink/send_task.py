"""One task of the sink: its rows are encoded, and sent while Spark makes the next ones."""

import functools
import os
import secrets
import time
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pymq.client.sockets.batch_pipeline import BatchPipeline
from pymq.client.sockets.batch_targets import BatchTarget
from pymq.client.sockets.bulk_client import BulkClient
from pymq.client.sockets.delayed_sends import DelayedMessage
from pymq.columns.encoding import (
    DELAY_COLUMNS,
    DELAY_KIND,
    Encoded,
    Messages,
    encode_messages,
)
from pymq.columns.unique_key_arrays import UniqueKeyArrays
from pymq.errors import LocalProtocolError
from pymq.protocol.sink_bodies import StagedRun
from pymq.protocol.sink_decisions import StagedRuns
from pymq.protocol.unique_keys import month_around
from pyspark_pymq.format_options import check_target
from pyspark_pymq.sink.delays import (
    AT_ONCE,
    AT_TIME,
    add_delays,
    as_ms,
    told,
)
from pyspark_pymq.sink.digest import Digest
from pyspark_pymq.sink.gathering import Gathering, check_runs
from pyspark_pymq.sink.keyed_queues import KeyedQueues
from pyspark_pymq.sink.options import SinkOptions
from pyspark_pymq.sink.topic_check import check_topic_at_home

#: Ten thousand rows of a usual size, as Spark hands them over, are one request.
REQUEST_BYTES_MAX = 3 << 20
#: A broker works on one while the next is in flight; with more, memory is cold when it is used.
REQUESTS_IN_FLIGHT = 3
#: Delayed rows are requests of their own, and small.
DELAYED_IN_FLIGHT = 64


class SendTask:
    """Sends the batches of one task, or stages them.

    Args:
        client: open; the owner closes it.
        options: of the sink.
        columns: sink column -> the DataFrame's name of it, from ``check_columns``.
        first_queue: which of a topic's queues comes first; tasks should differ.
        stage_at: name of the broker at which rows are staged; None: they are sent.
        wall_s: the clock.

    Attributes:
        rows: taken so far.
        sent_bytes: bodies of all requests so far.
        digest: of the rows that were staged or counted so far.
    """

    def __init__(
        self,
        client: BulkClient,
        options: SinkOptions,
        columns: dict[str, str],
        *,
        first_queue: int = 0,
        stage_at: str | None = None,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self.rows = self.sent_bytes = 0
        self.digest = Digest()
        self._options = options
        self._columns = columns
        self._wall_s = wall_s
        self._encode_values = options.values.encode()
        self._keyed_queues = KeyedQueues(client, options.topic, stage_at, options.retry_timeout_s)
        self._request_bytes_max = min(REQUEST_BYTES_MAX, options.message_bytes_max)
        self._keys = UniqueKeyArrays(
            address=bytes((127, 0, 0, 1)), pid=os.getpid(), salt=os.urandom(4)
        )
        self._broker = stage_at
        self._checked: set[str] = set()  # topics that the broker has, or that are waited for
        self._gathering: Gathering | None = None
        self._first_queue = first_queue
        self._client = client
        self._delayed: BatchPipeline | None = None
        #: By the number of the request, for rows of one queue keep their order.
        self._runs: dict[int, StagedRun] = {}
        if stage_at is None:
            self._pipeline = client.batch_pipeline(
                in_flight_max=REQUESTS_IN_FLIGHT,
                retry_s=options.retry_timeout_s,
                first_turn=first_queue,
            )
        else:
            self._pipeline = client.staging_pipeline(
                secrets.randbits(63),
                self._runs.__setitem__,
                in_flight_max=REQUESTS_IN_FLIGHT,
                retry_s=options.retry_timeout_s,
                first_turn=first_queue,
            )
            self._gathering = Gathering(
                self._pipeline.send, request_bytes_max=self._request_bytes_max
            )

    @property
    def runs(self) -> StagedRuns:
        """What is staged."""
        return StagedRuns.of(self._runs[number] for number in sorted(self._runs))

    def count(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Take batches that need not be written any more."""
        for batch in batches:
            self.digest += Digest.of(self._columns_of(batch)["body"].drop_null())
            self.rows += batch.num_rows

    def run(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Send batches; return when everything is acknowledged.

        The broker stores, this task encodes and Spark produces at the same time.

        Raises:
            LocalProtocolError: a row cannot be a message; the text names row and topic.
            PymqError: as ``BatchPipeline.send``.
        """
        for batch in batches:
            if batch.num_rows:
                self._send(batch)
        if self._gathering is not None:
            self._gathering.flush()
        self._pipeline.flush()

    def _columns_of(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """Return the columns as they are encoded; bodies in place of values."""
        columns = {
            name: _normalised(name, batch.column(given)) for name, given in self._columns.items()
        }
        if self._encode_values is not None:
            place = functools.partial(self._place, columns, None)
            columns["body"] = self._encode_values(columns["body"], place)
        return columns

    def _send(self, batch: pa.RecordBatch) -> None:
        """Encode a batch and send it."""
        columns = self._columns_of(batch)
        if self._broker is not None:
            self._check_topics(columns, self._broker)
        if "shardingKey" in columns:
            self._keyed_queues.choose(columns)
        if "queueId" in columns and "brokerName" in columns:
            self._keyed_queues.name_brokers(columns)
        if not columns.keys().isdisjoint(DELAY_COLUMNS):
            add_delays(columns, functools.partial(self._place, columns, None))
        order, groups = _grouped(columns)
        if order is not None:
            chosen = pa.array(order)
            columns = {name: column.take(chosen) for name, column in columns.items()}
        place = functools.partial(self._place, columns, order)
        messages = self._encode(columns, place)
        targets = [self._target(columns, first) for first, _ in groups]
        layout = self._layout(messages, columns, targets, place)
        if self._broker is not None:
            check_runs(len(self._runs), "task")
            self.digest += Digest.of(columns["body"])
        delayed: list[tuple[BatchTarget, int, int]] = []
        for target, (first, end) in zip(targets, groups, strict=True):
            self.sent_bytes += int(layout.start[end] - layout.start[first])
            delay = columns[DELAY_KIND][first].as_py() if DELAY_KIND in columns else AT_ONCE
            if self._gathering is not None:
                self._gathering.add(target, layout, first, end, delay=delay)
            elif delay != AT_ONCE:
                delayed.append((target, first, end))
            else:
                for body in layout.requests(first, end, bytes_max=self._request_bytes_max):
                    self._pipeline.send(target, body)
        if delayed:
            # What is in flight there must not grow old while nobody looks for answers.
            self._pipeline.flush()
            for target, first, end in delayed:
                self._send_delayed(target, columns, messages, layout, range(first, end), place)
            assert self._delayed is not None
            self._delayed.flush()
        self.rows += batch.num_rows

    def _check_topics(self, columns: dict[str, pa.Array], broker: str) -> None:
        """Check the topics of some rows that are to be staged, each once."""
        topic = self._options.topic
        found = [topic] if topic is not None else map(_plain, columns["topic"].unique())
        for name in found:
            if name is not None and name not in self._checked:
                check_target(name)
                check_topic_at_home(self._client, name, broker)
                self._checked.add(name)

    def _send_delayed(
        self,
        target: BatchTarget,
        columns: dict[str, pa.Array],
        messages: Messages,
        layout: Encoded,
        rows: range,
        place: Callable[[int], str],
    ) -> None:
        """Send rows one by one: no broker takes delayed messages in batches."""
        if self._delayed is None:
            self._delayed = self._client.batch_pipeline(
                in_flight_max=DELAYED_IN_FLIGHT,
                retry_s=self._options.retry_timeout_s,
                first_turn=self._first_queue,
            )
        for row in rows:
            body, properties, flag = layout.message(row, messages)
            what = f"{place(row)}, with {told(columns, row)}"
            has_time = columns[DELAY_KIND][row].as_py() == AT_TIME
            message = DelayedMessage(
                target.topic, body, properties, None, flag, what=what, has_time=has_time
            )
            self._delayed.send(target, message)

    def _encode(self, columns: dict[str, pa.Array], place: Callable[[int], str]) -> Messages:
        now_ms = int(self._wall_s() * 1000)
        return encode_messages(
            columns,
            self._keys,
            month_ms=now_ms - month_around(now_ms)[0],
            message_bytes_max=self._options.message_bytes_max,
            place=place,
        )

    def _place(
        self, columns: dict[str, pa.Array], order: npt.NDArray[np.int64] | None, row: int
    ) -> str:
        """Name a row, for errors."""
        topics = columns.get("topic")
        name = self._options.topic if topics is None else _plain(topics[row])
        number = self.rows + (row if order is None else int(order[row]))
        return f"row {number} of the task, for topic {name}"

    def _layout(
        self,
        messages: Messages,
        columns: dict[str, pa.Array],
        targets: list[BatchTarget],
        place: Callable[[int], str],
    ) -> Encoded:
        """Return messages in the layout that suits the brokers they go to."""
        if self._broker is not None or all(map(self._pipeline.takes_records, targets)):
            topic = self._options.topic
            records = messages.records(columns["topic"] if topic is None else topic.encode())
            # A record takes more than an entry, and one may be too large for that alone.
            sizes = np.diff(records.start)
            limit = self._request_bytes_max
            if self._broker is not None:
                limit = self._options.message_bytes_max
                if sizes.max() > limit:
                    row = int(sizes.argmax())
                    raise LocalProtocolError(
                        f"{place(row)}: its record takes {sizes[row]} B, expected at most {limit} "
                        "with delivery=exactlyOnce (option maxMessageSize, as the broker's)"
                    )
            if sizes.max() <= limit:
                return records
        return messages.entries()

    def _target(self, columns: dict[str, pa.Array], row: int) -> BatchTarget:
        """Return where a row goes."""
        topic = self._options.topic
        if topic is None:
            topic = _plain(columns["topic"][row])
            if topic is None:
                raise LocalProtocolError(
                    f"a row among {self.rows}..{self.rows + len(columns['topic']) - 1} of the "
                    "task has no topic: set the option topic, or fill the column"
                )
            check_target(topic)
        queue_id = columns["queueId"][row].as_py() if "queueId" in columns else None
        broker = self._broker
        if queue_id is not None and "brokerName" in columns:
            broker = _plain(columns["brokerName"][row]) or broker
        if self._broker not in (None, broker):
            raise LocalProtocolError(
                f"a row for queue {queue_id} of topic {topic} names broker {broker}, but this sink "
                f"is at broker {self._broker}, and a batch that is written exactly once is at one "
                "broker: leave out column brokerName, or set option delivery=atLeastOnce"
            )
        return BatchTarget(topic, queue_id, broker)


def _grouped(
    columns: dict[str, pa.Array],
) -> tuple[npt.NDArray[np.int64] | None, list[tuple[int, int]]]:
    """Return the order in which rows of one target stand together, and those runs.

    None for the order: they do already, as is usual. It is stable, so that rows for one
    queue keep theirs.
    """
    rows = len(columns["body"])
    target = np.zeros(rows, np.int64)
    for name in (DELAY_KIND, "topic", "brokerName", "queueId"):
        if name in columns:
            codes = columns[name].dictionary_encode(null_encoding="encode").indices
            codes = codes.to_numpy(zero_copy_only=False).astype(np.int64)
            target = target * (int(codes.max()) + 1) + codes
    if (target == target[0]).all():
        return None, [(0, rows)]
    order = np.argsort(target, kind="stable")
    borders = [0, *(np.flatnonzero(np.diff(target[order])) + 1).tolist(), rows]
    return order, list(zip(borders[:-1], borders[1:], strict=True))


def _plain(text: pa.Scalar) -> str | None:
    """Return the text of a binary value."""
    value = text.as_py()
    return None if value is None else value.decode()


def _normalised(name: str, column: pa.Array) -> pa.Array:
    """Return a column in the one type that is encoded: binary, list joined, map as it is."""
    if name == "deliverTimestamp":
        return as_ms(column)
    if name in ("properties", "queueId", "flag", "delayLevel") or pa.types.is_struct(column.type):
        return column
    if pa.types.is_integer(column.type):  # of ids
        return column.cast(pa.string()).cast(pa.binary())
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return _joined_keys(column).cast(pa.binary())
    return column.cast(pa.binary())


def _joined_keys(lists: pa.Array) -> pa.Array:
    """Return each row's keys separated by blanks, as RocketMQ has them; nulls left out."""
    if lists.flatten().null_count:
        texts = [
            None if keys is None else [key for key in keys if key is not None]
            for keys in lists.to_pylist()
        ]
        lists = pa.array(texts, pa.list_(pa.string()))
    # Spark's element type says "not null", which Arrow's function does not take.
    return pc.binary_join(lists.cast(pa.list_(pa.string())), " ")
