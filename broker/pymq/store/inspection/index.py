"""The key index against the log: chains, keys in both directions, times, headers.

All items of all files are one stream in the order of the log, and so are the keys of its
messages. Both are read in parallel, ``KEYS_MAX`` keys at a time, so that memory does not grow
with the index: in addition to the pieces there are two tables of slots (4 bytes each). What the
index says of itself is checked in ``index_items``.
"""

from typing import NamedTuple

import numpy as np

from pymq.protocol.index_keys import index_keys
from pymq.store.index.index_format import ITEM, SECONDS_MAX
from pymq.store.inspection.findings import KEPT_MAX, Findings, Kind
from pymq.store.inspection.index_items import FoundItems, ItemStream, Longs, SeverityAt
from pymq.store.inspection.layout import StoreLayout
from pymq.store.inspection.log import Block, Gap
from pymq.store.searches import runs

#: Keys compared at a time.
KEYS_MAX = 1 << 18


class _Keys(NamedTuple):
    """Keys of the log's messages, in order."""

    physical: Longs
    key_hash: Longs
    stored_ms: Longs


class IndexCheck:
    """Compares the index of a store with its log; ``take`` blocks in order, then ``finish``."""

    def __init__(
        self,
        layout: StoreLayout,
        findings: Findings,
        severity_at: SeverityAt,
        items: ItemStream,
    ) -> None:
        """Prepare.

        Args:
            layout: the store; it has an index.
            findings: what is found is added there.
            severity_at: how bad a wrong item is, by the physical offset of its message.
            items: of the index, to be read by this check alone.
        """
        self._layout = layout
        self._findings = findings
        self._severity_at = severity_at
        self._stream = items
        self._taken: list[_Keys] = []
        self._taken_count = 0
        #: Number of items read.
        self.item_count = 0
        self._gaps: list[Gap] = []

    def take(self, block: Block) -> None:
        """Look for the keys of a block's messages."""
        keys = index_keys(block.columns)
        if len(keys.row):
            self._taken.append(
                _Keys(
                    block.physical[keys.row],
                    keys.key_hash.astype(np.int64),
                    block.columns.store_timestamp[keys.row],
                )
            )
            self._taken_count += len(keys.row)
        if self._taken_count >= KEYS_MAX:
            self._compare(block.end)

    def add_gap(self, gap: Gap) -> None:
        """Record a damaged part of the log: items that point into it are only consequences."""
        self._gaps.append(gap)

    def finish(self) -> None:
        """Compare the rest, and check headers and slots."""
        self._compare(None)
        self._stream.close()

    def _compare(self, end: int | None) -> None:
        """Compare keys and items of the messages below a physical offset."""
        keys = _joined(self._taken)
        self._taken.clear()
        self._taken_count = 0
        found = self._stream.take_below(end)
        self.item_count += len(found.physical)
        kept = found.physical >= self._layout.log_first
        if not kept.all():
            found = found.part(kept)
        if np.array_equal(found.physical, keys.physical) and np.array_equal(
            found.key_hash, keys.key_hash
        ):
            self._compare_times(found, keys)
        else:
            self._compare_sets(found, keys)

    def _compare_times(self, found: FoundItems, keys: _Keys) -> None:
        seconds = np.clip((keys.stored_ms - found.begin_ms) // 1000, 0, SECONDS_MAX)
        seconds[found.begin_ms <= 0] = 0
        # The time of the first item of a file is relative to the end of the file before it.
        wrong = (seconds != found.seconds) & (found.number > 1)
        for at in np.flatnonzero(wrong)[:KEPT_MAX].tolist():
            self._add(
                Kind.INDEX_TIME,
                found,
                at,
                f"{found.seconds[at]} s after the file's first message",
                f"{seconds[at]} s",
            )
        self._add_rest(Kind.INDEX_TIME, found, np.flatnonzero(wrong)[KEPT_MAX:])

    def _compare_sets(self, found: FoundItems, keys: _Keys) -> None:
        """Compare by message and hash, in any order; duplicates do not matter."""
        physical = np.unique(np.concatenate([found.physical, keys.physical]))
        codes = np.searchsorted(physical, found.physical) << 32 | (found.key_hash & 0xFFFFFFFF)
        wanted = np.searchsorted(physical, keys.physical) << 32 | keys.key_hash
        extra = ~np.isin(codes, wanted)
        for gap in self._gaps:
            extra &= ~((found.physical >= gap.first) & (found.physical < gap.end))
        rows = np.flatnonzero(extra)
        for at in rows[:KEPT_MAX].tolist():
            self._add(
                Kind.INDEX_EXTRA,
                found,
                at,
                f"key hash {found.key_hash[at] & 0xFFFFFFFF:08x} at physical offset "
                f"{found.physical[at]}",
                "nothing",
            )
        self._add_rest(Kind.INDEX_EXTRA, found, rows[KEPT_MAX:])
        for first, end in runs(~np.isin(wanted, codes)):
            at = int(keys.physical[first])
            self._findings.add(
                Kind.INDEX_MISSING,
                self._severity_at(at),
                self._layout.config.index_path,
                None,
                f"no item of key hash {keys.key_hash[first]:08x}",
                f"one for the message at physical offset {at}",
                count=end - first,
            )

    def _add(self, kind: Kind, found: FoundItems, at: int, what: str, expected: str) -> None:
        layout = self._layout.index_layout
        assert layout is not None
        number = int(found.number[at])
        self._findings.add(
            kind,
            self._severity_at(int(found.physical[at])),
            self._layout.index_files[int(found.file[at])].path,
            layout.items_start + ITEM.itemsize * number,
            f"item {number}: {what}",
            expected,
        )

    def _add_rest(self, kind: Kind, found: FoundItems, rows: Longs) -> None:
        """Add findings that are only counted."""
        if len(rows):
            severity = self._severity_at(int(found.physical[rows[0]]))
            path = self._layout.index_files[int(found.file[rows[0]])].path
            self._findings.add(kind, severity, path, None, "more", count=len(rows))


def _joined(taken: list[_Keys]) -> _Keys:
    if not taken:
        none = np.empty(0, np.int64)
        return _Keys(none, none, none)
    return _Keys(*map(np.concatenate, zip(*taken, strict=True)))
