"""Delivery, limits and the end of it, without a socket."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.unit.client.group.test_process_queue import QUEUE, message

from pymq.client.group.inbox import FlowLimits, Inbox
from pymq.client.group.process_queue import ProcessQueue
from pymq.errors import ConfigurationError

DEADLINE_S = 60.0


def check(test: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await asyncio.wait_for(test(), DEADLINE_S)

    asyncio.run(run())


def filled(inbox: Inbox, count: int, first: int = 0) -> ProcessQueue:
    queue = ProcessQueue(QUEUE, first)
    inbox.deliver(queue, [message(n) for n in range(first, first + count)], first + count)
    return queue


def test_messages_are_taken_in_order_and_counted_until_finished() -> None:
    async def test() -> None:
        inbox = Inbox(FlowLimits())
        queue = filled(inbox, 3)
        deliveries = [await inbox.take() for _ in range(3)]
        assert [d.message.queue_offset for d in deliveries if d] == [0, 1, 2]
        assert (inbox.message_count, inbox.message_bytes) == (3, 12)
        for delivery in deliveries:
            assert delivery is not None
            inbox.acknowledge(delivery)
            inbox.acknowledge(delivery)
        assert (inbox.message_count, inbox.message_bytes, queue.commit_offset) == (0, 0, 3)

    check(test)


def test_takers_that_do_not_wait_any_more_leave_nothing_behind() -> None:
    """What is polled with a time limit, and quiet, would grow for as long as nothing comes."""

    async def test() -> None:
        inbox = Inbox(FlowLimits())
        patient = asyncio.ensure_future(inbox.take())
        for _ in range(10):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await inbox.take()
        assert len(inbox._takers) == 1
        filled(inbox, 1)
        assert await patient is not None

    check(test)


def test_takers_wait_and_each_message_has_one() -> None:
    async def test() -> None:
        inbox = Inbox(FlowLimits())
        takers = [asyncio.ensure_future(inbox.take()) for _ in range(3)]
        await asyncio.sleep(0)
        filled(inbox, 2)
        while sum(taker.done() for taker in takers) < 2:
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        (waiting,) = [taker for taker in takers if not taker.done()]
        inbox.close()
        assert await waiting is None

    check(test)


def test_a_cancelled_taker_passes_its_message_on() -> None:
    async def test() -> None:
        inbox = Inbox(FlowLimits())
        first, second = (asyncio.ensure_future(inbox.take()) for _ in range(2))
        await asyncio.sleep(0)
        filled(inbox, 1)
        first.cancel()  # it was woken, and has not run yet
        delivery = await second
        assert delivery is not None and delivery.message.queue_offset == 0

    check(test)


def test_takers_that_never_wait_share_one_turn_of_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pymq.client.group.inbox.TURN_S", -1.0)  # over after each message
    events: list[str] = []

    async def test() -> None:
        inbox = Inbox(FlowLimits())
        filled(inbox, 60)

        async def take_all(name: str) -> None:
            while await inbox.take_in_turn() is not None:
                events.append(name)

        takers = [asyncio.ensure_future(take_all(f"taker {n}")) for n in range(3)]
        while len(events) - events.count("other") < 60:
            events.append("other")
            await asyncio.sleep(0)
        inbox.close()
        await asyncio.gather(*takers)

    check(test)
    taken = [one for one in events if one != "other"]
    assert all("other" in pair for pair in zip(events, events[1:], strict=False))
    assert {taken.count(name) for name in set(taken)} == {20}


def test_a_full_queue_pauses_until_a_quarter_is_done() -> None:
    async def test() -> None:
        inbox = Inbox(FlowLimits(queue_messages_max=8))
        queue = filled(inbox, 8)
        waiting = asyncio.ensure_future(inbox.wait_room(queue))
        await asyncio.sleep(0)
        for finished in range(1, 4):
            delivery = await inbox.take()
            assert delivery is not None
            inbox.acknowledge(delivery)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert waiting.done() == (finished > 2)
        assert await waiting == 3

    check(test)


def test_one_message_at_a_time_goes_on() -> None:
    async def test() -> None:
        inbox = Inbox(FlowLimits(queue_messages_max=1, messages_max=1, span_max=1))
        queue = ProcessQueue(QUEUE, 0)
        for offset in range(3):
            waiting = asyncio.ensure_future(inbox.wait_room(queue))
            await asyncio.sleep(0)
            delivery = inbox.take_nowait()
            if delivery is not None:
                inbox.acknowledge(delivery)
            assert await waiting == 1
            inbox.deliver(queue, [message(offset)], offset + 1)

    check(test)


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param(FlowLimits(messages_max=4), id="messages in all"),
        pytest.param(FlowLimits(bytes_max=16), id="bytes in all"),
        pytest.param(FlowLimits(queue_bytes_max=16), id="bytes of a queue"),
        pytest.param(FlowLimits(span_max=4), id="span"),
    ],
)
def test_every_limit_pauses_and_a_dropped_queue_frees_its_share(limits: FlowLimits) -> None:
    async def test() -> None:
        inbox = Inbox(limits)
        full = filled(inbox, 4)
        asking = (
            full if limits.messages_max > 4 and limits.bytes_max > 16 else ProcessQueue(QUEUE, 0)
        )
        waiting = asyncio.ensure_future(inbox.wait_room(asking))
        await asyncio.sleep(0)
        assert not waiting.done()
        inbox.drop(full)
        inbox.drop(full)
        assert (inbox.message_count, inbox.message_bytes) == (0, 0)
        if asking is not full:
            assert await waiting > 0
        waiting.cancel()

    check(test)


def test_a_dropped_queue_delivers_nothing_and_finishing_it_changes_nothing() -> None:
    async def test() -> None:
        inbox = Inbox(FlowLimits())
        dropped = filled(inbox, 2)
        delivery = await inbox.take()
        assert delivery is not None
        inbox.drop(dropped)
        filled(inbox, 1, first=50)
        following = await inbox.take()
        assert following is not None and following.message.queue_offset == 50
        inbox.acknowledge(delivery)
        inbox.put_back(delivery)
        assert inbox.take_nowait() is None
        assert (inbox.message_count, dropped.commit_offset) == (1, 0)

    check(test)


def test_held_messages_are_returned_and_not_delivered() -> None:
    async def test() -> None:
        inbox = Inbox(FlowLimits())
        queue = ProcessQueue(QUEUE, 0)
        held = inbox.deliver(queue, [message(0), message(1), message(2)], 3, hold={1})
        assert [d.message.queue_offset for d in held] == [1]
        taken = [inbox.take_nowait(), inbox.take_nowait(), inbox.take_nowait()]
        assert [d.message.queue_offset for d in taken if d] == [0, 2]
        assert inbox.message_count == 3

    check(test)


def test_limits_are_checked() -> None:
    with pytest.raises(ConfigurationError, match="queue_messages_max=0"):
        FlowLimits(queue_messages_max=0)
