"""Reads whose selection looks into the records.

Source: RocketMQ MessageFilter.isMatchedByCommitLog.
"""

from collections.abc import Iterator

import numpy as np

from pymq.errors import CorruptRecord
from pymq.protocol.record import record_properties
from pymq.protocol.record_batch import RecordColumns, spans
from pymq.store.queue_scan import QueueScan, Runs
from pymq.store.read_result import ReadResult, damaged
from pymq.store.selection import Matches
from pymq.store.verdicts import Verdicts

#: Records looked at by one ``advance``, one after the other; and by their columns, if the verdicts
#: are remembered, and a read goes on where the last one of the same filter ended, or needs more.
_COUNT_MIN, _COUNT_MAX, _AHEAD_COUNT = 16, 64, 256
#: Bytes of records looked at by one ``advance``.
_BYTES_MAX = 1 << 20
#: Of a record that is larger than both together, this is looked at: its head, up to the length
#: of the body, and at its end the topic and the properties.
_HEAD_BYTES, _TAIL_BYTES = 1 << 10, 34 << 10
_LOOKED_AT_BYTES = _HEAD_BYTES + _TAIL_BYTES


class MatchingRead:
    """One such read: ``advance`` until there is a result.

    Whoever must not wait for a disk brings ``places`` into memory before each ``advance``. The log
    may be trimmed meanwhile: the records of these places stay readable.

    Args:
        scan: the entries.
        matches: the filter.
        verdicts: what it decided earlier; gets what it decides now.
    """

    def __init__(self, scan: QueueScan, matches: Matches, verdicts: Verdicts | None = None) -> None:
        self._scan = scan
        self._matches = matches
        self._verdicts = verdicts
        self._rows = scan.present.nonzero()[0]
        self._kept: list[int] = []  # rows that are selected, as far as they fit
        self._kept_bytes = 0
        self._decided = 0  # rows before it are kept, or not
        self._at = 0  # those of ``_rows`` before it were looked at
        self._piece = self._rows[:0]
        self._runs: Runs = ([], [], [])
        self._span: memoryview | None = None
        goes_on = verdicts is not None and verdicts.find(scan.queue, scan.queue_offset) is not None
        if not (goes_on and self._take_ahead()):
            self._take_piece()

    def places(self) -> tuple[list[memoryview], list[int]]:
        """Return what ``advance`` will look at, as views on the log and their physical offsets."""
        buffers, starts, _ = self._runs
        if len(self._piece) == 0 or int(self._scan.sizes[self._piece].max()) <= _LOOKED_AT_BYTES:
            return buffers, starts
        parts, places = [], []
        for row, size, buffer, position in self._records():
            start = int(self._scan.physical[row])
            ranges = [(0, size)]
            if size > _LOOKED_AT_BYTES:
                ranges = [(0, _HEAD_BYTES), (size - _TAIL_BYTES, size)]
            for first, end in ranges:
                parts.append(buffer[position + first : position + end])
                places.append(start + first)
        return parts, places

    def advance(self) -> ReadResult | None:
        """Look at some records; return the result, or None: there are more to look at.

        Raises:
            CorruptRecord: an entry or a record is damaged.
        """
        scan = self._scan
        texts = self._texts()
        verdicts = self._matches(texts) if texts else ()
        if len(verdicts) < len(texts):  # the rest would take too long now
            self._piece = self._piece[: len(verdicts)]
        rows = zip(self._piece.tolist(), verdicts, strict=True)
        selected = [row for row, is_selected in rows if is_selected]
        self._remember(selected)
        self._at += len(self._piece)
        end = self._end(set(selected))
        if end is not None:
            return scan.result(np.array(self._kept, np.int64), end)
        if self._verdicts is None or not self._take_ahead():
            self._take_piece()
        return None

    def stop(self) -> ReadResult:
        """Return the result as far as records were looked at; after ``advance`` without one."""
        return self._scan.result(np.array(self._kept, np.int64), self._decided)

    def _texts(self) -> list[bytes]:
        """Return the encoded properties of each record of this piece.

        Raises:
            CorruptRecord: as ``advance``.
        """
        if len(self._piece) > _COUNT_MAX:
            texts = self._texts_of_columns()
            if texts is not None:
                return texts
            self._shorten_piece()
        return [
            self._properties(row, buffer, position, position + size)
            for row, size, buffer, position in self._records()
        ]

    def _texts_of_columns(self) -> list[bytes] | None:
        """Return the properties of many records; None if one is damaged, or in another file."""
        scan, rows = self._scan, self._piece
        if self._span is None:
            return None
        sizes = scan.sizes[rows]
        starts = scan.physical[rows] - int(scan.physical[rows[0]])
        if not ((starts >= 0) & (starts + sizes <= len(self._span))).all():
            return None
        try:
            records = RecordColumns(np.frombuffer(self._span, np.uint8), starts)
        except CorruptRecord:
            return None
        fits = (records.queue_offset == scan.queue_offset + rows) & (records.size == sizes)
        if not (fits & (records.queue_id == scan.queue.queue_id)).all():
            return None
        text, ends = records.properties_text()
        return list(map(text.tobytes().__getitem__, spans(ends[:-1], ends[1:])))

    def _remember(self, selected: list[int]) -> None:
        """Remember what was decided of this piece, and of the entries between its records."""
        if self._verdicts is None or not len(self._piece):
            return
        scan = self._scan
        first, end = int(self._piece[0]), int(self._piece[-1]) + 1
        if scan.has_gap(first, end):
            return  # the filter has not seen all of them
        self._verdicts.remember(
            scan.queue,
            scan.queue_offset + first,
            scan.physical[first:end],
            np.array(selected, np.int64) - first,
        )

    def _end(self, selected: set[int]) -> int | None:
        """Keep selected ones of the rows that were looked at, as far as they fit.

        Before every entry, selected or not, RocketMQ checks whether the result is full.

        Returns:
            How many entries are consumed; None: that depends on the following ones.
        """
        scan = self._scan
        is_last = self._at == len(self._rows)
        # Entries before the next one to be looked at are decided.
        end = len(scan.sizes) if is_last else int(self._rows[self._at])
        count_max, bytes_max = scan.count_max, scan.bytes_max
        kept, kept_bytes = self._kept, self._kept_bytes
        for row, size in enumerate(scan.sizes[self._decided : end + 1].tolist(), self._decided):
            if kept and (kept_bytes + size > bytes_max or len(kept) >= count_max):
                return row
            if row in selected:
                kept.append(row)
                kept_bytes += size
        self._decided, self._kept_bytes = end, kept_bytes
        return end if is_last else None

    def _take_ahead(self) -> bool:
        """Take more records than may be needed; False if an entry of them is damaged."""
        try:
            self._take_piece(_AHEAD_COUNT)
        except CorruptRecord:
            return False
        return True

    def _take_piece(self, wanted: int = 0) -> None:
        """Take the records that are looked at next: so many, or as many as may be needed."""
        missing = self._scan.count_max - len(self._kept)
        count = wanted or min(_COUNT_MAX, max(missing, _COUNT_MIN))
        rows = self._rows[self._at : self._at + count]
        looked_at = np.minimum(self._scan.sizes[rows], _LOOKED_AT_BYTES).cumsum()
        self._piece = rows[: max(1, int(looked_at.searchsorted(_BYTES_MAX, "right")))]
        self._span = None
        if len(rows):
            self._runs = self._scan.runs(self._piece)
        if len(self._piece) > _COUNT_MAX:
            self._span = self._scan.span(self._piece)

    def _shorten_piece(self) -> None:
        """Look at fewer: what is wrong with one does not concern who reads those before it."""
        self._piece = self._piece[:_COUNT_MIN]
        buffers, starts, firsts = self._runs
        count = sum(first < len(self._piece) for first in firsts)
        self._runs = buffers[:count], starts[:count], firsts[:count]

    def _records(self) -> Iterator[tuple[int, int, memoryview, int]]:
        """Yield (row, size, buffer, position in it) of the records of this piece."""
        buffers, _, firsts = self._runs
        rows, sizes = self._piece.tolist(), self._scan.sizes[self._piece].tolist()
        ends = [*firsts[1:], len(rows)]  # one too many if there are none
        for buffer, first, end in zip(buffers, firsts, ends, strict=False):
            position = 0
            for row, size in zip(rows[first:end], sizes[first:end], strict=True):
                yield row, size, buffer, position
                position += size

    def _properties(self, row: int, buffer: memoryview, position: int, end: int) -> bytes:
        scan = self._scan
        try:
            queue_id, offset, properties = record_properties(buffer, position, end)
            if offset == scan.queue_offset + row and queue_id == scan.queue.queue_id:
                return properties
            found = f"message {offset} of queue {queue_id}"
        except CorruptRecord as error:
            found = str(error)
        raise damaged(
            scan.queue.path,
            f"entry {scan.queue_offset + row} does not fit the record at physical offset "
            f"{scan.physical[row]} ({found})",
        )
