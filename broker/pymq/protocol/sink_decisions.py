"""Decisions about batches of exactly-once sinks: asked for, written to the journal, and saved.

A decision names the runs that are the batch: hundreds of thousands, if need be, so they are packed.
"""

import base64
import binascii
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self, overload

import numpy as np
import numpy.typing as npt

from pymq.errors import LocalProtocolError, RemoteProtocolError
from pymq.protocol import fastjson
from pymq.protocol.headers.codec import wire
from pymq.protocol.json_object import JsonObject
from pymq.protocol.sink_bodies import SinkBatch, SinkRow, StagedRun

#: Runs of one batch: what says where they are fits into a frame (``framing.FRAME_BYTES_MAX``).
RUNS_MAX = 300_000
_TOPICS_MAX = 1 << 16
_PACKED = np.dtype(
    [
        ("topic", ">u2"),
        ("queue_id", ">i4"),
        ("physical_offset", ">i8"),
        ("size_bytes", ">i4"),
        ("count", ">i4"),
        ("part", ">i8"),
    ]
)
assert _PACKED.itemsize == 30  # on-disk contract; base64 of it needs no padding
_PACKED_TEXT_BYTES = 40
_NO_RUNS = np.empty(0, _PACKED)
#: Runs that are unpacked at a time.
_UNPACKED_COUNT = 1024


class StagedRuns(JsonObject, Sequence[StagedRun]):
    """Runs of one batch, packed: in a body, a journal record, and in memory.

    ::

        {"topics": ["T"], "packed": "AAAAAA..."}

    ``packed`` is the base64 of 30 B for each run, big-endian: the index of its topic (2 B), queue
    id (4), physical offset (8), size in bytes (4), count of records (4), part (8).
    """

    __slots__ = ("_runs", "_topics")

    def __init__(self, topics: tuple[str, ...] = (), runs: npt.NDArray[np.void] = _NO_RUNS) -> None:
        self._topics = topics
        self._runs = runs

    @classmethod
    def of(cls, runs: Iterable[StagedRun]) -> Self:
        """Pack runs.

        Raises:
            LocalProtocolError: there are more than ``RUNS_MAX``, or one is too large.
        """
        topics: dict[str, int] = {}
        rows = [
            (
                topics.setdefault(run.topic, len(topics)),
                run.queue_id,
                run.physical_offset,
                run.size_bytes,
                run.count,
                run.part,
            )
            for run in runs
        ]
        if len(rows) > RUNS_MAX or len(topics) > _TOPICS_MAX:
            raise LocalProtocolError(
                f"{len(rows)} staged runs for {len(topics)} topics, expected at most {RUNS_MAX} "
                f"(RUNS_MAX) for {_TOPICS_MAX}"
            )
        try:
            return cls(tuple(topics), np.array(rows, _PACKED))
        except OverflowError as error:
            raise LocalProtocolError(f"a staged run has a number too large: {error}") from error

    @classmethod
    def joined(cls, pieces: Sequence["StagedRuns"]) -> "StagedRuns":
        """Return all runs of some, in their order."""
        if len(pieces) == 1:
            return pieces[0]
        topics: dict[str, int] = {}
        parts = [_NO_RUNS]
        for piece in pieces:
            places = [topics.setdefault(topic, len(topics)) for topic in piece._topics]
            part = piece._runs.copy()
            part["topic"] = np.array(places, np.int64)[part["topic"]]
            parts.append(part)
        return cls(tuple(topics), np.concatenate(parts, dtype=_PACKED))

    def __len__(self) -> int:
        return len(self._runs)

    @overload
    def __getitem__(self, at: int) -> StagedRun: ...
    @overload
    def __getitem__(self, at: slice) -> "StagedRuns": ...
    def __getitem__(self, at: int | slice) -> "StagedRun | StagedRuns":
        if isinstance(at, slice):
            return StagedRuns(self._topics, self._runs[at])
        return self._unpacked(self._runs[at].item())

    def __iter__(self) -> Iterator[StagedRun]:
        for first in range(0, len(self._runs), _UNPACKED_COUNT):
            for row in self._runs[first : first + _UNPACKED_COUNT].tolist():
                yield self._unpacked(row)

    def _unpacked(self, row: tuple[int, ...]) -> StagedRun:
        topic, queue_id, physical_offset, size_bytes, count, part = row
        return StagedRun(
            topic=self._topics[topic],
            queue_id=queue_id,
            physical_offset=physical_offset,
            size_bytes=size_bytes,
            count=count,
            part=part,
        )

    @property
    def row_count(self) -> int:
        """Records of all runs together."""
        return int(self._runs["count"].sum(dtype=np.int64))

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics of all runs, and perhaps more."""
        return self._topics

    def queues(self) -> set[tuple[str, int]]:
        """Return topic and queue id of all runs, each once."""
        keys = np.unique(self._runs["topic"].astype(np.int64) << 32 | self._runs["queue_id"])
        return {(self._topics[key >> 32], key & 0xFFFFFFFF) for key in keys.tolist()}

    def to_json(self) -> dict[str, Any]:
        """Return the JSON value, with no topic that is not used."""
        used, places = np.unique(self._runs["topic"], return_inverse=True)
        runs = self._runs.copy()
        runs["topic"] = places
        return {
            "packed": base64.b64encode(runs.tobytes()).decode(),
            "topics": [self._topics[place] for place in used.tolist()],
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Return the runs of a parsed JSON value; raises RemoteProtocolError."""
        packed = value.get("packed") if type(value) is dict else None
        topics = value.get("topics") if type(value) is dict else None
        if type(packed) is not str or type(topics) is not list:
            raise RemoteProtocolError(f"{value!r:.80}, expected packed runs and their topics")
        if not all(type(topic) is str for topic in topics):
            raise RemoteProtocolError(f"topics {topics!r:.80}, expected strings")
        if len(packed) > RUNS_MAX * _PACKED_TEXT_BYTES:
            raise RemoteProtocolError(
                f"{len(packed) // _PACKED_TEXT_BYTES} staged runs, expected at most {RUNS_MAX} "
                "(RUNS_MAX)"
            )
        try:
            data = base64.b64decode(packed, validate=True)
            runs: npt.NDArray[np.void] = np.frombuffer(data, _PACKED)
        except (binascii.Error, ValueError) as error:
            raise RemoteProtocolError(f"packed runs of {len(packed)} B: {error}") from error
        is_wrong = runs["topic"] >= len(topics)
        for name in ("queue_id", "physical_offset", "size_bytes"):
            is_wrong |= runs[name] < 0
        is_wrong |= runs["count"] < 1
        if is_wrong.any():
            wrong = runs[is_wrong][0].item()
            raise RemoteProtocolError(f"packed run {wrong}, of {len(topics)} topics")
        return cls(tuple(topics), runs)


