"""One message, or batch, that is being sent: its bytes, and what is done with the answer."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from pymq.client.operations import SendResult, may_send_elsewhere, read_send
from pymq.client.queue_selection import TopicQueues
from pymq.client.send_template import SendTemplate
from pymq.errors import ConnectionFailed, PymqError
from pymq.net.channel import AsyncChannel
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.command import Command

#: Bodies up to this size are copied behind their header.
_JOIN_BYTES_MAX = 4096


class SendOwner(Protocol):
    """Who made a send."""

    def broker_failed(self, template: SendTemplate, error: PymqError) -> None:
        """An attempt failed at a certain broker."""

    def retry(self, send: "SendAttempt", error: PymqError) -> None:
        """The first attempt failed; try again, or call ``failed``."""

    def ended(self) -> None:
        """The future is done."""


class SendAttempt:
    """One message, or batch, that is being sent: its bytes, and what is done with the answer."""

    __slots__ = (
        "attempts_left",
        "batch",
        "body",
        "born_ms",
        "flag",
        "future",
        "is_ended",
        "message_id",
        "owner",
        "properties",
        "queue",
        "sharding_key",
        "sys_flag",
        "template",
        "topic",
        "unknown",
    )

    #: Where the last attempt went.
    template: SendTemplate

    def __init__(
        self,
        owner: SendOwner,
        future: asyncio.Future[SendResult],
        topic: str,
        body: bytes,
        properties: str,
        message_id: str,
        born_ms: int,
        sys_flag: int,
        flag: int,
        batch: bool,
        queue: MessageQueue | None,
        sharding_key: str | None,
    ) -> None:
        self.owner = owner
        self.future = future
        self.topic = topic
        self.body = body
        self.properties = properties
        self.message_id = message_id
        self.born_ms = born_ms
        self.sys_flag = sys_flag
        self.flag = flag
        self.batch = batch
        self.queue = queue
        self.sharding_key = sharding_key
        self.attempts_left = 0
        self.is_ended = False
        #: Why an attempt may have stored it although it failed; ``None``: surely none has.
        self.unknown: PymqError | None = None

    @property
    def is_bound(self) -> bool:
        """Must it go to one certain queue?"""
        return self.queue is not None or self.sharding_key is not None

    def attempt_failed(self, error: PymqError) -> None:
        """Record the end of an attempt; one that may have stored it is not forgotten."""
        if not error.outcome_known:
            self.unknown = error

    def may_retry(self, error: PymqError) -> bool:
        """May it be tried again after this failure?"""
        if self.is_bound:
            # Another queue is not allowed, and a repetition on this one could change the
            # order: only what surely was not stored is tried again.
            return error.retriable and error.outcome_known
        return may_send_elsewhere(error)

    def choose(self, queues: TopicQueues, avoid: set[str]) -> SendTemplate:
        """Return where it goes.

        Raises:
            LocalProtocolError: the queue it must go to is not there.
        """
        if self.queue is not None:
            return queues.exactly(self.queue)
        if self.sharding_key is not None:
            return queues.of_key(self.sharding_key)
        return queues.next(avoid)

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
        opaque = channel.register(template.description, timeout_s, on_answer)
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
            batch=self.batch,
        )
        if len(body) <= _JOIN_BYTES_MAX:
            channel.send(head + body)
        else:
            channel.send(head, body)

    def answered(self, answer: Command | PymqError) -> None:
        """Complete the future, or let the owner try again."""
        if isinstance(answer, PymqError):
            self.owner.broker_failed(self.template, answer)
            self.owner.retry(self, answer)
            return
        try:
            template = self.template
            result = read_send(answer, template, self.message_id, peer=template.address)
        except PymqError as error:
            self.owner.retry(self, error)
        else:
            self.succeeded(result)

    def succeeded(self, result: SendResult) -> None:
        """It is stored."""
        if not self.future.done():
            self.future.set_result(result)
        self._end()

    def failed(self, error: BaseException) -> None:
        """It is given up."""
        if not self.future.done():
            if isinstance(error, PymqError):
                error = error.after_unknown(self.unknown)
            self.future.set_exception(error)
        self._end()

    def abandoned(self, task: asyncio.Task[None]) -> None:
        """The task that pursued it is over; nothing must stay waiting."""
        if not self.is_ended:
            bug = None if task.cancelled() else task.exception()
            text = f"the producer was closed before a message to {self.topic!r} was answered"
            self.failed(bug or ConnectionFailed(text, sent=True))

    def _end(self) -> None:
        assert not self.is_ended
        self.is_ended = True
        self.owner.ended()
