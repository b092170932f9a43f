"""After how many retries a popped message is a dead letter, by what its broker tells."""

import asyncio
from typing import Any

import pytest

from pymq.client.pulling import pop_burials
from pymq.client.pulling.pop_burials import RETRY_TIMES_DEFAULT, PopBurials
from pymq.errors import RequestNotSupported, RequestTimeout
from pymq.protocol.bodies import GroupConfig
from pymq.protocol.message import ReceivedMessage

LATE = RequestTimeout("late")
REFUSED = RequestNotSupported("no", code=3)
ENDLESS = GroupConfig(group="g", retry_queue_count=0)


class Broker:
    """Plays the pool, and the broker behind it."""

    def __init__(self, answers: list[GroupConfig | Exception]) -> None:
        self.answers = answers

    async def ask(self, channel: Any, operation: Any) -> GroupConfig:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def failed(times: int) -> ReceivedMessage:
    return ReceivedMessage("T", b"x", {}, "b", 0, 0, 0, 0, 0, b"", b"", reconsume_times=times)


@pytest.mark.parametrize(
    "answers, retries",
    [
        ([LATE], None),
        ([REFUSED], RETRY_TIMES_DEFAULT),
        ([LATE, REFUSED], RETRY_TIMES_DEFAULT),
        ([GroupConfig(group="g", retry_max_times=3), LATE], 3),
        ([GroupConfig(group="g", retry_max_times=3), REFUSED], 3),
        ([LATE, ENDLESS], None),
        ([ENDLESS, LATE], None),
        ([ENDLESS, REFUSED], None),
        ([REFUSED, ENDLESS], None),
    ],
)
def test_what_a_broker_told_counts_and_else_the_default(
    monkeypatch: pytest.MonkeyPatch,
    answers: list[GroupConfig | Exception],
    retries: int | None,
) -> None:
    """It is asked for each message here; ``None``: no message is a dead letter."""
    monkeypatch.setattr(pop_burials, "SETTINGS_AGE_S", 0.0)

    async def is_due_after(times: int) -> bool:
        pool: Any = Broker(list(answers))
        channel: Any = None
        burials = PopBurials(pool, "g")
        for _ in answers:
            is_due = await burials.is_due(channel, failed(times))
        return is_due

    if retries is None:
        assert not asyncio.run(is_due_after(1000))
    else:
        assert not asyncio.run(is_due_after(retries))
        assert asyncio.run(is_due_after(retries + 1))