@dataclass(slots=True, kw_only=True)
class PublishRequest(JsonObject):
    """Publish a batch (PUBLISH_BATCH).

    Attributes:
        runs: what was staged for it.
        is_lasting: whether the broker remembers the sink for ever.
        kept_ms: how long it does at least after the batch is published, if not for ever: as long as
            this request may be repeated.
    """

    batch: SinkBatch
    runs: StagedRuns
    is_lasting: bool = wire("lasting", default=True)
    kept_ms: int = 0


#: Of the layout of journal records, and of the file of sinks.
JOURNAL_VERSION = 1
#: Of the entries of a decision about delayed records: a pymq that knows none could not tell
#: when their copies are due.
JOURNAL_VERSION_DELAYS = 2
#: What numbers of an entry may take more than those of another.
_NUMBERS_BYTES = 32


class JournalKind(StrEnum):
    """What a record of the journal of sinks says."""

    RUNS = "runs"  #: some of the runs of a decision that follows, if it does
    DECIDED = "decided"  #: the batch is published, or will be
    BEGUN = "begun"  #: a run of the query: older ones may not publish any more
    PUBLISHED = "published"  #: consumers see the sink's last batch
    KEPT = "kept"  #: said once more, because the record before is going to expire
    FORGOTTEN = "forgotten"  #: there is no such sink


@dataclass(slots=True, kw_only=True)
class SinkRun(JsonObject):
    """A run of a query, as of a ``SinkBatch``; of the first one that was heard of."""

    run: str
    planned_ms: int


@dataclass(slots=True, kw_only=True)
class JournalEntry(JsonObject):
    """A record of the journal of sinks: the body of a message in the system topic of sinks.

    Attributes:
        version: of its layout.
        kind: a ``JournalKind``.
        runs: of the batch, when it is decided; all but those of the records of kind RUNS before.
        part: how many records of that kind there are before this one.
        kept_ms: as of the ``PublishRequest``, when it is decided.
        decided_ms, known: when the batch was decided, and the sink's runs, when that is said again.
        lost_count: as in ``SinkRow``, when it is published or said again.
    """

    version: int = JOURNAL_VERSION
    kind: str
    batch: SinkBatch
    is_lasting: bool = wire("lasting", default=True)
    runs: StagedRuns = wire("runs", default_factory=StagedRuns)
    part: int = 0
    kept_ms: int = 0
    decided_ms: int | None = None
    known: list[SinkRun] = wire("known", default_factory=list)
    lost_count: int = wire("lost", default=0)

    def split(self, bytes_max: int) -> "list[JournalEntry]":
        """Return a decision as entries of which each takes that many bytes; the last is it."""
        lengths = [len(fastjson.dump(topic)) + 1 for topic in self.runs.topics]
        room = bytes_max - len(replace(self, runs=StagedRuns()).encode()) - _NUMBERS_BYTES
        each = _PACKED_TEXT_BYTES
        if len(lengths) == 1:
            room -= lengths[0]
        elif lengths:
            each += max(lengths)  # as if every run had a topic of its own
        step = max(1, room // each)
        firsts = range(0, max(1, len(self.runs)), step)
        return [
            replace(
                self,
                kind=self.kind if first == firsts[-1] else JournalKind.RUNS.value,
                runs=self.runs[first : first + step],
                part=part,
            )
            for part, first in enumerate(firsts)
        ]


@dataclass(slots=True, kw_only=True)
class SavedSink(JsonObject):
    """A sink that lasts, in the file of sinks; see ``broker.state.sinks``."""

    row: SinkRow
    runs: list[SinkRun]
    decision_offset: int
    journal_offset: int
    stored_ms: int


@dataclass(slots=True, kw_only=True)
class SavedSinks(JsonObject):
    """The file of sinks: what the journal says before ``read_to``.

    Attributes:
        read_from: the first entry of the journal that has to be read with it: of a decision that is
            pending or incomplete, or of a sink that does not last.
    """

    version: int = JOURNAL_VERSION
    read_to: int
    read_from: int
    sinks: list[SavedSink]
