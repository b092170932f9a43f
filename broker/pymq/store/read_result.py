"""What a read of a queue returns.

Source: RocketMQ GetMessageResult, GetMessageStatus.
"""

import struct
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pymq.errors import CorruptRecord
from pymq.protocol.record import MAGIC_V1, MAGIC_V2

Longs = npt.NDArray[np.int64]

#: The start of a record: size, magic, queue id, queue offset.
_HEAD = struct.Struct(">iI4xi4xq")
_SIZE = struct.Struct(">i")


class ReadStatus(Enum):
    """RocketMQ GetMessageStatus."""

    FOUND = "found"
    NO_MATCHED_MESSAGE = "no matched message"
    MESSAGE_WAS_REMOVING = "message was removing"
    OFFSET_FOUND_NULL = "offset found null"
    OFFSET_OVERFLOW_BADLY = "offset overflow badly"
    OFFSET_OVERFLOW_ONE = "offset overflow one"
    OFFSET_TOO_SMALL = "offset too small"
    NO_MATCHED_LOGIC_QUEUE = "no matched logic queue"
    NO_MESSAGE_IN_QUEUE = "no message in queue"


@dataclass(slots=True)
class ReadResult:
    """What a read found.

    Attributes:
        next_queue_offset: where to read next, or instead of the requested offset.
        queue_first, queue_end: the queue's bounds.
        buffers: the records, in queue order; records adjacent in the log share one buffer.
            Read-only views on the log's map: valid while they are referenced, also after the
            store was closed. But they keep up to a whole segment mapped (and, once it is
            deleted, on the disk): send them and release them.
        starts: the physical offset of each buffer.
        count: number of records in all buffers.
        sizes: int64, shape (count,): the size of each record; None without records.
        heads: of each buffer, the queue offset of its first record and the size of its last one.
        path, queue_id: the queue's directory and its number; -1: a light queue, which lists records
            of other queues.
    """

    status: ReadStatus
    next_queue_offset: int
    queue_first: int
    queue_end: int
    buffers: list[memoryview] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    count: int = 0
    sizes: Longs | None = None
    heads: list[tuple[int, int]] = field(default_factory=list)
    path: Path = Path()
    queue_id: int = 0

    def queue_offsets(self) -> list[int]:
        """Return the queue offset of every record: those of one buffer follow one another."""
        if self.sizes is None:
            return []
        ends = self.sizes.cumsum()
        found: list[int] = []
        filled = 0
        for buffer, (first, _) in zip(self.buffers, self.heads, strict=True):
            filled += len(buffer)
            count = int(ends.searchsorted(filled, "right")) - len(found)
            found.extend(range(first, first + count))
        return found

    def check(self) -> None:
        """Check whether the records are those that the entries belong to.

        Reads the first and the last record of every buffer. What is between them agrees with the
        entries, otherwise it would not be one buffer.

        Raises:
            CorruptRecord: they are not. Entries have no checksum: this check detects a changed
                one.
        """
        unpack, wanted_id = _HEAD.unpack_from, self.queue_id
        for buffer, start, (offset, last_size) in zip(
            self.buffers, self.starts, self.heads, strict=True
        ):
            last_at = len(buffer) - last_size
            if last_at < 0 or last_size < _HEAD.size:
                raise damaged(self.path, f"entry {offset} or one next to it has another size")
            size, magic, queue_id, found = unpack(buffer)
            if (
                (wanted_id >= 0 and (found != offset or queue_id != wanted_id))
                or (magic != MAGIC_V1 and magic != MAGIC_V2)
                or (size != last_size if last_at == 0 else size > last_at)
                or (last_at and _SIZE.unpack_from(buffer, last_at)[0] != last_size)
            ):
                raise damaged(
                    self.path,
                    f"entry {offset} or one next to it does not fit the record at physical "
                    f"offset {start} (magic {magic:08x}, queue {queue_id}, offset {found})",
                )


def damaged(path: Path, what: str) -> CorruptRecord:
    """Return the error for a queue that does not fit the log."""
    return CorruptRecord(
        f"{path}: {what}: the queue's file or the log is damaged. Stop the broker; `pymq store "
        "check` shows more, `pymq store rebuild` rebuilds the queues"
    )
