"""The sink: rows of a DataFrame become messages, each batch as a whole and once, where brokers can.

``exactly_once`` says how. At brokers of RocketMQ, or on request, it is at least once: a task sends
each Arrow batch it is given, and ends when all is acknowledged; what a failed task, or one whose
micro-batch is run again after a crash, has sent stays sent.

Rows with a ``queueId`` go there, on the broker of their ``brokerName`` or the first that has such a
queue. The others go to one queue of their topic after another, and past brokers that are away.
Within a task and a queue the order of rows is kept.

The driver looks once at the option's topic, when a job is planned: one that is not there then is
a mistake, unless the query has run before. Later, in tasks, a topic or a broker that is not to be
found is one that restarts, and is waited for.
"""

import functools
import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource

from pymq.client.cluster.config import ClientConfig
from pymq.client.sockets.blocking_pool import PASSING
from pymq.client.sockets.bulk_client import BulkClient
from pymq.errors import ConfigurationError, DurabilityUnknown, MessageIllegal, RouteNotFound
from pymq.protocol.sink_decisions import StagedRuns
from pyspark_pymq.option_values import Delivery
from pyspark_pymq.retrying import Retries, note_limit
from pyspark_pymq.sink.digest import Digest
from pyspark_pymq.sink.exactly_once import Staged, is_new, publish
from pyspark_pymq.sink.home import SinkHome, choose_for_job, find_home
from pyspark_pymq.sink.identity import BatchIdentity, is_later_batch, of_job, of_micro_batch
from pyspark_pymq.sink.options import SinkOptions
from pyspark_pymq.sink.plan import NO_PLAN, SinkPlan
from pyspark_pymq.sink.send_task import SendTask
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
        self._planned_ms = int(time.time() * 1000)
        self._home: SinkHome | None = None  # None: tasks find it

    def _identity(self) -> BatchIdentity:
        """Return which batch this task is part of."""
        raise NotImplementedError

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written | Staged:
        """Send or stage the rows of one task; runs on an executor.

        Raises:
            LocalProtocolError: a row cannot be a message; the text names row and topic.
            RouteNotFound: there was no such topic when the query's first batch was planned.
            PymqError: a broker refused, or did not store and secure for ``retryTimeoutMs`` what
                had to go there. It may be stored if ``outcome_known`` is false.
        """
        spare_imports()
        options, plan = self._options, self._plan
        if plan.missing is not None and not is_later_batch():
            raise RouteNotFound(plan.missing)
        batches = (batch for batch in iterator if batch.num_rows)
        first = next(batches, None)
        client = BulkClient(
            options.name_servers,
            config=ClientConfig(
                name_servers=options.name_servers,
                timeout_s=options.request_timeout_s,
                body_bytes_max=options.message_bytes_max,
                awaits_routes=bool(plan.routes),
                network=options.network,
            ),
            routes=plan.routes,
        )
        try:
            if options.delivery != Delivery.AT_LEAST_ONCE:
                staged = self._stage(client, first, batches)
                if staged is not None:
                    return staged
            task = SendTask(client, options, self._columns, first_queue=_task_number())
            if first is not None:
                task.run(chain((first,), batches))
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

    def _stage(
        self, client: BulkClient, first: pa.RecordBatch | None, others: Iterator[pa.RecordBatch]
    ) -> Staged | None:
        """Stage the rows of one task.

        Args:
            client: open.
            first: the first batch, if there is one.
            others: all others.

        Returns:
            None if no broker can write exactly once, and that is not an error.
        """
        options, identity = self._options, self._identity()
        retries = Retries(options.retry_timeout_s, str(identity))
        if first is None:
            # The first batch of a query, which often has no rows, settles where its sink is.
            if identity.is_lasting and identity.is_first:
                find_home(client, options, identity, retries)
            return Staged(identity, None, StagedRuns(), Digest())
        home = self._home or find_home(client, options, identity, retries)
        if home is None:
            if options.must_be_exact:
                raise ConfigurationError(
                    f"{identity} cannot be written exactly once: no broker that has topic "
                    f"{options.topic} is a pymq broker that can. Set option delivery=atLeastOnce"
                )
            _warn_once()
            return None
        task = SendTask(
            client,
            options,
            self._columns,
            first_queue=_task_number(),
            stage_at=home.broker,
        )
        if is_new(client, identity, home, retries):
            task.run(chain((first,), others))
        else:
            task.count(chain((first,), others))
        return Staged(identity, home, task.runs, task.digest)

    def _publish(self, messages: Sequence[Any], what: str) -> None:
        """Publish what was staged, and log what was written."""
        written = [message for message in messages if isinstance(message, Written)]
        staged = [message for message in messages if isinstance(message, Staged)]
        if written and any(message.home is not None for message in staged):
            raise ConfigurationError(
                f"{what}: some tasks found a broker that writes exactly once, and some did not. "
                "What the latter wrote is stored, the rest is not. Set option delivery"
            )
        publish(self._options, staged)
        if written:
            LOG.info(
                "%s: %d messages in %d tasks acknowledged, %d B",
                what,
                sum(message.rows for message in written),
                len(written),
                sum(message.sent_bytes for message in written),
            )

    def _aborted(self, messages: Sequence[Any], what: str) -> None:
        """Log a failed job. Never raises: Spark would show that in place of the cause."""
        options = self._options
        # A task without rows says nothing of how the others write.
        is_staged = self._home is not None or any(
            isinstance(one, Staged) and one.home is not None for one in messages
        )
        if is_staged or options.must_be_exact:
            LOG.warning(
                "%s failed: unless it was published already, nobody will see what its tasks staged",
                what,
            )
            return
        written = [message for message in messages if isinstance(message, Written)]
        if not written and self._plan.missing is not None:
            LOG.warning(
                "%s failed: when it was planned there was no topic to write to, so nothing is "
                "stored unless there has been one since: %s",
                what,
                self._plan.missing,
            )
            return
        if not written and options.delivery is None:
            LOG.warning(
                "%s failed: no task that ended had rows, so how it wrote is not known. With a "
                "broker that writes exactly once nobody will see any of it; without one some rows "
                "may be stored, and what is run again is sent again",
                what,
            )
            return
        rows = sum(message.rows for message in written)
        LOG.warning(
            "%s failed: %d messages of tasks that ended are stored, and perhaps some of the "
            "others; what is run again is sent again",
            what,
            rows,
        )


