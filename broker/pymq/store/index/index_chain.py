"""Following one chain of an index file, from new messages to old ones, in any thread.

Source: RocketMQ IndexFile.selectPhyOffset.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pymq.errors import CorruptRecord
from pymq.store.files import Files
from pymq.store.index.index_format import HEADER_BYTES, ITEM_STRUCT, IndexLayout

_SLOT = struct.Struct(">i")


@dataclass(slots=True)
class IndexChain:
    """The items of one file with a hash, as they were at one moment; read in any thread.

    Attributes:
        path: the file.
        layout: of the file.
        key_hash: the hash.
        begin_ms: store time that the times of items are relative to.
        limit: number of the first item that does not exist.
        newest: number of the newest item of the hash's slot; None: read it from the file.
    """

    path: Path
    layout: IndexLayout
    key_hash: int
    begin_ms: int
    limit: int
    newest: int | None

    def read(self, files: Files) -> Iterator[tuple[int, int, int]]:
        """Yield (number, physical offset, time in ms) of the items, newest first.

        Other hashes of the same slot are left out; times are exact to a second. Nothing is yielded
        if the file is gone: its messages have expired.

        Raises:
            CorruptRecord: the chain leads to an item of another slot, or to a newer one.
            StoreError: the process has too many open files, or the disk failed.
        """
        try:
            fd = files.open(self.path)
        except FileNotFoundError:
            return
        try:
            slot = self.key_hash % self.layout.slot_count
            number = self.newest
            if number is None:
                position = HEADER_BYTES + 4 * slot
                (number,) = _SLOT.unpack(self._pread(files, fd, _SLOT.size, position))
            if number == 0:
                return
            if not 0 < number < self.limit:
                raise CorruptRecord(
                    f"{self.path}: slot {slot} leads to item {number}, expected less than "
                    f"{self.limit}; rebuild the index: pymq store rebuild"
                )
            while True:
                position = self.layout.items_start + ITEM_STRUCT.size * number
                found_hash, physical_offset, seconds, older = ITEM_STRUCT.unpack(
                    self._pread(files, fd, ITEM_STRUCT.size, position)
                )
                if found_hash % self.layout.slot_count != slot or min(physical_offset, seconds) < 0:
                    raise CorruptRecord(
                        f"{self.path}: item {number} is ({found_hash}, {physical_offset}, "
                        f"{seconds}, {older}), expected a hash of slot {slot} and nothing "
                        "negative; rebuild the index: pymq store rebuild"
                    )
                if found_hash == self.key_hash:
                    yield number, physical_offset, self.begin_ms + seconds * 1000
                if older == 0:
                    return
                if not 0 < older < number:
                    raise CorruptRecord(
                        f"{self.path}: item {number} leads to item {older}, expected an older "
                        "one; rebuild the index: pymq store rebuild"
                    )
                number = older
        finally:
            files.close(fd)

    def _pread(self, files: Files, fd: int, size: int, position: int) -> bytes:
        data = files.pread(fd, size, position)
        if len(data) < size:
            raise CorruptRecord(
                f"{self.path}: ends at {position + len(data)} B, expected "
                f"{self.layout.file_bytes} B; rebuild the index: pymq store rebuild"
            )
        return data
