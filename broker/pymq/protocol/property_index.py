"""Properties of many messages at once: the positions of names and values.

Encoded properties are ``name 0x01 value 0x02`` repeated; the last 0x02 may be missing (4.9 leaves
it out). Pieces without 0x01, without a name or without a value are ignored, and the first 0x01 of a
piece separates. Nearly always the two separators alternate strictly in every message, and three
vector operations find all entries; other messages are parsed one by one.

Usually all messages also have the same names in the same order: then a name is searched once, by
comparing it with the columns of a table. And usually even in the same columns of their text
(``alike_properties``): then it is not searched at all.

Source: RocketMQ MessageDecoder.string2messageProperties.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pymq.protocol.alike_properties import property_rows, value_columns
from pymq.protocol.record_batch import equal_at

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

_BETWEEN = 1  # name 0x01 value
_BEHIND = 2  # value 0x02


class Entries(NamedTuple):
    """All entries of n messages, in order.

    ``name_start``, ``name_end``, ``value_start``, ``value_end`` have shape (m,) and are positions
    in the text; ``first_entry`` has shape (n + 1,): the index of each message's first entry.
    """

    name_start: Longs
    name_end: Longs
    value_start: Longs
    value_end: Longs
    first_entry: Longs


class PropertyIndex:
    """The properties of n messages, one row each.

    Attributes:
        text: the encoded properties of all messages, back to back.
        row_start: shape (n + 1,): where in ``text`` each row starts.
    """

    def __init__(self, text: Bytes, row_start: Longs) -> None:
        self.text = text
        self.row_start = row_start

    @cached_property
    def _columns(self) -> Mapping[bytes, tuple[int, int]] | None:
        rows = property_rows(self.text, self.row_start[:-1], self.row_start[1:])
        return None if rows is None else value_columns(rows)

    @cached_property
    def _marks(self) -> Longs | None:
        return _alternating_marks(self.text, self.row_start)

    @cached_property
    def _table(self) -> "_Table | None":
        return None if self._marks is None else _table(self._marks, self.row_start)

    @cached_property
    def entries(self) -> Entries:
        """All entries."""
        if self._marks is None:
            name_start, name_end, value_end = _with_exceptions(self.text, self.row_start)
        else:
            name_start, name_end, value_end = _between_marks(self._marks, self.row_start)
        there = (name_start != name_end) & (name_end + 1 != value_end)
        if not there.all():
            name_start, name_end, value_end = name_start[there], name_end[there], value_end[there]
        first_entry: Longs = np.searchsorted(name_end, self.row_start)
        return Entries(name_start, name_end, name_end + 1, value_end, first_entry)

    @cached_property
    def is_ascii(self) -> bool:
        """Are all rows ASCII?"""
        return not len(self.text) or bool(self.text.max() < 0x80)

    def find(self, name: bytes) -> tuple[npt.NDArray[np.bool_], Longs, Longs]:
        """Return (is it there, start of its value, end) for every row, shape (n,) each.

        If a row has no such property, start and end are where the row starts. If it has several,
        the last one counts, as when a map is filled.
        """
        if self._columns is not None:
            return self._find_in_columns(self._columns.get(name))
        found = None if self._table is None else self._table.find(self.text, name)
        return found or self._find_anywhere(name)

    def _find_in_columns(
        self, columns: tuple[int, int] | None
    ) -> tuple[npt.NDArray[np.bool_], Longs, Longs]:
        starts = self.row_start[:-1]
        if columns is None:
            return np.zeros(len(starts), np.bool_), starts, starts
        return np.ones(len(starts), np.bool_), starts + columns[0], starts + columns[1]

    def _find_anywhere(self, name: bytes) -> tuple[npt.NDArray[np.bool_], Longs, Longs]:
        entries = self.entries
        hits = np.flatnonzero(entries.name_end - entries.name_start == len(name))
        if len(hits):
            hits = hits[equal_at(self.text, entries.name_start[hits], name)]
        found = np.zeros(len(self.row_start) - 1, np.bool_)
        value_start = self.row_start[:-1].copy()
        value_end = value_start.copy()
        row = np.searchsorted(entries.first_entry, hits, side="right") - 1
        found[row] = True
        value_start[row] = entries.value_start[hits]
        value_end[row] = entries.value_end[hits]
        return found, value_start, value_end


class _Table:
    """Separators of rows that all have the same number of entries, none of them empty.

    Args:
        marks: shape (n, 2 * entries).
        row_start: shape (n,).
    """

    def __init__(self, marks: Longs, row_start: Longs) -> None:
        self._marks = marks
        self._row_start = row_start
        self._name_bytes: dict[int, int | None] = {}
        self._names: dict[int, bytes | None] = {}

    def find(self, text: Bytes, name: bytes) -> tuple[npt.NDArray[np.bool_], Longs, Longs] | None:
        """Return what ``PropertyIndex.find`` does; None if only some rows have the name."""
        hit = None
        for column in range(self._marks.shape[1] // 2):
            size = self._size_in(column)
            if size == len(name):
                here = self._name_in(column, text)
                if here == name:
                    hit = column
                if here is not None:
                    continue
            if size is None or size == len(name):
                return None
        if hit is None:
            start = self._row_start
            return np.zeros(len(start), np.bool_), start, start
        found = np.ones(len(self._marks), np.bool_)
        return found, self._marks[:, 2 * hit] + 1, self._marks[:, 2 * hit + 1]

    def _starts(self, column: int) -> Longs:
        return self._marks[:, 2 * column - 1] + 1 if column else self._row_start

    def _size_in(self, column: int) -> int | None:
        """Return the length of all names of a column; None if they differ."""
        if column not in self._name_bytes:
            sizes = self._marks[:, 2 * column] - self._starts(column)
            first = int(sizes[0])
            self._name_bytes[column] = first if (sizes == first).all() else None
        return self._name_bytes[column]

    def _name_in(self, column: int, text: Bytes) -> bytes | None:
        """Return the name of all rows in a column with names of one size; None if they differ."""
        if column not in self._names:
            starts = self._starts(column)
            first = text[starts[0] : self._marks[0, 2 * column]].tobytes()
            self._names[column] = first if equal_at(text, starts, first).all() else None
        return self._names[column]


def _alternating_marks(text: Bytes, row_start: Longs) -> Longs | None:
    """Return the positions of all separators; None if they do not alternate in some row.

    A missing last separator of a row counts as if it came after the row.
    """
    marks = np.flatnonzero(text <= _BEHIND)
    kinds = text[marks]
    open_rows = np.flatnonzero(row_start[1:] > row_start[:-1])
    open_rows = open_rows[text[row_start[open_rows + 1] - 1] != _BEHIND]
    if len(open_rows):
        ends = row_start[open_rows + 1]
        at = np.searchsorted(marks, ends)
        marks = np.insert(marks, at, ends)
        kinds = np.insert(kinds, at, _BEHIND)
    pair = np.frombuffer(bytes([_BETWEEN, _BEHIND]), np.uint16)
    if len(marks) % 2 or (kinds.view(np.uint16) != pair).any():
        return None
    return marks


def _table(marks: Longs, row_start: Longs) -> _Table | None:
    """Return the table of separators if all rows have equally many entries, none of them empty."""
    rows = len(row_start) - 1
    if not rows or not len(marks) or len(marks) % (2 * rows):
        return None
    table = marks.reshape(rows, -1)
    # The separator after that many entries is the last one of each row, or comes after the row.
    if ((row_start[1:] - table[:, -1]).view(np.uint64) > 1).any():
        return None
    if (table[:, 0] == row_start[:-1]).any() or (marks[1:] - marks[:-1] == 1).any():
        return None  # an empty entry; or a one-letter name after a missing separator
    return _Table(table, row_start[:-1])


def _between_marks(marks: Longs, row_start: Longs) -> tuple[Longs, Longs, Longs]:
    """Return (name starts, name ends, value ends) of rows whose separators alternate."""
    name_end, value_end = marks[0::2], marks[1::2]
    name_start = np.empty_like(name_end)
    name_start[:1] = 0
    name_start[1:] = value_end[:-1] + 1
    # The first entry after a row without its last separator starts where that would be.
    first = np.searchsorted(name_end, row_start[:-1])
    row = np.flatnonzero((first < len(name_end)) & (row_start[1:] > row_start[:-1]))
    name_start[first[row]] = row_start[row]
    return name_start, name_end, value_end


def _with_exceptions(text: Bytes, row_start: Longs) -> tuple[Longs, Longs, Longs]:
    """Return the same as ``_between_marks``; rows that do not alternate are parsed one by one."""
    marks = np.flatnonzero((text == _BETWEEN) | (text == _BEHIND))
    row = np.searchsorted(row_start, marks, side="right") - 1
    place = np.arange(len(marks)) - np.searchsorted(marks, row_start)[row]
    odd = np.zeros(len(row_start) - 1, np.bool_)
    odd[row[text[marks] != place % 2 + 1]] = True
    filled = np.flatnonzero(row_start[1:] > row_start[:-1])
    odd[filled[text[row_start[filled + 1] - 1] != _BEHIND]] = True
    regular = marks[~odd[row]]
    first_of_row = place[~odd[row]][0::2] == 0
    name_end, value_end = regular[0::2], regular[1::2]
    name_start = np.empty_like(name_end)
    name_start[:1] = 0
    name_start[1:] = value_end[:-1] + 1
    name_start[first_of_row] = row_start[row[~odd[row]][0::2][first_of_row]]
    entries = np.array(
        [
            entry
            for number in np.flatnonzero(odd).tolist()
            for entry in _one_by_one(text, int(row_start[number]), int(row_start[number + 1]))
        ],
        np.int64,
    ).reshape(-1, 3)
    together = np.concatenate([np.stack([name_start, name_end, value_end], axis=1), entries])
    together = together[np.argsort(together[:, 1], kind="stable")]
    return together[:, 0], together[:, 1], together[:, 2]


def _one_by_one(text: Bytes, start: int, end: int) -> list[tuple[int, int, int]]:
    entries = []
    for piece in text[start:end].tobytes().split(b"\x02"):
        between = piece.find(b"\x01")
        if between >= 0:
            entries.append((start, start + between, start + len(piece)))
        start += len(piece) + 1
    return entries
