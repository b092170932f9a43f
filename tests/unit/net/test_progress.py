"""Whether a late request is stuck, or behind others."""

import pytest

from pymq.net.progress import Progress

LAST = 0x7FFFFFFF


@pytest.mark.parametrize(
    ("answered", "behind", "overtaken"),
    [
        ([], [0, 5], []),
        ([3], [3, 4, 1000], [0, 2]),
        ([3, 1], [3, 4], [0, 2]),
        ([LAST], [LAST, -LAST - 1, -5], [LAST - 1]),
        ([LAST, -LAST - 1], [-LAST - 1, -LAST], [LAST, LAST - 1]),
        ([-1, 0], [0, 1], [-1, -2]),
    ],
)
def test_who_was_overtaken(answered: list[int], behind: list[int], overtaken: list[int]) -> None:
    progress = Progress()
    for opaque in answered:
        progress.answered(opaque)
    assert [one for one in behind if not progress.is_behind(one)] == []
    assert [one for one in overtaken if progress.is_behind(one)] == []
