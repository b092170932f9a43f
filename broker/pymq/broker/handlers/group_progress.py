"""How far consumer groups are, and who consumes what: 208, 300, 303, 308, 317, 343, 345.

Source: RocketMQ AdminBrokerProcessor.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from pymq.broker.cold_reads import ColdReads
from pymq.broker.config import BrokerConfig
from pymq.broker.many_queues import LongAnswers, encoded, in_turns
from pymq.broker.state.clients import ClientTable
from pymq.broker.state.groups import GroupTable
from pymq.broker.state.offsets import OffsetTable
from pymq.broker.state.topics import TopicTable
from pymq.broker.statistics.broker_statistics import BrokerStatistics
from pymq.clock import Clock
from pymq.errors import refusal
from pymq.net.dispatcher import Handler, Request
from pymq.protocol.admin_bodies import (
    BrokerConsumeStats,
    ConsumeTimeSpans,
    CorrectionOffsets,
    GroupSubscription,
    QueueTimeSpan,
)
from pymq.protocol.bodies import (
    ConsumeStats,
    GroupList,
    MessageQueue,
    QueueProgress,
    TopicConfig,
    TopicList,
)
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.groups import (
    BrokerConsumeStatsRequest,
    ConsumeStatsRequest,
    CorrectionRequest,
    GroupRequest,
    GroupTopicRequest,
)
from pymq.protocol.headers.topics import TopicRequest
from pymq.store import MessageStore

#: Says that a group is ahead of the others in a queue (308): there is nothing to correct.
_NO_CORRECTION = (1 << 63) - 1

_Queue: TypeAlias = tuple[str, int]


class GroupProgressHandlers:
    """Tells the progress of groups.

    Args:
        address: of this broker, as tools know it.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        address: str,
        groups: GroupTable,
        topics: TopicTable,
        offsets: OffsetTable,
        clients: ClientTable,
        store: MessageStore,
        cold_reads: ColdReads,
        statistics: BrokerStatistics,
        long_answers: LongAnswers,
    ) -> None:
        self._config = config
        self._clock = clock
        self._address = address
        self._groups = groups
        self._topics = topics
        self._offsets = offsets
        self._clients = clients
        self._store = store
        self._cold_reads = cold_reads
        self._statistics = statistics
        self._long_answers = long_answers

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.GET_CONSUME_STATS: self.stats,
            RequestCode.GET_BROKER_CONSUME_STATS: self.all_stats,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.time_spans,
            RequestCode.QUERY_CORRECTION_OFFSET: self.corrections,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.groups_of_topic,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.topics_of_group,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription,
        }

    # --- progress

    async def stats(self, request: Request) -> Command:
        """GET_CONSUME_STATS (208)."""
        header = ConsumeStatsRequest.from_fields(request.fields)
        group = header.consumer_group
        topics: Iterable[str] = header.several
        if not topics:  # of several that are named, also those that nobody subscribes to
            named = [header.topic] if header.topic else self._offsets.topics_of(group)
            topics = self._subscribed(group, named)
        body, queues = ConsumeStats(), list[_Queue]()
        for topic in topics:
            config = self._topics.find(topic)
            if config is None:
                continue  # Tools look up the route of every topic named here.
            body.consumed_per_s += self._statistics.read_per_s(group, topic)
            queues += [(topic, queue_id) for queue_id in range(config.read_queue_count)]
        async with self._long_answers.turn(len(queues), "name fewer topics"):
            for queue, one in await self._progress(group, queues):
                body.offsets[queue] = one
            return request.response(ResponseCode.SUCCESS, body=await encoded(body))

    async def all_stats(self, request: Request) -> Command:
        """GET_BROKER_CONSUME_STATS (317): the progress of all groups."""
        header = BrokerConsumeStatsRequest.from_fields(request.fields)
        wanted = {
            group: [
                config
                for topic in self._subscribed(group, self._offsets.topics_of(group))
                if (config := self._topics.find(topic)) and config.order >= header.is_order
            ]
            for group in sorted(self._groups.body().groups)
        }
        count = sum(config.write_queue_count for configs in wanted.values() for config in configs)
        body = BrokerConsumeStats(broker_address=self._address)
        async with self._long_answers.turn(count, "ask for one group at a time (208)"):
            for group, configs in wanted.items():
                tables = [await self._table(group, config) for config in configs]
                body.groups.append({group: tables})
                for one in (one for table in tables for one in table.offsets.values()):
                    body.total_diff += one.broker_offset - one.consumer_offset
                    body.total_inflight_diff -= one.consumer_offset
            return request.response(ResponseCode.SUCCESS, body=await encoded(body))

    async def _table(self, group: str, config: TopicConfig) -> ConsumeStats:
        """Return how far a group is in a topic."""
        table = ConsumeStats(consumed_per_s=self._statistics.read_per_s(group, config.topic))
        for queue, one in await self._progress(group, _written_queues(config)):
            one.pull_offset = 0  # not told here, also by RocketMQ
            table.offsets[queue] = one
        return table

    def _subscribed(self, group: str, topics: list[str]) -> list[str]:
        """Return those of the topics that a group wants: all of them while it is away."""
        online = self._clients.consumer_group(group)
        if online is None or not online.subscriptions:
            return topics
        return [topic for topic in topics if topic in online.subscriptions]

    async def _progress(
        self, group: str, queues: Sequence[_Queue]
    ) -> list[tuple[MessageQueue, QueueProgress]]:
        """Return how far a group is in each queue."""
        found: list[tuple[MessageQueue, QueueProgress]] = []
        async for some in in_turns(queues):
            committed = [self._offsets.find(group, *queue) or 0 for queue in some]
            times = await self._cold_reads.message_times(
                [(*queue, offset - 1) for queue, offset in zip(some, committed, strict=True)]
            )
            found += [
                (self._queue(*queue), self._progress_in(group, queue, offset, time_ms))
                for queue, offset, time_ms in zip(some, committed, times, strict=True)
            ]
        return found

    def _progress_in(
        self, group: str, queue: _Queue, committed: int, time_ms: int | None
    ) -> QueueProgress:
        pulled = self._offsets.pulled(group, *queue) or 0
        return QueueProgress(
            broker_offset=self._store.queue_bounds(*queue)[1],
            consumer_offset=committed,
            pull_offset=max(committed, pulled),
            last_timestamp_ms=time_ms or 0,
        )

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic=topic, broker_name=self._config.name, queue_id=queue_id)

    # --- in time

    async def time_spans(self, request: Request) -> Command:
        """QUERY_CONSUME_TIME_SPAN (303)."""
        header = GroupTopicRequest.from_fields(request.fields)
        topic = header.topic
        config = self._topics.find(topic)
        if config is None:
            raise refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        queues, body = _written_queues(config), ConsumeTimeSpans()
        async with self._long_answers.turn(len(queues), "no other request tells it"):
            async for some in in_turns(queues):
                body.spans += await self._spans(header.group, some)
            return request.response(ResponseCode.SUCCESS, body=await encoded(body))

    async def _spans(self, group: str, queues: Sequence[_Queue]) -> list[QueueTimeSpan]:
        bounds = [self._store.queue_bounds(*queue) for queue in queues]
        committed = [self._offsets.find(group, *queue) or 0 for queue in queues]
        wanted = [
            (*queue, offset)
            for queue, (first, end), at in zip(queues, bounds, committed, strict=True)
            for offset in (first, end - 1, at - 1, at)
        ]
        times = iter(await self._cold_reads.message_times(wanted))
        spans, now_ms = [], self._clock.wall_ms()
        for queue, (_, end), at in zip(queues, bounds, committed, strict=True):
            first_ms, last_ms, consumed_ms, next_ms = (_or_none(next(times)) for _ in range(4))
            span = QueueTimeSpan(
                queue=self._queue(*queue),
                min_time_ms=first_ms,
                max_time_ms=last_ms,
                consume_time_ms=consumed_ms if at > 0 else first_ms,
                delay_ms=now_ms - next_ms if at < end else 0,
            )
            spans.append(span)
        return spans

    def corrections(self, request: Request) -> Command:
        """QUERY_CORRECTION_OFFSET (308): where the slowest of other groups is, in each queue."""
        header = CorrectionRequest.from_fields(request.fields)
        left_out = set((header.filter_groups or "").split(","))
        least: dict[int, int] = {}
        for group in self._offsets.groups_of(header.topic):
            if group in left_out:
                continue
            for queue_id, offset in self._offsets.queues_of(group, header.topic).items():
                first, _ = self._store.queue_bounds(header.topic, queue_id)
                if offset >= first:
                    least[queue_id] = min(offset, least.get(queue_id, offset))
        compared = self._offsets.queues_of(header.compare_group, header.topic)
        for queue_id, offset in compared.items():
            if least.get(queue_id, offset) > offset:
                least[queue_id] = _NO_CORRECTION
        body = CorrectionOffsets(offsets=least)
        return request.response(ResponseCode.SUCCESS, body=body.encode())

    # --- who and what

    def groups_of_topic(self, request: Request) -> Command:
        """QUERY_TOPIC_CONSUME_BY_WHO (300)."""
        topic = TopicRequest.from_fields(request.fields).topic
        groups = {*self._clients.groups_subscribed_to(topic), *self._offsets.groups_of(topic)}
        return request.response(
            ResponseCode.SUCCESS, body=GroupList(groups=sorted(groups)).encode()
        )

    def topics_of_group(self, request: Request) -> Command:
        """QUERY_TOPICS_BY_CONSUMER (343)."""
        group = GroupRequest.from_fields(request.fields).group
        body = TopicList(topics=self._offsets.topics_of(group), broker_address=self._address)
        return request.response(ResponseCode.SUCCESS, body=body.encode())

    def subscription(self, request: Request) -> Command:
        """QUERY_SUBSCRIPTION_BY_CONSUMER (345)."""
        header = GroupTopicRequest.from_fields(request.fields)
        online = self._clients.consumer_group(header.group)
        body = GroupSubscription(
            group=header.group,
            topic=header.topic,
            subscription=None if online is None else online.subscriptions.get(header.topic),
        )
        return request.response(ResponseCode.SUCCESS, body=body.encode())


def _written_queues(config: TopicConfig) -> list[_Queue]:
    return [(config.topic, queue_id) for queue_id in range(config.write_queue_count)]


def _or_none(time_ms: int | None) -> int:
    """Return a store time as RocketMQ writes it: -1 if there is no such message."""
    return -1 if time_ms is None else time_ms
