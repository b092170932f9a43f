"""Outcomes by name that Ctrl-C interrupts: what is decided is carried out, and once."""

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest
from tests.interrupting import Moments
from tests.unit.client.consuming.test_outcomes import Taken

from pymq.errors import AlreadySettled
from pymq.protocol.message import ReceivedMessage

COUNT = 100


def interrupted(messages: list[ReceivedMessage], settle: Callable[[ReceivedMessage], None]) -> int:
    """Settle messages, each interrupted a moment later than the one before; return how many."""
    moments = Moments()
    for at in moments:
        moments.call(lambda at=at: settle(messages[at]))  # type: ignore[misc]
    return moments.count


@pytest.mark.parametrize("name", ["ack", "retry"])
@pytest.mark.parametrize("is_told", [False, True])
def test_what_was_decided_is_carried_out_once(name: str, is_told: bool) -> None:
    def settle(message: ReceivedMessage) -> None:
        getattr(message, name)()

    async def test() -> None:
        taken = Taken(COUNT)
        count = await asyncio.to_thread(interrupted, taken.messages, settle)
        assert 3 < count < COUNT
        if is_told:
            await asyncio.sleep(0)  # The loop hears of some, in its turn.
        taken.outcomes.expire()
        await asyncio.sleep(0)
        taken.outcomes.carry_out_left()
        decided = [one for one in taken.deliveries if one.outcome is not None]
        assert decided
        if name == "retry":
            assert Counter(taken.sent_back) == Counter(decided)
        else:
            assert taken.inbox.in_hand == set(taken.deliveries) - set(decided)
        for message in taken.messages:
            if message._in_hand in taken.inbox.in_hand and message._in_hand not in decided:
                message.ack()  # What was not decided may be, later.
        left = COUNT - len(decided) if name == "ack" else len(decided)
        assert taken.inbox.message_count == (0 if name == "ack" else left)
        taken.outcomes.carry_out_left()
        assert not taken.outcomes._named

    asyncio.run(test())


def test_a_refused_outcome_keeps_no_message() -> None:
    async def test() -> None:
        taken = Taken(COUNT)

        def settle() -> None:
            taken.messages[0].ack()
            with pytest.raises(AlreadySettled):
                taken.messages[0].ack()
            for message in taken.messages[1:]:
                message.ack()

        await asyncio.to_thread(settle)
        await asyncio.sleep(0)
        assert not taken.outcomes._named and taken.inbox.message_count == 0

    asyncio.run(test())
