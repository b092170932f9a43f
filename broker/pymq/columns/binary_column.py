"""A column of byte strings of any lengths: positions in one buffer."""

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from pymq.protocol.record_batch import Bytes, Longs, spans


class BinaryColumn(Sequence["bytes | None"]):
    """Byte strings of any lengths, without a Python object for each.

    Attributes:
        data: uint8; value i is ``data[start[i]:end[i]]``.
        start, end: int64, shape (n,).
        valid: bool, shape (n,); where it is False there is no value. ``None``: all are there.
    """

    __slots__ = ("data", "end", "start", "valid")

    def __init__(
        self,
        data: Bytes,
        start: Longs,
        end: Longs,
        valid: "npt.NDArray[np.bool_] | None" = None,
    ) -> None:
        self.data = data
        self.start = start
        self.end = end
        self.valid = None if valid is None or bool(valid.all()) else valid

    def __len__(self) -> int:
        return len(self.start)

    @overload
    def __getitem__(self, index: int) -> bytes | None: ...

    @overload
    def __getitem__(self, index: "slice[int | None, int | None, int | None]") -> "BinaryColumn": ...

    def __getitem__(
        self, index: "int | slice[int | None, int | None, int | None]"
    ) -> "bytes | None | BinaryColumn":
        if isinstance(index, slice):
            valid = None if self.valid is None else self.valid[index]
            return BinaryColumn(self.data, self.start[index], self.end[index], valid)
        if self.valid is not None and not self.valid[index]:
            return None
        return self.data[self.start[index] : self.end[index]].tobytes()

    def __iter__(self) -> "Iterator[bytes | None]":
        whole = self.data.data
        if self.valid is None:
            return (bytes(whole[span]) for span in spans(self.start, self.end))
        there = self.valid.tolist()
        places = zip(there, spans(self.start, self.end), strict=True)
        return (bytes(whole[span]) if is_there else None for is_there, span in places)

    @property
    def lengths(self) -> Longs:
        """The bytes of each value."""
        lengths: Longs = self.end - self.start
        return lengths

    def strings(self) -> "list[str | None]":
        """Return the values as strings; what is not UTF-8 gets replacement characters."""
        return [None if value is None else value.decode("utf-8", "replace") for value in self]
