"""Messages that are sent to other groups: what a time without an answer says of a connection."""

import asyncio
from typing import Any

import pytest

from pymq.broker.escape.brokers import Place
from pymq.broker.escape.writer import RemoteWriter
from pymq.broker.log_writer import Outcome
from pymq.errors import RequestTimeout
from pymq.protocol.command import Command
from pymq.protocol.record import NewRecord


class Others:
    """Another broker, and the connection to it, over which one message is not answered."""

    def __init__(self, *, answers_others: bool) -> None:
        self._answers_others = answers_others
        self.read_at = 0.0
        self.is_aborted = False

    async def place(self, topic: str, queue_id: int) -> Place:
        return Place("other", "h:1", queue_id)

    async def channel(self, address: str) -> "Others":
        return self

    def failed(self, topic: str) -> None:
        pass

    async def request(self, command: Command, timeout_s: float, *, description: str) -> Command:
        await asyncio.sleep(0)
        if self._answers_others:
            self.read_at = asyncio.get_running_loop().time()
        raise RequestTimeout("no answer")

    def abort(self) -> None:
        self.is_aborted = True

    def close(self) -> None:
        pass


@pytest.mark.parametrize("answers_others", [True, False])
def test_only_a_connection_that_is_silent_is_given_up(answers_others: bool) -> None:
    """What else is in flight there would be sent again, and a slow broker has it already."""

    async def test() -> None:
        others: Any = Others(answers_others=answers_others)
        writer = RemoteWriter(others, "b")
        record = NewRecord("T", 0, b"x", b"", b"\x7f\0\0\1\0\0\x2a\x9f", 1)
        _, outcome = await writer._send(record)
        assert outcome is Outcome.FAILED
        assert others.is_aborted is not answers_others
        await writer.close()

    asyncio.run(test())
