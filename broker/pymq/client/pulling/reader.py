"""Reader: reads ranges of topics as columns; it is no member of a group and commits nothing."""

import operator
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Self, SupportsIndex

from pymq.client import operations
from pymq.client.checks import Moment, check_seconds
from pymq.client.cluster.config import ClientConfig, connect_s, parse_name_servers
from pymq.client.cluster.network import PLAIN, Network
from pymq.client.cluster.pool import ClientPool
from pymq.client.cluster.routes import no_read_queue
from pymq.client.group.subscriptions import subscription_of
from pymq.client.operations import Pull
from pymq.client.pulling.column_batch import ColumnBatch, check_columns, column_batch
from pymq.client.pulling.queue_choice import check_queues, place_in
from pymq.client.pulling.queue_questions import ask_each, of_each
from pymq.client.pulling.range_pulls import RangePulls
from pymq.client.ranges import RangePlan
from pymq.errors import ConfigurationError, ConnectionFailed, OffsetOutOfRange, RouteNotFound
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.names import TOOLS_GROUP

#: Largest answer that a pymq broker may give; RocketMQ's give 256 KiB.
ANSWER_BYTES_MAX = 4 << 20


class Reader:
    """Reads what is stored between two offsets or times. For one event loop.

    ::

        async with Reader("127.0.0.1:9876") as reader:
            async for batch in reader.read("orders", start=datetime(2026, 1, 1), end="last"):
                table = batch.to_arrow("body", "tags", "store_timestamp")

    Every message of the range comes exactly once, those of a queue in their order, one queue after
    the other. What fails is tried again, over new routes and connections.

    Args:
        name_servers: ``host:port``, several separated by ``;`` or ``,`` or as a list.
        timeout_s: for one request.
        deadline_s: a read is given up after this time without any progress.
        network: where brokers are reached, and who we say we are.

    Raises:
        ConfigurationError: an argument is wrong.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] | None,
        *,
        timeout_s: float = 3.0,
        deadline_s: float = 15.0,
        network: Network = PLAIN,
    ) -> None:
        servers = parse_name_servers(name_servers)
        config = ClientConfig(name_servers=servers, timeout_s=timeout_s, network=network)
        check_seconds("deadline_s", deadline_s)
        self._deadline_s = deadline_s
        self._pool = ClientPool(
            config.name_servers,
            timeout_s=timeout_s,
            connect_timeout_s=connect_s(config),
            network=network,
            route_age_s=config.route_age_s,
        )

    # --- life

    async def start(self) -> Self:
        """Reach a name server. Idempotent.

        Raises:
            ClientClosed: it was closed; make a new one.
            ConnectionFailed: no name server answers; the text names all and why.
        """
        await self._pool.start()
        return self

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        await self._pool.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- reading

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that can be read.

        Raises:
            RouteNotFound: no name server knows the topic, or nothing of it can be read.
            ConnectionFailed: no name server answers.
        """
        route = await self._pool.routes.route(topic)
        if not route.read_queues:
            raise no_read_queue(route)
        return list(route.read_queues)

    def read(
        self,
        topic: str,
        start: int | Moment | str | Mapping[MessageQueue, int] = "first",
        end: int | Moment | str | Mapping[MessageQueue, int] = "last",
        *,
        tags: str = "*",
        sql: str | None = None,
        queues: Iterable[MessageQueue] | None = None,
    ) -> AsyncIterator[ColumnBatch]:
        """Yield the messages between two places of each queue, as columns.

        Args:
            topic: which.
            start: of the first message: ``"first"`` that is kept, ``"last"`` for the queue's end as
                it is now, a time of storing (a datetime without a zone is local time, a
                ``numpy.datetime64`` is UTC, as in columns), an offset in each queue, or one for
                each queue.
            end: behind the last message, likewise; what is stored later is not read.
            tags: ``*``, or the tags wanted, joined by ``||``.
            sql: an SQL92 expression over properties instead, for brokers with
                ``enablePropertyFilter``.
            queues: of the topic; by default all that can be read, those of a mapping, if one is
                given.

        Raises:
            ConfigurationError: an argument is wrong, a queue is not there, an end is an offset
                before its start, or numpy is not installed.
            LocalProtocolError, FilterSyntaxError: topic, tags or ``sql`` are not legal.
            RouteNotFound: no name server knows the topic.
            OffsetOutOfRange: part of the range is not there (any more).
            PymqError: a broker refused, or there was no progress until the deadline.
        """
        self._pool.check_open()
        check_columns()
        subscription = subscription_of(topic, tags, sql, 0)
        wanted = None if queues is None else check_queues(queues)

        async def batches() -> AsyncIterator[ColumnBatch]:
            for queue, (first, behind) in (await self._bounds(topic, start, end, wanted)).items():
                is_filtered = subscription.expression != "*"
                plan = RangePlan(queue, first, behind, is_filtered=is_filtered)
                pull = partial(
                    Pull,
                    queue,
                    group=TOOLS_GROUP,
                    subscription=subscription,
                    bytes_max=ANSWER_BYTES_MAX,
                )
                pulls = RangePulls(self._pool, plan, pull, deadline_s=self._deadline_s)
                async for chunk in pulls.chunks():
                    batch = column_batch(queue, chunk, subscription.tags)
                    if len(batch):
                        yield batch

        return batches()

    async def _bounds(
        self,
        topic: str,
        start: object,
        end: object,
        queues: list[MessageQueue] | None,
    ) -> dict[MessageQueue, tuple[int, int]]:
        for given in (start, end):
            if queues is None and isinstance(given, Mapping):
                queues = check_queues(given)
        if queues is None:
            queues = await self.queues(topic)
        else:
            await self._check_there(topic, queues)
        firsts = await self._offsets(queues, "start", start)
        ends = await self._offsets(queues, "end", end)
        bounds = {queue: (firsts[queue], ends[queue]) for queue in queues}
        if _is_numeric(start):
            behind = [queue for queue, (first, last) in bounds.items() if first > last]
            if behind and _is_numeric(end):
                queue = behind[0]
                raise ConfigurationError(
                    f"end={ends[queue]} is before start={firsts[queue]} in {queue}"
                )
            for queue, last in (await ask_each(self._pool, behind, operations.max_offset)).items():
                if firsts[queue] > last:
                    raise OffsetOutOfRange(
                        f"topic {topic!r}, {queue.broker_name}:{queue.queue_id}: there is no "
                        f"offset {firsts[queue]}, the queue ends at {last}"
                    )
        return bounds

    async def _check_there(self, topic: str, queues: list[MessageQueue]) -> None:
        """Refuse queues that the topic does not have. A broker that is away may have any."""
        for queue in queues:
            if queue.topic != topic:
                raise ConfigurationError(f"{queue} is not a queue of topic {topic!r}")
        try:
            known = (await self._pool.routes.route(topic)).read_queues
            if not set(queues) <= set(known):  # Some may be new.
                known = (await self._pool.routes.route(topic, refresh=True)).read_queues
        except (RouteNotFound, ConnectionFailed):
            return  # The pulls wait for it, and tell it in the end.
        for queue in queues:
            ids = sorted(one.queue_id for one in known if one.broker_name == queue.broker_name)
            if ids and queue.queue_id not in ids:
                raise ConfigurationError(
                    f"{queue} is not there, or must not be read: its broker has queues {ids}"
                )

    async def _offsets(
        self, queues: list[MessageQueue], name: str, place: object
    ) -> dict[MessageQueue, int]:
        if isinstance(place, Mapping):
            missing = [queue for queue in queues if queue not in place]
            if missing:
                raise ConfigurationError(f"{name}: there is no offset for {missing[0]}")
            return {queue: _offset(f"{name} of {queue}", place[queue]) for queue in queues}
        if _is_numeric(place):
            return dict.fromkeys(queues, _offset(name, place))
        return await of_each(queues, lambda queue: place_in(self._pool, queue, place))


def _is_numeric(place: object) -> bool:
    """Are these offsets, rather than places that a broker is asked for?"""
    return isinstance(place, Mapping | SupportsIndex) and not isinstance(place, bool)


def _offset(name: str, value: Any) -> int:
    """Return an offset that a user gives, perhaps as a number of numpy.

    Raises:
        ConfigurationError: it is none.
    """
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass  # told below
    raise ConfigurationError(f"{name}={value!r:.80}: expected an offset, a whole number")
