"""What replication needs of a store: the commit log as raw bytes, to read at a master, and to
append at a slave, which makes its queue entries from them.

A slave's log is its master's, byte for byte. What a master sends is cut anywhere; a record is
appended when it is whole, so that the log of a slave ends with a whole record at any time, as any
log does, and what a slave reports is never a part of one.

Source: RocketMQ DefaultMessageStore.appendToCommitLog, ReputMessageService.
"""

import logging
import struct
from collections.abc import Iterator, Sequence

import numpy as np

from pymq.errors import CorruptRecord, FlushFailed, StoreError, StoreMismatch
from pymq.protocol.record import BLANK_BYTES, OVERHEAD_BYTES
from pymq.protocol.record_batch import Longs, RecordColumns
from pymq.store.config import StoreConfig
from pymq.store.disk_jobs import ReadJob
from pymq.store.dispatch import Dispatch, PendingDispatch
from pymq.store.log.commit_log import CommitLog
from pymq.store.log.log_scan import RECORD_MAGIC, Stop, follow_sizes
from pymq.store.queues.consume_queue import BLANK_ENTRY, ConsumeQueue
from pymq.store.queues.queue_entries import QueueEntries, queue_entries
from pymq.store.queues.queue_table import DIRECTORY_BYTES_MAX, QueueTable, illegal_name
from pymq.store.timer.followed_timers import FollowedTimers
from pymq.store.write_gate import WriteGate

_log = logging.getLogger(__name__)

_SIZE = struct.Struct(">I")
_HEAD_BYTES = 8
#: Usual size of what is received at once, at least.
_ROOM_BYTES = 2 << 20
#: A longer gap between queue offsets: the queue begins again behind it.
_GAP_MAX = 1 << 16


