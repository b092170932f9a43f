"""What decoders of every format return, and what encoders of every format are given."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

#: Names a row, for errors.
Place = Callable[[int], str]


@dataclass(frozen=True, slots=True)
class Decoded:
    """Values of some bodies.

    Attributes:
        values: shape (n,); null for a body that is null or bad.
        bad: place of a bad body -> what is wrong with it, ascending.
    """

    values: pa.Array
    bad: dict[int, str] = field(default_factory=dict)
