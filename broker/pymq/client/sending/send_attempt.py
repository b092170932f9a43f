"""One message, or batch, that is being sent: its bytes, and what is done with the answer."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from pymq.client.sending.placement import Placement
from pymq.client.sending.queue_selection import TopicQueues
from pymq.client.sending.receipts import SendReceipt, read_receipt, read_receipts
from pymq.client.sending.send_history import SendHistory
from pymq.client.sending.send_template import SEND, SEND_BATCH, SendTemplate
from pymq.errors import ConnectionFailed, PymqError
from pymq.net.channel import AsyncChannel
from pymq.protocol.codes import MQ_VERSION_TIMERS
from pymq.protocol.command import Command

R = TypeVar("R")

#: Bodies up to this size are copied behind their header.
_JOIN_BYTES_MAX = 4096


class SendOwner(Protocol):
    """Who made a send."""

    def broker_failed(self, template: SendTemplate, error: PymqError) -> None:
        """An attempt failed at a certain broker."""

    def retry(self, send: "SendAttempt[Any]", error: PymqError) -> None:
        """The first attempt failed; try again, or call ``failed``."""

    def ended(self, send: "SendAttempt[Any]") -> None:
        """The future is done."""

    def abandoned(self, send: "SendAttempt[Any]") -> None:
        """It will end without an answer."""


class SendAttempt(Generic[R]):
    """What is being sent with one request: its bytes, and what is done with the answer.

    Times are those of the event loop, in seconds. Plain attributes and arguments by position:
    one is made for every message.
    """

    __slots__ = (
        "attempted_s",
        "body",
        "born_ms",
        "deadline_s",
        "flag",
        "future",
        "history",
        "is_ended",
        "owner",
        "placement",
        "properties",
        "size_bytes",
        "started_s",
        "sys_flag",
        "template",
        "topic",
    )

    #: May it be sent again after an attempt that may have stored it?
    MAY_REPEAT = True
    #: Version of the protocol that the broker must have; 0: any.
    NEEDS_VERSION = 0
    #: Is something asked of a broker before it is sent there?
    ASKS_FIRST = False
    #: Is it a half message?
    IS_HALF = False
    #: Of the request.
    CODE = SEND
    #: Where the last attempt went; ``None``: nowhere yet.
    template: SendTemplate | None

    def __init__(
        self,
        owner: SendOwner,
        future: asyncio.Future[R],
        topic: str,
        body: bytes,
        properties: str,
        born_ms: int,
        sys_flag: int,
        flag: int,
        placement: Placement | None,
        started_s: float,
        deadline_s: float,
    ) -> None:
        self.owner = owner
        self.future = future
        self.topic = topic
        self.body = body
        self.properties = properties
        self.born_ms = born_ms
        self.sys_flag = sys_flag
        self.flag = flag
        #: What decides on the queue; ``None``: it is the one whose turn it is.
        self.placement = placement
        self.started_s = started_s
        #: When the last attempt was made.
        self.attempted_s = started_s
        #: When it is given up.
        self.deadline_s = deadline_s
        self.size_bytes = len(body) + len(properties)
        self.template = None
        self.is_ended = False
        #: Failed attempts; ``None``: none has.
        self.history: SendHistory | None = None

    def restart(self, started_s: float, limit_s: float) -> None:
        """Count its time from here on: a thread has made it, and had to wait for the loop."""
        self.started_s = self.attempted_s = started_s
        self.deadline_s = started_s + limit_s

    @property
    def is_stored(self) -> bool:
        """Has a broker said so?"""
        future = self.future
        return future.done() and not future.cancelled() and future.exception() is None

    def attempt_failed(self, error: PymqError, now_s: float) -> SendHistory:
        """Record the end of an attempt; one that may have stored it is not forgotten."""
        history = self.history
        if history is None:
            self.history = history = SendHistory()
        where = "no broker"
        if self.template is not None:
            queue = self.template.queue
            where = f"{queue.broker_name} queue {queue.queue_id}"
        history.add(error, where, now_s - self.started_s)
        return history

    def choose(self, queues: TopicQueues, avoid: set[str]) -> SendTemplate:
        """Return where it goes.

        Raises:
            LocalProtocolError: the queue it must go to is not there.
        """
        if self.placement is None:
            return queues.next(avoid)
        return self.placement.choose(queues)

    async def ask_first(self, channel: AsyncChannel) -> None:
        """Ask what must be known of a connection before it is sent over it."""

    def attempt(self, channel: AsyncChannel, template: SendTemplate, timeout_s: float) -> None:
        """Send it; ``answered`` will be called with the outcome.

        Raises:
            ConnectionFailed: the connection is closed; nothing was sent.
            LocalProtocolError: it cannot be encoded.
            TooManyPending: the connection has too many unanswered requests.
        """
        self.template = template
        self.request(channel, template, timeout_s, self.answered)

    def request(
        self,
        channel: AsyncChannel,
        template: SendTemplate,
        timeout_s: float,
        on_answer: Callable[[Command | PymqError], None],
    ) -> None:
        """Send it; ``on_answer`` gets the outcome. Raises what ``attempt`` does."""
        until_s = self.deadline_s
        if template.has_other and self.placement is None and self.MAY_REPEAT:
            until_s -= timeout_s  # which another broker has then
        opaque = channel.register(template.description, timeout_s, on_answer, until_s=until_s)
        try:
            self.write(channel, template, opaque)
        except BaseException:
            channel.forget(opaque)
            raise

    def write(
        self, channel: AsyncChannel, template: SendTemplate, opaque: int, command_flag: int = 0
    ) -> None:
        """Put its frame on the connection."""
        body = self.body
        head = template.head(
            opaque,
            len(body),
            self.properties,
            sys_flag=self.sys_flag,
            born_ms=self.born_ms,
            flag=self.flag,
            command_flag=command_flag,
            code=self.CODE,
        )
        if len(body) <= _JOIN_BYTES_MAX:
            channel.send(head + body)
        else:
            channel.send(head, body)

    def answered(self, answer: Command | PymqError) -> None:
        """Complete the future, or let the owner try again."""
        template = self.template
        assert template is not None
        if isinstance(answer, PymqError):
            self.owner.broker_failed(template, answer)
            self.owner.retry(self, answer)
            return
        try:
            result = self.read(answer, template)
        except PymqError as error:
            self.owner.broker_failed(template, error)
            self.owner.retry(self, error)
        else:
            self.succeeded(result)

    def read(self, answer: Command, template: SendTemplate) -> R:
        """Return what an answer means.

        Raises:
            BrokerError: the broker refused it.
            RemoteProtocolError: it is not an answer to a send.
        """
        raise NotImplementedError

    def succeeded(self, result: R) -> None:
        """It is stored."""
        if not self.future.done():
            self.future.set_result(result)
        self._end()

    def failed(self, error: BaseException) -> None:
        """It is given up."""
        if not self.future.done():
            if isinstance(error, PymqError) and self.history is not None:
                error = self.history.final(error, self.deadline_s - self.started_s)
            self.future.set_exception(error)
        self._end()

    def abandoned(self, task: asyncio.Task[None]) -> None:
        """The task that pursued it is over; nothing must stay waiting."""
        if not self.is_ended:
            self.owner.abandoned(self)
            bug = None if task.cancelled() else task.exception()
            text = f"the producer was closed before a message to {self.topic!r} was answered"
            self.failed(bug or ConnectionFailed(text, sent=True))

    def _end(self) -> None:
        assert not self.is_ended
        self.is_ended = True
        self.owner.ended(self)


class MessageSend(SendAttempt[SendReceipt]):
    """The send of one message.

    Attributes:
        message_id: of the message.
    """

    __slots__ = ("message_id",)

    message_id: str

    def read(self, answer: Command, template: SendTemplate) -> SendReceipt:
        return read_receipt(answer, template, self.message_id)


class TimerSend(MessageSend):
    """The send of a message with a delivery time of its own. It takes the way with waiting."""

    __slots__ = ()

    NEEDS_VERSION = MQ_VERSION_TIMERS


class BatchSend(SendAttempt[list[SendReceipt]]):
    """The send of several messages to one queue.

    Attributes:
        message_ids: of its messages, in their order.
        is_abandoned: did its event loop end before it was answered?
    """

    __slots__ = ("is_abandoned", "message_ids")

    CODE = SEND_BATCH
    is_abandoned: bool
    message_ids: Sequence[str]

    def abandoned(self, task: asyncio.Task[None]) -> None:
        self.is_abandoned = not self.is_ended
        super().abandoned(task)

    def read(self, answer: Command, template: SendTemplate) -> list[SendReceipt]:
        return read_receipts(answer, template, self.message_ids)
