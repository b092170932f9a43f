"""Answers about many queues: a topic has up to 65,536 of them, and a group many topics.

One such answer is made at a time, in turns of the event loop, so that neither its time nor its
memory (100 MB for 65,536 queues, while it is made) is felt by others. A thread would do worse: it
and the event loop would take the interpreter from each other.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from pymq.errors import refusal
from pymq.protocol import fastjson
from pymq.protocol.codes import ResponseCode
from pymq.protocol.json_object import JsonObject

T = TypeVar("T")

#: Queues that are looked at, and parts of an answer that are written, in one turn.
QUEUES_A_TURN, _PARTS_A_TURN = 1000, 4000
#: What is said of more queues does not fit into a frame (``framing.FRAME_BYTES_MAX``).
QUEUES_MAX = 2 * 65_536
#: Long answers that may wait until it is their turn.
_WAITING_MAX = 3


class LongAnswers:
    """Makes long answers one after the other."""

    def __init__(self) -> None:
        self._one = asyncio.Lock()
        self._waiting = 0

    @asynccontextmanager
    async def turn(self, queue_count: int, instead: str) -> AsyncIterator[None]:
        """Hold this while an answer is made.

        Args:
            queue_count: how many queues it is about.
            instead: what to ask for if that is too many.

        Raises:
            BrokerError: it is too long, or too many are asked for.
        """
        if queue_count <= QUEUES_A_TURN:
            yield
            return
        if queue_count > QUEUES_MAX:
            raise refusal(
                ResponseCode.SYSTEM_ERROR,
                f"the answer would be about {queue_count} queues, which does not fit into a frame, "
                f"expected at most {QUEUES_MAX}; {instead}",
            )
        if self._waiting > _WAITING_MAX:
            raise refusal(
                ResponseCode.SYSTEM_BUSY,
                f"{self._waiting} answers about more than {QUEUES_A_TURN} queues are being made; "
                "ask again",
            )
        self._waiting += 1
        try:
            async with self._one:
                yield
        finally:
            self._waiting -= 1


async def in_turns(queues: Sequence[T]) -> AsyncIterator[Sequence[T]]:
    """Yield queues some at a time; between those others have a turn."""
    for first in range(0, len(queues), QUEUES_A_TURN):
        if first:
            await asyncio.sleep(0)
        yield queues[first : first + QUEUES_A_TURN]


async def encoded(body: JsonObject) -> bytes:
    """Return a body as it is sent."""
    parts = []
    for number, part in enumerate(fastjson.parts(body.to_json()), 1):
        parts.append(part)
        if number % _PARTS_A_TURN == 0:
            await asyncio.sleep(0)
    return b"".join(parts)
