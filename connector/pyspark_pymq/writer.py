"""The sink: rows of a DataFrame become messages, at least once.

A task sends each Arrow batch it is given, and ends when all is acknowledged; what a failed task,
or one whose micro-batch is run again after a crash, has sent stays sent.

Rows with a ``queueId`` go there, on the broker of their ``brokerName`` or the first that has such a
queue. The others go to one queue of their topic after another, and past brokers that are away.
Within a task and a queue the order of rows is kept.

The driver looks once at the option's topic, when a job is planned: one that is not there then is
a mistake. Later, in tasks, a topic or a broker that is not to be found is one that restarts, and
is waited for.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource

from pymq.client.blocking_pool import PASSING
from pymq.client.bulk_client import BulkClient
from pymq.client.config import ClientConfig
from pymq.errors import DurabilityUnknown, MessageIllegal, RouteNotFound
from pyspark_pymq.options import SinkOptions
from pyspark_pymq.retrying import note_limit
from pyspark_pymq.send_task import SendTask
from pyspark_pymq.sink_plan import NO_PLAN, SinkPlan
from pyspark_pymq.worker_gc import spare_imports

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Written(datasource.WriterCommitMessage):
    """What a task reports when all it was given is acknowledged."""

    rows: int
    sent_bytes: int  # bodies of all requests


class _Sink:
    """What stream and batch writers share. Pickled: holds frozen values only."""

    def __init__(
        self, options: SinkOptions, columns: dict[str, str], plan: SinkPlan = NO_PLAN
    ) -> None:
        self._options = options
        self._columns = columns
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Send the rows of one task; runs on an executor.

        Raises:
            LocalProtocolError: a row cannot be a message; the text names row and topic.
            RouteNotFound: there was no such topic when the job was planned.
            PymqError: a broker refused, or did not store and secure for ``retryTimeoutMs`` what
                had to go there. It may be stored if ``outcome_known`` is false.
        """
        spare_imports()
        options, plan = self._options, self._plan
        if plan.missing is not None:
            raise RouteNotFound(plan.missing)
        client = BulkClient(
            options.name_servers,
            config=ClientConfig(
                name_servers=options.name_servers,
                timeout_s=options.request_timeout_s,
                body_bytes_max=options.message_bytes_max,
                awaits_routes=bool(plan.routes),
            ),
            routes=plan.routes,
        )
        try:
            task = SendTask(client, options, self._columns, first_queue=_task_number())
            task.run(iterator)
        except MessageIllegal as error:
            error.add_note(
                f"the sink sends up to {options.message_bytes_max} B at once (option "
                "maxMessageSize): is the broker's maxMessageSize as large?"
            )
            raise
        except (*PASSING, DurabilityUnknown) as error:
            note_limit(error, options.retry_timeout_s)
            raise
        finally:
            client.close()
        return Written(task.rows, task.sent_bytes)


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
    LOG.warning(
        "%s failed: %d messages of tasks that ended are stored, and perhaps some of the others; "
        "what is run again is sent again",
        what,
        rows,
    )


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
