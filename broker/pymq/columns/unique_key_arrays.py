"""Client message ids, made by the thousand."""

import numpy as np

from pymq.columns.arrow_arrays import Bytes, fixed_width, repeated
from pymq.columns.arrow_package import pa
from pymq.protocol.message import UNIQUE_KEY

#: A message's properties are ``name 0x01 value 0x02`` repeated.
NAME_END = b"\x01"
VALUE_END = b"\x02"

_DIGITS = 12  # hex digits of the number that is counted up
_HEX = np.frombuffer("".join(f"{number:02X}" for number in range(256)).encode(), "u2")


class UniqueKeyArrays:
    """Makes properties with client message ids (UNIQ_KEY) by the thousand.

    An id is upper-case hex of: address 4 B, process id 2 B, salt 4 B, ms since the month began
    4 B, counter 2 B. The last two together are one number that is counted up and follows the
    clock, so that no two ids are equal.

    Args:
        address, pid, salt: what tells this task from all others.
    """

    def __init__(self, *, address: bytes, pid: int, salt: bytes) -> None:
        self._prefix = (address + (pid & 0xFFFF).to_bytes(2, "big") + salt).hex().upper().encode()
        self._before = UNIQUE_KEY.encode() + NAME_END + self._prefix
        self._next = 0

    def take(self, count: int, *, month_ms: int, before: bytes = b"") -> pa.Array:
        """Return ``UNIQ_KEY 0x01 id 0x02`` with new ids, a binary array of shape (count,).

        Args:
            count: how many.
            month_ms: milliseconds since the month began, local time.
            before: what each of them begins with.
        """
        return fixed_width(self._table(count, month_ms, before + self._before, VALUE_END))

    def ids(self, count: int, *, month_ms: int) -> Bytes:
        """Return new ids, one in each row of a matrix of bytes; arguments as ``take``."""
        return self._table(count, month_ms, self._prefix, b"")

    def _table(self, count: int, month_ms: int, before: bytes, behind: bytes) -> Bytes:
        first = max(self._next, month_ms << 16)
        self._next = first + count
        numbers = np.arange(first, first + count, dtype=np.uint64).astype(">u8")
        digits = _HEX[numbers.view(np.uint8).reshape(count, 8)[:, 2:]].view(np.uint8)
        table = repeated(before + bytes(_DIGITS) + behind, count)
        table[:, len(before) : len(before) + _DIGITS] = digits
        return table
