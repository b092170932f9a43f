"""Whether a late request is stuck, or behind others."""

from typing import Any

import pytest

from pymq.net.progress import MUCH_BYTES, Progress

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


class Waiting:
    """A transport in which so many bytes wait."""

    def __init__(self) -> None:
        self.waiting_bytes = 0

    def get_write_buffer_size(self) -> int:
        return self.waiting_bytes

    def get_extra_info(self, name: str) -> None:
        return None


def test_who_takes_something() -> None:
    transport: Any = Waiting()
    progress = Progress()

    def look(written: int, waiting: int, now_s: float) -> bool:
        transport.waiting_bytes = waiting
        progress.look(transport, written, now_s)
        return progress.is_taking(3.0)

    assert not progress.is_taking(3.0)  # as far as anybody has looked
    assert not look(100 * MUCH_BYTES, 0, 10.0)  # all is taken, and nothing waits
    written = 300 * MUCH_BYTES
    # It has taken nothing since, however much it had taken before.
    assert not look(written, 200 * MUCH_BYTES, 13.5)
    assert look(written, 150 * MUCH_BYTES, 14.0)
    # Half a second after the look before it was seen to go on, and then no more.
    assert look(written, 150 * MUCH_BYTES, 16.0)
    assert not look(written, 150 * MUCH_BYTES, 16.6)
    assert look(written, MUCH_BYTES, 20.0)
    assert not look(written, MUCH_BYTES - 1, 21.0)  # as at any moment at which something is sent
    assert progress.waited_s == 20.0
