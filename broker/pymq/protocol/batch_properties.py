"""The properties of many messages that are about to be stored, without parsing each of them.

Two questions have to be answered for every batch before it is stored: what are the tag codes, and
is there a property that makes a message special (a delay, half of a transaction)? The answers are
nearly always "a short tag, which comes first" and "no", and have to be cheap: so the whole batch is
searched for places where a name may begin, and only what is found there is read.

Cheaper still are messages with their properties in the same columns (``alike_properties``). Where
more is between others than they take, their properties are put together first.

Worked example: three messages with ``TAGS 1 a 2 KEYS 1 k 2``. Each begins with a short tag, and
nowhere in the batch is a separator 2 followed by a D or a T: so these tags are the only ones, and
no message has a property DELAY, TIMER_... or TRAN_MSG.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pymq.protocol.alike_properties import property_rows, value_columns
from pymq.protocol.message import decode_properties
from pymq.protocol.record_batch import Bytes, Longs, gather, spans, windows

_BETWEEN, _BEHIND = 1, 2
#: ``2 D`` as a word. D and T differ in one bit, so that one comparison finds both.
_BEHIND_D = np.frombuffer(b"\x02D", np.uint16)[0]
_ALL_BUT_D_FROM_T = np.frombuffer(bytes((0xFF, 0xFF & ~(ord("D") ^ ord("T")))), np.uint16)[0]


class _Searched(NamedTuple):
    """The properties of messages, with little or nothing between them, and where each are."""

    text: Bytes
    starts: Longs
    ends: Longs


class BatchProperties:
    """The encoded properties of n messages in one buffer, with anything between them.

    Args:
        data: the buffer.
        starts, ends: int64, shape (n,): where those of message i begin and end in it; ascending.
    """

    def __init__(self, data: Bytes, starts: Longs, ends: Longs) -> None:
        self.data = data
        self.starts = starts
        self.ends = ends

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def rows(self) -> Bytes | None:
        """The properties of one message in each row; None if their lengths differ."""
        return property_rows(self.data, self.starts, self.ends)

    @cached_property
    def columns(self) -> Mapping[bytes, tuple[int, int]] | None:
        """In which columns of ``rows`` each value is; None if it is not in the same ones."""
        return None if self.rows is None else value_columns(self.rows)

    @cached_property
    def _searched(self) -> _Searched:
        """What is searched where properties are not in the same columns."""
        data, starts, ends = self.data, self.starts, self.ends
        count, lengths = len(starts), ends - starts
        total, width = int(lengths.sum()), int(lengths.max(initial=0))
        if not total or len(data) < 2 * total or len(data) < width * count:
            return _Searched(data, starts, ends)
        if width * count > 2 * total:  # a few are much longer than most
            text = b"".join(map(data.data.__getitem__, spans(starts, ends)))
            ends = np.cumsum(lengths)
            return _Searched(np.frombuffer(text, np.uint8), ends - lengths, ends)
        # As many bytes of each as of the longest; the last ones need not have so many behind them.
        taken = np.minimum(starts, len(data) - width)
        starts = np.arange(0, width * count, width) + (starts - taken)
        return _Searched(windows(data, width)[taken].view(np.uint8), starts, starts + lengths)

    @cached_property
    def has_later_names(self) -> bool:
        """Does any message have a name that begins with D or T after its first property?"""
        text, starts, ends = self._searched
        size = len(text)
        for at in range(min(2, size - 1)):
            words = np.frombuffer(text, np.uint16, (size - at) // 2, at)
            hits = (words & _ALL_BUT_D_FROM_T) == _BEHIND_D
            if hits.any():  # though perhaps in a body
                marks = np.flatnonzero(hits) * 2 + at
                row = self._rows_at(marks)
                if ((marks >= starts[row]) & (marks + 1 < ends[row])).any():
                    return True
        return False

    @cached_property
    def _betweens(self) -> Longs:
        """Where the separators between names and values are; some are bytes of bodies."""
        found: Longs = np.flatnonzero(self._searched.text == _BETWEEN)
        return found

    def has(self, name: bytes) -> bool:
        """Does any message have a property of this name?"""
        text, starts, ends = self._searched
        data, mark = text.tobytes(), name + bytes((_BETWEEN,))
        at = data.find(mark)
        while at >= 0:
            row = int(self._rows_at(np.array([at]))[0])
            begins = starts[row] == at or (starts[row] < at and data[at - 1] == _BEHIND)
            if begins and at + len(mark) <= ends[row]:
                return True
            at = data.find(mark, at + 1)
        return False

    def values_of(self, name: bytes) -> tuple[Longs, Longs, Longs]:
        """Return (row, start, end) of each non-empty value in the buffer, in order.

        A row with several properties of this name occurs several times; the last one counts.
        """
        data, starts, ends = self._searched
        at = self._betweens
        for back, letter in enumerate(reversed(name), 1):
            at = at[data[at - back] == letter]
        row = self._rows_at(at)
        name_start = at - len(name)
        inside = (name_start >= starts[row]) & (at < ends[row])
        inside &= (name_start == starts[row]) | (data[name_start - 1] == _BEHIND)
        start, row = at[inside] + 1, row[inside]
        marks = np.append(np.flatnonzero(data == _BEHIND), len(data))
        end = np.minimum(marks[marks.searchsorted(start)], ends[row])
        there = end > start
        row, start, end = row[there], start[there], end[there]
        before = self.starts[row] - starts[row]
        return row, start + before, end + before

    def rows_with(self, names: frozenset[bytes]) -> list[tuple[int, dict[str, str]]]:
        """Return (row, properties) of every message that has one of the given properties.

        Args:
            names: each begins with D or T, is ASCII, and has more than one letter.
        """
        assert all(name[:1] in (b"D", b"T") for name in names), names
        if self.columns is not None and names.isdisjoint(self.columns):
            return []
        wanted = {name.decode() for name in names}
        found = []
        for row in self._candidates(names).tolist():
            properties = decode_properties(self.data[self.starts[row] : self.ends[row]].tobytes())
            if not wanted.isdisjoint(properties):
                found.append((row, properties))
        return found

    def _candidates(self, names: frozenset[bytes]) -> Longs:
        """Return the rows that have one of these names, and perhaps some others; usually none."""
        if not self.has_later_names:
            rows = np.flatnonzero(self.ends - self.starts > 2)
            first_letters = gather(self.data, self.starts[rows], np.uint16)
            return rows[_is_any(first_letters, {name[:2] for name in names})]
        at, text = self._betweens, self._searched.text
        last_letters = np.stack((text[at - 2], text[at - 1]), 1).view(np.uint16)[:, 0]
        at = at[_is_any(last_letters, {name[-2:] for name in names})]
        return np.unique(self._rows_at(at))

    def _rows_at(self, at: Longs) -> Longs:
        """Return for each position searched the row that it belongs to, if it belongs to one."""
        ends = self._searched.ends
        rows: Longs = np.minimum(ends.searchsorted(at, "right"), len(ends) - 1)
        return rows


def _is_any(words: npt.NDArray[Any], wanted: set[bytes]) -> npt.NDArray[np.bool_]:
    """Say which words, of two letters in the machine's byte order, are wanted."""
    found = np.zeros(len(words), np.bool_)
    for word in wanted:
        found |= words == np.frombuffer(word, words.dtype)[0]
    return found
