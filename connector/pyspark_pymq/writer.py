"""The sink: rows of a DataFrame become messages, at least once.

A task sends each Arrow batch it is given, and ends when all is acknowledged; what a failed task,
or one whose micro-batch is run again after a crash, has sent stays sent.

Rows with a ``queueId`` go there. The others go to one queue of their topic after another, some
MiB to each: within a task and a queue the order of rows is kept, and a batch stays large.
"""

import difflib
import itertools
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource
from pyspark.sql import types as spark

from pymq.client.batch_run import Batch
from pymq.client.blocking import BlockingClient
from pymq.client.config import ClientConfig
from pymq.errors import ConfigurationError, LocalProtocolError, PymqError
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.names import NO_SEND_TOPICS, check_topic, is_retry_topic
from pyspark_pymq.entries import MessageKeys, encode_messages
from pyspark_pymq.options import SinkOptions
from pyspark_pymq.patience import persist, send_retries
from pyspark_pymq.task_process import spare_imports

LOG = logging.getLogger(__name__)

#: Ten thousand rows of a usual size, as Spark hands them over, are one request.
REQUEST_BYTES_MAX = 3 << 20
#: A broker works on one while the next is on its way; with more, memory is cold when it is used.
REQUESTS_IN_FLIGHT = 3
#: What a task gathers for several queues before it sends, and sends to one before the next.
GATHERED_BYTES_MAX = 8 << 20

_TEXT = "string"
_BODY = "string or binary"
_NUMBER = "int or bigint"
_KEYS = "string or array<string>"
_MAP = "map<string,string>"
#: Column -> its types. ``value`` is another name of ``body``, as the Kafka sink calls it.
SINK_COLUMNS = {
    "body": _BODY,
    "value": _BODY,
    "topic": _TEXT,
    "tags": _TEXT,
    "keys": _KEYS,
    "properties": _MAP,
    "queueId": _NUMBER,
    "brokerName": _TEXT,
}
_ACCEPTED = {
    _TEXT: {"string"},
    _BODY: {"string", "binary"},
    _NUMBER: {"tinyint", "smallint", "int", "bigint"},
    _KEYS: {"string", "array<string>"},
    _MAP: {"map<string,string>"},
}


def check_columns(schema: spark.StructType, options: SinkOptions) -> dict[str, str]:
    """Return, for each of the sink's columns that a DataFrame has, what it calls it.

    Raises:
        ConfigurationError: a column is unknown, has another type, or one is missing.
    """
    valid = ", ".join(f"{name} {types}" for name, types in SINK_COLUMNS.items())
    found: dict[str, str] = {}
    for given in schema.fields:
        types = SINK_COLUMNS.get(given.name)
        if types is None:
            near = difflib.get_close_matches(given.name, SINK_COLUMNS, n=1)
            hint = f", did you mean {near[0]}?" if near else "."
            raise ConfigurationError(
                f"the pymq sink has no column {given.name!r}{hint} select() what is to be "
                f"written under these names: {valid}"
            )
        actual = given.dataType.simpleString()
        if actual.startswith(("varchar", "char")):
            actual = "string"
        if actual not in _ACCEPTED[types]:
            raise ConfigurationError(
                f"column {given.name} is {actual}, expected {types}: cast it"
            )
        name = "body" if given.name == "value" else given.name
        if name in found:
            raise ConfigurationError(f"columns {found[name]} and {given.name} are the same")
        found[name] = given.name
    if "body" not in found:
        raise ConfigurationError(
            f"column body is missing, which the pymq sink needs; columns are: {valid}"
        )
    if options.topic is None and "topic" not in found:
        raise ConfigurationError(
            "no topic to write to: set the option topic, or add a column topic"
        )
    if "brokerName" in found and "queueId" not in found:
        raise ConfigurationError("column brokerName chooses the broker of a queueId: add queueId")
    if options.topic is not None:
        found.pop("topic", None)  # the option comes first
        check_target(options.topic)
    return found


