"""Reading exactly the messages of a range of queue offsets: which pulls to send. Pure.

Two kinds of broker answer a pull for many messages:

* pymq gives as many bytes as asked for: few large pulls, one at a time;
* RocketMQ gives at most 32 messages and 256 KiB (8 and 64 KiB when they are not in memory).
  Offsets of a queue have no gaps, so where the next pull starts is known before the answer is
  there: several pulls are in flight. When an answer is shorter than predicted, the rest is
  asked for again and the next predictions are smaller.

Which kind it is shows the first answer. With a filter nothing can be predicted, because
``next_offset`` depends on what matched: one pull at a time then, too.

Offsets at which there is nothing (messages that retention removed just now, blank entries with
which a recovery filled a queue) are an error, unless the plan passes over gaps: then they
are covered by chunks that have no records for them.

Worked example, offsets 0..100 of a RocketMQ broker whose messages have 10 KiB: the first pull
asks for 100 from 0 and gets 25 (0..25); then pulls of 25 from 25, 50 and 75 are sent at once.
"""

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pymq.client.operations import Pull, PullResult, PullStatus
from pymq.errors import CorruptRecord, OffsetOutOfRange
from pymq.protocol.bodies import MessageQueue

#: What RocketMQ gives at most, in messages and (for more than one message) in bytes.
REAL_COUNT_MAX = 32
REAL_BYTES_MAX = 256 << 10
#: Pulls in flight to a broker of that kind.
WINDOW_COUNT = 16
#: Predictions that must come true before larger ones are tried; a wrong one costs a round trip.
GROW_COUNT = 4 * WINDOW_COUNT
#: Most messages wanted with one pull; RocketMQ's field is an int.
COUNT_MAX = (1 << 31) - 1

#: Bodies below this are joined, up to ``JOIN_BYTES``, so that readers decode many at a time.
PASS_BYTES_MIN = 256 << 10
JOIN_BYTES = 1 << 20

_SIZE = struct.Struct(">I")
_QUEUE_OFFSET = struct.Struct(">q")
_QUEUE_OFFSET_AT = 20  # in a stored record, see protocol/record.py
_HEAD_BYTES = _QUEUE_OFFSET_AT + _QUEUE_OFFSET.size


@dataclass(slots=True)
class PullChunk:
    """Some messages of a range, in order.

    Attributes:
        buffer: whole stored records, back to back, none outside the range. Valid as long as
            somebody holds it; holding many costs as much memory.
        first: offset from which they were looked for.
        next_offset: offset up to which they were: where the next chunk begins. All matching
            messages between are here; there may be none. Without a filter there is one for
            each offset, unless gaps are passed over.
        is_from_master: whether all of it is what the queue's master answered. Otherwise some may
            be missing that the master has.
    """

    buffer: memoryview
    first: int
    next_offset: int
    is_from_master: bool = True


@dataclass(slots=True, eq=False)
class Span:
    """One pull of a plan: ``count`` messages from ``offset`` on.

    ``operation`` and ``opaque`` belong to whoever sends it: ``None`` until then.
    """

    offset: int
    count: int
    operation: Pull | None = None
    opaque: int | None = None


