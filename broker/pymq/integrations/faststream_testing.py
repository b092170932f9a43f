"""A FastStream broker in memory, for unit tests of handlers: no sockets, and no name server.

::

    async with TestRocketBroker(broker) as running:
        await running.publish(Order(number=17), "orders")
        ship.mock.assert_called_once_with({"number": 17})

What is published is handled before ``publish`` returns, and a handler that raises has its exception
raised there: nothing is tried again. Each consumer group gets a message once, as in a cluster;
delays do not pass. ``pymq.testing.Cluster`` is a real broker, with retries and dead letters.
"""

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, overload

from pymq import extras

extras.require("faststream", by="pymq.integrations.faststream_testing")

import anyio  # noqa: E402
from faststream._internal.testing.broker import EnterType, TestBroker, change_producer  # noqa: E402
from faststream.exceptions import SubscriberNotFound  # noqa: E402

from pymq.client.operations import BODY_BYTES_MAX, SendStatus, check_send_topic  # noqa: E402
from pymq.client.sending.receipts import SendReceipt  # noqa: E402
from pymq.client.sending.send_encoding import check_body  # noqa: E402
from pymq.integrations.faststream import RocketBroker  # noqa: E402
from pymq.integrations.faststream_endpoints import RocketPublisher, RocketSubscriber  # noqa: E402
from pymq.integrations.faststream_messages import RocketCommand, RocketProducer  # noqa: E402
from pymq.protocol.bodies import MessageQueue  # noqa: E402
from pymq.protocol.message import Message, ReceivedMessage, decode_properties  # noqa: E402
from pymq.protocol.outcomes import Outcome  # noqa: E402

__all__ = ["TestRocketBroker"]

_HOST = bytes(8)


class TestRocketBroker(TestBroker[RocketBroker, EnterType], broker=RocketBroker):
    """One or several brokers of FastStream whose messages stay in this process.

    Args:
        brokers: in whose place it is, as long as its block lasts.
        with_real: use the cluster of the brokers, and have the mocks of handlers all the same.
        connect_only: do not start subscribers; by default that is for ``TestApp`` to do where one
            is used.
    """

    @overload
    def __init__(
        self: "TestRocketBroker[RocketBroker]",
        broker: RocketBroker,
        /,
        *,
        with_real: bool = False,
        connect_only: bool | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: "TestRocketBroker[tuple[RocketBroker, ...]]",
        *brokers: RocketBroker,
        with_real: bool = False,
        connect_only: bool | None = None,
    ) -> None: ...

    def __init__(
        self, *brokers: RocketBroker, with_real: bool = False, connect_only: bool | None = None
    ) -> None:
        super().__init__(*brokers, with_real=with_real, connect_only=connect_only)

    def create_publisher_fake_subscriber(
        self, broker: RocketBroker, publisher: RocketPublisher
    ) -> tuple[RocketSubscriber, bool]:
        """Called by FastStream: who gets what a publisher sends."""
        tags = publisher._config.options.get("tags")
        for found in _subscribers(self.brokers):
            if found.topic == publisher.topic and _wants(found, tags):
                return found, True
        group = f"test-{broker.config.id_generator()}"
        return broker.subscriber(
            publisher.topic, group, from_where="earliest", persistent=False
        ), False

    @contextmanager
    def _patch_producer(self, broker: RocketBroker) -> Iterator[None]:
        with change_producer(broker.config.broker_config, _Memory(broker, self.brokers)):
            yield

    async def _fake_connect(self, broker: RocketBroker, *args: Any, **kwargs: Any) -> None:
        """Called by FastStream: there is nothing to connect to."""


class _Settled:
    """Takes the outcome of a message, which has no consequences here."""

    def settle(self, message: Any, outcome: Outcome) -> None:
        pass


class _Memory(RocketProducer):
    """Hands what is published to the subscribers of this process."""

    def __init__(self, broker: RocketBroker, brokers: Sequence[RocketBroker]) -> None:
        super().__init__(broker._parser, broker._decoder)
        config = broker.config.broker_config
        self.codec = config.broker_codec or self.codec
        self._serializer = config.fd_config._serializer
        self._brokers = brokers
        self._offsets = itertools.count()

    async def publish(self, cmd: RocketCommand) -> SendReceipt:
        """Have a message handled by each group that wants it."""
        return await self._deliver(await self._message(cmd, cmd.body))

    async def publish_batch(self, cmd: RocketCommand) -> list[SendReceipt]:
        """Have messages handled, one after the other."""
        bodies = cmd.batch_bodies if cmd.bodies is None else cmd.bodies
        return [await self._deliver(await self._message(cmd, body)) for body in bodies]

    async def request(self, cmd: RocketCommand) -> ReceivedMessage:
        """Have a message handled, and return what its first handler returns.

        Raises:
            SubscriberNotFound: nobody reads that topic.
            TimeoutError: it took longer than the request may.
        """
        question = self._received(await self._message(cmd, cmd.body))
        for found in self._readers(question):
            with anyio.fail_after(cmd.timeout_s):
                answer = await found.process_message(question)
                reply = RocketCommand.from_cmd(answer.as_publish_command())
                reply.destination = question.topic
                return self._received(await self._message(reply, reply.body))
        raise SubscriberNotFound(f"no subscriber of topic {cmd.destination!r}")

    async def _deliver(self, message: Message) -> SendReceipt:
        received = self._received(message)
        for found in self._readers(received):
            await found.process_message(received)
        queue = MessageQueue(received.topic, received.broker_name, 0)
        return SendReceipt(
            SendStatus.OK, received.message_id, queue, received.queue_offset, received.message_id
        )

    def _received(self, message: Message) -> ReceivedMessage:
        """Return a message as its consumers get it, checked as a producer checks it."""
        check_send_topic(message.topic)
        offset, now_ms = next(self._offsets), time.time_ns() // 1_000_000
        received = ReceivedMessage(
            topic=message.topic,
            body=check_body(message.body, message.topic, BODY_BYTES_MAX),
            properties=decode_properties(message.encode_properties(f"{offset:032X}")),
            broker_name="test",
            queue_id=0,
            queue_offset=offset,
            physical_offset=offset,
            born_timestamp_ms=now_ms,
            store_timestamp_ms=now_ms,
            born_host_packed=_HOST,
            store_host_packed=_HOST,
            flag=message.flag,
        )
        received._hold(_Settled())
        return received

    def _readers(self, message: ReceivedMessage) -> Iterator[RocketSubscriber]:
        groups = set()
        for found in _subscribers(self._brokers):
            group = found._config.group
            if found.topic == message.topic and _wants(found, message.tags):
                if group not in groups:
                    yield found
                groups.add(group)


def _subscribers(brokers: Sequence[RocketBroker]) -> Iterator[RocketSubscriber]:
    for broker in brokers:
        for found in broker.subscribers:
            assert isinstance(found, RocketSubscriber)
            yield found


def _wants(found: RocketSubscriber, tag: str | None) -> bool:
    wanted = [one.strip() for one in found._config.tags.split("||")]
    return "*" in wanted or tag in wanted
