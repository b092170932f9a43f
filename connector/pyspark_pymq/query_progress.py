"""What the progress of a streaming query says about its pymq sources. Needs no Spark.

Spark reports, of each source, the offsets at which its last batch started and ended and those that
there were at the latest: objects as in ``offsets``, which are told from other sources' by their
reserved member.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pymq.client.group.group_progress import QueueLag
from pymq.errors import ConfigurationError
from pymq.protocol.bodies import MessageQueue
from pyspark_pymq.offsets import (
    RESERVED,
    Position,
    left_out,
    named,
    position_from_json,
    position_to_json,
)


@dataclass(frozen=True, slots=True)
class StreamLag:
    """How far a streaming query is behind what its pymq sources hold.

    Queues that the checkpoint keeps, although the options no longer choose them, do not count.

    Attributes:
        query_id: which query; the same after a restart from its checkpoint.
        name: the query's, if it has one.
        batch_id: the batch after which this was so.
        queues: what is known of each queue, sorted; ``consumer_offset`` is the query's.
        unknown: queues of which either is not known: their broker does not answer, or they have
            just appeared. Before Spark 4.2, which asks no source for its latest offset, all are.
    """

    query_id: str
    name: str | None
    batch_id: int
    queues: tuple[QueueLag, ...]
    unknown: tuple[MessageQueue, ...] = ()

    @property
    def total(self) -> int:
        """Messages that wait in all of ``queues``."""
        return sum(queue.lag for queue in self.queues)


def lag(progress: Any) -> StreamLag:
    """Return how far a streaming query is behind, per queue.

    Args:
        progress: ``query.lastProgress``, a progress of a ``StreamingQueryListener``, or either's
            JSON.

    Raises:
        ConfigurationError: it is not a progress, or not of a query with a pymq source.
    """
    report = _report(progress)
    queues: list[QueueLag] = []
    unknown: set[MessageQueue] = set()
    is_ours = False
    for source in _sources(report):
        done = _position(source.get("endOffset"))
        if done is None:
            continue
        is_ours = True
        reported = _offset(source.get("latestOffset"))
        ends = {} if reported is None else position_from_json(reported).offsets
        read = done.offsets.keys() - (set() if reported is None else left_out(reported))
        unknown |= read ^ ends.keys()
        queues += [QueueLag(q, ends[q], done.offsets[q], None) for q in read & ends.keys()]
    if not is_ours:
        raise ConfigurationError("no source of the query is pymq, or none has ended a batch yet")
    return StreamLag(
        str(report.get("id")),
        report.get("name"),
        int(report.get("batchId", -1)),
        tuple(sorted(queues)),
        tuple(sorted(unknown)),
    )


def starting_offsets(given: Any, *, source: int | None = None) -> str:
    """Return the text for ``option("startingOffsets", ...)`` that continues where a query stood.

    Queues that it did not know are not named, and start at their earliest message.

    Args:
        given: a progress as for ``lag``, or the text of a file of the checkpoint's directory
            ``offsets``. Of the latest file there the batch need not be done: if ``commits`` has
            no file of that number, take the one before to read it again.
        source: which source of the query, from 0, in the order of the progress or file; by
            default all that are pymq.

    Raises:
        ConfigurationError: it is none of these, or has no offset of pymq; or two sources stand
            at different offsets of a queue, and ``source`` does not say which counts.
    """
    if isinstance(given, str) and given.startswith("v"):
        positions = [_position(line) for line in given.splitlines()[2:]]
    else:
        positions = [_position(one.get("endOffset")) for one in _sources(_report(given))]
    if source is not None:
        if not 0 <= source < len(positions):
            raise ConfigurationError(f"source={source}: expected 0..{len(positions) - 1}")
        positions = [positions[source]]
    found: dict[MessageQueue, int] = {}
    for position in filter(None, positions):
        for queue, offset in position.offsets.items():
            if found.setdefault(queue, offset) != offset:
                raise ConfigurationError(
                    f"two sources of the query read {named(queue)}, and stand at {found[queue]} "
                    f"and {offset}: choose one with source=..."
                )
    if not found:
        raise ConfigurationError("there is no offset of a pymq source in it")
    value = position_to_json(Position(found))
    del value[RESERVED]
    return json.dumps(value)


def _report(progress: Any) -> Mapping[str, Any]:
    """Return a progress as Spark writes it in JSON."""
    text = progress if isinstance(progress, str) else getattr(progress, "json", None)
    report = _parsed(text) if isinstance(text, str) else progress
    if not isinstance(report, Mapping) or "sources" not in report:
        raise ConfigurationError(
            f"{progress!r:.80}: expected the progress of a streaming query, such as "
            "query.lastProgress, or its JSON"
        )
    return report


def _sources(report: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    return (source for source in report["sources"] if isinstance(source, Mapping))


def _position(value: Any) -> Position | None:
    """Return an offset of ours; None for another source's."""
    offset = _offset(value)
    return None if offset is None else position_from_json(offset)


def _offset(value: Any) -> dict[str, Any] | None:
    """Return the JSON object of an offset of ours; None for another source's."""
    value = _parsed(value) if isinstance(value, str) else value
    return value if isinstance(value, dict) and RESERVED in value else None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
