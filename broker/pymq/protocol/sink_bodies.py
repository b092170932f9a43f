"""Bodies about exactly-once sinks, an extension of pymq; see also ``sink_decisions``.

A sink publishes batches, which are counted up. The records of a batch are *staged*: stored where no
consumer sees them. One *decision*, a record of its own, says which of them are the batch; then they
are copied to where consumers read. What is not named by a decision ages out with the log.
"""

from dataclasses import dataclass

from pymq.protocol.headers.codec import wire
from pymq.protocol.json_object import JsonObject

#: The run of a batch whose writer belongs to no start of a query, or cannot tell to which.
NO_RUN = "-"


@dataclass(slots=True, kw_only=True)
class StagedRun:
    """What one staging request brought; it lies in the log back to back.

    Attributes:
        topic, queue_id: where it is published.
        physical_offset, size_bytes: where it is staged.
        count: of records.
        part: a random number, common to what one task has staged: so nobody takes what is there
            after the end of the log was lost for what was there before.
    """

    topic: str
    queue_id: int
    physical_offset: int
    size_bytes: int
    count: int
    part: int


@dataclass(slots=True, kw_only=True)
class SinkBatch(JsonObject):
    """One batch of a sink.

    Attributes:
        sink: its name, of the user's choice or the query's id.
        query: who writes: the id of the streaming query; two that share a sink are told apart.
        run: which start of the query; an older one may not publish any more. ``NO_RUN`` is neither
            older nor later than another.
        planned_ms: when the run's driver planned the writing of the batch, ms since the epoch: so
            runs are ordered.
        batch: its number.
        row_count, digest: what it holds, so that a repetition can be compared; any text.
    """

    sink: str
    query: str
    run: str
    batch: int
    row_count: int = wire("rows", default=0)
    digest: str = ""
    planned_ms: int = 0


@dataclass(slots=True, kw_only=True)
class SinkRow(JsonObject):
    """What a broker knows of a sink.

    Attributes:
        last: the last batch that was decided.
        decided_ms: when, ms since the epoch.
        is_published: whether consumers see it.
        lost_count: rows that are missing there: the broker lost them between decision and copy.
    """

    last: SinkBatch
    decided_ms: int
    is_published: bool = wire("published", default=True)
    is_lasting: bool = wire("lasting", default=True)
    lost_count: int = wire("lost", default=0)


@dataclass(slots=True, kw_only=True)
class SinkRows(JsonObject):
    """An answer to SHOW_SINKS: some sinks by name; an empty one follows the last."""

    sinks: list[SinkRow]
