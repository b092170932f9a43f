"""Request and reply: a producer asks with a message, whoever consumes it answers.

The request is an ordinary message that names who asked (``REPLY_TO_CLIENT``) and which question it
is (``CORRELATION_ID``). The reply is sent to the reply topic of the cluster, to the broker that the
request came from if possible, because the one who asked is connected there; that broker pushes it
over that connection. A reply that finds nobody is stored in the reply topic, where nobody reads it.

Source: RocketMQ DefaultMQProducerImpl.request, MessageUtil.createReplyMessage,
ClientRemotingProcessor.receiveReplyMessage.
"""

import asyncio
import contextlib
import logging
import uuid
from dataclasses import dataclass
from typing import Any

from pymq.client.cluster.pool import ClientPool
from pymq.client.sending.placement import Placement
from pymq.client.sending.queue_selection import TopicQueues
from pymq.client.sending.receipts import SendReceipt
from pymq.client.sending.send_attempt import MessageSend
from pymq.client.sending.send_maker import SendMaker
from pymq.client.sending.send_template import SEND_REPLY, SendTemplate
from pymq.client.sending.sender import Sender
from pymq.errors import (
    ConfigurationError,
    LocalProtocolError,
    ProtocolError,
    PymqError,
    RequestTimeout,
)
from pymq.net.channel import AsyncChannel
from pymq.protocol.codes import ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.compression import decompress
from pymq.protocol.headers.send import PushReplyRequest
from pymq.protocol.message import (
    CLUSTER,
    CORRELATION_ID,
    MESSAGE_TYPE,
    REPLY_TO_CLIENT,
    TAGS,
    TTL,
    Message,
    ReceivedMessage,
    parse_properties,
)
from pymq.protocol.names import reply_topic

_log = logging.getLogger(__name__)

#: Brokers of a topic that is new are waited for no longer, nor for this share of a request's time.
ANNOUNCE_S = 1.0
ANNOUNCE_SHARE = 0.25
#: Pause after each look, while requests wait, for brokers to which there is no connection.
KNOWN_S = 0.25

_REPLY = "reply"


@dataclass(slots=True)
class Reply:
    """The answer to a request.

    Attributes:
        body: decompressed.
        properties: the user's and the system's.
        born_timestamp_ms: when it was sent, by the clock of its sender; ms since 1970.
        born_host: ``host:port`` of its sender.
    """

    body: bytes
    properties: dict[str, str]
    born_timestamp_ms: int
    born_host: str

    @property
    def tags(self) -> str | None:
        """The tag, as sent."""
        return self.properties.get(TAGS)


class ReplySend(MessageSend):
    """The send of a reply, to the broker that the request came from if it can be reached."""

    __slots__ = ("broker_name",)

    CODE = SEND_REPLY
    broker_name: str

    def choose(self, queues: TopicQueues, avoid: set[str]) -> SendTemplate:
        if self.broker_name not in avoid:
            for template in queues.templates:
                if template.queue.broker_name == self.broker_name:
                    return template
        return queues.next(avoid)


