"""A pull consumer without its messages: which queues it reads, its life, who it is to brokers."""

from collections.abc import Iterable, Sequence
from typing import Self

from pymq.client.checks import Moment
from pymq.client.cluster.config import ClientConfig, connect_s, parse_name_servers
from pymq.client.cluster.network import PLAIN, Network
from pymq.client.cluster.pool import ClientPool
from pymq.client.group.inbox import FlowLimits
from pymq.client.group.start_policy import StartPolicy
from pymq.client.group.subscriptions import subscription_of
from pymq.client.pulling.pull_buffer import PULL_LIMITS, PullBuffer
from pymq.client.pulling.pull_queues import PullQueues
from pymq.client.pulling.pull_rebalance import AssignedQueues, PullRebalance
from pymq.client.pulling.pulled_queue import PulledQueue
from pymq.client.pulling.queue_choice import check_queues
from pymq.clock import Clock
from pymq.errors import ClientClosed, ConfigurationError
from pymq.net.channel import AsyncChannel
from pymq.protocol.bodies import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
    MessageQueue,
    Subscription,
)
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
from pymq.protocol.names import check_group

#: How often what is consumed is committed (RocketMQ: autoCommitIntervalMillis, 5 s).
AUTO_COMMIT_S = 1.0


class PullMember:
    """What ``PullConsumer`` is made of first; it has the arguments' documentation."""

    def __init__(
        self,
        name_servers: str | Sequence[str] | None,
        group: str,
        *,
        from_where: str | Moment | ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET,
        auto_commit: bool = True,
        limits: FlowLimits = PULL_LIMITS,
        timeout_s: float = 3.0,
        clock: Clock | None = None,
        network: Network = PLAIN,
    ) -> None:
        check_group(group)
        if not isinstance(limits, FlowLimits):
            raise ConfigurationError(f"limits={limits!r:.80}: expected a FlowLimits")
        servers = parse_name_servers(name_servers)
        config = ClientConfig(name_servers=servers, timeout_s=timeout_s, network=network)
        self._group = group
        self._start_policy = StartPolicy.of(from_where)
        self._auto_commit = auto_commit
        self._clock = clock or Clock()
        self._subscriptions: dict[str, Subscription] = {}
        self._buffer = PullBuffer(limits)
        self._is_closing = False
        #: Has the caller got what was taken last? A thread that waited for it says so itself.
        self._is_claimed = True
        self._pool = ClientPool(
            config.name_servers,
            timeout_s=timeout_s,
            connect_timeout_s=connect_s(config),
            network=network,
            what=f"a pull consumer of group {group!r}",
            route_age_s=config.route_age_s,
            consumers=self._consumer_data,
            on_request={RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed},
            on_route=self._route_changed,
            clock=self._clock,
        )
        self._queues: PullRebalance | None = None

    # --- which queues

    def subscribe(self, topic: str, tags: str = "*", *, sql: str | None = None) -> Self:
        """Take a share of a topic's queues, from now on.

        All members of a group must subscribe to the same. Subscribing again replaces what was
        wanted, for all messages that have not been polled yet.

        Args:
            topic: which; one without a route yet is waited for.
            tags: ``*``, or the tags wanted, joined by ``||``.
            sql: an SQL92 expression over properties instead, for brokers with
                ``enablePropertyFilter``.

        Raises:
            ConfigurationError: queues were assigned.
            LocalProtocolError: the topic is not legal, or the tags are SQL or not an expression.
            FilterSyntaxError: ``sql`` does not parse.
            ClientMisplaced: it was started in another process, thread or event loop.
        """
        subscription = subscription_of(topic, tags, sql, self._clock.wall_ms())
        queues = self._chosen(PullRebalance)
        self._subscriptions[topic] = subscription
        queues.subscriptions_changed()
        return self

    def unsubscribe(self, topic: str) -> None:
        """Read a topic no more. Raises what ``subscribe`` does."""
        queues = self._chosen(PullRebalance)
        self._subscriptions.pop(topic, None)
        queues.subscriptions_changed()

    def assign(
        self, queues: Iterable[MessageQueue], tags: str = "*", *, sql: str | None = None
    ) -> Self:
        """Read exactly these queues from now on, whoever else reads them.

        Queues that were assigned before and are not among them are given up. ``queues(topic)``
        names those of a topic. The group must have no members that subscribe: brokers count this
        one as a member, too, and the others would leave a share of the queues to it.

        Args:
            queues: of any topics.
            tags, sql: as for ``subscribe``, for all of them.

        Raises:
            ConfigurationError: a topic was subscribed to, or these are no queues.
            PymqError: as for ``subscribe``.
        """
        wanted = check_queues(queues)
        version = self._clock.wall_ms()
        topics = sorted({queue.topic for queue in wanted})
        subscriptions = {topic: subscription_of(topic, tags, sql, version) for topic in topics}
        assigned = self._chosen(AssignedQueues)
        assert isinstance(assigned, AssignedQueues)
        self._subscriptions.clear()
        self._subscriptions.update(subscriptions)
        assigned.assign(wanted)
        return self

    def _chosen(self, kind: type[PullRebalance]) -> PullRebalance:
        """Return what knows our queues, which is of one kind for good."""
        if self._pool.is_open:  # Elsewhere nothing would wake it.
            self._check_open()
        if self._queues is None:
            self._queues = kind(
                self._group,
                self._subscriptions,
                start=self._start_policy,
                pool=self._pool,
                buffer=self._buffer,
                auto_commit=self._auto_commit,
            )
        if type(self._queues) is not kind:
            raise ConfigurationError(
                f"group {self._group!r}: a consumer either subscribes to topics or is assigned "
                "queues; make another one for the other way"
            )
        return self._queues

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are ours at the moment."""
        return sorted(self._queues.assignment) if self._queues is not None else []

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._group

    @property
    def client_id(self) -> str:
        """Who we are to the brokers and the other members."""
        return self._pool.client_id

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that can be read.

        Raises:
            RouteNotFound: no name server knows the topic.
            ConnectionFailed: no name server answers.
        """
        self._check_open()
        return list((await self._pool.routes.route(topic)).read_queues)

    # --- life

    async def start(self) -> Self:
        """Reach a name server and begin to pull. Idempotent.

        Raises:
            ConfigurationError: nothing is subscribed or assigned.
            ClientClosed: it was closed; make a new one.
            ConnectionFailed: no name server answers; the text names all and why.
        """
        if self._queues is None:
            raise ConfigurationError(
                "nothing to read: call subscribe(topic) or assign(queues) before start(); "
                "assign([]) and start() if the queues are to be asked for first"
            )
        if not await self._pool.start():
            return self
        self._pool.spawn("rebalance", self._queues.run())
        if self._auto_commit:
            self._pool.repeat("commit", self._commit_nowait, AUTO_COMMIT_S)
        return self

    async def close(self) -> None:
        """Pull no more, commit what is consumed if ``auto_commit``, leave the group. Idempotent.

        Who closes it while somebody else does waits for that.
        What the last poll returned is not consumed: ``commit()`` before, or leave the
        ``async with`` block without an exception.
        """
        if self._is_closing or not self._pool.is_open:
            await self._pool.closing.wait_ended()
            return
        self._pool.check_open()
        self._is_closing = True
        self._buffer.close()
        with self._pool.closing:
            try:
                if self._queues is not None:
                    self._queues.stop()
                    await self._queues.close()
            finally:
                await self._pool.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._consume_polled()
        await self.close()

    # --- what is ours

    def _held(self) -> PullQueues:
        self._check_open()
        assert self._queues is not None
        return self._queues.held

    def _ours(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        wanted = check_queues(queues)
        ours = self.assignment
        for queue in wanted:
            if queue not in ours:
                raise ConfigurationError(
                    f"{queue} is not ours at the moment, expected one of {len(ours)}: "
                    f"{', '.join(map(str, ours[:8])) or 'there is none yet'}"
                )
        return wanted

    def _asked(self, queues: Iterable[MessageQueue] | None) -> list[MessageQueue]:
        self._check_open()
        return self.assignment if queues is None else check_queues(queues)

    def _begin_poll(self) -> None:
        """What the poll before has returned may be consumed; what nobody got is taken again."""
        for pulled in self._polled():
            if self._auto_commit:
                pulled.consumed_offset = pulled.polled_offset
        if not self._is_claimed:
            for reader in self._held().pull_readers():
                reader.take_again()
            self._is_claimed = True

    def _claim(self) -> None:
        """The caller has got what was taken. For any thread."""
        self._is_claimed = True

    def _consume_polled(self) -> None:
        for pulled in self._polled():
            pulled.consumed_offset = pulled.polled_offset

    def _polled(self) -> list[PulledQueue]:
        """Return what is there of our queues, with what has reached the caller up to now."""
        readers = self._queues.held.pull_readers() if self._queues is not None else ()
        found = [reader.pulled for reader in readers if reader.pulled is not None]
        if self._is_claimed:
            for pulled in found:
                pulled.polled_offset = pulled.position
        return found

    def _commit_nowait(self) -> None:
        if self._queues is not None:
            self._queues.held.commit_nowait()

    def _check_open(self) -> None:
        self._pool.check_open()
        if self._is_closing:
            raise ClientClosed("the consumer is closing")

    def _consumer_data(self) -> list[ConsumerData]:
        is_assigned = isinstance(self._queues, AssignedQueues)
        return [
            ConsumerData(
                group=self._group,
                consume_type=ConsumeType.PULL,
                message_model=MessageModel.CLUSTERING,
                consume_from_where=self._start_policy.where,
                # As in Java: assigned queues are no subscription.
                subscriptions=[] if is_assigned else list(self._subscriptions.values()),
            )
        ]

    def _members_changed(self, _: AsyncChannel, request: Command) -> None:
        if (request.fields or {}).get("consumerGroup") == self._group and self._queues is not None:
            self._queues.wake()

    def _route_changed(self, topic: str) -> None:
        if self._queues is not None:
            self._queues.route_changed(topic)
