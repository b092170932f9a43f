"""Properties of many messages at once: where names and values stand in their texts.

A properties text is ``name 0x01 value 0x02`` repeated; the last 0x02 may be missing (4.9 leaves
it out). Pieces without 0x01, without a name or without a value count as absent, and the first
0x01 of a piece separates. Nearly always every text alternates strictly, and three vector
operations find all entries; texts that do not are parsed one by one.

Source: RocketMQ MessageDecoder.string2messageProperties.
"""

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

_BETWEEN = 1  # name 0x01 value
_BEHIND = 2  # value 0x02


class PropertyIndex:
    """Entries of n properties texts, in the order they stand there.

    Attributes:
        text: all texts back to back.
        row_start: shape (n + 1,): where in ``text`` each of them starts.
        name_start, name_end, value_start, value_end: shape (m,): positions in ``text``.
        first_entry: shape (n + 1,): index of each row's first entry.
    """

    __slots__ = (
        "first_entry",
        "name_end",
        "name_start",
        "row_start",
        "text",
        "value_end",
        "value_start",
    )

    def __init__(self, text: Bytes, row_start: Longs) -> None:
        self.text = text
        self.row_start = row_start
        found = _all_at_once(text, row_start)
        if found is None:
            found = _with_exceptions(text, row_start)
        self.name_start, self.name_end, self.value_end = found
        self.value_start = self.name_end + 1
        empty = (self.name_start == self.name_end) | (self.value_start == self.value_end)
        if empty.any():
            for name in ("name_start", "name_end", "value_start", "value_end"):
                setattr(self, name, getattr(self, name)[~empty])
        self.first_entry: Longs = np.searchsorted(self.name_end, row_start)

    def find(self, name: bytes) -> tuple[npt.NDArray[np.bool_], Longs, Longs]:
        """Return (is it there, start of its value, end) for every row, shape (n,) each.

        Where a row has no such property, start and end are where the row starts. Where it
        has several, the last one counts, as when a map is filled.
        """
        hits = self._named(name)
        rows = len(self.row_start) - 1
        first, end = self.first_entry[:-1], self.first_entry[1:]
        if len(hits) == rows and ((first <= hits) & (hits < end)).all():
            return np.ones(rows, np.bool_), self.value_start[hits], self.value_end[hits]
        found = np.zeros(rows, np.bool_)
        value_start = self.row_start[:-1].copy()
        value_end = value_start.copy()
        row = np.searchsorted(self.first_entry, hits, side="right") - 1
        found[row] = True
        value_start[row] = self.value_start[hits]
        value_end[row] = self.value_end[hits]
        return found, value_start, value_end

    def _named(self, name: bytes) -> Longs:
        """Return the entries with this name."""
        right_length = np.flatnonzero(self.name_end - self.name_start == len(name))
        if not len(right_length):
            return right_length
        return right_length[equal_at(self.text, self.name_start[right_length], name)]


def equal_at(text: Bytes, positions: Longs, wanted: bytes) -> npt.NDArray[np.bool_]:
    """Say for each position whether ``wanted`` stands there; ``text`` reaches that far.

    Compares words, the last of which may overlap the one before: several times faster than
    comparing rows of a matrix of bytes.
    """
    length = len(wanted)
    word_bytes = max(size for size in (1, 2, 4, 8) if size <= length)
    word = np.dtype(f"u{word_bytes}")
    words = np.ndarray((len(text) - word_bytes + 1,), word, text, strides=(1,))
    equal = np.ones(len(positions), np.bool_)
    for at in {*range(0, length - word_bytes + 1, word_bytes), length - word_bytes}:
        equal &= words[positions + at] == np.frombuffer(wanted, word, 1, at)
    return equal


def _all_at_once(text: Bytes, row_start: Longs) -> tuple[Longs, Longs, Longs] | None:
    """Return (name starts, name ends, value ends), None where a text does not alternate."""
    marks = np.flatnonzero(text <= _BEHIND)
    kinds = text[marks]
    open_rows = np.flatnonzero(row_start[1:] > row_start[:-1])
    open_rows = open_rows[text[row_start[open_rows + 1] - 1] != _BEHIND]
    if len(open_rows):  # as if 0x02 stood behind them
        ends = row_start[open_rows + 1]
        at = np.searchsorted(marks, ends)
        marks = np.insert(marks, at, ends)
        kinds = np.insert(kinds, at, _BEHIND)
    if len(marks) % 2 or (kinds[0::2] != _BETWEEN).any() or (kinds[1::2] != _BEHIND).any():
        return None
    name_end, value_end = marks[0::2], marks[1::2]
    name_start = np.empty_like(name_end)
    name_start[:1] = 0
    name_start[1:] = value_end[:-1] + 1
    if len(open_rows):
        # The entry behind a mark that is not there starts where that mark would be.
        first = np.searchsorted(name_end, ends)
        inside = first < len(name_end)
        name_start[first[inside]] = ends[inside]
    return name_start, name_end, value_end


def _with_exceptions(text: Bytes, row_start: Longs) -> tuple[Longs, Longs, Longs]:
    """Return the same as ``_all_at_once``, rows that do not alternate parsed one by one."""
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
