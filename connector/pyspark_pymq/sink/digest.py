"""What a batch holds, in short, so that a batch that is written again can be compared."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Digest:
    """Does not depend on the order of the rows, and on which tasks have them.

    Attributes:
        rows: their number.
        body_bytes: size of all bodies.
        byte_sum: sum of all their bytes.
    """

    rows: int = 0
    body_bytes: int = 0
    byte_sum: int = 0

    @staticmethod
    def of(bodies: pa.BinaryArray) -> "Digest":
        """Return that of some bodies, of which none is null."""
        if not len(bodies):
            return Digest()
        _, offsets, data = bodies.buffers()
        bounds = np.frombuffer(offsets, np.int32)[bodies.offset : bodies.offset + len(bodies) + 1]
        content = np.frombuffer(data or b"", np.uint8)[bounds[0] : bounds[-1]]
        return Digest(len(bodies), content.size, int(content.sum(dtype=np.uint64)))

    def __add__(self, other: "Digest") -> "Digest":
        return Digest(
            self.rows + other.rows,
            self.body_bytes + other.body_bytes,
            self.byte_sum + other.byte_sum,
        )

    def __str__(self) -> str:
        return f"{self.rows}:{self.body_bytes}:{self.byte_sum:x}"
