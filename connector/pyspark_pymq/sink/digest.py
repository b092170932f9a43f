"""What a batch holds, in short, so that a batch that is written again can be compared.

Of each row counts its body. The checksums of all are mixed and added up: the sum does not depend on
the order of the rows, and on which tasks have them.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pymq.columns.arrow_arrays import contents
from pymq.protocol.crc32_batch import crc32_each

_SUM_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Digest:
    """Of rows.

    Attributes:
        rows: their number.
        body_bytes: size of all bodies.
        checksum: of all bodies, 64 bits.
    """

    rows: int = 0
    body_bytes: int = 0
    checksum: int = 0

    @staticmethod
    def of(bodies: pa.BinaryArray) -> "Digest":
        """Return that of some bodies, of which none is null."""
        if not len(bodies):
            return Digest()
        text, start = contents(bodies)
        crcs = crc32_each(text, start[:-1], start[1:]).view(np.uint64)
        sizes = np.diff(start).astype(np.uint64)
        checksum = int(_mixed(crcs | sizes << np.uint64(32)).sum(dtype=np.uint64))
        return Digest(len(bodies), len(text), checksum)

    def __add__(self, other: "Digest") -> "Digest":
        return Digest(
            self.rows + other.rows,
            self.body_bytes + other.body_bytes,
            self.checksum + other.checksum & _SUM_MASK,
        )

    def __str__(self) -> str:
        return f"{self.rows}:{self.body_bytes}:{self.checksum:x}"


def _mixed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return numbers of which each bit depends on all bits of the given ones (SplitMix64)."""
    mixed = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
