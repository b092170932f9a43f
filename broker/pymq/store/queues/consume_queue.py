"""Consume queues: per (topic, queue id) the physical offsets of its records, 20 bytes each.

Entry k of a queue is at byte 20 k of the queue's address space, big-endian::

    offset  size  field
    0       8     physical offset of the record
    8       4     its size
    12      8     tag code: Java hash of the tag, sign-extended; 0 without a tag. Numbers below
                  -2**31 are addresses of units that hold it: see ``queue_extension``

Files have their nominal length from creation on (sparse here), are named after their first byte,
and hold zeros after the last entry. If the first entry of a queue is not at the start of a file,
blank entries ``(0, 7fffffff, 0)`` fill the file up to it; readers never see them. Example, two
records of 170 B with tag "TagA"::

    0000000000000000 000000aa 000000000027a807
    00000000000000aa 000000aa 000000000027a807

All of it can be rebuilt from the commit log.

Source: RocketMQ ConsumeQueue.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pymq.errors import CorruptRecord, StoreError
from pymq.protocol.record import topic_field
from pymq.store.config import ENTRY_BYTES
from pymq.store.log.segment import segment_name
from pymq.store.queues.queue_extension import ADDRESS_MAX, QueueExtension
from pymq.store.queues.queue_files import QueueFiles
from pymq.store.searches import first_true

ENTRY = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tag_code", ">i8")])
ENTRY_STRUCT = struct.Struct(">qiq")
#: The size that marks a blank entry.
BLANK_SIZE = 0x7FFFFFFF
BLANK_ENTRY = ENTRY_STRUCT.pack(0, BLANK_SIZE, 0)
#: Entries read at once when an address is searched for.
_BLOCK = 1024

assert ENTRY.itemsize == ENTRY_STRUCT.size == ENTRY_BYTES  # on-disk contract

Entries = npt.NDArray[Any]
Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
EntryReader = Callable[[int], tuple[int, int, int]]


class ConsumeQueue:
    """The entries of one (topic, queue id).

    What is called an offset here is a queue offset. Invariants: ``min_offset <= end_offset <=
    next_offset``; entries [min_offset, end_offset) are written, hence visible; offsets
    [end_offset, next_offset) belong to records that wait to be dispatched. ``physical_end`` is the
    end of the record of the last entry that has one, -1 if none has.
    """

    __slots__ = (
        "__weakref__",
        "_bases",
        "_files",
        "_paths",
        "cached",
        "end_offset",
        "extension",
        "file_bytes",
        "loaded_end",
        "physical_end",
        "min_offset",
        "next_offset",
        "path",
        "queue_id",
        "removed",
        "topic",
        "topic_field",
    )

    def __init__(
        self, files: QueueFiles, path: Path, topic: str, queue_id: int, file_bytes: int
    ) -> None:
        self._files = files
        self._bases: list[int] = []
        self._paths: dict[int, str] = {}
        self.path = path
        self.topic = topic
        self.topic_field = topic_field(topic.encode())
        self.queue_id = queue_id
        self.file_bytes = file_bytes
        #: The units that entries refer to; None if there are none.
        self.extension: QueueExtension | None = None
        self.min_offset = 0
        self.end_offset = 0
        self.next_offset = 0
        #: What was there when the store was opened ends here.
        self.loaded_end = 0
        #: Entries from one offset to another that were in memory, and until when that counts.
        self.cached = 0, 0, 0.0
        self.physical_end = -1
        self.removed = False

    def add_files(self, bases: Iterable[int]) -> None:
        """Add files that exist, by the offsets of their first bytes, ascending."""
        for base in bases:
            self._bases.append(base)
            self._paths[base] = str(self.path / segment_name(base))

    @property
    def bases(self) -> list[int]:
        """Offsets of the first bytes of its files, ascending; not to be changed."""
        return self._bases

    def path_of(self, base: int) -> str:
        """Return the path of one of its files."""
        return self._paths[base]

    def find_path(self, base: int) -> str | None:
        """Return the path of one of its files; None if it is missing."""
        return self._paths.get(base)

    def paths(self) -> dict[int, str]:
        """Return the path of each of its files, by the offset of its first byte."""
        return dict(self._paths)

    # -- writing ------------------------------------------------------------------------------

    def write(self, first: int, entries: bytes) -> None:
        """Write consecutive entries and make them visible.

        Args:
            first: queue offset of the first one. Writing the same entries again is idempotent.
            entries: whole entries.

        Raises:
            DiskFull, StoreError: some may have been written, none is visible.
        """
        self.put_entries(first, entries)
        count = len(entries) // ENTRY_BYTES
        physical, size, _ = ENTRY_STRUCT.unpack_from(entries, len(entries) - ENTRY_BYTES)
        self.physical_end = physical + size
        self.end_offset = first + count
        if self.next_offset < self.end_offset:
            self.next_offset = self.end_offset

    def put_entries(self, first: int, entries: bytes) -> None:
        """Write entries without making them visible."""
        position = first * ENTRY_BYTES
        base = position - position % self.file_bytes
        if position + len(entries) <= base + self.file_bytes:
            self._put(base, position - base, entries)
            return
        rest = memoryview(entries)
        while rest:
            base = position - position % self.file_bytes
            piece = rest[: base + self.file_bytes - position]
            self._put(base, position - base, piece)
            position += len(piece)
            rest = rest[len(piece) :]

    def _put(self, base: int, position: int, data: bytes | memoryview) -> None:
        path = self._paths.get(base)
        if path is None:
            path = self._create(base, position)
        files = self._files
        files.dirty.add(path)
        files.files.pwrite(files.descriptor(path), data, position)

    def write_again(self, first: int, count: int) -> None:
        """Write entries and units again as they are; the next flush has their names, too."""
        position, end = first * ENTRY_BYTES, (first + count) * ENTRY_BYTES
        for base in range(position - position % self.file_bytes, end, self.file_bytes):
            low, high = max(position, base), min(end, base + self.file_bytes)
            self._files.write_again(self._paths[base], low - base, high - base)
        self._files.dirty_directories.update((self.path, *self.path.parents[:3]))
        if self.extension is not None:
            codes = self.entries(first, count)["tag_code"]
            self.extension.write_again(codes[codes <= ADDRESS_MAX].astype(np.int64))

    def write_rest_again(self) -> None:
        """Write the zeros after the last entry again."""
        if self._bases:
            base = self._bases[-1]
            begin = self.end_offset * ENTRY_BYTES - base
            self._files.write_again(self._paths[base], max(0, begin), self.file_bytes)

    def _create(self, base: int, position: int) -> str:
        """Create a file; in the very first one, entries before ``position`` become blank."""
        path = str(self.path / segment_name(base))
        self._files.create(Path(path), self.file_bytes)
        if not self._bases and position:
            blanks = BLANK_ENTRY * (position // ENTRY_BYTES)
            try:
                self._files.files.pwrite(self._files.descriptor(path), blanks, 0)
            except StoreError:
                self._files.files.half_made |= {Path(path)}
                self._files.remove(path)  # Otherwise the next try would find it in its place.
                raise
        self._bases.append(base)
        self._bases.sort()
        self._paths[base] = path
        return path

    def erase_from(self, first: int) -> None:
        """Zero the entries from a queue offset on; delete the files that hold no others."""
        position = first * ENTRY_BYTES
        while self._bases and self._bases[-1] >= position:
            self._remove_file(self._bases.pop())
        if self._bases and position < self._bases[-1] + self.file_bytes:
            base = self._bases[-1]
            self._files.zero(self._paths[base], position - base, self.file_bytes)

    def reset(self) -> None:
        """Delete all files: the queue is empty and may begin anywhere."""
        while self._bases:
            self._remove_file(self._bases.pop())
        if self.extension is not None:
            self.extension.reset()
        self.min_offset = self.end_offset = self.next_offset = 0
        self.physical_end = -1

    def _remove_file(self, base: int) -> None:
        self._files.remove(self._paths.pop(base))

    def take_files(self) -> list[str]:
        """Return its files, last ones first, and be removed; what waits for dispatch is dropped."""
        self.removed = True
        paths = [self._paths[base] for base in reversed(self._bases)]
        if self.extension is not None:
            paths += self.extension.take_files()
        self._bases, self._paths = [], {}
        self.reset()
        return paths

    # -- reading ------------------------------------------------------------------------------

    def entries(self, first: int, count: int) -> Entries:
        """Return entries as they are on the disk.

        Args:
            first: queue offset.
            count: how many; not beyond the queue's files.

        Returns:
            dtype ENTRY, shape (n,), read-only; fewer than ``count`` where a file is missing.
        """
        position = first * ENTRY_BYTES
        size = count * ENTRY_BYTES
        within = position % self.file_bytes
        files = self._files
        if within + size <= self.file_bytes:
            path = self._paths.get(position - within)
            data = b"" if path is None else files.files.pread(files.descriptor(path), size, within)
        else:
            pieces = []
            while size:
                within = position % self.file_bytes
                part = min(size, self.file_bytes - within)
                path = self._paths.get(position - within)
                if path is None:
                    break
                pieces.append(files.files.pread(files.descriptor(path), part, within))
                position += part
                size -= part
            data = b"".join(pieces)
        return np.frombuffer(data, ENTRY)

    def entry(self, offset: int) -> tuple[int, int, int]:
        """Return (physical offset, size, tag code) of one entry; zeros if its file is missing."""
        position = offset * ENTRY_BYTES
        within = position % self.file_bytes
        path = self._paths.get(position - within)
        if path is None:
            return 0, 0, 0
        files = self._files
        data = files.files.pread(files.descriptor(path), ENTRY_BYTES, within)
        if len(data) < ENTRY_BYTES:
            raise CorruptRecord(f"{path}: ends inside entry {offset}; restart to rebuild it")
        found: tuple[int, int, int] = ENTRY_STRUCT.unpack(data)
        return found

    def tag_codes(self, entries: Entries) -> tuple[Longs, Mask]:
        """Return the tag codes of entries of this queue, and which of them are known.

        Those of entries whose unit is missing are unknown.

        Raises:
            CorruptRecord: a file is gone.
        """
        codes = entries["tag_code"].astype(np.int64)
        addressed = codes <= ADDRESS_MAX
        known = ~addressed
        if self.extension is not None and addressed.any():
            units, found = self.extension.units(codes[addressed])
            codes[addressed] = units["tag_code"]
            known[addressed] = found
        return codes, known

    def trusted_end(self) -> int:
        """Return the end of the entries before the first one whose unit was lost.

        Searched from the end of the queue down to an entry that has its unit: a power loss takes
        what is at the end. The next unit of the extension will follow that entry's.
        """
        end = self.end_offset
        extension = self.extension
        if extension is None and self.entry(end - 1)[2] > ADDRESS_MAX:
            return end
        for first, entries in self._blocks_back():
            addressed = (entries["tag_code"] <= ADDRESS_MAX).nonzero()[0]
            addresses = entries["tag_code"][addressed].astype(np.int64)
            rising = np.ones(len(addresses), np.bool_)
            rising[1:] = addresses[1:] > np.maximum.accumulate(addresses)[:-1]
            # An address that does not rise belongs to an older entry: a power loss kept it.
            ordered = addressed[: None if rising.all() else int(rising.argmin())]
            whole = ordered[self.tag_codes(entries)[1][ordered]]
            lost = addressed[addressed > whole[-1]] if len(whole) else addressed
            if len(lost):
                end = first + int(lost[0])
            if len(whole) and extension is not None:
                extension.end = extension.end_of(int(entries["tag_code"][whole[-1]]))
                return end
        if extension is not None:
            extension.end = 0
        return end

    def last_address(self) -> int | None:
        """Return the address in the last entry that holds one, None if none does."""
        for _, entries in self._blocks_back():
            addressed = (entries["tag_code"] <= ADDRESS_MAX).nonzero()[0]
            if len(addressed):
                return int(entries["tag_code"][addressed[-1]])
        return None

    def _blocks_back(self) -> Iterator[tuple[int, Entries]]:
        """Yield (queue offset of the first entry, entries) in blocks, the last block first."""
        low = max(self.min_offset, self._bases[0] // ENTRY_BYTES if self._bases else 0)
        end = self.end_offset
        while end > low:
            first = max(low, end - _BLOCK)
            yield first, self.entries(first, end - first)
            end = first

    def remove_oldest(self) -> None:
        """Delete the first file.

        Raises:
            StoreError: it could not be deleted; call again later.
        """
        base = self._bases[0]
        self._files.remove(self._paths[base])
        del self._bases[0], self._paths[base]

    def drop_behind_gap(self) -> None:
        """Delete the files after the first missing one."""
        bases = self._bases
        count = next(
            at for at in range(1, len(bases)) if bases[at] != bases[at - 1] + self.file_bytes
        )
        while len(bases) > count:
            self._remove_file(bases.pop())

    def correct_min(self, log_first: int) -> None:
        """Move ``min_offset`` to the first entry whose record the log still holds.

        The units of earlier entries are deleted, too.

        Source: RocketMQ ConsumeQueue.correctMinOffset.
        """
        first = self.first_kept(log_first)
        self.begin_at(first, self.entry(first)[2] if first < self.end_offset else 0)

    def begin_at(self, first: int, tag_code: int) -> None:
        """Hide the entries before an offset, and delete their units.

        Args:
            first: of the first entry that stays, or where the next one will be.
            tag_code: as it stands in that entry.
        """
        self.min_offset = max(self.min_offset, first)
        if self.extension is not None:
            self.extension.trim(tag_code)

    def first_kept(self, log_first: int, entry: EntryReader | None = None) -> int:
        """Return the offset of the first entry whose record the log still holds."""

        def is_kept(offset: int) -> bool:
            physical, size, _ = (entry or self.entry)(offset)
            # A negative one is damage, which a read reports.
            return size != BLANK_SIZE and not 0 <= physical < log_first

        low = max(self.min_offset, self._bases[0] // ENTRY_BYTES if self._bases else 0)
        return first_true(min(low, self.end_offset), self.end_offset, is_kept)
