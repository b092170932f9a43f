"""Messages of RocketMQ as FastStream sees them, and what sends them."""

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

from faststream._internal.constants import EMPTY, ContentTypes
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import IncorrectState
from faststream.message import StreamMessage, decode_message
from faststream.response.publish_type import PublishType
from faststream.response.response import PublishCommand, Response

from pymq.client.sending.producer import Producer
from pymq.client.sending.requests import Reply
from pymq.errors import NotInHand
from pymq.protocol.message import (
    CORRELATION_ID,
    REPLY_TO_CLIENT,
    SYSTEM_PROPERTIES,
    Message,
    ReceivedMessage,
)

_log = logging.getLogger(__name__)

#: Properties of messages that are FastStream's own; other headers are properties, too.
CONTENT_TYPE = "content-type"
CORRELATION = "correlation_id"
REPLY_TO = "reply_to"
_OWN = {CONTENT_TYPE, CORRELATION, REPLY_TO}
#: The ``reply_to`` of requests of RocketMQ, which are answered to whoever asked.
REQUEST = "rocketmq:request"


class RocketMessage(StreamMessage[Any]):
    """A message of RocketMQ in FastStream; ``raw_message`` is the ``ReceivedMessage``.

    Attributes:
        is_manual: does its handler settle it (``AckPolicy.MANUAL``), and hear of ``NotInHand``?
    """

    is_manual = False

    async def ack(self) -> None:
        """It was handled.

        Raises:
            NotInHand: with ``AckPolicy.MANUAL``; the message is delivered again.
        """
        if self.committed is None:
            self._settle(self.raw_message.ack)
        await super().ack()

    async def nack(self, after_s: float | None = None) -> None:
        """It is delivered again later.

        Args:
            after_s: then; ``None``: longer after each try, as the group's settings say.

        Raises:
            NotInHand: as for ``ack``.
        """
        if self.committed is None:
            self._settle(functools.partial(self.raw_message.retry, after_s=after_s))
        await super().nack()

    async def reject(self, reason: str = "rejected by its handler") -> None:
        """It becomes a dead letter.

        Args:
            reason: kept in the dead letter.

        Raises:
            NotInHand: as for ``ack``.
        """
        if self.committed is None:
            self._settle(functools.partial(self.raw_message.reject, reason))
        await super().reject()

    def _settle(self, settle: Callable[[], object]) -> None:
        try:
            settle()
        except NotInHand as error:
            if self.is_manual:
                raise
            # A policy settles it. FastStream would log a traceback for each handler that is at work
            # when its queue goes to another member, or its broker away, as is said of the queue.
            _log.info("%s", error)


async def parse_message(raw: ReceivedMessage | Reply) -> RocketMessage:
    """Return a message, or the answer to a request, for FastStream."""
    properties = raw.properties
    reply_to = properties.get(REPLY_TO, "")
    if not reply_to and REPLY_TO_CLIENT in properties and isinstance(raw, ReceivedMessage):
        reply_to = REQUEST
    return RocketMessage(
        raw_message=raw,
        body=raw.body,
        headers={
            name: value
            for name, value in properties.items()
            if name not in SYSTEM_PROPERTIES and name not in _OWN
        },
        reply_to=reply_to,
        content_type=properties.get(CONTENT_TYPE),
        correlation_id=properties.get(CORRELATION) or properties.get(CORRELATION_ID),
        message_id=raw.message_id if isinstance(raw, ReceivedMessage) else None,
    )


async def decode(message: StreamMessage[Any]) -> Any:
    """Return the body of a message as its content type says."""
    return decode_message(message)


class RocketResponse(Response):
    """What a handler returns to choose more than the body of what is published.

    Args:
        body: to send.
        headers, correlation_id: as for ``publish``.
        tags, keys, sharding_key, delay_s: of the message.
    """

    def __init__(
        self,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        tags: str | None = None,
        keys: Sequence[str] | str = (),
        sharding_key: str | None = None,
        delay_s: float | None = None,
    ) -> None:
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        given = {"tags": tags, "keys": keys, "delay_s": delay_s}
        self.options = {name: value for name, value in given.items() if value}
        self.sharding_key = sharding_key

    def as_publish_command(self) -> "RocketCommand":
        """Called by FastStream."""
        return RocketCommand(
            self.body,
            headers=self.headers,
            correlation_id=self.correlation_id,
            sharding_key=self.sharding_key,
            publish_type=PublishType.PUBLISH,
            options=self.options,
        )


