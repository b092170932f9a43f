"""Queues that cannot be read are said once for all queues of a broker, where that is the reason."""

import logging

import pytest

from pymq.client.group.unread import say_unread
from pymq.errors import (
    ConnectionFailed,
    NoPermission,
    PymqError,
    ServiceNotAvailable,
    SystemBusy,
)
from pymq.net.said_once import SaidOnce
from pymq.protocol.bodies import MessageQueue


@pytest.mark.parametrize(
    ("error", "count"),
    [
        (ConnectionFailed("it is away"), 1),
        (SystemBusy("a slave that nobody may read from", code=2), 1),
        (ServiceNotAvailable("a slave that knows of no offsets", code=14), 1),
        (NoPermission("not this queue", code=16), 3),
    ],
)
def test_what_fails_at_all_queues_of_a_broker_is_said_once(
    error: PymqError, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    troubles = SaidOnce(logging.getLogger("test"))
    causes = [say_unread(troubles, "g", MessageQueue("T", "a", n), error) for n in range(3)]
    said = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert len(said) == len(set(causes)) == count
    assert str(error) in said[0] and "'a'" in said[0]
