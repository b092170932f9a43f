"""Handlers in threads that stop while a message is on its way to them."""

import asyncio
from typing import Any

from tests.unit.client.consuming.test_outcomes import QUEUE, FakePool, message_at

from pymq.client.consuming.outcomes import Outcomes
from pymq.client.consuming.thread_inbox import ThreadInbox
from pymq.client.consuming.thread_workers import ThreadWorkers
from pymq.client.consuming.workers import Calls
from pymq.client.group.inbox import FlowLimits, Inbox
from pymq.client.group.process_queue import ProcessQueue
from pymq.protocol.message import ReceivedMessage

DEADLINE_S = 60.0


def test_a_message_that_comes_while_the_threads_are_stopped_stays_in_the_inbox() -> None:
    handled: list[int] = []

    def handle(message: ReceivedMessage) -> None:
        handled.append(message.queue_offset)

    async def test() -> None:
        inbox = Inbox(FlowLimits())
        nobody: Any = FakePool()
        outcomes = Outcomes(inbox, nobody, nobody, consume_timeout_s=900)
        calls = Calls(handle, None, outcomes, None)
        workers = ThreadWorkers(ThreadInbox(inbox, outcomes), calls, 2, "g")
        async with asyncio.timeout(DEADLINE_S):
            while not (workers._are_idle() and inbox._takers):
                await asyncio.sleep(0.001)
            inbox.deliver(ProcessQueue(QUEUE, 0), [message_at(0)], 1)
            workers.stop()  # in the same turn of the loop
            await workers.wait_end()
        left = inbox.take_nowait()
        assert handled == [] and left is not None and left.message.queue_offset == 0

    asyncio.run(test())
