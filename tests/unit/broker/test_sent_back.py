"""Which pulls come again although they were sent back to the master."""

from typing import cast

import pytest

from pymq.broker import sent_back
from pymq.broker.sent_back import SentBack
from pymq.net.server import ServerConnection

QUEUE = "g", "T", 0


class Connection:
    """Stands for one: the only thing that matters is which one it is."""


def connection() -> ServerConnection:
    return cast(ServerConnection, Connection())


def test_who_is_further_by_then_does_not_come_again() -> None:
    pulls, one, other = SentBack(), connection(), connection()
    assert not pulls.comes_again(one, QUEUE, 5)
    assert pulls.comes_again(one, QUEUE, 5)
    assert not pulls.comes_again(other, QUEUE, 5)
    assert not pulls.comes_again(one, ("g", "T", 1), 5)
    assert not pulls.comes_again(one, QUEUE, 7)
    assert not pulls.comes_again(one, QUEUE, 5)


def test_what_is_remembered_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sent_back, "QUEUES_MAX", 3)
    pulls, one, gone = SentBack(), connection(), connection()
    pulls.comes_again(gone, QUEUE, 0)
    for queue_id in range(7):
        assert not pulls.comes_again(one, ("g", "T", queue_id), 0)
    assert len(pulls._offsets[one]) <= 3
    del gone
    assert len(pulls._offsets) == 1