class RangePlan:
    """Which pulls to send for the offsets ``first <= offset < end`` of a queue.

    Use: send what ``unsent`` gives, hand the answer to the oldest span to ``accept``, until
    ``is_done``. After a failure ``restart`` and go on.

    Invariant: the spans cover, without gap or overlap, a part of ``[cursor, end)`` that
    begins at ``cursor``.
    """

    def __init__(
        self,
        queue: MessageQueue,
        first: int,
        end: int,
        *,
        is_filtered: bool,
        passes_gaps: bool = False,
    ) -> None:
        if first < 0:
            raise OffsetOutOfRange(f"{_named(queue)}: offset {first}, expected 0 or more")
        self.queue = queue
        #: Everything before it is accepted.
        self.cursor = first
        self.end = max(first, end)
        self._is_filtered = is_filtered
        self._passes_gaps = passes_gaps
        self._predicts = False
        self._step = REAL_COUNT_MAX
        self._kept_count = 0
        self.spans: deque[Span] = deque()

    @property
    def is_done(self) -> bool:
        """Is the whole range accepted?"""
        return self.cursor >= self.end

    def restart(self) -> None:
        """Forget the pulls in flight; their answers are lost."""
        self.spans.clear()

    def unsent(self) -> Iterator[Span]:
        """Yield the spans to be sent now; the caller sets ``opaque`` of each."""
        self._fill()
        return (span for span in self.spans if span.opaque is None)

    def _fill(self) -> None:
        spans = self.spans
        limit, step = (WINDOW_COUNT, self._step) if self._predicts else (1, COUNT_MAX)
        position = spans[-1].offset + spans[-1].count if spans else self.cursor
        while len(spans) < limit and position < self.end:
            spans.append(Span(position, min(step, self.end - position)))
            position += spans[-1].count

    def accept(self, result: PullResult, *, is_from_master: bool = True) -> PullChunk:
        """Take the answer to the oldest span; return its messages, perhaps none.

        Args:
            result: the answer.
            is_from_master: see ``PullChunk``.

        Raises:
            OffsetOutOfRange: the broker does not have all of the range (any more).
            CorruptRecord: the answer holds no records.
        """
        span = self.spans[0]
        first, body = span.offset, memoryview(result.body)
        next_offset, span_end = result.next_offset, span.offset + span.count
        self._check(span, result)
        if next_offset > span_end:  # what follows is asked for already, or beyond the range
            body = records_before(body, span_end)
            next_offset = span_end
        self.spans.popleft()
        self.cursor = next_offset
        if not self._is_filtered:
            self._learn(span, next_offset - first, len(result.body))
        return PullChunk(body, first, next_offset, is_from_master)

    def _check(self, span: Span, result: PullResult) -> None:
        moved_on = result.next_offset > span.offset
        is_gone = result.min_offset > span.offset
        if result.status is PullStatus.OFFSET_ILLEGAL or is_gone or not moved_on:
            raise self._out_of_range(span, result)
        if self._is_filtered or self._passes_gaps:
            return
        if result.status is not PullStatus.FOUND:
            raise self._out_of_range(span, result)
        found = first_offset(result.body)
        if found != span.offset:
            raise self._out_of_range(span, result, found)

    def _out_of_range(
        self, span: Span, result: PullResult, found: int | None = None
    ) -> OffsetOutOfRange:
        what = (
            f"the first message there has offset {found}" if found is not None else "is not there"
        )
        return OffsetOutOfRange(
            f"{_named(self.queue)}: offset {span.offset} of the range up to {self.end} {what}; the "
            f"queue holds {result.min_offset} up to {result.max_offset} "
            f"(answer: {result.status.name}, next offset {result.next_offset})"
        )

    def _learn(self, span: Span, covered: int, body_bytes: int) -> None:
        if covered > REAL_COUNT_MAX or (covered > 1 and body_bytes > REAL_BYTES_MAX):
            self._predicts = False
            return
        if not self._predicts:
            if not self.is_done:
                self._predicts = True
                self._step = covered
            return
        if covered < span.count:
            self.spans.appendleft(Span(self.cursor, span.count - covered))
            self._step = covered
            self._kept_count = 0
            return
        self._kept_count += 1
        if self._kept_count >= GROW_COUNT:
            self._step = min(REAL_COUNT_MAX, self._step * 2)
            self._kept_count = 0


def first_offset(body: bytes | memoryview) -> int:
    """Return the queue offset of the first record in a buffer.

    Raises:
        CorruptRecord: the buffer is too small for a record.
    """
    if len(body) < _HEAD_BYTES:
        raise CorruptRecord(f"pull answer of {len(body)} B, expected whole records")
    (offset,) = _QUEUE_OFFSET.unpack_from(body, _QUEUE_OFFSET_AT)
    return int(offset)


def records_before(body: memoryview, end: int) -> memoryview:
    """Return the records in front of the first one whose queue offset is ``end`` or more.

    Raises:
        CorruptRecord: the buffer is not filled by records.
    """
    position, total = 0, len(body)
    while total - position >= _HEAD_BYTES:
        (offset,) = _QUEUE_OFFSET.unpack_from(body, position + _QUEUE_OFFSET_AT)
        if offset >= end:
            return body[:position]
        (size,) = _SIZE.unpack_from(body, position)
        if size < _HEAD_BYTES:
            break
        position += size
    if position != total:
        raise CorruptRecord(f"pull answer of {total} B: no record at {position}")
    return body


class Joiner:
    """Joins small chunks into larger ones, in order; large ones pass without a copy."""

    def __init__(self) -> None:
        self._chunks: list[PullChunk] = []
        self._bytes = 0

    def add(self, chunk: PullChunk) -> list[PullChunk]:
        """Take a chunk; return those that are ready."""
        if len(chunk.buffer) >= PASS_BYTES_MIN and not self._bytes:
            if self._chunks:  # nothing but offsets at which nothing matched
                chunk = _over([*self._chunks, chunk], chunk.buffer)
                self._chunks.clear()
            return [chunk]
        self._chunks.append(chunk)
        self._bytes += len(chunk.buffer)
        return self.flush() if self._bytes >= JOIN_BYTES else []

    def flush(self) -> list[PullChunk]:
        """Return what is held back: one chunk, or none."""
        chunks, self._chunks = self._chunks, []
        self._bytes = 0
        if len(chunks) < 2:
            return chunks
        return [_over(chunks, memoryview(b"".join([chunk.buffer for chunk in chunks])))]


def _over(chunks: Sequence[PullChunk], buffer: memoryview) -> PullChunk:
    """Return one chunk for several that follow one another, with what is in all of them."""
    is_from_master = all(chunk.is_from_master for chunk in chunks)
    return PullChunk(buffer, chunks[0].first, chunks[-1].next_offset, is_from_master)


def _named(queue: MessageQueue) -> str:
    return f"topic {queue.topic!r}, broker {queue.broker_name!r}, queue {queue.queue_id}"
