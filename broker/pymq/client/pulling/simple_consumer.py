"""SimpleConsumer: takes messages for a limited time, and acknowledges each (RocketMQ's POP).

The broker hands a message to one member of the group, hides it from the others for the time asked
for, and hands it out again unless it was acknowledged by then. No queue belongs to anybody, so
there may be more members than queues, and a slow one holds up nothing.

A pop that waits would bind messages of one broker while another one has some. So pops do not wait:
brokers are asked in turn, and when none has a message, all are asked to say when they have one.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Self

from pymq.client import operations
from pymq.client.checks import check_count, check_seconds, is_moment
from pymq.client.cluster.config import ClientConfig, connect_s, parse_name_servers
from pymq.client.cluster.network import PLAIN, Network
from pymq.client.cluster.pool import ClientPool
from pymq.client.cluster.routes import MASTER_ID
from pymq.client.group.start_policy import StartPolicy
from pymq.client.group.subscriptions import subscription_of
from pymq.client.pulling.pop_burials import PopBurials, say_unreadable
from pymq.client.pulling.pop_handles import handle_of
from pymq.client.pulling.pop_news import wait_news
from pymq.clock import Clock
from pymq.errors import (
    ClientClosed,
    ConfigurationError,
    ConnectionFailed,
    PymqError,
    RequestNotSupported,
    RequestTimeout,
)
from pymq.net.channel import AsyncChannel
from pymq.net.said_once import SaidOnce
from pymq.protocol.bodies import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
    Subscription,
)
from pymq.protocol.codes import MessageFlag
from pymq.protocol.message import POP_CHECK_POINT, ReceivedMessage
from pymq.protocol.names import check_group, popped_topic

_log = logging.getLogger(__name__)

#: Brokers give no more with one pop.
MESSAGES_MAX = 32
#: A broker that did not answer is passed over this long, while another one has the topic.
AVOID_S = 10.0
#: Brokers are asked again after this at the latest: messages become visible without any news.
NEWS_S = 1.0
#: Pause before brokers that had news are asked again: first, and longest.
PAUSE_FIRST_S = 0.002
PAUSE_MAX_S = 0.25


class SimpleConsumer:
    """Takes messages for a limited time. For one event loop; any number of tasks.

    ::

        async with SimpleConsumer("127.0.0.1:9876", "billing").subscribe("orders") as consumer:
            for message in await consumer.receive(16, invisible_s=60):
                await book(message.body)
                await consumer.ack(message)

    A message that is not acknowledged within ``invisible_s`` is handed out again, to any member,
    with one more of ``reconsume_times``, as often as the group's ``retry_max_times`` at the broker
    say (16 if it does not tell). After that, a member whose ``receive`` meets it makes it a dead
    letter. Messages have no order. Brokers have this from RocketMQ 5.0 on.

    Args:
        name_servers: ``host:port``, several separated by ``;`` or ``,`` or as a list.
        group: consumer group; its members share the messages.
        from_where: where a group begins in queues that it has never read: ``"latest"`` or
            ``"earliest"``.
        timeout_s: for one request.
        clock: for times in requests.
        network: where brokers are reached, and who we say we are.

    Raises:
        ConfigurationError: an argument is wrong.
        LocalProtocolError: ``group`` is not a legal name.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] | None,
        group: str,
        *,
        from_where: str | ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET,
        timeout_s: float = 3.0,
        clock: Clock | None = None,
        network: Network = PLAIN,
    ) -> None:
        check_group(group)
        servers = parse_name_servers(name_servers)
        config = ClientConfig(name_servers=servers, timeout_s=timeout_s, network=network)
        if is_moment(from_where):
            reason = "pops begin at 'latest' or 'earliest'"
            raise ConfigurationError(f"from_where={from_where!r}: {reason}")
        self._group = group
        self._start_policy = StartPolicy.of(from_where)
        self._clock = clock or Clock()
        self._subscriptions: dict[str, Subscription] = {}
        self._turn = 0
        #: Broker name -> until when it is passed over, monotonic.
        self._avoided: dict[str, float] = {}
        self._troubles = SaidOnce(_log)
        self._pool = ClientPool(
            config.name_servers,
            timeout_s=timeout_s,
            connect_timeout_s=connect_s(config),
            network=network,
            what=f"a simple consumer of group {group!r}",
            route_age_s=config.route_age_s,
            consumers=self._consumer_data,
            clock=self._clock,
        )
        self._burials = PopBurials(self._pool, group)

    # --- life

    def subscribe(self, topic: str, tags: str = "*", *, sql: str | None = None) -> Self:
        """Receive messages of a topic from now on.

        All members of a group must subscribe to the same.

        Args:
            topic: which; one without a route yet is waited for.
            tags: ``*``, or the tags wanted, joined by ``||``. (Brokers compare hashes of tags; a
                message with another tag of the same hash is acknowledged unseen.)
            sql: an SQL92 expression over properties instead, for brokers with
                ``enablePropertyFilter``.

        Raises:
            LocalProtocolError: the topic is not legal, or the tags are SQL or not an expression.
            FilterSyntaxError: ``sql`` does not parse.
        """
        self._subscriptions[topic] = subscription_of(topic, tags, sql, self._clock.wall_ms())
        return self

    def unsubscribe(self, topic: str) -> None:
        """Receive no more of a topic."""
        self._subscriptions.pop(topic, None)

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._group

    @property
    def client_id(self) -> str:
        """Who we are to the brokers."""
        return self._pool.client_id

    async def start(self) -> Self:
        """Reach a name server. Idempotent.

        Raises:
            ConfigurationError: nothing is subscribed.
            ClientClosed: it was closed; make a new one.
            ConnectionFailed: no name server answers; the text names all and why.
        """
        if not self._subscriptions:
            raise ConfigurationError("nothing is subscribed: call subscribe(topic) before start()")
        await self._pool.start()
        return self

    async def close(self) -> None:
        """Leave the group; idempotent. What is not acknowledged is handed out again."""
        await self._pool.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- messages

    async def receive(
        self, max_count: int = 16, invisible_s: float = 60.0, *, timeout_s: float = 15.0
    ) -> list[ReceivedMessage]:
        """Take messages, which nobody else gets for ``invisible_s`` seconds.

        Args:
            max_count: most messages, 1..32.
            invisible_s: how long they are hidden; long enough to handle all of them.
            timeout_s: how long to wait for the first one; 0: not at all. A broker that is silent
                is waited for as long as for any request, once: an answer that is given up may
                have hidden messages.

        Returns:
            An empty list, if none came in time. A message that cannot be decompressed is left
            out, with an error in the log, and comes again, too, until it is a dead letter.

        Raises:
            ConfigurationError: an argument is wrong, or a broker has no POP (it is older than 5.0).
            ClientClosed: the consumer is not open.
            PymqError: no broker of any topic could be asked until the end of the time.
        """
        self._pool.check_open()
        check_count("max_count", max_count, 1, MESSAGES_MAX)
        check_seconds("invisible_s", invisible_s)
        if timeout_s != 0:
            check_seconds("timeout_s", timeout_s)
        until_s = time.monotonic() + timeout_s
        pause_s = PAUSE_FIRST_S
        while True:
            places, failure = await self._places()
            has_answer = False
            silent: set[str] = set()
            for topic, broker_name in places:
                if broker_name in silent:
                    continue  # or each of its topics would cost another time-out
                if silent and has_answer and time.monotonic() > until_s:
                    break
                try:
                    found = await self._pop(topic, broker_name, max_count, invisible_s)
                except PymqError as error:
                    failure = self._failed(broker_name, error)
                    if isinstance(error, (ConnectionFailed, RequestTimeout)):
                        silent.add(broker_name)
                    continue
                has_answer = True
                self._troubles.over(broker_name, "broker %r answers again", broker_name)
                if found:
                    return found
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                if failure is not None and not has_answer:
                    raise failure
                return []
            await wait_news(
                [one for one in places if one[1] not in silent],
                self._broker,
                group=self._group,
                wait_s=min(left_s, NEWS_S),
                answer_s=self._pool.timeout_s,
            )
            # A broker may have news again and again of what it does not hand out to us.
            await asyncio.sleep(min(pause_s, max(until_s - time.monotonic(), 0.0)))
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def ack(self, message: ReceivedMessage) -> None:
        """A message was handled: it is not handed out again.

        Raises:
            ConfigurationError: the message was not received by a SimpleConsumer.
            BrokerError: the broker refused, for example because it does not know the handle.
            PymqError: it was not reached; the message may come again.
        """
        handle = handle_of(message)
        channel = await self._channel(message)
        await self._pool.ask(
            channel, operations.acknowledge(*self._stored_names(message), handle)
        )

    async def change_invisible(self, message: ReceivedMessage, invisible_s: float) -> None:
        """Hide a message for another time, counted from now: more time to handle it, or less.

        Raises:
            ConfigurationError, BrokerError, PymqError: as for ``ack``.
        """
        check_seconds("invisible_s", invisible_s)
        handle = handle_of(message)
        channel = await self._channel(message)
        operation = operations.change_invisible(
            *self._stored_names(message), handle, round(invisible_s * 1000)
        )
        message.properties[POP_CHECK_POINT] = await self._pool.ask(channel, operation)

    def _stored_names(self, message: ReceivedMessage) -> tuple[str, str]:
        """Return what brokers call the group and the topic, of which names of topics are made."""
        return self._pool.network.wrap(self._group), self._pool.network.wrap(message.topic)

    # --- brokers

    async def _places(self) -> tuple[list[tuple[str, str]], PymqError | None]:
        """Return topics and brokers in turn, and why a topic has none."""
        places: list[tuple[str, str]] = []
        failure: PymqError | None = None
        for topic in sorted(self._subscriptions):
            try:
                route = await self._pool.routes.route(topic)
            except ClientClosed:
                raise
            except PymqError as error:
                failure = error
                self._troubles.warn(
                    topic, "group %r waits for a route: %s", self._group, error
                )
                continue
            self._troubles.over(topic)
            names = sorted({queue.broker_name for queue in route.read_queues})
            places += [(topic, name) for name in names if name in route.masters()]
        self._turn += 1
        start = self._turn % len(places) if places else 0
        places = places[start:] + places[:start]
        now_s = time.monotonic()
        usable = [one for one in places if self._avoided.get(one[1], 0.0) <= now_s]
        return usable or places, failure

    def _failed(self, broker_name: str, error: PymqError) -> PymqError:
        if isinstance(error, RequestNotSupported):
            raise ConfigurationError(
                f"broker {broker_name!r} has no POP, which SimpleConsumer needs: RocketMQ brokers "
                f"have it from 5.0 on; use Consumer or PullConsumer ({error})"
            ) from error
        if isinstance(error, ClientClosed):
            raise error
        self._avoided[broker_name] = time.monotonic() + AVOID_S
        for topic in self._subscriptions:
            self._pool.routes.doubt(topic)
        self._troubles.warn(
            broker_name,
            "group %r gets no messages of broker %r, trying again: %s",
            self._group,
            broker_name,
            error,
        )
        return error

    async def _pop(
        self, topic: str, broker_name: str, count_max: int, invisible_s: float
    ) -> list[ReceivedMessage]:
        subscription = self._subscriptions.get(topic)
        if subscription is None:
            return []
        pop = operations.Pop(
            topic,
            broker_name,
            group=self._group,
            count_max=count_max,
            invisible_ms=round(invisible_s * 1000),
            subscription=subscription,
            from_first=self._start_policy.where is ConsumeFromWhere.FIRST_OFFSET,
        )
        found: list[ReceivedMessage] = []
        dead: list[tuple[ReceivedMessage, str]] = []
        channel = await self._broker(topic, broker_name)
        for record, handle in await self._pool.ask(channel, pop):
            failure: PymqError | None = None
            try:
                message = ReceivedMessage.from_record(record, broker_name)
            except PymqError as error:
                failure = error
                record.sys_flag &= ~MessageFlag.COMPRESSED
                message = ReceivedMessage.from_record(record, broker_name)
            message.topic = self._pool.network.unwrap(popped_topic(record.topic, self._group))
            message.properties[POP_CHECK_POINT] = handle
            if subscription.tags and message.tags not in subscription.tags:
                await self._ack_unwanted(message)
            elif await self._burials.is_due(channel, message):
                dead.append((message, handle))
            elif failure is not None:
                say_unreadable(message, invisible_s, failure)
            else:
                found.append(message)
        await asyncio.gather(*(self._burials.bury(channel, *one) for one in dead))
        return found

    async def _ack_unwanted(self, message: ReceivedMessage) -> None:
        """Only the hash of its tag is wanted: have it handed out no more."""
        try:
            await self.ack(message)
        except PymqError as error:
            _log.debug("a message with another tag comes again: %s", error)

    async def _broker(self, topic: str, broker_name: str) -> AsyncChannel:
        route = await self._pool.routes.route(topic)
        address = route.address(broker_name)
        return await self._pool.broker_channel(topic, broker_name, address)

    async def _channel(self, message: ReceivedMessage) -> AsyncChannel:
        self._pool.check_open()
        route = await self._pool.routes.route(message.topic)
        if MASTER_ID not in route.addresses.get(message.broker_name, ()):  # It may be back.
            await self._pool.routes.route(message.topic, refresh=True)
        return await self._broker(message.topic, message.broker_name)

    def _consumer_data(self) -> list[ConsumerData]:
        return [
            ConsumerData(
                group=self._group,
                consume_type=ConsumeType.POP,
                message_model=MessageModel.CLUSTERING,
                consume_from_where=self._start_policy.where,
                subscriptions=list(self._subscriptions.values()),
            )
        ]
