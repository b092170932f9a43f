"""What exactly-once sinks need of a store: staged records, and queues that are held back."""

from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pymq.errors import CorruptRecord
from pymq.protocol.codes import TRANSACTION_MASK, MessageFlag
from pymq.protocol.record import decode_record
from pymq.protocol.record_batch import Longs, RecordColumns
from pymq.store.dispatch import Dispatch, HeldQueues
from pymq.store.log.commit_log import CommitLog
from pymq.store.log.log_scan import Stop, follow_sizes
from pymq.store.queues.queue_table import QueueKey, QueueTable
from pymq.store.write_gate import WriteGate

_COMMIT, _STAGED = int(MessageFlag.TRANSACTION_COMMIT), int(MessageFlag.TRANSACTION_ROLLBACK)


class Copies(NamedTuple):
    """Copies of staged records.

    Attributes:
        staged: physical offsets of the staged records, ascending, each once.
        places: physical offset of the first copy of each.
    """

    staged: Longs
    places: Longs


class Staging:
    """Reads staged records, and holds back the queues that their copies go to."""

    def __init__(
        self, log: CommitLog, queues: QueueTable, dispatch: Dispatch, gate: WriteGate
    ) -> None:
        self._log = log
        self._queues = queues
        self._dispatch = dispatch
        self._gate = gate

    def view(self, physical_offset: int, size_bytes: int) -> memoryview:
        """Return a part of the log as it is stored, a view like those of ``ReadResult``.

        Raises:
            OffsetOutOfRange: the log does not hold it, in one segment.
        """
        self._gate.check_open()
        return self._log.part_view(physical_offset, size_bytes)

    def hold(self, queues: Collection[QueueKey], *, since: int | None = None) -> HeldQueues:
        """Keep what is put into queues invisible, whoever puts it; return what to release.

        Args:
            queues: which; nobody else holds one of them.
            since: at a start, also what they show of records at this physical offset or behind.
        """
        self._gate.check_open()
        held = tuple(self._queues.make(*key) for key in queues)
        self._dispatch.hold(held, since=since)
        return held

    def release(self, held: HeldQueues) -> bool:
        """Have all that was put into queues since ``hold`` become visible at once.

        Returns:
            False: the entries of a queue cannot be written now, and nothing is visible. It will be
            with the next write that succeeds, or with another call.

        Raises:
            StoreClosed: the store was closed.
        """
        self._gate.check_open()
        if self._dispatch.is_holding(held):
            self._dispatch.release(held)
            self._dispatch.advance()
        return not self._dispatch.is_holding(held)

    def copies_from(self, physical_offset: int) -> Copies:
        """Return which staged or prepared records have copies from a physical offset on.

        Reads the log up to its end; for a start.

        Raises:
            CorruptRecord: the log cannot be read.
        """
        found, places = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for records in self._records(physical_offset):
            is_copy = records.sys_flag & TRANSACTION_MASK == _COMMIT
            # What is delivered late or retried keeps the flag, and its offset is 0, as in RocketMQ.
            unsure = np.flatnonzero(is_copy & (records.prepared_transaction_offset == 0))
            is_copy[unsure] = self._are_copies_of_first(records, unsure)
            found.append(records.prepared_transaction_offset[is_copy])
            places.append(records.physical_offset[is_copy])
        staged, rows = np.unique(np.concatenate(found), return_index=True)
        return Copies(staged, np.concatenate(places)[rows])

    def _are_copies_of_first(self, records: RecordColumns, rows: Longs) -> npt.NDArray[np.bool_]:
        """Return which of some records are copies of the one at physical offset 0."""
        equal = np.zeros(len(rows), np.bool_)
        if not len(rows) or self._log.first != 0:
            return equal
        first = decode_record(self._log.segments.find(0).view, 0)
        if first.sys_flag & TRANSACTION_MASK != _STAGED:
            return equal
        topic = first.topic.encode()
        crcs = records.body_crc[rows].astype(np.int64) & 0xFFFFFFFF
        alike = (
            (records.queue_id[rows] == first.queue_id)
            & (crcs == first.body_crc & 0xFFFFFFFF)
            & (records.born_timestamp[rows] == first.born_timestamp)
        )
        for number in np.flatnonzero(alike).tolist():
            start, end = records.topic_start[rows[number]], records.topic_end[rows[number]]
            equal[number] = records.buffer[start:end].tobytes() == topic
        return equal

    def _records(self, at: int) -> Iterator[RecordColumns]:
        log = self._log
        at = max(at, log.first)
        while at < log.committed:
            segment = log.segments.find(at)
            position, limit = at - segment.first, min(segment.end, log.committed) - segment.first
            starts, end, stop = follow_sizes(segment.view, position, limit)
            if len(starts):
                yield RecordColumns(np.frombuffer(segment.view[position:end], np.uint8), starts)
            if stop is not Stop.FULL and stop is not Stop.BLANK and end < limit:
                raise CorruptRecord(f"{segment.path}: no record at position {end}")
            at = segment.first + end if stop is Stop.FULL else segment.end
