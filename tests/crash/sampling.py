"""What a short run tries of all that a long one does."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Final, TypeVar

T = TypeVar("T")

#: From this many rounds on, everything is tried that else is left to chance.
THOROUGH_ROUNDS: Final = 1_000
ONE_IN: Final = 4


def some_of(
    items: Iterable[T], rounds: int, chance: random.Random, one_in: int = ONE_IN
) -> list[T]:
    """Return all items; in a short run one in so many, by chance and in their order."""
    every = list(items)
    if rounds >= THOROUGH_ROUNDS or not every:
        return every
    numbers = chance.sample(range(len(every)), -(-len(every) // one_in))
    return [every[number] for number in sorted(numbers)]