class Replication:
    """Parts of one store's log, as they are stored; belongs to the thread of the store.

    Attributes:
        timers: how far the master's timers are.
    """

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        queues: QueueTable,
        dispatch: Dispatch,
        gate: WriteGate,
    ) -> None:
        self._config = config
        self._log = log
        self._queues = queues
        self._dispatch = dispatch
        self._gate = gate
        self.timers = FollowedTimers(config, log, queues)
        #: Begins with what was received of the next record, ``_rest_bytes`` of it.
        self._room = memoryview(bytearray())
        self._rest_bytes = 0
        #: Size of the record that it is the beginning of; 0: not known yet.
        self._needed_bytes = 0
        #: What is still to come of the end of a finished file, behind its blank record.
        self._padding_bytes = 0

    @property
    def shown_end(self) -> int | None:
        """Up to where the log may be visible, as ``show_up_to`` was told."""
        return self._dispatch.limit

    def show_up_to(self, physical_end: int | None) -> None:
        """Make visible what is confirmed, and nothing else; None: whatever is stored."""
        if physical_end != self._dispatch.limit:
            self._dispatch.limit = physical_end
            self._dispatch.advance()

    # -- at a master --------------------------------------------------------------------------

    @property
    def readable_end(self) -> int:
        """Physical offset up to which the log can be sent: what the files hold, flushed or not."""
        return self._log.committed

    @property
    def first(self) -> int:
        """The lowest physical offset kept."""
        return self._log.first

    @property
    def last_file_first(self) -> int:
        """Physical offset at which the log's last file begins."""
        segments = self._log.segments
        return segments.at(-1).first if len(segments) else self._log.end

    def file_first(self, end: int) -> int:
        """Return the physical offset at which the file with the byte before some end begins."""
        return max(end - 1, 0) // self._config.segment_bytes * self._config.segment_bytes

    def part(self, physical_offset: int, bytes_max: int) -> memoryview:
        """Return bytes of the log from an offset on, as a view on the map of one file.

        Args:
            physical_offset: below ``readable_end``.
            bytes_max: size of the part at most; it is smaller at the end of a file or of the log.

        Raises:
            OffsetOutOfRange: the log does not hold the offset any more.
            StoreClosed: the store was closed.
        """
        self._gate.check_open()
        return self._log.slice(physical_offset, self._part_bytes(physical_offset, bytes_max))

    def begin_read(self, physical_offset: int, bytes_max: int) -> ReadJob:
        """Return a job that reads a part as ``part`` returns it, without the map of the file.

        Raises:
            OffsetOutOfRange: the log does not hold the offset any more.
            StoreError: the store was closed, or the process has too many open files.
        """
        self._gate.check_open()
        return ReadJob(
            self._log, physical_offset, self._part_bytes(physical_offset, bytes_max)
        )

    def _part_bytes(self, physical_offset: int, bytes_max: int) -> int:
        segment = self._log.segments.find(physical_offset)
        return min(bytes_max, segment.end - physical_offset, self.readable_end - physical_offset)

    # -- at a slave ---------------------------------------------------------------------------

    @property
    def received_end(self) -> int:
        """Physical offset at which the next bytes of the master's log belong."""
        return self._log.end - self._padding_bytes + self._rest_bytes

    @property
    def kept_end(self) -> int:
        """Physical offset below which the log has everything; what a slave may report."""
        return self._log.end - self._padding_bytes

    def begin(self) -> int:
        """Begin to receive, on a new connection; return where, 0: anywhere, the log is empty.

        Raises:
            FlushFailed: the disk failed for good.
            StoreError: queues cannot be written; what they lack is in the log.
            StoreClosed: the store was closed.
        """
        self._gate.check_open()
        self._gate.check_disk()
        self._check_queues()
        self._rest_bytes = self._needed_bytes = self._padding_bytes = 0
        return self._log.end

    def _check_queues(self) -> None:
        """Raise if entries of earlier records cannot be written: they go first."""
        if self._gate.refusal is not None and not self._dispatch.advance():
            raise StoreError(self._gate.refusal)

    def has_queues_before(self, topic: str, physical_end: int) -> bool:
        """Return whether some queue of a topic has messages, all before a physical offset."""
        queues = self._queues.of_topic(topic)
        return any(one.end_offset and self._dispatch.reach(one) <= physical_end for one in queues)

    def queues_end_before(self, topic: str, physical_end: int) -> bool:
        """Return whether no message of a topic is behind a physical offset."""
        queues = self._queues.of_topic(topic)
        return all(self._dispatch.reach(queue) <= physical_end for queue in queues)

    def append(self, physical_offset: int, *parts: memoryview) -> None:
        """Append bytes of the master's log; whole records become visible as those that are put.

        What it costs is mostly the same for few records and for many.

        Args:
            physical_offset: where they belong, ``received_end``; an empty log may begin at the
                beginning of any file.
            parts: the bytes, in any number of parts that follow each other; not kept.

        Raises:
            StoreMismatch: they do not belong there, or the files of the master have another size.
            CorruptRecord: they are no records of a log. What came before them is appended.
            DiskFull, FlushFailed, StoreBusy, StoreError: the disk refused. ``begin`` again.
        """
        self._gate.check_open()
        self._gate.check_disk()  # what it did not flush may be gone: nothing counts any more
        self._check_queues()
        self._check_place(physical_offset)
        whole = self._joined([self._take_padding(part) for part in parts])
        if len(whole) < self._needed_bytes:
            return
        self._needed_bytes = 0
        is_shown = True
        try:
            taken = self._append_whole(whole)
        except StoreError as error:
            self._gate.record_error(error)
            raise
        finally:
            if not self._dispatch.waits_for_flush:
                is_shown = self._dispatch.advance()
        if not is_shown:
            raise StoreError(f"queues cannot be written: {self._gate.refusal}")
        self._gate.record_success()
        self._keep(whole[taken:])

    def _joined(self, parts: Sequence[memoryview]) -> memoryview:
        """Return what was received of the next record, and more that follows, in one piece."""
        if not self._rest_bytes and len(parts) == 1:
            return parts[0]
        for part in parts:
            self._keep(part, behind=self._rest_bytes)
        return self._room[: self._rest_bytes]

    def _keep(self, part: memoryview, *, behind: int = 0) -> None:
        """Keep bytes of the next record, behind some that are kept already."""
        end = behind + len(part)
        if end > len(self._room):
            room = memoryview(bytearray(max(end, _ROOM_BYTES)))
            room[:behind] = self._room[:behind]
            self._room = room
        self._room[behind:end] = part
        self._rest_bytes = end

    def _check_place(self, physical_offset: int) -> None:
        log = self._log
        if physical_offset == self.received_end:
            return
        if not log.end and not self._rest_bytes:
            log.segments.drop_after(0)  # a file without any record
            log.segments.drop_prepared()
        if len(log.segments) or self._rest_bytes:
            raise StoreMismatch(
                f"the master sends its log from physical offset {physical_offset} on, but this "
                f"one is at {self.received_end}: it is not the log that this slave has followed. "
                "Start the slave with an empty store, or give it a copy of the master's"
            )
        if physical_offset % self._config.segment_bytes:
            raise StoreMismatch(
                f"the master sends its log from physical offset {physical_offset} on, but files "
                f"of {self._config.segment_bytes} B (segment_bytes, RocketMQ "
                "mappedFileSizeCommitLog) do not begin there: use the master's size here"
            )
        log.segments.begin_at(physical_offset)
        log.roll()

    def _append_whole(self, data: memoryview) -> int:
        """Append the whole records of some bytes; return how many bytes these are."""
        at = 0
        while at < len(data):
            starts, end, stop = follow_sizes(data, at, len(data))
            if len(starts):
                self._append_records(data[at:end], starts)
            at = end
            if stop is Stop.BLANK:
                at += self._end_file(data[at:])
            elif stop is not Stop.FULL:
                self._check_rest(data[at:])
                break
        return at

    def _append_records(self, data: memoryview, starts: Longs) -> None:
        log = self._log
        records = RecordColumns(np.frombuffer(data, np.uint8), starts)
        wrong = np.flatnonzero(records.physical_offset != starts + log.end)
        if len(wrong):
            at = int(wrong[0])
            raise CorruptRecord(
                f"the master sent a record at physical offset {log.end + int(starts[at])} that "
                f"says it is at {int(records.physical_offset[at])}: its log is damaged there. "
                "Check its store: pymq store check"
            )
        if not len(log.segments):
            log.roll()
        if len(data) > log.room:
            raise self._other_size(log.end + len(data))
        timestamp = max(log.store_timestamp, int(records.store_timestamp[-1]))
        pending = PendingDispatch(log.end + len(data), timestamp, {})
        found = queue_entries(records, self._config.delay_levels_ms, with_light=self._has_light)
        try:
            for group in found:
                self._add(pending, group)
            log.write(data)
        except StoreError:
            for queue, (first, _) in pending.groups.items():
                queue.next_offset = first
            raise
        log.store_timestamp = timestamp
        self._dispatch.add(pending)

    @property
    def _has_light(self) -> bool:
        return self._config.lists_messages or self._queues.light_count > 0

    def _end_file(self, data: memoryview) -> int:
        """End the current file with the blank record that begins some bytes; return its bytes."""
        log = self._log
        size = _SIZE.unpack_from(data)[0]
        rest = log.segments.at(-1).end - log.end if len(log.segments) else 0
        if size != rest:
            raise self._other_size(log.end + size)
        log.roll()
        self._padding_bytes = size - BLANK_BYTES
        return BLANK_BYTES + len(data[BLANK_BYTES:]) - len(self._take_padding(data[BLANK_BYTES:]))

    def _take_padding(self, data: memoryview) -> memoryview:
        """Take what comes behind a blank record, which means nothing; return the other bytes."""
        count = min(self._padding_bytes, len(data))
        if count and data[:count] != bytes(count):
            segment = self._log.segments[-2]
            segment.write(data[:count], segment.size_bytes - self._padding_bytes)
        self._padding_bytes -= count
        return data[count:]

    def _check_rest(self, data: memoryview) -> None:
        """Raise unless some bytes, too few for a record, can be the beginning of one."""
        log = self._log
        if len(data) < _HEAD_BYTES:
            return
        size, magic = _SIZE.unpack_from(data)[0], data[4:_HEAD_BYTES]
        if RECORD_MAGIC.match(magic) is None or size < OVERHEAD_BYTES:
            raise CorruptRecord(
                f"the master sent no record at physical offset {log.end}: its log is damaged "
                "there. Check its store: pymq store check"
            )
        self._needed_bytes = size
        if size > (log.room if len(log.segments) else self._config.segment_bytes - BLANK_BYTES):
            raise self._other_size(log.end + size)

    def _other_size(self, end: int) -> StoreMismatch:
        return StoreMismatch(
            f"the master's log goes on to physical offset {end} in one file, where a file of "
            f"{self._config.segment_bytes} B (segment_bytes, RocketMQ mappedFileSizeCommitLog) "
            "does not end: use the master's size here, with an empty store"
        )

    # -- queue entries ------------------------------------------------------------------------

    def _add(self, pending: PendingDispatch, group: QueueEntries) -> None:
        """Add the entries of one queue, in one piece or, where its offsets jump, in several."""
        name = group.topic.decode("utf-8", "replace")
        reason = illegal_name(name, group.queue_id, bytes_max=DIRECTORY_BYTES_MAX)
        if reason is not None:
            _log.warning("the master sent records that no queue can have: %s", reason)
            return
        for first, entries in _pieces(group):
            queue = self._queues.make(name, group.queue_id)
            if first != queue.next_offset:
                queue, first, entries = self._jump(pending, queue, first, entries)
            pending.groups.setdefault(queue, (first, []))[1].append(entries)
            queue.next_offset = first + len(entries) // len(BLANK_ENTRY)

    def _jump(
        self, pending: PendingDispatch, queue: ConsumeQueue, first: int, entries: bytes
    ) -> tuple[ConsumeQueue, int, bytes]:
        """Prepare a queue for entries that do not follow its last one.

        Returns:
            The queue, the offset at which to write, and what to write there.
        """
        gap = first - queue.next_offset
        if 0 < gap <= _GAP_MAX and queue.next_offset:
            _log.warning(
                "%s: the master's log has no record for offsets %d..%d",
                queue.path,
                queue.next_offset,
                first,
            )
            return queue, queue.next_offset, BLANK_ENTRY * gap + entries
        if queue.next_offset:
            # Its topic was deleted and created again, and the offsets start from 0.
            level = logging.INFO if first == 0 else logging.WARNING
            _log.log(level, "%s: begins again at offset %d", queue.path, first)
            pending.groups.pop(queue, None)
            try:
                self._queues.remove(queue)
            except StoreError as error:
                # Its files are in the place of new ones. Nothing is in the log yet that needs them.
                raise FlushFailed(f"{error}; the next start begins here again") from error
            queue = self._queues.make(queue.topic, queue.queue_id)
        # Older records of this queue have expired at the master.
        queue.min_offset = queue.end_offset = queue.next_offset = first
        return queue, first, entries


def _pieces(group: QueueEntries) -> Iterator[tuple[int, bytes]]:
    """Yield (first queue offset, entries) of each run of consecutive offsets."""
    offsets = group.offsets
    jumps = (offsets[1:] - offsets[:-1] != 1).nonzero()[0] + 1
    if not len(jumps):
        yield int(offsets[0]), group.entries.tobytes()
        return
    parts = zip(np.split(offsets, jumps), np.split(group.entries, jumps), strict=True)
    for places, entries in parts:
        yield int(places[0]), entries.tobytes()