def check_target(topic: str) -> None:
    """Accept a topic that batches may be sent to.

    Raises:
        ConfigurationError: its name is illegal, or the broker keeps it for itself.
    """
    try:
        check_topic(topic)
    except LocalProtocolError as error:
        raise ConfigurationError(str(error)) from error
    if topic in NO_SEND_TOPICS or is_retry_topic(topic):
        raise ConfigurationError(f"topic {topic} is the broker's own: batches cannot be sent to it")


# ------------------------------------------------------------------------- what Spark calls


@dataclass(frozen=True, slots=True)
class Written(datasource.WriterCommitMessage):
    """What a task reports when all it was given is acknowledged."""

    rows: int
    sent_bytes: int  # bodies of all requests


class _Sink:
    """What stream and batch writers share. Pickled: holds frozen values only."""

    def __init__(self, options: SinkOptions, columns: dict[str, str]) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Send the rows of one task; runs on an executor.

        Raises:
            LocalProtocolError: a row cannot be a message; the text names row and topic.
            PymqError: a broker refused, or stayed away for longer than ``retryTimeoutMs``.
        """
        spare_imports()
        options = self._options
        client = BlockingClient(
            options.name_servers,
            config=ClientConfig(
                name_servers=options.name_servers,
                timeout_s=options.request_timeout_s,
                send_retries=send_retries(options.retry_timeout_s),
                body_bytes_max=options.message_bytes_max,
            ),
        )
        try:
            task = SendTask(client, options, self._columns, first_queue=_task_number())
            return task.run(iterator)
        finally:
            client.close()


def _committed(messages: Sequence[Any], what: str) -> None:
    done = [message for message in messages if isinstance(message, Written)]
    LOG.info(
        "%s: %d messages in %d tasks acknowledged, %d B",
        what,
        sum(message.rows for message in done),
        len(done),
        sum(message.sent_bytes for message in done),
    )


def _aborted(messages: Sequence[Any], what: str) -> None:
    """Log a failed job. Never raises: Spark would show that in place of the cause."""
    rows = sum(message.rows for message in messages if isinstance(message, Written))
    LOG.warning("%s failed; %d messages of it were sent already and stay sent", what, rows)


# Arrow batches in a stream came with 4.1. In 4.0 a class that derives from both of these gets
# them, because the worker only asks whether the writer is a DataSourceArrowWriter.
_STREAM_BASES: tuple[Any, ...] = (
    (datasource.DataSourceStreamArrowWriter,)
    if hasattr(datasource, "DataSourceStreamArrowWriter")
    else (datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter)
)


class PymqStreamWriter(_Sink, *_STREAM_BASES):  # type: ignore[misc]
    """Sink of a streaming query: append, and complete, which appends the whole result."""

    def commit(self, messages: list[Any], batchId: int) -> None:
        """Log what the micro-batch wrote; it has been visible since it was acknowledged."""
        _committed(messages, f"micro-batch {batchId}")

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Log the failure."""
        _aborted(messages, f"micro-batch {batchId}")


class PymqBatchWriter(_Sink, datasource.DataSourceArrowWriter):
    """Sink of ``df.write``."""

    def commit(self, messages: list[Any]) -> None:
        """Log what the job wrote; it has been visible since it was acknowledged."""
        _committed(messages, "batch write")

    def abort(self, messages: list[Any]) -> None:
        """Log the failure."""
        _aborted(messages, "batch write")


