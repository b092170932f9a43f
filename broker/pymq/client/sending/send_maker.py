"""Makes sends of what users give: a message is checked, gets an id, and is encoded."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Self, TypeVar

from pymq.client.checks import check_seconds
from pymq.client.cluster.pool import ClientPool
from pymq.client.operations import check_send_topic
from pymq.client.sending import send_encoding
from pymq.client.sending.hooks import SendObserver
from pymq.client.sending.placement import Placement
from pymq.client.sending.producer_config import MOMENT_S, ProducerConfig
from pymq.client.sending.send_attempt import BatchSend, MessageSend, TimerSend
from pymq.client.sending.sender import Sender
from pymq.clock import Clock
from pymq.protocol.message import INSTANCE_ID, SHARDING_KEY, WAIT, Message

M = TypeVar("M", bound=MessageSend)


class SendMaker:
    """Makes the sends of one producer. For one event loop; see ``for_threads``.

    Args:
        pool: makes the ids of messages.
        sender: who makes the attempts.
        config: of the producer.
        clock: for born timestamps.
        observer: told of every send; ``None``: nobody is.
    """

    def __init__(
        self,
        pool: ClientPool,
        sender: Sender,
        config: ProducerConfig,
        clock: Clock,
        observer: SendObserver | None = None,
    ) -> None:
        self._pool = pool
        self._unique_keys = pool.unique_keys
        self._sender = sender
        self._config = config
        self._clock = clock
        self._observer = observer
        self._has_own = not config.wait_stored or config.network.namespace is not None
        largest = config.body_bytes_max + 1
        compressed = config.compress_bytes_min
        # Bodies below this go out as they are.
        self._plain_bytes = largest if compressed is None else min(largest, compressed)

    @property
    def is_observed(self) -> bool:
        """Is there anybody who is told of every message?"""
        return self._observer is not None

    def for_threads(self) -> Self:
        """Return one that threads may use while the producer is open, if nobody is told of sends.

        What it makes is complete, but it is the event loop that begins it.

        Raises:
            ClientClosed, ClientMisplaced: called somewhere else than in that loop.
        """
        unique_keys = self._unique_keys()
        made = copy.copy(self)
        made._unique_keys = lambda: unique_keys
        return made

    def limit_s(self, deadline_s: float | None) -> float:
        """Return how long a send may take."""
        if deadline_s is None:
            return self._config.deadline_s
        check_seconds("deadline_s", deadline_s)
        return deadline_s

    async def wait_room(self, deadline_s: float | None) -> float:
        """Wait until a send may begin, before it is made; return for how long it may go on then.

        Raises:
            TooManyPending: there was no room in time.
            ClientClosed, ClientMisplaced: the producer is not open here.
        """
        check_open = self._pool.check_open
        check_open()
        time_s = self._pool.loop.time
        limit_s = self.limit_s(deadline_s)
        until_s = time_s() + limit_s
        await self._sender.window.wait_room(check_open, until_s)
        return max(until_s - time_s(), MOMENT_S)

    def prepare(
        self,
        message: Message,
        where: Placement | None,
        deadline_s: float | None,
        *,
        kind: type[M] = MessageSend,  # type: ignore[assignment]  # where M is left open
        system: Mapping[str, str] | None = None,
        sys_flag: int = 0,
    ) -> M:
        """Return the send of a message.

        Args:
            message: what.
            where: to which queue.
            deadline_s: in place of the producer's.
            kind: of send.
            system: further system properties.
            sys_flag: further bits of the system flag.
        """
        if not isinstance(message, Message):
            send_encoding.check_message(message)
        if self._observer is not None:
            self._observer.before((message,))
        topic = message.topic
        if type(topic) is not str or topic not in self._sender.topics:
            check_send_topic(topic)
        born_ms = self._clock.wall_ms()
        key = self._unique_keys().next(born_ms)
        body = message.body
        if type(body) is not bytes or not 0 < len(body) < self._plain_bytes:
            body, compressed = send_encoding.prepare_body(body, topic, self._config)
            sys_flag |= compressed
        if message.flag != 0:
            send_encoding.check_flag(message.flag)
        if where is not None or self._has_own:
            system = self._with_own(system, where)
        properties = send_encoding.properties_json(message, key, system=system)
        loop = self._pool.loop
        started_s = loop.time()
        limit_s = self._config.deadline_s if deadline_s is None else self.limit_s(deadline_s)
        if kind is MessageSend and message.has_timer:
            kind = TimerSend  # type: ignore[assignment]  # a MessageSend, as M is then
        send = kind(
            self._sender,
            loop.create_future(),
            topic,
            body,
            properties,
            born_ms,
            sys_flag,
            message.flag,
            where,
            started_s,
            started_s + limit_s,
        )
        send.message_id = key
        if self._observer is not None:
            self._observer.watch((message,), send)
        return send

    def _with_own(
        self, system: Mapping[str, str] | None, where: Placement | None
    ) -> dict[str, str]:
        """Return system properties, and those that the producer's settings or a key come to."""
        own = dict(system or {})
        if where is not None and where.sharding_key is not None:
            own[SHARDING_KEY] = where.sharding_key
        if not self._config.wait_stored:
            own[WAIT] = "false"
        if self._pool.network.namespace is not None:
            own[INSTANCE_ID] = self._pool.network.namespace
        return own

    def prepare_batches(
        self, messages: list[Message], where: Placement | None, started_s: float, limit_s: float
    ) -> Iterator[BatchSend]:
        """Yield a send for each request that is needed, made when it is asked for.

        Args:
            messages: of one topic (``batch_topic``); hooks see them all before the first one.
            where: to which queue.
            started_s, limit_s: of all of it, as for ``batch``.

        Raises:
            LocalProtocolError: a message cannot be sent in a batch. Instead of the first one.
            ClientClosed: the producer is not open.
        """
        born_ms = self._clock.wall_ms()
        make = self._unique_keys().next
        if self._observer is not None:
            self._observer.before(messages)
        batches = send_encoding.iter_batches(
            messages,
            [make(born_ms) for _ in messages],
            self._config.body_bytes_max,
            kept_bytes_max=self._config.in_flight_bytes_max,
            system=_system(where),
        )
        topic, first = messages[0].topic, 0
        for batch in batches:
            end = first + len(batch.unique_keys)
            some = messages[first:end]
            yield self.batch(
                topic, batch.body, batch.unique_keys, where, started_s, limit_s, messages=some
            )
            first = end

    def encode_in_batch(self, message: Message, where: Placement | None) -> tuple[bytes, str]:
        """Return a message as part of the body of a batch, and its id. Raises as for several."""
        if self._observer is not None:
            self._observer.before((message,))
        topic = message.topic
        if type(topic) is not str or topic not in self._sender.topics:
            check_send_topic(topic)
        key = self._unique_keys().next(self._clock.wall_ms())
        part = send_encoding.encode_in_batch(
            message, key, self._config.body_bytes_max, _system(where)
        )
        return part, key

    def batch(
        self,
        topic: str,
        body: bytes,
        message_ids: Sequence[str],
        where: Placement | None,
        started_s: float,
        limit_s: float | None = None,
        *,
        messages: Sequence[Message],
    ) -> BatchSend:
        """Return the send of encoded messages.

        Args:
            topic: of all of them.
            body: they, as ``iter_batches`` makes it.
            message_ids: of each.
            where: to which queue.
            started_s: when that began, on the clock of the event loop.
            limit_s: how long it may take; ``None``: the producer's ``deadline_s``.
            messages: for who is told of every message; nobody else looks at them.
        """
        send = BatchSend(
            self._sender,
            self._pool.loop.create_future(),
            topic,
            body,
            '""' if self._config.wait_stored else '"WAIT\\u0001false\\u0002"',
            self._clock.wall_ms(),
            0,
            0,
            where,
            started_s,
            started_s + (self._config.deadline_s if limit_s is None else limit_s),
        )
        send.message_ids, send.is_abandoned = message_ids, False
        if self._observer is not None:
            self._observer.watch(messages, send)
        return send


def _system(where: Placement | None) -> dict[str, str] | None:
    """Return the system properties that a place in a batch comes to."""
    if where is None or where.sharding_key is None:
        return None
    return {SHARDING_KEY: where.sharding_key}
