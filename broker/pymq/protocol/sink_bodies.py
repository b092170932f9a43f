"""Bodies about exactly-once sinks, an extension of pymq: requests, answers and journal records.

A sink publishes batches, which are counted up. The records of a batch are *staged*: stored where no
consumer sees them. One *decision*, a record of its own, says which of them are the batch; then they
are copied to where consumers read. What is not named by a decision ages out with the log.
"""

from dataclasses import dataclass
from enum import StrEnum

from pymq.protocol.headers.codec import wire
from pymq.protocol.json_object import JsonObject


@dataclass(slots=True, kw_only=True)
class StagedRun(JsonObject):
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
    size_bytes: int = wire("bytes")
    count: int
    part: int


@dataclass(slots=True, kw_only=True)
class SinkBatch(JsonObject):
    """One batch of a sink.

    Attributes:
        sink: its name, of the user's choice or the query's id.
        query: who writes: the id of the streaming query; two that share a sink are told apart.
        run: which start of the query; an older one may not publish any more.
        batch: its number.
        row_count, digest: what it holds, so that a repetition can be compared; any text.
    """

    sink: str
    query: str
    run: str
    batch: int
    row_count: int = wire("rows", default=0)
    digest: str = ""


@dataclass(slots=True, kw_only=True)
class PublishRequest(JsonObject):
    """Publish a batch (PUBLISH_BATCH).

    Attributes:
        runs: what was staged for it.
        is_lasting: whether the broker remembers the sink for ever, or for a day.
    """

    batch: SinkBatch
    runs: list[StagedRun]
    is_lasting: bool = wire("lasting", default=True)


class JournalKind(StrEnum):
    """What a record of the journal of sinks says."""

    DECIDED = "decided"  #: the batch is published, or will be
    PUBLISHED = "published"  #: consumers see the sink's last batch
    KEPT = "kept"  #: said once more, because the record before is going to expire
    FORGOTTEN = "forgotten"  #: there is no such sink


@dataclass(slots=True, kw_only=True)
class JournalEntry(JsonObject):
    """A record of the journal of sinks: the body of a message in the system topic of sinks.

    Attributes:
        version: of this layout.
        kind: a ``JournalKind``.
        runs: of the batch, when it is decided.
        lost_count: as in ``SinkRow``, when it is published.
    """

    version: int = 1
    kind: str
    batch: SinkBatch
    is_lasting: bool = wire("lasting", default=True)
    runs: list[StagedRun] = wire("runs", default_factory=list)
    lost_count: int = wire("lost", default=0)


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
    """An answer to SHOW_SINKS."""

    sinks: list[SinkRow]


@dataclass(slots=True, kw_only=True)
class SavedSink(JsonObject):
    """A sink in the file of sinks; see ``broker.state.sinks``."""

    row: SinkRow
    pending: JournalEntry | None = None
    decision_end: int = 0
    journal_offset: int
    stored_ms: int


@dataclass(slots=True, kw_only=True)
class SavedSinks(JsonObject):
    """The file of sinks: all that the journal says before ``read_to``."""

    read_to: int
    sinks: list[SavedSink]
