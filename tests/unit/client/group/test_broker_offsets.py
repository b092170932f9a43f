"""Commits that nobody waits for: what becomes of those that their broker does not take."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from pymq.client.group.broker_offsets import BrokerOffsets
from pymq.errors import ConnectionFailed, PymqError, RequestTimeout, TooManyPending
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.codes import ResponseCode
from pymq.protocol.command import Command

QUEUE = MessageQueue("T", "a", 0)
ADDRESS = "a:1"


class Broker:
    """Plays the pool, and the broker behind it, which answers with what is set."""

    address = ADDRESS
    timeout_s = 3.0

    def __init__(self, answer: ResponseCode | PymqError) -> None:
        self.routes = self
        self.answer = answer
        self.is_full = False
        self.commits: list[Command] = []
        self.heard: list[str] = []

    def find(self, topic: str) -> SimpleNamespace:
        return SimpleNamespace(masters=lambda: {QUEUE.broker_name: ADDRESS})

    def open_channel(self, address: str | None) -> "Broker":
        return self

    @contextmanager
    def hearing(self, address: str) -> Iterator[None]:
        self.heard.append(address)
        yield

    def request_nowait(self, request: Command, timeout_s: float) -> asyncio.Future[Command]:
        if self.is_full:
            raise TooManyPending("it answers nothing")
        self.commits.append(request)
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        if isinstance(self.answer, PymqError):
            future.set_exception(self.answer)
        else:
            future.set_result(request.reply(int(self.answer)))
        return future


@pytest.mark.parametrize(
    ("answer", "count"),
    [
        (ResponseCode.SUCCESS, 1),
        (ResponseCode.SERVICE_NOT_AVAILABLE, 2),  # a slave now, that may be read from
        (ResponseCode.SYSTEM_BUSY, 2),
        (ConnectionFailed("it was cut", sent=True), 2),
        (RequestTimeout("it is silent"), 2),
        # Its master has it.
        (ResponseCode.FLUSH_SLAVE_TIMEOUT, 1),
        # Now and then is often enough for what a second try does not mend.
        (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, 1),
    ],
)
def test_what_was_not_taken_is_told_again(answer: ResponseCode | PymqError, count: int) -> None:
    async def test() -> None:
        broker = Broker(answer)
        offsets = BrokerOffsets("g", QUEUE, broker)  # type: ignore[arg-type]
        for _ in range(2):
            assert offsets.commit_nowait(5)
            await asyncio.sleep(0)
        assert len(broker.commits) == count
        assert broker.heard == [ADDRESS] * count, "it may be no master any more"

    asyncio.run(test())


def test_a_broker_that_answers_nothing_is_not_told_more() -> None:
    async def test() -> None:
        broker = Broker(ResponseCode.SUCCESS)
        broker.is_full = True
        offsets = BrokerOffsets("g", QUEUE, broker)  # type: ignore[arg-type]
        assert not offsets.commit_nowait(5)
        broker.is_full = False
        assert offsets.commit_nowait(5)
        assert len(broker.commits) == 1

    asyncio.run(test())
