"""Administration of topics: 17, 21, 202, 215, 305, 351."""

from collections.abc import Mapping

from pymq.broker.config import BrokerConfig
from pymq.broker.state.offsets import OffsetTable
from pymq.broker.state.topics import TopicTable
from pymq.broker.state_saving import AnswerSaved
from pymq.errors import LocalProtocolError, refusal
from pymq.net.dispatcher import Answer, Handler, Request
from pymq.protocol import names
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
from pymq.store import MessageStore

#: Most queues of one topic on one broker.
QUEUE_COUNT_MAX = 65_536


class TopicHandlers:
    """Creates, shows and deletes topics."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicTable,
        offsets: OffsetTable,
        store: MessageStore,
        answer_saved: AnswerSaved,
    ) -> None:
        self._config = config
        self._topics = topics
        self._offsets = offsets
        self._store = store
        self._answer_saved = answer_saved

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.update,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.page,
            RequestCode.GET_TOPIC_CONFIG: self.show,
            RequestCode.GET_TOPIC_STATS_INFO: self.stats,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system_topics,
        }

    def update(self, request: Request) -> Answer:
        """UPDATE_AND_CREATE_TOPIC (17); answered once it is on the disk."""
        header = UpdateTopicRequest.from_fields(request.fields)
        self._check_name(header.topic)
        for what, count in (
            ("readQueueNums", header.read_queue_count),
            ("writeQueueNums", header.write_queue_count),
        ):
            if not 0 <= count <= QUEUE_COUNT_MAX:
                raise refusal(
                    ResponseCode.INVALID_PARAMETER,
                    f"{what} is {count}, expected 0..{QUEUE_COUNT_MAX}",
                )
        if not 0 <= header.perm <= 15:
            raise refusal(
                ResponseCode.INVALID_PARAMETER,
                f"perm is {header.perm}, expected a sum of 4 (read), 2 (write), 1 (inherit)",
            )
        known = self._topics.find(header.topic)
        attributes = _apply_attributes(known.attributes if known else {}, header.attributes)
        config = TopicConfig(
            topic=header.topic,
            read_queue_count=header.read_queue_count,
            write_queue_count=header.write_queue_count,
            perm=header.perm,
            filter_type=header.filter_type,
            topic_sys_flag=header.topic_sys_flag or 0,
            order=header.order,
            attributes=attributes,
        )
        config.encode()  # One string that cannot be encoded would stop every announcement.
        self._topics.put(config)
        return self._answer_saved(request)

    def delete(self, request: Request) -> Answer:
        """DELETE_TOPIC_IN_BROKER (215): its settings, queues and consumer offsets."""
        topic = TopicRequest.from_fields(request.fields).topic
        self._check_name(topic)
        self._topics.delete(topic)
        self._offsets.delete_topic(topic)
        self._store.retention.delete_queues(topic)
        return self._answer_saved(request)

    def _check_name(self, topic: str) -> None:
        try:
            names.check_topic(topic)
        except LocalProtocolError as error:
            raise refusal(ResponseCode.INVALID_PARAMETER, str(error)) from error
        if self._is_system(topic):
            raise refusal(
                ResponseCode.INVALID_PARAMETER,
                f"The topic[{topic}] is conflict with system topic.",
            )

    def _is_system(self, topic: str) -> bool:
        return names.is_system_topic(
            topic, cluster=self._config.cluster, broker=self._config.name
        )

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
        config = self._topics.require(TopicConfigRequest.from_fields(request.fields).topic)
        return request.response(ResponseCode.SUCCESS, body=config.encode())

    def stats(self, request: Request) -> Command:
        """GET_TOPIC_STATS_INFO (202)."""
        topic = TopicRequest.from_fields(request.fields).topic
        config = self._topics.require(topic)
        stats = TopicStats()
        for queue_id in range(max(config.read_queue_count, config.write_queue_count)):
            first, end = self._store.queue_bounds(topic, queue_id)
            time_ms = None
            if first < end:
                time_ms = self._store.message_time(topic, queue_id, end - 1)
            queue = MessageQueue(
                topic=topic, broker_name=self._config.name, queue_id=queue_id
            )
            stats.offsets[queue] = TopicOffset(
                min_offset=first, max_offset=end, last_update_timestamp_ms=time_ms or 0
            )
        return request.response(ResponseCode.SUCCESS, body=stats.encode())

    def system_topics(self, request: Request) -> Command:
        """GET_SYSTEM_TOPIC_LIST_FROM_BROKER (305)."""
        topics = [name for name in self._topics.names() if self._is_system(name)]
        return request.response(ResponseCode.SUCCESS, body=TopicList(topics=topics).encode())


def _version(text: str) -> DataVersion:
    return DataVersion.decode(text)


def _apply_attributes(known: dict[str, str], changes: str | None) -> dict[str, str]:
    """Return attributes after ``+key=value,-key`` changes; peers may use them."""
    attributes = dict(known)
    for change in filter(None, (changes or "").split(",")):
        sign, (key, _, value) = change[0], change[1:].partition("=")
        if sign == "+" and key and value:
            attributes[key] = value
        elif sign == "-" and key:
            attributes.pop(key, None)
        else:
            raise refusal(
                ResponseCode.SYSTEM_ERROR,
                f"attribute {change!r}: expected +key=value or -key",
            )
    return attributes