class RocketCommand(PublishCommand):
    """What is to be published: FastStream's fields, and those of a ``Message``."""

    def __init__(
        self,
        body: Any,
        *,
        publish_type: PublishType,
        destination: str = "",
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        sharding_key: str | None = None,
        timeout_s: float | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(
            body,
            _publish_type=publish_type,
            destination=destination,
            headers=headers,
            correlation_id=correlation_id,
            reply_to=reply_to,
        )
        self.sharding_key = sharding_key
        self.timeout_s = timeout_s
        self.options = options or {}
        #: The bodies, for a batch; ``None``: ``body`` is the only one.
        self.bodies: tuple[Any, ...] | None = None
        #: What this answers.
        self.request: ReceivedMessage | None = None

    @classmethod
    def from_cmd(cls, cmd: PublishCommand) -> "RocketCommand":
        """Return a command of ours of any."""
        if isinstance(cmd, RocketCommand):
            return cmd
        return cls(
            cmd.body,
            publish_type=cmd.publish_type,
            destination=cmd.destination,
            headers=cmd.headers,
            correlation_id=cmd.correlation_id,
            reply_to=cmd.reply_to,
        )


class RocketProducer(ProducerProto[RocketCommand]):
    """Sends what FastStream publishes. For one event loop.

    Args:
        parser, decoder: of the user, for answers to requests.
    """

    def __init__(self, parser: Any = None, decoder: Any = None) -> None:
        self._parser = ParserComposition(parser, parse_message)
        self._decoder = ParserComposition(decoder, decode)
        self.codec: Any = DefaultCodec()
        self._serializer: Any = None
        self._client: Producer | None = None

    def connect(self, client: Producer, serializer: Any, codec: Any) -> None:
        """Use a producer that is open."""
        self._client, self._serializer = client, serializer
        self.codec = codec or DefaultCodec()

    def disconnect(self) -> None:
        """Use it no more."""
        self._client = None

    @property
    def _open(self) -> Producer:
        if self._client is None:
            raise IncorrectState("the broker is not connected: `await broker.connect()` before")
        return self._client

    async def _message(self, cmd: RocketCommand, body: Any) -> Message:
        payload, content_type = await self.codec.encode(body, self._serializer)
        if body is None and not payload:
            # RocketMQ has no empty bodies: this is None for who reads it, too.
            payload, content_type = b"null", ContentTypes.JSON.value
        properties = {name: str(value) for name, value in cmd.headers.items()}
        own = {CONTENT_TYPE: content_type, CORRELATION: cmd.correlation_id, REPLY_TO: cmd.reply_to}
        properties |= {name: value for name, value in own.items() if value}
        options = {name: value for name, value in cmd.options.items() if value}
        return Message(cmd.destination, bytes(payload), properties=properties, **options)

    async def publish(self, cmd: RocketCommand) -> Any:
        """Send a message, or answer a request; returns the receipt."""
        message = await self._message(cmd, cmd.body)
        if cmd.request is not None:
            return await self._open.reply(
                cmd.request, message.body, tags=message.tags, properties=message.properties
            )
        return await self._open.send(message, sharding_key=cmd.sharding_key)

    async def publish_batch(self, cmd: RocketCommand) -> Any:
        """Send messages of one topic with as few requests as possible; returns the receipts."""
        bodies = cmd.batch_bodies if cmd.bodies is None else cmd.bodies
        return await self._open.send_batch([await self._message(cmd, body) for body in bodies])

    async def request(self, cmd: RocketCommand) -> Any:
        """Send a request and return the answer."""
        message = await self._message(cmd, cmd.body)
        return await self._open.request(
            message, sharding_key=cmd.sharding_key, deadline_s=cmd.timeout_s
        )


class ReplyPublisher(FakePublisher):
    """Publishes what a handler returns to whoever asked for it."""

    def __init__(self, producer: Any, message: StreamMessage[Any]) -> None:
        super().__init__(producer=producer)
        self._message = message

    def patch_command(self, cmd: PublishCommand) -> RocketCommand:
        """Called by FastStream."""
        found = RocketCommand.from_cmd(super().patch_command(cmd))
        if self._message.reply_to == REQUEST:
            found.request = cast(ReceivedMessage, self._message.raw_message)
            found.destination = found.request.topic
        else:
            found.destination = self._message.reply_to
        return found


#: What FastStream takes for "not given".
NOT_GIVEN: Any = EMPTY
