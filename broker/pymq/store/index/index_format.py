"""The format of the files of the key index: hash tables with chains from new messages to old ones.

Layout, big-endian::

    offset                size         field
    0                     8            store time (ms) of the first message
    8                     8            ... of the last one
    16                    8            physical offset of the first message
    24                    8            ... of the last one
    32                    4            slots in use
    36                    4            number of the next item; the first is 1
    40                    4 * slots    number of the newest item of each chain; 0: no item
    40 + 4 * slots        20 * limit   items; number 0 is never used

    item: key hash 4, physical offset 8, seconds since the file's first message 4,
           number of the next older item of the chain 4

Worked example, 10 slots: the first message of a store, at physical offset 0, has the key "k0" in
TopicTest. ``TopicTest#k0`` hashes to 2746023, so slot 3 (at 52) holds 1, and item 1 (at 100)
is ``0029e6a7 0000000000000000 00000000 00000000``.

Begin and end of a new file are those of the end of the file before it. So the seconds of its
first item count from there; after that item, the begin is that of the first message.

Source: RocketMQ IndexFile, IndexHeader.
"""

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

HEADER_BYTES = 40
_HEADER = struct.Struct(">qqqqii")
ITEM = np.dtype(
    [("key_hash", ">i4"), ("physical_offset", ">i8"), ("seconds", ">i4"), ("older", ">i4")]
)
ITEM_STRUCT = struct.Struct(">iqii")
assert ITEM.itemsize == ITEM_STRUCT.size == 20 and _HEADER.size == HEADER_BYTES  # on-disk contract

#: The time of an item that is later than this counts as this.
SECONDS_MAX = (1 << 31) - 1

Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]
Items = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class IndexLayout:
    """How large index files are; cannot change during the life of a store.

    Attributes:
        slot_count: RocketMQ maxHashSlotNum.
        item_limit: RocketMQ maxIndexNum; one file holds one item less.
    """

    slot_count: int
    item_limit: int

    @property
    def items_start(self) -> int:
        """Position of item 0, which is never used."""
        return HEADER_BYTES + 4 * self.slot_count

    @property
    def file_bytes(self) -> int:
        """The size of every file."""
        return self.items_start + ITEM.itemsize * self.item_limit


@dataclass(slots=True)
class IndexHeader:
    """The first 40 bytes; times in ms."""

    begin_ms: int = 0
    end_ms: int = 0
    first_physical: int = 0
    last_physical: int = 0
    slots_used: int = 0
    next_number: int = 1

    def pack(self) -> bytes:
        """Return its bytes."""
        return _HEADER.pack(
            self.begin_ms,
            self.end_ms,
            self.first_physical,
            self.last_physical,
            self.slots_used,
            self.next_number,
        )


def unpack_header(data: bytes) -> IndexHeader:
    """Return what ``IndexHeader.pack`` packed; the zeros of a new file mean an empty file."""
    header = IndexHeader(*_HEADER.unpack_from(data))
    header.next_number = max(header.next_number, 1)
    return header
