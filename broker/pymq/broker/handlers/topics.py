"""Administration of topics: 17, 18, 21, 202, 215, 305, 351."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pymq.broker.attributes import TOPIC_ATTRIBUTES, changed, parse_changes
from pymq.broker.cleaner import with_removals
from pymq.broker.cold_reads import ColdReads
from pymq.broker.config import BrokerConfig
from pymq.broker.deletions import Deletions
from pymq.broker.many_queues import LongAnswers, encoded, in_turns
from pymq.broker.state.offsets import OffsetTable
from pymq.broker.state.topics import QUEUE_COUNT_MAX, TopicTable
from pymq.broker.state_saving import AnswerSaved
from pymq.broker.statistics.broker_statistics import BrokerStatistics
from pymq.errors import FlushFailed, refusal
from pymq.net.dispatcher import Answer, Handler, Request
from pymq.protocol import names
from pymq.protocol.admin_bodies import TopicConfigs
from pymq.protocol.bodies import (
    DataVersion,
    MessageQueue,
    TopicConfig,
    TopicList,
    TopicOffset,
    TopicStats,
)
from pymq.protocol.bodies import (
    TopicTable as TopicTableBody,
)
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.topics import (
    PAGE_COUNT_MAX,
    TopicConfigRequest,
    TopicPageRequest,
    TopicPageResponse,
    TopicRequest,
    UpdateTopicRequest,
)
from pymq.store import MessageStore, QueueRemoval

#: TopicFilterType.
_FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")


class TopicHandlers:
    """Creates, shows and deletes topics.

    Args:
        remove: removes the files of deleted queues; see ``Cleaner.remove``.
        answer_saved: see ``StateSaving.answer_saved``.
    """

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicTable,
        offsets: OffsetTable,
        store: MessageStore,
        cold_reads: ColdReads,
        statistics: BrokerStatistics,
        deletions: Deletions,
        long_answers: LongAnswers,
        remove: Callable[[QueueRemoval], asyncio.Task[None]],
        answer_saved: AnswerSaved,
    ) -> None:
        self._config = config
        self._topics = topics
        self._offsets = offsets
        self._store = store
        self._cold_reads = cold_reads
        self._statistics = statistics
        self._deletions = deletions
        self._long_answers = long_answers
        self._remove = remove
        self._answer_saved = answer_saved

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.update,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: self.update_list,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.page,
            RequestCode.GET_TOPIC_CONFIG: self.show,
            RequestCode.GET_TOPIC_STATS_INFO: self.stats,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system_topics,
            RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: self.refuse_static,
        }

    def refuse_static(self, request: Request) -> Answer:
        """UPDATE_AND_CREATE_STATIC_TOPIC (513): queues that are mapped to queues of others."""
        raise refusal(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            "static topics (logic queues) are not supported by this broker; create an ordinary "
            "topic (updateTopic)",
        )

    def update(self, request: Request) -> Answer:
        """UPDATE_AND_CREATE_TOPIC (17); answered once it is on the disk."""
        header = UpdateTopicRequest.from_fields(request.fields)
        self._check_name(header.topic)
        if header.filter_type not in _FILTER_TYPES:
            raise refusal(
                ResponseCode.SYSTEM_ERROR,
                f"topicFilterType = [{header.filter_type}] value invalid, expected one of "
                f"{', '.join(_FILTER_TYPES)}",
            )
        config = TopicConfig(
            topic=header.topic,
            read_queue_count=header.read_queue_count,
            write_queue_count=header.write_queue_count,
            perm=header.perm,
            filter_type=header.filter_type,
            topic_sys_flag=header.topic_sys_flag or 0,
            order=header.order,
            attributes=parse_changes(header.attributes),
        )
        self._put([config])
        return self._answer_saved(request)

    def update_list(self, request: Request) -> Answer:
        """UPDATE_AND_CREATE_TOPIC_LIST (18): all of them or, when one is refused, none."""
        configs = TopicConfigs.decode(request.body).configs
        for config in configs:
            self._check_name(config.topic)
        self._put(configs)
        return self._answer_saved(request)

    def _put(self, configs: list[TopicConfig]) -> None:
        """Take over settings; their attributes are changes, as ``parse_changes`` returns them."""
        changed_topics: dict[str, TopicConfig] = {}
        for config in configs:
            _check_numbers(config)
            known = changed_topics.get(config.topic) or self._topics.find(config.topic)
            attributes = changed(
                None if known is None else known.attributes, config.attributes, TOPIC_ATTRIBUTES
            )
            changed_topics[config.topic] = replace(config, attributes=attributes)
        for config in changed_topics.values():
            config.encode()  # One string that cannot be encoded would stop every announcement.
        self._topics.check_new(changed_topics)
        for config in changed_topics.values():
            if self._topics.find(config.topic) != config:
                self._topics.put(config)

    def delete(self, request: Request) -> Answer:
        """DELETE_TOPIC_IN_BROKER (215): its settings, queues and consumer offsets.

        With it go the retry topics of groups that popped it: nobody would read them any more.

        Only the deletion of queues can be refused, as on a full disk: then the topic stays as it
        is, and so do those retry topics. The files go while other requests are answered, and the
        topic may be created again meanwhile. A crash before the offsets are saved brings none of
        them back: see ``OffsetTable.follow_deletions``.
        """
        topic = (request.fields or {}).get("topic", "")
        self._check_name(topic)
        topics = [*self._pop_retry_topics(topic), topic]
        try:
            removals = self._store.retention.begin_delete_topics(topics)
        except FlushFailed:
            self._forget(topics)  # The next start may find the queues deleted.
            raise
        self._forget(topics)
        tasks = [self._remove(one) for one in removals]
        return with_removals(self._answer_saved(request), tasks)

    def _forget(self, topics: Sequence[str]) -> None:
        """Forget topics without queues: nothing here can be refused."""
        for topic in topics:
            self._topics.delete(topic)
            self._deletions.topic(topic)
            self._offsets.delete_topic(topic)

    def _pop_retry_topics(self, topic: str) -> list[str]:
        if not self._config.delete_retry_topics:
            return []
        found = [
            names.pop_retry_topic(topic, group, v2=v2)
            for group in self._offsets.groups_of(topic)
            for v2 in (False, True)
        ]
        return [one for one in found if one in self._topics]

    def _check_name(self, topic: str) -> None:
        objection = names.topic_objection(topic)
        if objection is not None:
            raise refusal(ResponseCode.INVALID_PARAMETER, objection)
        if self._is_system(topic):
            raise refusal(
                ResponseCode.INVALID_PARAMETER,
                f"The topic[{topic}] is conflict with system topic.",
            )

    def _is_system(self, topic: str) -> bool:
        return names.is_system_topic(topic, cluster=self._config.cluster, broker=self._config.name)

    def page(self, request: Request) -> Command:
        """GET_ALL_TOPIC_CONFIG (21): all topics, or a page of them in name order."""
        header = TopicPageRequest.from_fields(request.fields)
        body = self._topics.body()
        if header.first is None and header.count_max is None:
            return request.response(ResponseCode.SUCCESS, body=body.encode())
        first = header.first or 0
        if not header.data_version or _version(header.data_version) != body.version:
            first = 0
        count = min(header.count_max or PAGE_COUNT_MAX, PAGE_COUNT_MAX)
        chosen = self._topics.names()[first : first + count]
        page = TopicTableBody(
            version=body.version, topics={name: body.topics[name] for name in chosen}
        )
        fields = TopicPageResponse(total_count=len(body.topics)).to_fields()
        return request.response(ResponseCode.SUCCESS, fields=fields, body=page.encode())

    def show(self, request: Request) -> Command:
        """GET_TOPIC_CONFIG (351)."""
        topic = TopicConfigRequest.from_fields(request.fields).topic
        config = self._topics.find(topic)
        if config is None:
            raise refusal(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic}")
        return request.response(ResponseCode.SUCCESS, body=config.encode())

    async def stats(self, request: Request) -> Command:
        """GET_TOPIC_STATS_INFO (202)."""
        topic = TopicRequest.from_fields(request.fields).topic
        config = self._topics.require(topic)
        queue_ids = range(max(config.read_queue_count, config.write_queue_count))
        stats = TopicStats(put_per_s=self._statistics.put_per_s(topic))
        async with self._long_answers.turn(len(queue_ids), "no other request tells it"):
            async for some in in_turns(queue_ids):
                await self._take_offsets(topic, some, stats)
            return request.response(ResponseCode.SUCCESS, body=await encoded(stats))

    async def _take_offsets(self, topic: str, queue_ids: Sequence[int], stats: TopicStats) -> None:
        """Add the offsets of queues to what is told of a topic."""
        bounds = [self._store.queue_bounds(topic, queue_id) for queue_id in queue_ids]
        times = await self._cold_reads.message_times(
            [(topic, at, end - 1) for at, (_, end) in zip(queue_ids, bounds, strict=True)]
        )
        for queue_id, (first, end), time_ms in zip(queue_ids, bounds, times, strict=True):
            queue = MessageQueue(topic=topic, broker_name=self._config.name, queue_id=queue_id)
            stats.offsets[queue] = TopicOffset(
                min_offset=first, max_offset=end, last_update_timestamp_ms=time_ms or 0
            )

    def system_topics(self, request: Request) -> Command:
        """GET_SYSTEM_TOPIC_LIST_FROM_BROKER (305)."""
        topics = [name for name in self._topics.names() if self._is_system(name)]
        return request.response(ResponseCode.SUCCESS, body=TopicList(topics=topics).encode())


def _version(text: str) -> DataVersion:
    return DataVersion.decode(text)


def _check_numbers(config: TopicConfig) -> None:
    for what, count in (
        ("readQueueNums", config.read_queue_count),
        ("writeQueueNums", config.write_queue_count),
    ):
        if not 0 <= count <= QUEUE_COUNT_MAX:
            raise refusal(
                ResponseCode.INVALID_PARAMETER,
                f"{what} is {count}, expected 0..{QUEUE_COUNT_MAX}",
            )
    if not 0 <= config.perm <= 15:
        raise refusal(
            ResponseCode.INVALID_PARAMETER,
            f"perm is {config.perm}, expected a sum of 4 (read), 2 (write), 1 (inherit)",
        )
