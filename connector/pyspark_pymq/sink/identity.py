"""Who writes: what names a batch of an exactly-once sink, on whichever machine a task runs.

Spark tells a writer neither its query nor the number of the micro-batch; the local properties of a
task do. The numbers of micro-batches are counted in the checkpoint, and so is the query's id kept
there: a copy of a checkpoint has the same. What differs is the *run*, each start of a query. Its id
is random; which of two is the later one tells the time at which the driver planned the batch: all
tasks of a batch get the one writer that was made then.

What a ``foreachBatch`` function writes are batch writes, and tasks of theirs have the properties of
the query, too. Under a job group that the function has set, which Spark keeps where it keeps the
run, they do not tell it; and other batch writes have none. Neither can be an older run that was
left over, nor may it end the right of a query to write: their numbers alone count.
"""

import uuid
from dataclasses import dataclass

from pymq.errors import ConfigurationError
from pymq.protocol.sink_bodies import NO_RUN, SinkBatch
from pyspark_pymq.sink.options import SinkOptions

_QUERY, _BATCH, _RUN = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"
#: The query of batch writes with txnAppId: any application may repeat one.
_ANY_QUERY = "batch write"


@dataclass(frozen=True, slots=True)
class BatchIdentity:
    """A batch, as its broker knows it.

    Attributes:
        sink, query, run, number, planned_ms: as of a ``SinkBatch``; without a run of a query, this
            run is the job.
        is_lasting: whether the batch can be written again by somebody else, who must find that
            it is there already.
        is_first: whether the sink may be one that no broker knows yet.
        is_job: whether it is a batch write, of which nothing tells when the sink began.
        has_run: whether it belongs to a run, which later ones fence.
    """

    sink: str
    query: str
    run: str
    number: int
    planned_ms: int
    is_lasting: bool = True
    is_first: bool = True
    is_job: bool = False
    has_run: bool = True

    def batch(self, row_count: int = 0, digest: str = "") -> SinkBatch:
        """Return it for a request."""
        return SinkBatch(
            sink=self.sink,
            query=self.query,
            run=self.run if self.has_run else NO_RUN,
            batch=self.number,
            row_count=row_count,
            digest=digest,
            planned_ms=self.planned_ms,
        )

    def __str__(self) -> str:
        return f"batch {self.number} of sink {self.sink}"


def is_later_batch() -> bool:
    """Say whether this task belongs to a query that has run a micro-batch before."""
    return _property(_BATCH) not in (None, "0")


def of_micro_batch(options: SinkOptions, planned_ms: int) -> BatchIdentity:
    """Return the identity of the micro-batch that this task belongs to.

    Args:
        options: of the sink.
        planned_ms: when the driver planned it, ms since the epoch.

    Raises:
        ConfigurationError: Spark does not say it.
    """
    query, number, run = _property(_QUERY), _property(_BATCH), _property(_RUN)
    if query is None or number is None:
        raise ConfigurationError(
            "this Spark does not tell tasks which query and micro-batch they belong to, without "
            "which nothing can be written exactly once: set option delivery=atLeastOnce"
        )
    return BatchIdentity(
        options.txn_app_id or query,
        query,
        run or query,
        int(number),
        planned_ms,
        is_first=number == "0",
    )


def of_job(options: SinkOptions, job: str, planned_ms: int) -> BatchIdentity:
    """Return the identity of the batch write that this task belongs to.

    Args:
        options: of the sink.
        job: a random text, common to the tasks of the job.
        planned_ms: when the driver planned it, ms since the epoch.

    Raises:
        ConfigurationError: there is a txnAppId without a txnVersion.
    """
    if options.txn_app_id is None:
        return BatchIdentity(f"job-{job}", job, job, 0, planned_ms, is_lasting=False)
    query, number = _property(_QUERY), _property(_BATCH)
    run = None if query is None else _run_of_query()
    if options.txn_version is not None:
        query, number = _ANY_QUERY, str(options.txn_version)
    if query is None or number is None:
        raise ConfigurationError(
            f"option txnVersion is missing: with txnAppId={options.txn_app_id} it tells which "
            "write this is, so that a repeated one is not written twice. Count it up with each "
            "write. In foreachBatch set it to the batch's id, which the function gets: that is its "
            "value if it is not given, but with Spark Connect and in threads of the function's own "
            "Spark does not say which batch it is (pymq.spark.for_thread takes it along to threads)"
        )
    return BatchIdentity(
        options.txn_app_id,
        query,
        run or job,
        int(number),
        planned_ms,
        is_job=True,
        has_run=run is not None,
    )


def _run_of_query() -> str | None:
    """Return the run of the query whose ``foreachBatch`` function writes.

    None under a job group that the function has set: if that were taken for a run, one that comes
    and goes would fence the query from itself.
    """
    group = _property(_RUN)
    try:
        return None if group is None else str(uuid.UUID(group))
    except ValueError:
        return None


def _property(name: str) -> str | None:
    from pyspark import TaskContext

    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)
