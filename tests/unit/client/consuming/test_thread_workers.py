"""Handlers in threads that stop while a message is on its way to them."""

import asyncio
import threading
from typing import Any

import pytest
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


def test_where_not_all_threads_can_be_had_none_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the handler would be called although ``run`` has raised."""
    handled: list[int] = []
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def start_some(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    async def test() -> None:
        inbox = Inbox(FlowLimits())
        nobody: Any = FakePool()
        outcomes = Outcomes(inbox, nobody, nobody, consume_timeout_s=900)
        calls = Calls(lambda message: handled.append(message.queue_offset), None, outcomes, None)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", start_some)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                ThreadWorkers(ThreadInbox(inbox, outcomes), calls, 4, "g")
        inbox.deliver(ProcessQueue(QUEUE, 0), [message_at(0)], 1)
        async with asyncio.timeout(DEADLINE_S):
            while any(thread.is_alive() for thread in started):
                await asyncio.sleep(0.01)
        left = inbox.take_nowait()
        assert handled == [] and left is not None and left.message.queue_offset == 0

    asyncio.run(test())
