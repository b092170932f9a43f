"""What exactly-once sinks need of a store: staged records, and queues that are held back."""

from collections.abc import Collection, Iterator

import numpy as np

from pymq.protocol.codes import TRANSACTION_MASK, MessageFlag
from pymq.protocol.record_batch import Longs, RecordColumns
from pymq.store.dispatch import Dispatch, HeldQueues
from pymq.store.log.commit_log import CommitLog
from pymq.store.log.log_scan import Stop, follow_sizes
from pymq.store.queues.queue_table import QueueKey, QueueTable
from pymq.store.write_gate import WriteGate

_COMMIT = int(MessageFlag.TRANSACTION_COMMIT)


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

    def hold(self, queues: Collection[QueueKey]) -> HeldQueues:
        """Keep what is put into queues invisible, whoever puts it; return what to release."""
        self._gate.check_open()
        held = tuple(self._queues.make(*key) for key in queues)
        self._dispatch.hold(held)
        return held

    def release(self, held: HeldQueues) -> None:
        """Have all that was put into queues since ``hold`` become visible at once."""
        self._dispatch.release(held)
        if not self._gate.is_closed:
            self._dispatch.advance()

    def committed_from(self, physical_offset: int) -> Longs:
        """Return of which staged or prepared records there are copies behind a physical offset.

        Reads the log up to its end; for a start.

        Returns:
            Their physical offsets, ascending.
        """
        found = [
            records.prepared_transaction_offset[records.sys_flag & TRANSACTION_MASK == _COMMIT]
            for records in self._records(physical_offset)
        ]
        return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)

    def _records(self, at: int) -> Iterator[RecordColumns]:
        log = self._log
        at = max(at, log.first)
        while at < log.end:
            segment = log.segments.find(at)
            position, limit = at - segment.first, min(segment.end, log.end) - segment.first
            starts, end, stop = follow_sizes(segment.view, position, limit)
            if len(starts):
                yield RecordColumns(np.frombuffer(segment.view[position:end], np.uint8), starts)
            at = segment.first + end if stop is Stop.FULL else segment.end
