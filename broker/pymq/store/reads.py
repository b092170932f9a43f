"""Reads queues for consumers.

Source: RocketMQ DefaultMessageStore.getMessage.
"""

import logging

import numpy as np

from pymq.clock import Clock
from pymq.errors import CorruptRecord, OffsetOutOfRange
from pymq.protocol.record import record_properties
from pymq.store.dispatch import Arrival
from pymq.store.log.commit_log import CommitLog
from pymq.store.matching_read import MatchingRead
from pymq.store.queue_read import SCAN_MAX, read_queue
from pymq.store.queues.consume_queue import ENTRY
from pymq.store.queues.entry_prefetch import EntryPrefetchJob, entry_prefetch
from pymq.store.queues.queue_table import QueueTable
from pymq.store.read_result import ReadResult
from pymq.store.searches import among
from pymq.store.selection import EVERYTHING, Selection
from pymq.store.statistics import StoreStatistics
from pymq.store.write_gate import WriteGate

_log = logging.getLogger(__name__)

#: Blocks of the log that were in memory count as such for a while: asking costs as much as a read.
_BLOCK_BYTES, _BLOCK_COUNT, _LOADED_S = 1 << 20, 1024, 1.0
#: Comparisons to look at what has arrived: about a millisecond.
_LOOK_WEIGHT_MAX = 2_000


class Reads:
    """Reads of one store.

    Attributes:
        opened_end: where the log ended when the store was opened: what is older may have left the
            memory since it was written, however little has been written since.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        gate: WriteGate,
        statistics: StoreStatistics,
        clock: Clock,
    ) -> None:
        self._log = log
        self._queues = queues
        self._gate = gate
        self._statistics = statistics
        self._clock = clock
        self._loaded_until_s: dict[int, float] = {}
        self.opened_end = log.end
        for queue in queues:
            queue.loaded_end = queue.end_offset

    def read(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        count_max: int,
        bytes_max: int,
        selection: Selection = EVERYTHING,
        scan_max: int = SCAN_MAX,
    ) -> ReadResult:
        """Return messages of a queue, oldest first, without copying them.

        At least one message if one matches, whatever its size; further ones within the limits.
        May wait for the disk if the selection looks into the records: see ``begin``.

        Args:
            topic, queue_id, queue_offset: where to start.
            count_max: messages wanted at most.
            bytes_max: bytes wanted at most.
            selection: which messages.
            scan_max: entries scanned with a selection; at least ``count_max`` are if it does not
                look into the records.

        Raises:
            CorruptRecord: the queue's file is damaged.
            StoreClosed: the store was closed.
        """
        found: ReadResult | MatchingRead | None = self.begin(
            topic,
            queue_id,
            queue_offset,
            count_max=count_max,
            bytes_max=bytes_max,
            selection=selection,
            scan_max=scan_max,
        )
        while isinstance(found, MatchingRead):
            found = self.advance(found) or found
        assert found is not None
        return found

    def entry_prefetch(
        self, topic: str, queue_id: int, queue_offset: int, count: int = SCAN_MAX
    ) -> EntryPrefetchJob | None:
        """Return a job that brings entries into memory; None if they are, as nearly always.

        Args:
            topic, queue_id, queue_offset, count: what is to be read.

        Raises:
            StoreClosed: the store was closed.
        """
        self._gate.check_open()
        queue = self._queues.by_key.get((topic, queue_id))
        if queue is None:
            return None
        return entry_prefetch(
            self._queues.files, queue, queue_offset, count, self._clock.monotonic_s()
        )

    def is_loaded(self, first: int, end: int) -> bool:
        """Return whether a part of the log is in memory, as far as the system says.

        Source: RocketMQ MappedFile.isLoaded.
        """
        now_s, block = self._clock.monotonic_s(), first // _BLOCK_BYTES
        high = (block + 1) * _BLOCK_BYTES
        if end <= high and self._loaded_until_s.get(block, 0.0) > now_s:
            return True
        log = self._log
        if end <= high and log.is_loaded(
            max(high - _BLOCK_BYTES, log.first), min(high, log.committed)
        ):
            if len(self._loaded_until_s) >= _BLOCK_COUNT:
                self._loaded_until_s.clear()
            self._loaded_until_s[block] = now_s + _LOADED_S
            return True
        return log.is_loaded(first, end)

    def begin(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        count_max: int,
        bytes_max: int,
        selection: Selection = EVERYTHING,
        scan_max: int = SCAN_MAX,
    ) -> ReadResult | MatchingRead:
        """Return messages as ``read`` does, or begin to look into records that may be cold.

        Returns:
            The result; or, only if the selection looks into the records, a read to be continued
            with ``advance``.

        Raises:
            CorruptRecord: the queue's file is damaged.
            StoreClosed: the store was closed.
        """
        self._gate.check_open()
        started_s = self._clock.monotonic_s()
        found = read_queue(
            self._log,
            self._queues.by_key.get((topic, queue_id)),
            queue_offset,
            count_max=count_max,
            bytes_max=bytes_max,
            selection=selection,
            scan_max=scan_max,
        )
        if isinstance(found, ReadResult):
            self._count(found, started_s)
        return found

    def advance(self, reading: MatchingRead) -> ReadResult | None:
        """Go on with a read; return its result, or None: call again.

        Raises:
            CorruptRecord: an entry or a record is damaged.
            StoreClosed: the store was closed.
        """
        self._gate.check_open()
        started_s = self._clock.monotonic_s()
        result = reading.advance()
        if result is not None:
            self._count(result, started_s)
        return result

    def stop(self, reading: MatchingRead) -> ReadResult:
        """End a read before it has looked at all that it may; return its result.

        Raises:
            CorruptRecord: an entry is damaged.
            StoreClosed: the store was closed.
        """
        self._gate.check_open()
        started_s = self._clock.monotonic_s()
        result = reading.stop()
        self._count(result, started_s)
        return result

    def is_selected(self, arrival: Arrival, selection: Selection) -> bool:
        """Return whether one of the records that have just become visible is selected.

        A record that cannot be read counts as one that is: the read meets the error. And so do
        many, if the selection takes long to look at them: the read does.
        """
        entries = np.frombuffer(arrival.entries, ENTRY)
        if selection.tag_codes is not None:
            entries = entries[among(arrival.tag_codes, selection.tag_codes)]
        elif selection.bit_maps is not None and arrival.bit_maps is not None:
            # Whoever waits has subscribed before they arrived.
            entries = entries[[*map(selection.bit_maps.may_match, arrival.bit_maps)]]
        if selection.matches is None:
            return len(entries) > 0
        if len(entries) * selection.weight > _LOOK_WEIGHT_MAX:
            return True
        try:
            for physical, size, _ in entries.tolist():
                _, _, properties = record_properties(self._log.slice(physical, size), 0, size)
                if selection.matches((properties,))[0]:
                    return True
        except (CorruptRecord, OffsetOutOfRange) as error:
            _log.debug("not read when it arrived: %s", error)
            return True
        return False

    def _count(self, result: ReadResult, started_s: float) -> None:
        self._statistics.count_get(
            result.count,
            sum(map(len, result.buffers)),
            self._clock.monotonic_s() - started_s,
        )