@functools.cache
def _warn_once() -> None:
    LOG.warning(
        "rows are written at least once, because no broker of their topic is a pymq broker that "
        "can write exactly once; option delivery=atLeastOnce says that this is intended"
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

    def _identity(self) -> BatchIdentity:
        return of_micro_batch(self._options, self._planned_ms)

    def commit(self, messages: list[Any], batchId: int) -> None:
        """Publish the micro-batch; one that was sent has been visible all along.

        Raises:
            PymqError: as ``publish``.
        """
        self._publish(messages, f"micro-batch {batchId}")

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Log the failure."""
        self._aborted(messages, f"micro-batch {batchId}")


class PymqBatchWriter(_Sink, datasource.DataSourceArrowWriter):
    """Sink of ``df.write``."""

    def __init__(
        self, options: SinkOptions, columns: dict[str, str], plan: SinkPlan = NO_PLAN
    ) -> None:
        super().__init__(options, columns, plan)
        self._job = uuid.uuid4().hex

    def choose_home(self) -> None:
        """Choose the broker for all tasks, if nobody else can know the sink; on the driver."""
        options = self._options
        if options.delivery != Delivery.AT_LEAST_ONCE and options.txn_app_id is None:
            self._home = choose_for_job(options, self._identity(), self._plan)

    def _identity(self) -> BatchIdentity:
        return of_job(self._options, self._job, self._planned_ms)

    def commit(self, messages: list[Any]) -> None:
        """Publish what the job wrote; what was sent has been visible all along.

        Raises:
            PymqError: as ``publish``.
        """
        self._publish(messages, "batch write")

    def abort(self, messages: list[Any]) -> None:
        """Log the failure."""
        self._aborted(messages, "batch write")


def _task_number() -> int:
    """Return a number that neighbouring tasks and batches do not share."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.taskAttemptId()
