"""Single messages, found on the brokers: by either of their ids, key, place and time."""

import asyncio

from pymq.client import operations
from pymq.client.administration.asking import Asking, readers
from pymq.client.checks import Moment, check_count, check_queue, moment_ms
from pymq.client.cluster.routes import no_read_queue
from pymq.client.group.subscriptions import subscription_of
from pymq.client.operations import Pull, PullStatus
from pymq.errors import (
    ConfigurationError,
    LocalProtocolError,
    MessageNotFound,
    RouteNotFound,
)
from pymq.protocol.addresses import join_address
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.headers.codec import INT64_MAX
from pymq.protocol.message import ReceivedMessage
from pymq.protocol.names import TOOLS_GROUP
from pymq.protocol.record import Record, decode_records, parse_offset_message_id, unpack_host

#: Messages between two times that are returned at most.
TIME_COUNT_MAX = 10_000


class Messages:
    """Messages that are stored: ``admin.messages``."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking

    def _message(self, record: Record, broker_name: str) -> ReceivedMessage:
        message = ReceivedMessage.from_record(record, broker_name)
        message.topic = self._asking.pool.network.unwrap(message.topic)
        return message

    async def by_id(self, message_id: str, topic: str | None = None) -> ReceivedMessage:
        """Return a message by its id.

        Args:
            message_id: the broker's, which says where the message lies; or, with ``topic``, the
                producer's. Both may look alike.
            topic: the topic of the message.

        Raises:
            ConfigurationError: the id is no text.
            LocalProtocolError: it is not a broker's, and no topic was given.
            RouteNotFound: the id names no broker that is registered, and likewise.
            MessageNotFound: there is no such message.
            PymqError: a broker could not be asked, or refused.
        """
        if not isinstance(message_id, str):
            raise ConfigurationError(f"message_id={message_id!r:.80}: expected a text")
        try:
            packed, physical_offset = parse_offset_message_id(message_id)
            address = join_address(*unpack_host(packed))
        except LocalProtocolError:
            if topic is None:
                raise
            return await self.by_unique_id(topic, message_id)
        for name, data in (await self._asking.cluster()).brokers.items():
            if address in data.addresses.values():
                record = await self._asking.one(
                    address, operations.view_message(physical_offset, topic), name=name
                )
                return self._message(record, name)
        if topic is None:
            raise RouteNotFound(
                f"message id {message_id} belongs to a broker at {address}, and none is "
                "registered there; if it is the id that the producer gave, name the topic, too"
            )
        return await self.by_unique_id(topic, message_id)

    async def by_unique_id(self, topic: str, message_id: str) -> ReceivedMessage:
        """Return a message by the id that its producer gave it (``UNIQ_KEY``).

        Raises:
            MessageNotFound: there is no such message.
            RouteNotFound: no name server knows the topic.
            PymqError: a broker could not be asked, or refused.
        """
        # The producer's id is a key of its message.
        for message in await self.by_key(topic, message_id):
            if message.message_id == message_id:
                return message
        raise MessageNotFound(f"topic {topic!r} has no message with id {message_id!r}")

    async def by_key(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = operations.QUERY_COUNT_MAX,
        begin_ms: int = 0,
        end_ms: int = INT64_MAX,
    ) -> list[ReceivedMessage]:
        """Return the newest messages with a key, by their store times, oldest first.

        Official brokers need a moment after a send until its keys can be found.

        Args:
            topic: where to look.
            key: one of the message's keys, or the id its producer gave it.
            count_max: messages wanted, 1..64.
            begin_ms, end_ms: first and last store time wanted, ms since 1970.

        Raises:
            ConfigurationError: an argument is wrong.
            RouteNotFound: no name server knows the topic.
            BrokersFailed: some masters did not answer.
            PymqError: the only master did not.
        """
        check_count("count_max", count_max, 1, operations.QUERY_COUNT_MAX)
        answers = await self._asking.every(
            readers((await self._asking.route(topic)).addresses),
            lambda: operations.query_messages(
                topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms
            ),
        )
        found = [
            message
            for name, records in answers.items()
            for message in (self._message(record, name) for record in records)
            if message.topic == topic and (key in message.keys or message.message_id == key)
        ]
        found.sort(key=lambda message: message.store_timestamp_ms)
        return found[-count_max:]

    async def by_offset(self, queue: MessageQueue, offset: int) -> ReceivedMessage:
        """Return the message at an offset of a queue.

        Raises:
            MessageNotFound: there is none; the text says which offsets the queue has.
            RouteNotFound: no name server knows the topic, or its broker is away.
            PymqError: the broker could not be asked, or refused.
        """
        check_queue(queue)
        check_count("offset", offset, 0)
        route = await self._asking.route(queue.topic)
        address = route.read_address(queue.broker_name)
        found, result = await self._pull(address, queue, offset, 1)
        if not found or found[0].queue_offset != offset:
            raise MessageNotFound(
                f"queue {queue.broker_name}:{queue.queue_id} of topic {queue.topic!r} has no "
                f"message at offset {offset}, its offsets are {result.min_offset} to "
                f"{result.max_offset - 1}"
            )
        return found[0]

    async def by_time(
        self, topic: str, begin: Moment, end: Moment | None = None, *, count_max: int = 64
    ) -> list[ReceivedMessage]:
        """Return the first messages that were stored from a moment on, oldest first.

        Args:
            topic: where to look.
            begin: stored then or later; a datetime without a zone is local time, a
                ``numpy.datetime64`` is UTC.
            end: and before that; ``None``: until now.
            count_max: messages wanted, 1..10,000.

        Raises:
            ConfigurationError: an argument is wrong.
            RouteNotFound: no name server knows the topic, or nothing of it can be read.
            PymqError: a broker could not be asked, or refused.
        """
        check_count("count_max", count_max, 1, TIME_COUNT_MAX)
        begin_ms = moment_ms("begin", begin)
        end_ms = INT64_MAX if end is None else moment_ms("end", end)
        route = await self._asking.route(topic)
        if not route.read_queues:
            raise no_read_queue(route)

        async def read(queue: MessageQueue) -> list[ReceivedMessage]:
            address = route.read_address(queue.broker_name)
            offset = await self._asking.one(
                address, operations.offset_by_time(queue, begin_ms), name=queue.broker_name
            )
            some: list[ReceivedMessage] = []
            while len(some) < count_max:
                found, result = await self._pull(address, queue, offset, count_max - len(some))
                wanted = [one for one in found if begin_ms <= one.store_timestamp_ms < end_ms]
                some += wanted
                is_past = bool(found) and found[-1].store_timestamp_ms >= end_ms
                if result.status is PullStatus.NO_NEW or is_past or result.next_offset <= offset:
                    break
                offset = result.next_offset
            return some

        several = await asyncio.gather(*map(read, route.read_queues))
        every = [message for some in several for message in some]
        every.sort(key=lambda one: one.store_timestamp_ms)
        return every[:count_max]

    async def _pull(
        self, address: str, queue: MessageQueue, offset: int, count_max: int
    ) -> tuple[list[ReceivedMessage], operations.PullResult]:
        pull = Pull(
            queue,
            offset,
            group=TOOLS_GROUP,
            count_max=count_max,
            subscription=subscription_of(queue.topic, "*", None, 0),
        )
        result = await self._asking.one(address, pull, name=queue.broker_name)
        if result.status is not PullStatus.FOUND:
            return [], result
        records = decode_records(result.body)
        found = [self._message(record, queue.broker_name) for record in records]
        return found, result
