"""Consume-queue extensions: per entry of a queue a unit of any length, in separate files.

A queue entry with a unit holds the unit's *address* in place of the tag code: its offset in the
address space of the extension's files, less 2**63. Addresses are at most -2**31 - 1, tag codes
are greater. A unit is big-endian::

    offset  size  field
    0       2     size of the unit, 20..32767
    2       8     tag code
    10      8     store time of the message, ms
    18      2     bytes of the bit map
    20      n     bit map of the filters that may match: see ``pymq.filter.bloom``

Files have their nominal length from creation on (sparse here) and are named after their first
byte. A unit goes into a file with R bytes left only if its size is at most R - 4. Otherwise the
two bytes ``ffff`` end the file, and the unit is the first one of the next file. Example, tag
"TagA", without a bit map::

    0014 000000000027a807 0000018bcfe56800 0000

Everything but the bit maps can be rebuilt from the commit log. Entries with an address and entries
with a tag code may be mixed.

Source: RocketMQ ConsumeQueueExt.
"""

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pymq.protocol.record_batch import gather
from pymq.store.log.segment import segment_name
from pymq.store.queues.queue_files import QueueFiles

UNIT = np.dtype(
    [
        ("size", ">i2"),
        ("tag_code", ">i8"),
        ("store_timestamp", ">i8"),
        ("bit_map_bytes", ">i2"),
    ]
)
UNIT_BYTES = UNIT.itemsize
UNIT_BYTES_MAX = (1 << 15) - 1
#: The greatest address; greater numbers are tag codes.
ADDRESS_MAX = -(1 << 31) - 1
_ADDRESS_BASE = -(1 << 63)
#: Bytes that stay free at the end of a file, for the end mark.
END_BYTES = 4
_END_MARK = struct.pack(">h", -1)
#: Units further apart are read one by one.
_READ_BYTES = 1 << 20

assert UNIT_BYTES == 20  # on-disk contract

Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class BitMapTest:
    """What a message may match, by the bit map in its unit.

    Attributes:
        positions: bits that are set in the bit map of a message that matches.
        bit_map_bytes: size of bit maps that have these positions.
        since_ms: messages stored later have bits of this kind, if they have a bit map.

    Source: RocketMQ ExpressionMessageFilter.isMatchedByConsumeQueue.
    """

    positions: tuple[int, ...]
    bit_map_bytes: int
    since_ms: int

    def may_match(self, bit_map: bytes | None) -> bool:
        """Tell whether a message stored after ``since_ms`` may match."""
        return (
            bit_map is None
            or len(bit_map) != self.bit_map_bytes
            or all(bit_map[one >> 3] >> (one & 7) & 1 for one in self.positions)
        )


