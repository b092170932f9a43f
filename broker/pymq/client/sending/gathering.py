"""What a batcher has gathered: messages, encoded, and who waits for their receipts."""

import asyncio
import concurrent.futures
from collections.abc import Iterator
from typing import TypeAlias

from pymq.client.sending.placement import Placement
from pymq.client.sending.receipts import SendReceipt
from pymq.protocol.message import Message

#: What waits for the receipt of a message, here or in a thread.
Answer: TypeAlias = asyncio.Future[SendReceipt] | concurrent.futures.Future[SendReceipt]


class Run:
    """Messages that go out together. Columns, because an object of each would keep the garbage
    collector busy for as long as it takes to send them.

    Attributes:
        messages: of each, if there are hooks, which look at them; else none.
        wheres: of each.
        answers: futures, of this event loop or of threads.
        parts: what the body of a batch has of each.
        message_ids: of each.
        size_bytes: of all parts.
    """

    __slots__ = ("answers", "message_ids", "messages", "parts", "size_bytes", "wheres")

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.parts: list[bytes] = []
        self.message_ids: list[str] = []
        self.wheres: list[Placement | None] = []
        self.answers: list[Answer] = []
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self.answers)

    def add(
        self,
        part: bytes,
        message_id: str,
        where: Placement | None,
        answer: Answer,
        message: Message | None,
    ) -> None:
        """Append a message."""
        if message is not None:
            self.messages.append(message)
        self.parts.append(part)
        self.message_ids.append(message_id)
        self.wheres.append(where)
        self.answers.append(answer)
        self.size_bytes += len(part)

    def move(self, at: int, to: "Run") -> None:
        """Append one of these to another run; whoever does it drops this run."""
        to.add(
            *(self.parts[at], self.message_ids[at], self.wheres[at], self.answers[at]),
            self.messages[at] if self.messages else None,
        )

    def split(self, count_max: int, bytes_max: int) -> "Iterator[Run]":
        """Yield what fits in one batch each: much may have been gathered while others were sent."""
        some = Run()
        for at, part in enumerate(self.parts):
            if some.answers and (
                some.size_bytes + len(part) > bytes_max or len(some) >= count_max
            ):
                yield some
                some = Run()
            self.move(at, some)
        yield some


class Gathering:
    """What waits to be sent to one topic. ``busy``: placed messages of it are being sent."""

    __slots__ = ("busy", "run", "since_s", "timer")

    def __init__(self) -> None:
        self.run = Run()
        self.since_s = 0.0
        self.timer: asyncio.TimerHandle | None = None
        self.busy = False

    def end_waiting(self) -> None:
        """Wait for no other messages."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def take(self) -> Run:
        """Return what has been gathered; nothing is left."""
        self.end_waiting()
        run, self.run = self.run, Run()
        return run
