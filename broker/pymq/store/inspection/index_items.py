"""The items of the key index, read in order, and what can be said of them without the log.

Each item must belong to a later message than the one before it, and each file must agree with its
header. Chains are checked by building them again: each item must refer to the item that had its
slot before it, and in the end the slots must hold the last item of each chain. So every item is
reachable, and numbers descend.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pymq.store.index.index_format import HEADER_BYTES, ITEM
from pymq.store.inspection.findings import KEPT_MAX, Findings, Kind, Severity
from pymq.store.inspection.index_listing import IndexFileName
from pymq.store.inspection.layout import StoreLayout
from pymq.store.searches import runs

#: Items read at a time.
ITEMS_MAX = 1 << 18
#: How many items out of order are found one by one.
_OUTLIERS_MAX = 64

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
#: How bad a wrong item is, by the physical offset of its message.
SeverityAt = Callable[[int], Severity]


class FoundItems(NamedTuple):
    """Items of the index, in order: one array for each field, number and file."""

    physical: Longs
    key_hash: Longs
    seconds: Longs
    begin_ms: Longs
    number: Longs
    file: Longs

    def part(self, picked: "slice | Mask | Longs") -> "FoundItems":
        """Return some of them."""
        return FoundItems(*(column[picked] for column in self))


@dataclass(slots=True)
class _Chains:
    """Builds the chains of one file again, item by item."""

    slots: Ints

    def older(self, key_hash: Ints, first: int) -> Ints:
        """Return the older item of each of the next items; ``first`` is the number of the first."""
        slots = self.slots
        numbers = np.arange(first, first + len(key_hash), dtype=np.int32)
        slot = key_hash % np.int32(len(slots))
        order = np.argsort(slot, kind="stable")
        sorted_slot = slot[order]
        sorted_older = slots[sorted_slot]
        chained = sorted_slot[1:] == sorted_slot[:-1]
        sorted_older[1:] = np.where(chained, numbers[order[:-1]], sorted_older[1:])
        older: Ints = np.empty_like(sorted_older)
        older[order] = sorted_older
        slots[slot] = numbers
        return older


class ItemStream:
    """The items of all index files in order, read in pieces; checks order, chains and headers.

    Args:
        layout: the store; it has an index.
        findings: what is found is added there.
        severity_at: how bad a wrong item is, by the physical offset of its message.
        on_read: called with the number of bytes of the index that were read.
        rebuilt: the file whose slots the next start rebuilds, whatever they contain.
    """

    def __init__(
        self,
        layout: StoreLayout,
        findings: Findings,
        severity_at: SeverityAt,
        on_read: Callable[[int], None],
        rebuilt: Path | None,
    ) -> None:
        assert layout.index_layout is not None
        self._store = layout
        self._layout = layout.index_layout
        self._findings = findings
        self._severity_at = severity_at
        self._on_read = on_read
        self._rebuilt = rebuilt
        self._pieces = self._read()
        self._piece: FoundItems | None = None
        self._last = -1

    def take_below(self, end: int | None) -> FoundItems:
        """Return the next items of messages below a physical offset; None: all of the rest."""
        taken: list[FoundItems] = []
        while True:
            if self._piece is None:
                self._piece = next(self._pieces, None)
            if self._piece is None:
                break
            count = len(self._piece.physical)
            if end is not None:
                count = int(self._piece.physical.searchsorted(end))
            taken.append(self._piece.part(slice(count)))
            if count < len(self._piece.physical):
                self._piece = self._piece.part(slice(count, None))
                break
            self._piece = None
        if not taken:
            none = np.empty(0, np.int64)
            return FoundItems(none, none, none, none, none, none)
        return FoundItems(*map(np.concatenate, zip(*taken, strict=True)))

    def close(self) -> None:
        """Read to the end."""
        for _ in self._pieces:
            pass

    def _read(self) -> Iterator[FoundItems]:
        for file, one in enumerate(self._store.index_files):
            header = one.header
            if header.next_number > self._layout.item_limit or header.slots_used < 0:
                self._add_header(
                    one, f"{header.next_number - 1} items in {header.slots_used} slots",
                    f"at most {self._layout.item_limit - 1}",
                )
                continue
            fd = self._store.files.open(one.path)
            try:
                yield from self._read_file(fd, file, one)
            finally:
                self._store.files.close(fd)

    def _read_file(self, fd: int, file: int, one: IndexFileName) -> Iterator[FoundItems]:
        files, header = self._store.files, one.header
        chains = _Chains(np.zeros(self._layout.slot_count, np.int32))
        first, found = 1, None
        while first < header.next_number:
            count = min(ITEMS_MAX, header.next_number - first)
            position = self._layout.items_start + ITEM.itemsize * first
            data = files.pread(fd, count * ITEM.itemsize, position)
            self._on_read(len(data))
            items = np.frombuffer(data.ljust(count * ITEM.itemsize, b"\0"), ITEM)
            older = chains.older(items["key_hash"].astype(np.int32), first)
            self._check_chain(one, first, items["older"], older)
            found = FoundItems(
                items["physical_offset"].astype(np.int64),
                items["key_hash"].astype(np.int64),
                items["seconds"].astype(np.int64),
                np.full(count, header.begin_ms),
                np.arange(first, first + count, dtype=np.int64),
                np.full(count, file, np.int64),
            )
            if first == 1:
                self._check_begin(one, int(found.physical[0]))
            if first + count == header.next_number:
                self._check_end(one, int(found.physical[-1]))
            yield self._in_order(one, found)
            first += count
        self._check_slots(fd, one, chains.slots)

    # -- order ------------------------------------------------------------------------------------

    def _in_order(self, one: IndexFileName, found: FoundItems) -> FoundItems:
        """Return the items whose physical offsets ascend; the others become findings."""
        physical = found.physical
        if physical[0] >= self._last and (physical[1:] >= physical[:-1]).all():
            self._last = int(physical[-1])
            return found
        low, high = max(self._last, one.header.first_physical), one.header.last_physical
        good = physical >= low
        if high >= low:
            good &= physical <= high
        rows = np.flatnonzero(good)
        for _ in range(_OUTLIERS_MAX):
            values = physical[rows]
            drops = np.flatnonzero(values[1:] < values[:-1])
            if not len(drops):
                break
            at = int(drops[0])
            # Leave out the one of the two without which the rest ascends.
            before = values[at - 1] if at else low
            rows = np.delete(rows, at if values[at + 1] >= before else at + 1)
        values = physical[rows]
        rows = rows[values == np.maximum.accumulate(values)] if len(rows) else rows
        kept = np.zeros(len(physical), np.bool_)
        kept[rows] = True
        for first, end in runs(~kept):
            number = int(found.number[first])
            self._findings.add(
                Kind.INDEX_EXTRA,
                self._severity_at(int(physical[rows[rows < first][-1:]].max(initial=low))),
                one.path,
                self._layout.items_start + ITEM.itemsize * number,
                f"item {number}: physical offset {physical[first]}",
                "ascending physical offsets within those of the header",
                count=end - first,
            )
        if len(rows):
            self._last = int(physical[rows[-1]])
        return found.part(rows)

    # -- chains and header ------------------------------------------------------------------------

    def _check_chain(
        self, one: IndexFileName, first: int, found: Ints, older: Ints
    ) -> None:
        wrong = np.flatnonzero(found != older)
        for at in wrong[:KEPT_MAX].tolist():
            self._findings.add(
                Kind.INDEX_CHAIN,
                self._severity_of(one),
                one.path,
                self._layout.items_start + ITEM.itemsize * (first + at),
                f"item {first + at} leads to {found[at]}",
                f"{older[at]}",
            )
        self._add_more(one, len(wrong) - KEPT_MAX, self._severity_of(one))

    def _check_slots(
        self, fd: int, one: IndexFileName, expected: Ints
    ) -> None:
        size = 4 * self._layout.slot_count
        data = self._store.files.pread(fd, size, HEADER_BYTES).ljust(size, b"\0")
        self._on_read(size)
        found = np.frombuffer(data, ">i4")
        wrong = np.flatnonzero(found != expected)
        # Slots are written after the header, and a store in use may write both in between.
        severity = Severity.REPAIR if one.path == self._rebuilt else self._severity_of(one)
        for slot in wrong[:KEPT_MAX].tolist():
            self._findings.add(
                Kind.INDEX_CHAIN,
                severity,
                one.path,
                HEADER_BYTES + 4 * slot,
                f"slot {slot} leads to item {found[slot]}",
                f"{expected[slot]}",
            )
        self._add_more(one, len(wrong) - KEPT_MAX, severity)
        # RocketMQ 4.5.1 counts added items here, other versions the slots in use.
        used, count = int(np.count_nonzero(expected)), one.header.next_number - 1
        if not used <= one.header.slots_used <= count:
            self._add_header(one, f"{one.header.slots_used} slots in use", f"{used}")

    def _add_more(self, one: IndexFileName, count: int, severity: Severity) -> None:
        if count > 0:
            self._findings.add(Kind.INDEX_CHAIN, severity, one.path, None, "more", count=count)

    def _check_begin(self, one: IndexFileName, physical: int) -> None:
        header = one.header
        if header.first_physical != physical:
            first = header.first_physical
            self._add_header(one, f"begin at physical offset {first}", f"{physical}")
        self._check_time(one, header.first_physical, header.begin_ms, exact_ms=1)

    def _check_end(self, one: IndexFileName, physical: int) -> None:
        header = one.header
        if header.last_physical != physical:
            self._add_header(one, f"end at physical offset {header.last_physical}", f"{physical}")
        # After a cut, the time of the last message may be rounded down to a second.
        self._check_time(one, header.last_physical, header.end_ms, exact_ms=1000)

    def _check_time(
        self, one: IndexFileName, physical: int, header_ms: int, *, exact_ms: int
    ) -> None:
        stored_ms = self._store.store_time_at(physical)
        if stored_ms is not None and not 0 <= stored_ms - header_ms < exact_ms:
            self._add_header(
                one, f"time {header_ms} of the message at {physical}", f"its store time {stored_ms}"
            )

    def _add_header(self, one: IndexFileName, found: str, expected: str) -> None:
        self._findings.add(
            Kind.INDEX_FILE, self._severity_of(one), one.path, 0, f"header: {found}", expected
        )

    def _severity_of(self, one: IndexFileName) -> Severity:
        return self._severity_at(one.header.last_physical)