def _task_number() -> int:
    """Return a number that neighbouring tasks and batches do not share."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.taskAttemptId()


# ---------------------------------------------------------------------------------- one task


class SendTask:
    """Sends the batches of one task.

    Args:
        client: open; the owner closes it.
        options: of the sink.
        columns: sink column -> the DataFrame's name of it, from ``check_columns``.
        first_queue: which of a topic's queues comes first; tasks should differ.
        wall_s: the clock.
    """

    def __init__(
        self,
        client: BlockingClient,
        options: SinkOptions,
        columns: dict[str, str],
        *,
        first_queue: int = 0,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._options = options
        self._columns = columns
        self._wall_s = wall_s
        self._request_bytes_max = min(REQUEST_BYTES_MAX, options.message_bytes_max)
        self._keys = MessageKeys(
            address=bytes((127, 0, 0, 1)), pid=os.getpid(), salt=os.urandom(4)
        )
        self._queues: dict[str, list[MessageQueue]] = {}
        self._first_queue = first_queue
        self._records_brokers: dict[str, bool] = {}
        self._gathered: dict[MessageQueue, list[Batch]] = {}
        self._gathered_bytes = 0
        self._rows = 0
        self._sent_bytes = 0
        self._request_count = 0
        self._failure: PymqError | None = None

    def run(self, batches: Iterable[pa.RecordBatch]) -> Written:
        """Send batches; return when everything is acknowledged.

        The client takes one request after another while earlier ones are on their way, so that
        the broker stores, this task encodes and Spark produces at the same time. It waits for
        all acknowledgements only where the queue changes.

        Raises:
            LocalProtocolError, PymqError: as ``_Sink.write``.
        """
        sent_count = 0
        for queue, run in itertools.groupby(self._requests(batches), key=itemgetter(0)):
            results = self._client.send_batches(
                queue, (body for _, body in run), in_flight_max=REQUESTS_IN_FLIGHT
            )
            sent_count += len(results)
        if self._failure is not None:
            raise self._failure
        assert sent_count == self._request_count, f"{sent_count} of {self._request_count} sent"
        return Written(self._rows, self._sent_bytes)

    def _requests(
        self, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[tuple[MessageQueue, Batch]]:
        """Yield all requests, those for one queue together.

        An error ends it and is kept for ``run``: the client, in whose hands this generator is,
        would take it for one of its own and try again.
        """
        try:
            for batch in batches:
                if batch.num_rows:
                    self._gather(batch)
                # One queue needs no gathering; several shall not wait for each other often.
                if self._gathered_bytes >= GATHERED_BYTES_MAX or len(self._gathered) == 1:
                    yield from self._release()
            yield from self._release()
        except PymqError as error:
            self._failure = error

    def _release(self) -> Iterator[tuple[MessageQueue, Batch]]:
        """Yield what was gathered."""
        gathered, self._gathered = self._gathered, {}
        self._sent_bytes += self._gathered_bytes
        self._gathered_bytes = 0
        for queue, bodies in gathered.items():
            for body in bodies:
                self._request_count += 1
                yield queue, body

    def _gather(self, batch: pa.RecordBatch) -> None:
        """Encode a batch and put its requests where their queues' are."""
        columns = {
            name: _normalised(name, batch.column(given)) for name, given in self._columns.items()
        }
        order, groups = self._grouped(columns)
        if order is not None:
            chosen = pa.array(order)
            columns = {name: column.take(chosen) for name, column in columns.items()}
        topics = columns.get("topic")

        def place(row: int) -> str:
            topic = self._options.topic if topics is None else _plain(topics[row])
            number = self._rows + (row if order is None else int(order[row]))
            return f"row {number} of the task, for topic {topic}"

        messages = encode_messages(
            columns,
            self._keys,
            month_ms=month_ms(self._wall_s()),
            message_bytes_max=self._options.message_bytes_max,
            place=place,
        )
        targets = [self._target(columns, first) for first, _ in groups]
        encoded = None
        if all(map(self._takes_records, targets)):
            topic = self._options.topic
            encoded = messages.records(columns["topic"] if topic is None else topic.encode())
            if np.diff(encoded.start).max() > self._request_bytes_max:
                encoded = None  # a record takes more than an entry, and is too large for once
        if encoded is None:
            encoded = messages.entries()
        for target, (first, end) in zip(targets, groups, strict=True):
            batches = self._gathered.setdefault(target, [])
            batches += encoded.requests(first, end, bytes_max=self._request_bytes_max)
            self._gathered_bytes += int(encoded.start[end] - encoded.start[first])
        self._rows += batch.num_rows

    def _takes_records(self, queue: MessageQueue) -> bool:
        """Say whether a queue's broker spares itself the work of laying records out."""
        answer = self._records_brokers.get(queue.broker_name)
        if answer is None:
            answer = self._records_brokers[queue.broker_name] = persist(
                lambda: self._client.takes_records(queue),
                limit_s=self._options.retry_timeout_s,
                what=f"asking broker {queue.broker_name} how it takes batches",
            )
        return answer

    # ------------------------------------------------------------------------ where rows go

    def _grouped(
        self, columns: dict[str, pa.Array]
    ) -> tuple[npt.NDArray[np.int64] | None, list[tuple[int, int]]]:
        """Return the order in which rows of one target stand together, and those runs.

        None for the order: they do already, as is usual. It is stable, so that rows for one
        queue keep theirs.
        """
        rows = len(columns["body"])
        target = np.zeros(rows, np.int64)
        for name in ("topic", "brokerName", "queueId"):
            if name in columns:
                codes = columns[name].dictionary_encode(null_encoding="encode").indices
                codes = codes.to_numpy(zero_copy_only=False).astype(np.int64)
                target = target * (int(codes.max()) + 1) + codes
        if (target == target[0]).all():
            return None, [(0, rows)]
        order = np.argsort(target, kind="stable")
        borders = [0, *(np.flatnonzero(np.diff(target[order])) + 1).tolist(), rows]
        return order, list(zip(borders[:-1], borders[1:], strict=True))

    def _target(self, columns: dict[str, pa.Array], row: int) -> MessageQueue:
        """Return where a row goes."""
        topic = self._options.topic
        if topic is None:
            topic = _plain(columns["topic"][row])
            if topic is None:
                raise LocalProtocolError(
                    f"a row among {self._rows}..{self._rows + len(columns['topic']) - 1} of the "
                    "task has no topic: set the option topic, or fill the column"
                )
            if topic not in self._queues:
                check_target(topic)
        queues = self._write_queues(topic)
        queue_id = columns["queueId"][row].as_py() if "queueId" in columns else None
        if queue_id is None:
            turn = self._first_queue + self._sent_bytes // GATHERED_BYTES_MAX
            return queues[turn % len(queues)]
        broker = _plain(columns["brokerName"][row]) if "brokerName" in columns else None
        for queue in queues:
            # Without a broker's name the first one decides: always the same, for order's sake.
            if queue.queue_id == queue_id and broker in (None, queue.broker_name):
                return queue
        there = ", ".join(f"{queue.broker_name}/{queue.queue_id}" for queue in queues)
        wanted = queue_id if broker is None else f"{broker}/{queue_id}"
        raise LocalProtocolError(f"topic {topic} has no queue {wanted}; there are {there}")

    def _write_queues(self, topic: str) -> list[MessageQueue]:
        queues = self._queues.get(topic)
        if queues is None:
            queues = persist(
                lambda: sorted(self._client.write_queues(topic)),
                limit_s=self._options.retry_timeout_s,
                what=f"asking for the queues of {topic}",
            )
            if not queues:
                raise LocalProtocolError(f"topic {topic} has no queue that can be written to")
            self._queues[topic] = queues
        return queues


def _plain(text: pa.Scalar) -> str | None:
    """Return the text of a binary value."""
    value = text.as_py()
    return None if value is None else value.decode()


def _normalised(name: str, column: pa.Array) -> pa.Array:
    """Return a column in the one type that is encoded: binary, list joined, map as it is."""
    if name in ("properties", "queueId"):
        return column
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


def month_ms(wall_s: float) -> int:
    """Return milliseconds since the month began, local time; message ids count from there."""
    now = time.localtime(wall_s)
    start_s = time.mktime((now.tm_year, now.tm_mon, 1, 0, 0, 0, 0, 0, -1))
    return int((wall_s - start_s) * 1000)
