"""Reader: reads ranges of topics as columns; it is no member of a group and commits nothing."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Self

from pymq.client.checks import check_seconds
from pymq.client.cluster.config import ClientConfig, connect_s, parse_name_servers
from pymq.client.cluster.network import PLAIN, Network
from pymq.client.cluster.pool import ClientPool
from pymq.client.cluster.routes import no_read_queue
from pymq.client.group.subscriptions import subscription_of
from pymq.client.operations import Pull
from pymq.client.pulling.column_batch import ColumnBatch, check_columns, column_batch
from pymq.client.pulling.queue_choice import check_queues, place_in
from pymq.client.pulling.queue_questions import of_each
from pymq.client.pulling.range_pulls import RangePulls
from pymq.client.ranges import RangePlan
from pymq.errors import ConfigurationError
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
        start: int | datetime | str | Mapping[MessageQueue, int] = "first",
        end: int | datetime | str | Mapping[MessageQueue, int] = "last",
        *,
        tags: str = "*",
        sql: str | None = None,
        queues: Iterable[MessageQueue] | None = None,
    ) -> AsyncIterator[ColumnBatch]:
        """Yield the messages between two places of each queue, as columns.

        Args:
            topic: which.
            start: of the first message: ``"first"`` that is kept, ``"last"`` for the queue's end as
                it is now, a time of storing, an offset in each queue, or one for each queue.
            end: behind the last message, likewise; what is stored later is not read.
            tags: ``*``, or the tags wanted, joined by ``||``.
            sql: an SQL92 expression over properties instead, for brokers with
                ``enablePropertyFilter``.
            queues: of the topic; by default all that can be read, those of a mapping, if one is
                given.

        Raises:
            ConfigurationError: an argument is wrong, or numpy is not installed.
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
        for queue in queues:
            if queue.topic != topic:
                raise ConfigurationError(f"{queue} is not a queue of topic {topic!r}")
        firsts = await self._offsets(queues, "start", start)
        ends = await self._offsets(queues, "end", end)
        return {queue: (firsts[queue], ends[queue]) for queue in queues}

    async def _offsets(
        self, queues: list[MessageQueue], name: str, place: object
    ) -> dict[MessageQueue, int]:
        if isinstance(place, Mapping):
            missing = [queue for queue in queues if queue not in place]
            if missing:
                raise ConfigurationError(f"{name}: there is no offset for {missing[0]}")
            return {queue: place[queue] for queue in queues}
        if isinstance(place, int) and not isinstance(place, bool):
            return dict.fromkeys(queues, place)
        return await of_each(queues, lambda queue: place_in(self._pool, queue, place))
