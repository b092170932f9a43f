"""Searches that several parts of the store need: a bisection, members of a set, runs of flags."""

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

Longs = npt.NDArray[np.int64]


def first_true(low: int, high: int, test: Callable[[int], bool]) -> int:
    """Return the first number in [low, high) that passes a monotone test, ``high`` if none."""
    if low < high and test(low):
        return low
    while low < high:
        middle = (low + high) // 2
        if test(middle):
            high = middle
        else:
            low = middle + 1
    return low


def among(numbers: Longs, wanted: Longs) -> npt.NDArray[np.bool_]:
    """Return which numbers occur among some wanted ones, which are sorted.

    Several times as fast as ``numpy.isin`` for a few wanted ones.
    """
    if len(wanted) == 1:
        found: npt.NDArray[np.bool_] = numbers == wanted[0]
    elif len(wanted):
        nearest = np.minimum(wanted.searchsorted(numbers), len(wanted) - 1)
        found = wanted[nearest] == numbers
    else:
        found = np.zeros(len(numbers), np.bool_)
    return found


def runs(flags: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield [first, end) of every run of set flags."""
    edges = np.flatnonzero(np.diff(flags.astype(np.int8), prepend=0, append=0))
    yield from zip(edges[0::2].tolist(), edges[1::2].tolist(), strict=True)
