"""What a batcher has gathered: messages, encoded, and who waits for their receipts."""

import asyncio
import concurrent.futures
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias

from pymq.client.sending.placement import Placement
from pymq.client.sending.queue_selection import TopicQueues
from pymq.client.sending.receipts import SendReceipt
from pymq.errors import ClientClosed, PymqError
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.message import Message

#: What waits for the receipt of a message, here or in a thread.
Answer: TypeAlias = asyncio.Future[SendReceipt] | concurrent.futures.Future[SendReceipt]


class Feeder(Protocol):
    """What has messages of threads and hands them over, in the event loop."""

    @property
    def _handed_count(self) -> int:
        """Messages that it has."""

    async def _take_all(self) -> None:
        """Hand over everything that it has now."""

    def _refuse(self, error: PymqError) -> None:
        """Fail everything that it has, each with an error like this one."""


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

    def sort(
        self, queues: TopicQueues
    ) -> "tuple[dict[MessageQueue, Run], list[tuple[Run, Exception]]]":
        """Move messages with places to runs of their queues; who does it drops this one.

        Returns:
            What goes to each queue, and what has none, with the reason.
        """
        by_queue: dict[MessageQueue, Run] = {}
        refused: list[tuple[Run, Exception]] = []
        for at, where in enumerate(self.wheres):
            assert where is not None
            try:
                # A certain queue may be waited for; see ``TopicQueues.exactly``.
                queue = where.queue or where.choose(queues).queue
            except Exception as error:  # a selector is the user's
                refused.append((Run(), error))
                self.move(at, refused[-1][0])
            else:
                self.move(at, by_queue.setdefault(queue, Run()))
        return by_queue, refused

    def answer(self, receipts: Sequence[SendReceipt]) -> None:
        """Hand each message its receipt. Raises what ``fail`` does."""
        # Not one after the other: their lengths are compared before the first one.
        _tell(list(zip(self.answers, receipts, strict=True)))

    def fail(self, error: BaseException) -> None:
        """Fail those that have no outcome yet.

        Raises:
            SystemExit: the callback of a future raised it; the others have been told all the same.
        """
        _tell((answer, error) for answer in self.answers)


def _tell(outcomes: "Iterable[tuple[Answer, SendReceipt | BaseException]]") -> None:
    """End futures, those of threads with calls of what the program wants to be called."""
    ended: BaseException | None = None
    left = iter(outcomes)
    while True:
        try:
            for answer, outcome in left:
                if answer.done():
                    continue
                if isinstance(outcome, BaseException):
                    answer.set_exception(own_error(outcome))
                else:
                    answer.set_result(outcome)
            break
        except BaseException as error:  # sys.exit() in a callback: the others hear of theirs
            ended = ended or error
    if ended is not None:
        raise ended


def own_error(error: BaseException) -> BaseException:
    """Return an error for one of several places.

    One exception that is raised in several has the tracebacks of all.
    """
    return error.retold(str(error)) if isinstance(error, PymqError) else error


def closed_meanwhile() -> ClientClosed:
    """Return the error of what was sent and cancelled."""
    return ClientClosed("the producer was closed meanwhile", sent=True)


def copy_outcome(done: asyncio.Future[SendReceipt], answer: Answer) -> None:
    """Hand the outcome of a message that went alone to who waits for it."""
    if answer.done():
        return
    if done.cancelled():
        answer.set_exception(closed_meanwhile())
    elif (error := done.exception()) is not None:
        answer.set_exception(error)
    else:
        answer.set_result(done.result())


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