class QueueExtension:
    """The units of one consume queue.

    Units are added in the order of their entries: the last address in the queue is the
    greatest. ``end`` is the offset where the next unit goes; only zeros follow.
    """

    __slots__ = ("_bases", "_files", "_put_end", "end", "file_bytes", "path")

    def __init__(
        self, files: QueueFiles, path: Path, file_bytes: int, bases: Sequence[int] = ()
    ) -> None:
        """Use files that exist, by the offsets of their first bytes, ascending."""
        self._files = files
        self._bases = list(bases)
        self.path = path
        self.file_bytes = file_bytes
        self.end = 0
        # End of the units that were put and not kept yet; None without any.
        self._put_end: int | None = None

    @property
    def is_adjacent(self) -> bool:
        """Whether the files follow each other without a gap."""
        bases = self._bases
        return not bases or bases[-1] - bases[0] == (len(bases) - 1) * self.file_bytes

    # -- writing ------------------------------------------------------------------------------

    def put(
        self, tag_codes: Longs, store_timestamps: Longs, bit_maps: Sequence[bytes | None] | None
    ) -> Longs:
        """Write units after the end; they count once ``keep`` is called, otherwise put them again.

        A bit map that is too long for a unit is left out.

        Args:
            tag_codes, store_timestamps: one per unit.
            bit_maps: one per unit; None: there are none.

        Returns:
            The address of each unit, shape (n,).

        Raises:
            DiskFull, FlushFailed, StoreError: nothing counts as written.
        """
        if self._put_end is not None:
            self.cut()  # A failed try may have left more bytes, which must not be read.
        self._put_end = self.end
        heads = np.zeros(len(tag_codes), UNIT)
        heads["size"] = UNIT_BYTES
        heads["tag_code"] = tag_codes
        heads["store_timestamp"] = store_timestamps
        if bit_maps is None:
            data = heads.tobytes()
        else:
            room = min(UNIT_BYTES_MAX, self.file_bytes - END_BYTES) - UNIT_BYTES
            maps = [bits if bits and len(bits) <= room else b"" for bits in bit_maps]
            heads["bit_map_bytes"] = list(map(len, maps))
            heads["size"] += heads["bit_map_bytes"]
            pairs = zip(heads.view(f"V{UNIT_BYTES}"), maps, strict=True)
            data = b"".join(itertools.chain.from_iterable(pairs))
        return self._place(data, heads["size"].astype(np.int64))

    def keep(self) -> None:
        """Let the units put last count: the next ones follow them."""
        assert self._put_end is not None
        self.end, self._put_end = self._put_end, None

    def _place(self, data: bytes, sizes: Longs) -> Longs:
        ends = sizes.cumsum()
        starts = ends - sizes
        addresses = np.empty(len(sizes), np.int64)
        position = self.end % self.file_bytes
        base = self.end - position
        first = taken = 0
        while first < len(sizes):
            room = self.file_bytes - END_BYTES - position
            last = int(ends.searchsorted(taken + room, "right"))
            addresses[first:last] = starts[first:last] + (base + position - taken + _ADDRESS_BASE)
            stop = int(ends[last - 1]) if last else 0
            piece = data[taken:stop]
            is_full = last < len(sizes)
            self._write(base, piece + _END_MARK if is_full else piece, position)
            position += stop - taken
            first, taken = last, stop
            if is_full:
                base, position = base + self.file_bytes, 0
        self._put_end = base + position
        return addresses

    def _write(self, base: int, data: bytes, position: int) -> None:
        files = self._files
        path = self._path_of(base)
        if base not in self._bases:
            files.create(Path(path), self.file_bytes)
            self._bases.append(base)
            self._bases.sort()
        files.dirty.add(path)
        files.files.pwrite(files.descriptor(path), data, position)

    def begin_after(self, address: int | None) -> None:
        """Put the first unit into a file in which no lost unit can have been."""
        if address is not None:
            self.end = ((address - _ADDRESS_BASE) // self.file_bytes + 1) * self.file_bytes

    def cut(self) -> None:
        """Zero everything after the end, and delete the files that lie after it."""
        while self._bases and self._bases[-1] >= self.end:
            self._files.remove(self._path_of(self._bases[-1]))
            del self._bases[-1]
        if self._bases and self.end < self._bases[-1] + self.file_bytes:
            base = self._bases[-1]
            self._files.zero(self._path_of(base), self.end - base, self.file_bytes)

    def trim(self, address: int) -> None:
        """Delete the files before the one that holds an address; nothing for a tag code.

        Each deletion is durable before the next one, so that a power loss leaves no gap.
        """
        if address > ADDRESS_MAX:
            return
        first = address - _ADDRESS_BASE
        is_first = True
        while self._bases and self._bases[0] + self.file_bytes <= first:
            if not is_first:
                self._files.files.fsync_directory(self.path)
            self._files.remove(self._path_of(self._bases[0]))
            del self._bases[0]
            is_first = False

    def write_again(self, addresses: Longs) -> None:
        """Write units again as they are; the next flush has their names, too."""
        for path, size, position in self.parts(addresses):
            end = min(position + size + END_BYTES, self.file_bytes)
            self._files.write_again(path, position, end)
        self._files.dirty_directories.update((self.path, *self.path.parents[:3]))

    def write_rest_again(self) -> None:
        """Write what follows the last unit again."""
        if self._bases:
            base = self._bases[-1]
            self._files.write_again(
                self._path_of(base), max(0, self.end - base), self.file_bytes
            )

    def reset(self) -> None:
        """Delete all files; the next unit will be the first one."""
        self.end = 0
        self.cut()

    def take_files(self) -> list[str]:
        """Return its files, last ones first, and have none any more."""
        paths = [self._path_of(base) for base in reversed(self._bases)]
        self._bases = []
        return paths

    def _path_of(self, base: int) -> str:
        return str(self.path / segment_name(base))

    # -- reading ------------------------------------------------------------------------------

    def units(self, addresses: Longs, *, bit_map_bytes: int = 0) -> tuple[npt.NDArray[Any], Mask]:
        """Return the units at addresses, and which of them exist.

        Args:
            addresses: at most ADDRESS_MAX; fast for entries that are close to each other.
            bit_map_bytes: how much of the bit maps is wanted.

        Returns:
            Units, shape (n,), with the fields of UNIT and ``bit_map`` (uint8, ``bit_map_bytes``;
            what follows the unit where that is shorter), and a mask of that shape, False where
            there is no whole unit.

        Raises:
            CorruptRecord: a file is gone.
        """
        kind = np.dtype([*UNIT.descr, ("bit_map", "u1", (bit_map_bytes,))])
        found = np.zeros(len(addresses), kind)
        order = addresses.argsort(kind="stable")
        offsets = addresses[order] - _ADDRESS_BASE
        first = 0
        while first < len(offsets):
            start = int(offsets[first])
            base = start - start % self.file_bytes
            stop = min(start + _READ_BYTES, base + self.file_bytes - UNIT_BYTES + 1)
            last = max(first + 1, int(offsets.searchsorted(stop)))
            if base in self._bases and start < stop:
                found[order[first:last]] = self._read(base, offsets[first:last] - base, kind)
            first = last
        sizes = found["size"].astype(np.int64)
        known = (sizes >= UNIT_BYTES) & (sizes == UNIT_BYTES + found["bit_map_bytes"].astype(int))
        known &= (addresses - _ADDRESS_BASE) % self.file_bytes + sizes <= self.file_bytes
        return found, known

    def parts(self, addresses: Longs) -> list[tuple[str, int, int]]:
        """Return where the units at addresses are: paths, sizes and positions; in any thread."""
        parts = []
        offsets = np.sort(addresses) - _ADDRESS_BASE
        bases = offsets - offsets % self.file_bytes
        for base in np.unique(bases).tolist():
            found = offsets[bases == base] - base
            size = int(found[-1] - found[0]) + UNIT_BYTES_MAX
            parts.append((str(self._path_of(base)), size, int(found[0])))
        return parts

    def _read(self, base: int, positions: Longs, kind: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return the units at ascending positions of a file; zeros where it is too short."""
        start = int(positions[0])
        size = int(positions[-1]) + kind.itemsize - start
        path = self._path_of(base)
        data = self._files.files.pread(self._files.descriptor(path), size, start)
        units: npt.NDArray[Any] = gather(
            np.frombuffer(data.ljust(size, b"\0"), np.uint8), positions - start, kind
        )
        return units

    def may_match(self, addresses: Longs, test: BitMapTest) -> Mask:
        """Return which messages may pass a test, by the addresses of their units.

        Raises:
            CorruptRecord: a file is gone.
        """
        units, known = self.units(addresses, bit_map_bytes=test.bit_map_bytes)
        known &= units["bit_map_bytes"] == test.bit_map_bytes
        known &= units["store_timestamp"] > test.since_ms
        bits = np.array(test.positions, np.int64)
        is_set = units["bit_map"][:, bits >> 3] >> (bits & 7) & 1
        passed: Mask = ~known | is_set.all(axis=1)
        return passed

    def end_of(self, address: int) -> int:
        """Return the offset after the unit at an address."""
        units, _ = self.units(np.array([address], np.int64))
        return address - _ADDRESS_BASE + int(units["size"][0])