class Requests:
    """The questions of one producer, and its answers to those of others. For one event loop.

    Args:
        pool, sender, maker: of the producer.
    """

    def __init__(self, pool: ClientPool, sender: Sender, maker: SendMaker) -> None:
        self._pool = pool
        self._sender = sender
        self._maker = maker
        self._waiting: dict[str, asyncio.Future[Reply]] = {}
        #: Topics whose brokers know us as a producer, so that any of them can pass a reply on.
        self._announced: set[str] = set()
        self._keeping_known: asyncio.Task[None] | None = None

    async def request(
        self, message: Message, where: Placement | None, deadline_s: float | None
    ) -> Reply:
        """Send a request and return the reply. Raises what ``Producer.request`` does."""
        self._pool.check_open()
        limit_s = self._maker.limit_s(deadline_s)
        loop = self._pool.loop
        until_s = loop.time() + limit_s
        left_s = await self._maker.wait_room(limit_s)
        correlation_id = str(uuid.uuid4())
        answered: asyncio.Future[Reply] = loop.create_future()
        self._waiting[correlation_id] = answered
        try:
            send: MessageSend = self._maker.prepare(
                message,
                where,
                left_s,
                system={
                    CORRELATION_ID: correlation_id,
                    REPLY_TO_CLIENT: self._pool.client_id,
                    TTL: str(round(left_s * 1000)),
                },
            )
            refusal = await self._may_begin(message.topic, until_s)
            if refusal is None:
                self._begin_known()
                sending: asyncio.Future[SendReceipt] = self._sender.begin(send)
            else:
                sending = self._sender.refuse(send, refusal)
            sending.add_done_callback(_look)
            waiting: tuple[asyncio.Future[Any], ...] = (answered, sending)
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not answered.done():
                await sending  # raises if it was not sent
            async with asyncio.timeout_at(until_s):
                return await answered
        except TimeoutError as error:
            raise RequestTimeout(
                f"no reply to request {correlation_id} to topic {message.topic!r} within "
                f"{limit_s:g} s (deadline_s); it is stored, so a consumer may handle it all the "
                "same: does one run that calls reply()?"
            ) from error
        finally:
            del self._waiting[correlation_id]

    async def _may_begin(self, topic: str, until_s: float) -> PymqError | None:
        """Return why the send of a request cannot begin, if so."""
        if (refusal := await self._announce(topic, until_s)) is not None:
            return refusal
        try:  # Others may have begun while brokers were told who we are.
            await self._sender.window.wait_room(self._pool.check_open, until_s)
        except PymqError as error:
            return error
        return None

    async def _announce(self, topic: str, until_s: float) -> PymqError | None:
        """Tell the brokers of a topic who we are, once: replies may come over any of them.

        One that does not answer is not waited for: it has been told, or will be told before
        anything else when it takes a connection. Returns why the topic has no brokers, if so.
        """
        if topic in self._announced:
            return None
        try:
            await self._sender.wait_queues(topic, until_s)
        except PymqError as error:
            return error
        route = self._pool.routes.find(topic)
        masters = () if route is None else route.masters().values()
        left_s = until_s - self._pool.loop.time()
        try:
            async with asyncio.timeout(min(ANNOUNCE_S, left_s * ANNOUNCE_SHARE)):
                await asyncio.gather(*map(self._pool.heartbeats.send, masters))
        except TimeoutError:
            _log.debug("not all brokers of topic %r have answered heartbeats", topic)
        self._announced.add(topic)
        return None

    def _begin_known(self) -> None:
        """Be known to the brokers as long as requests wait."""
        keeping = self._keeping_known
        if self._pool.is_open and (keeping is None or keeping.done()):
            self._keeping_known = self._pool.spawn("replies", self._keep_known())

    async def _keep_known(self) -> None:
        """Connect again, which begins with a heartbeat, to brokers whose connection was lost.

        One that was started again does not know us, and who waits for a reply may send nothing
        that would connect us: replies would find nobody until the next heartbeat.
        """
        pool = self._pool
        while self._waiting:
            known = pool.heartbeats.broker_addresses()
            lost = [pool.channel(one) for one in known if pool.open_channel(one) is None]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KNOWN_S):  # One may be silent, and the others are not.
                    await asyncio.gather(*lost, return_exceptions=True)
            await asyncio.sleep(KNOWN_S)

    def route_changed(self, topic: str) -> None:
        """A broker of a topic may have another master, which does not know us yet."""
        self._announced.discard(topic)

    def on_push(self, channel: AsyncChannel, request: Command) -> None:
        """Take a reply that a broker passes on (PUSH_REPLY_MESSAGE_TO_CLIENT)."""
        try:
            header = PushReplyRequest.from_fields(request.fields)
            body = decompress(request.body, header.sys_flag)
        except (ProtocolError, ConfigurationError) as error:
            _log.warning("%s passed on a reply that cannot be read: %s", channel.peer, error)
            channel.respond(request, request.reply(int(ResponseCode.SYSTEM_ERROR), str(error)))
            return
        properties = parse_properties(header.properties)
        waiting = self._waiting.get(properties.get(CORRELATION_ID, ""))
        if waiting is None:
            _log.info(
                "%s passed on a reply to request %s, for which nobody waits any more",
                channel.peer,
                properties.get(CORRELATION_ID),
            )
        elif not waiting.done():  # a reply may come twice
            waiting.set_result(Reply(body, properties, header.born_timestamp, header.born_host))
        channel.respond(request, request.reply(int(ResponseCode.SUCCESS)))

    async def reply(
        self, request: ReceivedMessage, message: Message, deadline_s: float | None
    ) -> SendReceipt:
        """Answer a request. Raises what ``Producer.reply`` does."""
        left_s = await self._maker.wait_room(deadline_s)
        send = self._maker.prepare(
            message,
            None,
            left_s,
            kind=ReplySend,
            system=reply_properties(request),
        )
        send.broker_name = request.broker_name
        return await self._sender.begin(send)


def reply_message(
    request: ReceivedMessage, body: bytes, tags: str | None, properties: dict[str, str] | None
) -> Message:
    """Return the answer to a request as a message to the reply topic of its cluster.

    Raises:
        LocalProtocolError: the message is not a request.
    """
    _check_request(request)
    topic = reply_topic(request.properties[CLUSTER])
    return Message(topic, body, tags=tags, properties=properties or {})


def reply_properties(request: ReceivedMessage) -> dict[str, str]:
    """Return the system properties that lead an answer to who asked."""
    asked = request.properties
    found = {name: asked[name] for name in (CORRELATION_ID, REPLY_TO_CLIENT, TTL) if name in asked}
    return {MESSAGE_TYPE: _REPLY, **found}


def _check_request(request: object) -> None:
    if not isinstance(request, ReceivedMessage):
        raise LocalProtocolError(
            f"{request!r:.80} is a {type(request).__name__}, expected the ReceivedMessage that is "
            "answered"
        )
    needed = (CLUSTER, CORRELATION_ID, REPLY_TO_CLIENT)
    missing = [name for name in needed if name not in request.properties]
    if missing:
        raise LocalProtocolError(
            f"message {request.message_id} of topic {request.topic!r} cannot be answered, because "
            f"it lacks {', '.join(missing)}: only messages sent with request() have that"
        )


def _look(sending: asyncio.Future[SendReceipt]) -> None:
    if not sending.cancelled():
        sending.exception()  # If the reply comes first, nobody cares what becomes of the send.
