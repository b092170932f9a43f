"""Reader: reads ranges of topics as columns; it is no member of a group and commits nothing."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from functools import partial
from typing import Self

from pymq.client.checks import Moment, check_seconds
from pymq.client.cluster.config import ClientConfig, connect_s, parse_name_servers
from pymq.client.cluster.network import PLAIN, Network
from pymq.client.cluster.pool import ClientPool
from pymq.client.group.subscriptions import subscription_of
from pymq.client.operations import Pull
from pymq.client.pulling.column_batch import ColumnBatch, check_columns, column_batch
from pymq.client.pulling.queue_choice import check_broker_names, check_queues
from pymq.client.pulling.range_bounds import RangeBounds
from pymq.client.pulling.range_pulls import RangePulls
from pymq.client.ranges import RangePlan
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

    A broker that is away is waited for if this reader has seen its topic there, or is told by
    ``expected_brokers``. Otherwise nobody knows of it: name servers say nothing about a broker
    that has stopped, and what it has is left out.

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
        self._bounds = RangeBounds(self._pool, deadline_s=deadline_s)

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
        """Return the queues of a topic that can be read now; not those of brokers that are away.

        Raises:
            RouteNotFound: no name server knows the topic, or nothing of it can be read.
            ConnectionFailed: no name server answers.
        """
        return await self._bounds.queues(topic)

    def read(
        self,
        topic: str,
        start: int | Moment | str | Mapping[MessageQueue, int] = "first",
        end: int | Moment | str | Mapping[MessageQueue, int] = "last",
        *,
        tags: str = "*",
        sql: str | None = None,
        queues: Iterable[MessageQueue] | None = None,
        expected_brokers: Iterable[str] = (),
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
            expected_brokers: names of brokers without whose queues nothing is read.

        Raises:
            ConfigurationError: an argument is wrong, a queue is not there, an end is an offset
                before its start, or numpy is not installed.
            LocalProtocolError, FilterSyntaxError: topic, tags or ``sql`` are not legal.
            RouteNotFound: no name server knows the topic; or until the deadline a broker was away
                that is expected, or was there before, or its master was, which alone says where
                a queue begins and ends.
            OffsetOutOfRange: part of the range is not there (any more).
            PymqError: a broker refused, or there was no progress until the deadline.
        """
        self._pool.check_open()
        check_columns()
        subscription = subscription_of(topic, tags, sql, 0)
        wanted = None if queues is None else check_queues(queues)
        expected = check_broker_names("expected_brokers", expected_brokers)

        async def batches() -> AsyncIterator[ColumnBatch]:
            bounds = await self._bounds.find(topic, start, end, wanted, expected)
            for queue, (first, behind) in bounds.items():
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
