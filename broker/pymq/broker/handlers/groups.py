"""Administration and progress of consumer groups: 200, 201, 203, 207, 208, 300, 343, 352."""

from collections.abc import Iterable, Mapping

from pymq.broker.config import BrokerConfig
from pymq.broker.state.clients import ClientTable
from pymq.broker.state.groups import GroupTable
from pymq.broker.state.offsets import OffsetTable
from pymq.broker.state.topics import TopicTable
from pymq.broker.state_saving import AnswerSaved
from pymq.errors import LocalProtocolError, refusal
from pymq.net.dispatcher import Answer, Handler, Request
from pymq.protocol import names
from pymq.protocol.bodies import (
    ClientConnection,
    ConsumerConnections,
    ConsumeStats,
    DataVersion,
    GroupConfig,
    GroupList,
    MessageQueue,
    QueueProgress,
    TopicList,
)
from pymq.protocol.bodies import (
    GroupTable as GroupTableBody,
)
from pymq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.groups import (
    ConsumerGroupRequest,
    ConsumeStatsRequest,
    DeleteGroupRequest,
    GroupPageRequest,
    GroupPageResponse,
    GroupRequest,
)
from pymq.protocol.headers.topics import PAGE_COUNT_MAX, TopicRequest
from pymq.store import MessageStore


class GroupHandlers:
    """Creates, shows and deletes groups; tells who is online, and their progress."""

    def __init__(
        self,
        config: BrokerConfig,
        groups: GroupTable,
        topics: TopicTable,
        offsets: OffsetTable,
        clients: ClientTable,
        store: MessageStore,
        answer_saved: AnswerSaved,
    ) -> None:
        self._config = config
        self._groups = groups
        self._topics = topics
        self._offsets = offsets
        self._clients = clients
        self._store = store
        self._answer_saved = answer_saved

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.update,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.page,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.show,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.connections,
            RequestCode.GET_CONSUME_STATS: self.stats,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.groups_of_topic,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.topics_of_group,
        }

    def update(self, request: Request) -> Answer:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200); answered once it is on the disk."""
        config = GroupConfig.decode(request.body)
        try:
            names.check_group(config.group)
        except LocalProtocolError as error:
            raise refusal(ResponseCode.INVALID_PARAMETER, str(error)) from error
        config.encode()  # One string that cannot be encoded, and the table could never be saved.
        self._groups.put(config)
        return self._answer_saved(request)

    def delete(self, request: Request) -> Answer:
        """DELETE_SUBSCRIPTIONGROUP (207)."""
        header = DeleteGroupRequest.from_fields(request.fields)
        self._groups.delete(header.group)
        if header.forget_offsets:
            self._offsets.delete_group(header.group)
        return self._answer_saved(request)

    def page(self, request: Request) -> Command:
        """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201): all groups, or a page in name order."""
        header = GroupPageRequest.from_fields(request.fields)
        body = self._groups.body()
        if header.first is None and header.count_max is None:
            return request.response(ResponseCode.SUCCESS, body=body.encode())
        first = header.first or 0
        if not header.data_version or DataVersion.decode(header.data_version) != body.version:
            first = 0
        count = min(header.count_max or PAGE_COUNT_MAX, PAGE_COUNT_MAX)
        chosen = sorted(body.groups)[first : first + count]
        page = GroupTableBody(
            version=body.version,
            groups={name: body.groups[name] for name in chosen},
            forbidden={name: body.forbidden[name] for name in chosen if name in body.forbidden},
        )
        fields = GroupPageResponse(total_count=len(body.groups)).to_fields()
        return request.response(ResponseCode.SUCCESS, fields=fields, body=page.encode())

    def show(self, request: Request) -> Command:
        """GET_SUBSCRIPTIONGROUP_CONFIG (352)."""
        group = GroupRequest.from_fields(request.fields).group
        config = self._groups.body().groups.get(group)
        if config is None:
            raise refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker: {group}"
            )
        return request.response(ResponseCode.SUCCESS, body=config.encode())

    def connections(self, request: Request) -> Command:
        """GET_CONSUMER_CONNECTION_LIST (203)."""
        name = ConsumerGroupRequest.from_fields(request.fields).consumer_group
        group = self._clients.consumer_group(name)
        if group is None:
            raise refusal(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online"
            )
        body = ConsumerConnections(
            connections=[
                ClientConnection(
                    client_id=client.client_id,
                    client_address=member.peer,
                    language=_language(client.language),
                    version=client.version,
                )
                for member, client in group.members.items()
            ],
            subscriptions=group.subscriptions,
            consume_type=group.consume_type,
            message_model=group.message_model,
            consume_from_where=group.consume_from_where,
        )
        return request.response(ResponseCode.SUCCESS, body=body.encode())

    def stats(self, request: Request) -> Command:
        """GET_CONSUME_STATS (208)."""
        header = ConsumeStatsRequest.from_fields(request.fields)
        group = header.consumer_group
        topics: Iterable[str] = header.topics or self._offsets.topics_of(group)
        online = self._clients.consumer_group(group)
        body = ConsumeStats()
        for topic in topics:
            config = self._topics.find(topic)
            if config is None:
                continue  # Tools look up the route of every topic named here.
            if online is not None and topic not in online.subscriptions and not header.topics:
                continue
            for queue_id in range(config.read_queue_count):
                queue = MessageQueue(
                    topic=topic, broker_name=self._config.name, queue_id=queue_id
                )
                body.offsets[queue] = self._progress(group, topic, queue_id)
        return request.response(ResponseCode.SUCCESS, body=body.encode())

    def _progress(self, group: str, topic: str, queue_id: int) -> QueueProgress:
        first, end = self._store.queue_bounds(topic, queue_id)
        committed = self._offsets.find(group, topic, queue_id) or 0
        time_ms = None
        if first < committed <= end:
            time_ms = self._store.message_time(topic, queue_id, committed - 1)
        return QueueProgress(
            broker_offset=end,
            consumer_offset=committed,
            pull_offset=committed,
            last_timestamp_ms=time_ms or 0,
        )

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
        topics = self._offsets.topics_of(group)
        return request.response(ResponseCode.SUCCESS, body=TopicList(topics=topics).encode())


def _language(number: int) -> str:
    try:
        return LanguageCode(number).name
    except ValueError:
        return LanguageCode.OTHER.name
