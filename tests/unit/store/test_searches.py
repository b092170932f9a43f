"""Searches, against what they replace."""

import random

import numpy as np

from pymq.store.searches import among, first_true, runs


def test_members_of_a_set(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(200):
        wanted = np.unique(np.array([dice.randrange(-9, 9) for _ in range(dice.randrange(6))], int))
        numbers = np.array([dice.randrange(-12, 12) for _ in range(dice.randrange(9))], int)
        assert among(numbers, wanted).tolist() == np.isin(numbers, wanted).tolist()


def test_runs_of_flags() -> None:
    assert list(runs(np.array([1, 1, 0, 0, 1, 0, 1], bool))) == [(0, 2), (4, 5), (6, 7)]
    assert list(runs(np.zeros(3, bool))) == list(runs(np.zeros(0, bool))) == []


def test_the_first_number_that_passes() -> None:
    for high in range(6):
        for first in range(high + 1):
            assert first_true(0, high, first.__le__) == first
