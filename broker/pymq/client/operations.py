"""Sans-IO: one operation for each request that a client makes.

An operation is the request, and how its response becomes a value or an error::

    operation = operations.min_offset(queue)
    response = ...                                  # some channel carries operation.request
    offset = operation.result(response, peer="10.0.0.1:10911")

Channels fill in ``request.opaque``, so an operation is on its way once at a time. Another try
to send a message makes another operation of the same ``PreparedMessage``: its id stays.

Source: RocketMQ MQClientAPIImpl.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from typing import Generic, TypeVar

from pymq.errors import BrokerError, LocalProtocolError, RemoteProtocolError
from pymq.protocol.bodies import (
    ClientConfigCheck,
    ClusterInfo,
    ConsumerConnections,
    ConsumerIds,
    ConsumeStats,
    GroupConfig,
    GroupList,
    GroupTable,
    Heartbeat,
    KVTable,
    LockRequest,
    LockResponse,
    MessageQueue,
    Subscription,
    TopicConfig,
    TopicList,
    TopicRoute,
    TopicStats,
    TopicTable,
)
from pymq.protocol.codes import CommandFlag, PullFlag, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.clients import UnregisterClientRequest
from pymq.protocol.headers.codec import Header
from pymq.protocol.headers.groups import (
    ConsumerGroupRequest,
    ConsumeStatsRequest,
    DeleteGroupRequest,
    GroupRequest,
)
from pymq.protocol.headers.offsets import (
    MaxOffsetRequest,
    OffsetResponse,
    QueryOffsetRequest,
    QueueRequest,
    SearchOffsetRequest,
    TimestampResponse,
    UpdateOffsetRequest,
)
from pymq.protocol.headers.pull import PullRequest, PullResponse
from pymq.protocol.headers.routes import DeleteTopicRoutesRequest, RouteRequest
from pymq.protocol.headers.send import SendRequest
from pymq.protocol.headers.topics import TopicConfigRequest, TopicRequest, UpdateTopicRequest
from pymq.protocol.names import DEFAULT_TOPIC, NO_SEND_TOPICS, check_topic

T = TypeVar("T")

#: RocketMQ ``maxMessageSize``: what a broker takes as one body unless told otherwise.
BODY_BYTES_MAX = 4 << 20
#: RocketMQ ``defaultTopicQueueNums``: most queues of a topic that a send creates.
DEFAULT_QUEUE_COUNT = 4

#: Another queue or broker may take a send that was refused with one of these
#: (DefaultMQProducer.retryResponseCodes).
SEND_RETRY_CODES = frozenset({17, 14, 1, 16, 204, 205, 2})

_SUCCESS = (int(ResponseCode.SUCCESS),)
_ONE_WAY = int(CommandFlag.ONE_WAY)
_SEND_V2 = int(RequestCode.SEND_MESSAGE_V2)
_SEND_BATCH = int(RequestCode.SEND_BATCH_MESSAGE)
_PULL = int(RequestCode.PULL_MESSAGE)
_PULL_LITE = int(RequestCode.LITE_PULL_MESSAGE)


class Operation(Generic[T]):
    """A request, and how its response is read.

    Attributes:
        request: what to send.
    """

    __slots__ = ("request",)

    def __init__(self, request: Command) -> None:
        self.request = request

    @property
    def asked(self) -> str:
        """What is asked, for error texts."""
        raise NotImplementedError

    def result(self, response: Command, *, peer: str) -> T:
        """Return the value in the response.

        Args:
            response: what ``peer`` answered.
            peer: ``host:port``, for error texts.

        Raises:
            BrokerError: the peer refused.
            RemoteProtocolError: the answer lacks what it must have.
        """
        raise NotImplementedError

    def refusal(self, response: Command, peer: str) -> BrokerError:
        """Return the error that a response's code means."""
        return BrokerError.of(response.code, response.remark, peer=peer, asked=self.asked)


class _Plain(Operation[T]):
    """An operation whose reader is a function."""

    __slots__ = ("_accepted", "_asked", "_read")

    def __init__(
        self,
        request: Command,
        asked: str,
        read: Callable[[Command], T],
        accepted: tuple[int, ...] = _SUCCESS,
    ) -> None:
        super().__init__(request)
        self._asked = asked
        self._read = read
        self._accepted = accepted

    @property
    def asked(self) -> str:
        return self._asked

    def result(self, response: Command, *, peer: str) -> T:
        if response.code not in self._accepted:
            raise self.refusal(response, peer)
        try:
            return self._read(response)
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"{peer} answered {self._asked}: {error}") from error


def one_way(operation: Operation[T]) -> Command:
    """Return the operation's request, marked so that nobody answers it, not even with an error."""
    operation.request.flag |= _ONE_WAY
    return operation.request


def _request(code: RequestCode, header: Header | None = None, body: bytes = b"") -> Command:
    return Command(int(code), header.to_fields() if header is not None else None, body)


def _nothing(response: Command) -> None:
    return None


def _offset(response: Command) -> int:
    return OffsetResponse.from_fields(response.fields).offset


# -------------------------------------------------------------------------------------- sends


class SendStatus(StrEnum):
    """How a stored message was secured (SendStatus)."""

    OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


_SEND_STATUSES = {
    int(ResponseCode.SUCCESS): SendStatus.OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
}


@dataclass(slots=True)
class SendResult:
    """Where a message, or the first of a batch, was stored.

    ``message_id`` is the client's (UNIQ_KEY), several joined by ``,`` for a batch; ``None``
    when the caller encoded the batch itself.
    """

    status: SendStatus
    message_id: str | None
    offset_ids_text: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None

    @property
    def durability_unknown(self) -> bool:
        """Is it stored, but not proven to survive what the broker's settings promise?"""
        return self.status is not SendStatus.OK

    @property
    def offset_message_ids(self) -> list[str]:
        """The broker's ids, one per message: store address and physical offset."""
        return self.offset_ids_text.split(",")


@dataclass(slots=True)
class PreparedMessage:
    """A message, or a batch of one queue, encoded once; each try to send it is an operation.

    ``body`` must not change until the send is answered.
    """

    topic: str
    body: bytes | memoryview
    properties: str
    message_id: str | None
    flag: int = 0
    sys_flag: int = 0
    batch: bool = False


class Send(Operation[SendResult]):
    """SEND_MESSAGE_V2 (310) or SEND_BATCH_MESSAGE (320): the hottest one, so spelled out."""

    __slots__ = ("_message_id", "queue")

    def __init__(
        self,
        prepared: PreparedMessage,
        queue: MessageQueue,
        *,
        group: str,
        now_ms: int,
        default_queue_count: int = DEFAULT_QUEUE_COUNT,
        reconsume_times: int = 0,
        reconsume_times_max: int | None = None,
    ) -> None:
        """Prepare one try.

        Args:
            prepared: what to send.
            queue: where to; its topic is the message's.
            group: producer group.
            now_ms: becomes the born timestamp.
            default_queue_count: most queues the topic gets if this send creates it.
            reconsume_times: for a message on its way to a retry topic.
            reconsume_times_max: likewise.
        """
        header = SendRequest(
            group,
            prepared.topic,
            DEFAULT_TOPIC,
            default_queue_count,
            queue.queue_id,
            prepared.sys_flag,
            now_ms,
            prepared.flag,
            prepared.properties,
            reconsume_times,
            False,
            reconsume_times_max,
            prepared.batch,
            queue.broker_name,
        )
        code = _SEND_BATCH if prepared.batch else _SEND_V2
        self.request = Command(code, header.to_v2(), prepared.body)
        self.queue = queue
        self._message_id = prepared.message_id

    @property
    def asked(self) -> str:
        what = "a send" if self.request.code == _SEND_V2 else "a batch"
        return f"{what} to topic {self.queue.topic!r}, queue {self.queue.queue_id}"

    def result(self, response: Command, *, peer: str) -> SendResult:
        status = _SEND_STATUSES.get(response.code)
        if status is None:
            raise self.refusal(response, peer)
        fields = response.fields or {}
        try:
            queue_id = int(fields["queueId"])
            queue = self.queue
            if queue_id != queue.queue_id:  # -1 leaves the choice to the broker
                queue = replace(queue, queue_id=queue_id)
            return SendResult(
                status,
                self._message_id,
                fields["msgId"],
                queue,
                int(fields["queueOffset"]),
                fields.get("transactionId"),
            )
        except (KeyError, ValueError) as error:
            raise RemoteProtocolError(
                f"{peer} answered {self.asked}: msgId, queueId, queueOffset belong there, "
                f"found {fields!r:.200}"
            ) from error


def check_send_topic(topic: str) -> None:
    """Accept a topic that clients may send to.

    Raises:
        LocalProtocolError: the name is illegal, or the topic is the broker's own.
    """
    check_topic(topic)
    if topic in NO_SEND_TOPICS:
        raise LocalProtocolError(f"topic {topic!r} belongs to the broker; send to another")


# -------------------------------------------------------------------------------------- pulls


class PullStatus(Enum):
    """How a pull ended (PullStatus)."""

    FOUND = ResponseCode.SUCCESS
    #: Nothing behind the offset yet.
    NO_NEW = ResponseCode.PULL_NOT_FOUND
    #: Entries were scanned, none matched the filter; go on at ``next_offset``.
    NO_MATCH = ResponseCode.PULL_RETRY_IMMEDIATELY
    #: The offset is outside the queue; ``next_offset`` is the nearest one inside.
    OFFSET_ILLEGAL = ResponseCode.PULL_OFFSET_MOVED


_PULL_STATUSES = {int(status.value): status for status in PullStatus}


@dataclass(slots=True)
class PullResult:
    """What a pull brought.

    Attributes:
        status: see there.
        next_offset: where to go on; counts scanned messages, not only matching ones.
        min_offset: the queue's first offset that is kept.
        max_offset: the queue's end.
        body: whole stored records, back to back. A memoryview lives as its channel says.
        suggested_broker_id: 0 unless a slave should be read from.
    """

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    body: bytes | memoryview
    suggested_broker_id: int = 0


class Pull(Operation[PullResult]):
    """PULL_MESSAGE (11), or LITE_PULL_MESSAGE (361)."""

    __slots__ = ("offset", "queue")

    def __init__(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        group: str,
        count_max: int = 32,
        subscription: Subscription | None = None,
        subscription_version: int = 0,
        suspend_ms: int = 0,
        commit_offset: int | None = None,
        bytes_max: int | None = None,
    ) -> None:
        """Prepare one pull.

        Args:
            queue: where from.
            offset: first queue offset wanted.
            group: consumer group.
            count_max: messages wanted; RocketMQ gives 32 at most.
            subscription: sent along, so that the broker needs no heartbeat of this group.
                Without it the broker uses the one of the last heartbeat.
            subscription_version: version the broker must have of it, at least.
            suspend_ms: how long the broker may wait for a message; 0: not at all.
            commit_offset: consumed up to here, to be stored on the way.
            bytes_max: ask a pymq broker for up to this many bytes, whatever RocketMQ's
                limits; other brokers ignore it.
        """
        flags = 0
        if commit_offset is not None:
            flags |= PullFlag.COMMIT_OFFSET
        if suspend_ms:
            flags |= PullFlag.SUSPEND
        expression, kind = None, "TAG"
        if subscription is not None:
            flags |= PullFlag.SUBSCRIPTION
            expression, kind = subscription.expression, subscription.expression_type
            subscription_version = subscription.version
        header = PullRequest(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            message_count_max=count_max,
            sys_flag=int(flags),
            commit_offset=commit_offset or 0,
            suspend_timeout_ms=suspend_ms,
            subscription=expression,
            sub_version=subscription_version,
            expression_type=kind,
            broker_name=queue.broker_name,
            extended_bytes_max=bytes_max,
        )
        self.request = Command(_PULL, header.to_fields())
        self.queue = queue
        self.offset = offset

    @property
    def asked(self) -> str:
        queue = self.queue
        return f"a pull of topic {queue.topic!r}, queue {queue.queue_id}, offset {self.offset}"

    def result(self, response: Command, *, peer: str) -> PullResult:
        status = _PULL_STATUSES.get(response.code)
        if status is None:
            raise self.refusal(response, peer)
        try:
            header = PullResponse.from_fields(response.fields)
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"{peer} answered {self.asked}: {error}") from error
        if status is PullStatus.FOUND and header.next_begin_offset <= self.offset:
            raise RemoteProtocolError(
                f"{peer} answered {self.asked}: next offset {header.next_begin_offset}, "
                f"expected more than {self.offset}"
            )
        return PullResult(
            status,
            header.next_begin_offset,
            header.min_offset,
            header.max_offset,
            response.body,
            header.suggest_which_broker_id,
        )


# ------------------------------------------------------------------------------------ offsets


def min_offset(queue: MessageQueue) -> Operation[int]:
    """The first offset of a queue that is kept; 0 when the queue is unknown (31)."""
    header = QueueRequest(topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name)
    request = _request(RequestCode.GET_MIN_OFFSET, header)
    return _Plain(request, f"the first offset of {_named(queue)}", _offset)


def max_offset(queue: MessageQueue) -> Operation[int]:
    """The end of a queue: the offset its next message gets; 0 when it is unknown (30)."""
    header = MaxOffsetRequest(
        topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name
    )
    request = _request(RequestCode.GET_MAX_OFFSET, header)
    return _Plain(request, f"the end of {_named(queue)}", _offset)


def offset_by_time(queue: MessageQueue, timestamp_ms: int) -> Operation[int]:
    """The offset of the first message stored at a moment or later (29).

    For a moment behind the last message, 4.9 brokers give the last message's offset, others
    the queue's end.
    """
    header = SearchOffsetRequest(
        topic=queue.topic,
        queue_id=queue.queue_id,
        timestamp_ms=timestamp_ms,
        broker_name=queue.broker_name,
    )
    request = _request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
    return _Plain(request, f"the offset at {timestamp_ms} ms of {_named(queue)}", _offset)


def earliest_store_time(queue: MessageQueue) -> Operation[int | None]:
    """When the first message kept was stored, ms; ``None`` for no message (32)."""
    header = QueueRequest(topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name)

    def read(response: Command) -> int | None:
        found = TimestampResponse.from_fields(response.fields).timestamp_ms
        return None if found < 0 else found

    request = _request(RequestCode.GET_EARLIEST_MSG_STORETIME, header)
    return _Plain(request, f"the earliest store time of {_named(queue)}", read)


def query_offset(group: str, queue: MessageQueue) -> Operation[int | None]:
    """The offset a group committed, ``None`` for none (14)."""
    header = QueryOffsetRequest(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        broker_name=queue.broker_name,
    )

    def read(response: Command) -> int | None:
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        offset = _offset(response)
        return None if offset < 0 else offset

    return _Plain(
        _request(RequestCode.QUERY_CONSUMER_OFFSET, header),
        f"the offset of group {group!r} in {_named(queue)}",
        read,
        (*_SUCCESS, int(ResponseCode.QUERY_NOT_FOUND)),
    )


def update_offset(group: str, queue: MessageQueue, offset: int) -> Operation[None]:
    """Commit an offset of a group (15)."""
    header = UpdateOffsetRequest(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        commit_offset=offset,
        broker_name=queue.broker_name,
    )
    request = _request(RequestCode.UPDATE_CONSUMER_OFFSET, header)
    return _Plain(request, f"to commit {offset} of group {group!r} in {_named(queue)}", _nothing)


def _named(queue: MessageQueue) -> str:
    return f"topic {queue.topic!r}, queue {queue.queue_id}"


# ----------------------------------------------------------------------------------- clients


def heartbeat(body: Heartbeat) -> Operation[int]:
    """Tell a broker which groups this client has; returns the broker's MQ version (34)."""
    request = _request(RequestCode.HEART_BEAT, body=body.encode())
    return _Plain(request, f"a heartbeat of {body.client_id}", lambda response: response.version)


def unregister(
    client_id: str, *, producer_group: str | None = None, consumer_group: str | None = None
) -> Operation[None]:
    """Tell a broker that this client leaves one group (35)."""
    header = UnregisterClientRequest(
        client_id=client_id, producer_group=producer_group, consumer_group=consumer_group
    )
    request = _request(RequestCode.UNREGISTER_CLIENT, header)
    return _Plain(request, f"to unregister {client_id}", _nothing)


def check_subscription(client_id: str, group: str, wanted: Subscription) -> Operation[None]:
    """Ask a broker whether it takes a subscription that is no tag expression (46)."""
    body = ClientConfigCheck(client_id=client_id, group=group, subscription=wanted)
    request = _request(RequestCode.CHECK_CLIENT_CONFIG, body=body.encode())
    return _Plain(request, f"to check the filter {wanted.expression!r} of {group!r}", _nothing)


class _ConsumerIdList(Operation[list[str]]):
    """GET_CONSUMER_LIST_BY_GROUP: "none" comes as an error, too."""

    __slots__ = ("_group",)

    def __init__(self, group: str) -> None:
        header = ConsumerGroupRequest(consumer_group=group)
        super().__init__(_request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header))
        self._group = group

    @property
    def asked(self) -> str:
        return f"the members of group {self._group!r}"

    def result(self, response: Command, *, peer: str) -> list[str]:
        if response.code == ResponseCode.SUCCESS:
            return ConsumerIds.decode(response.body).client_ids if response.body else []
        # Code 1 also means that the broker failed; only this remark means "none".
        remark = response.remark or ""
        if response.code == ResponseCode.SYSTEM_ERROR and remark.startswith("no consumer for"):
            return []
        raise self.refusal(response, peer)


def consumer_ids(group: str) -> Operation[list[str]]:
    """The client ids of a group's live members (38); empty when the broker knows none."""
    return _ConsumerIdList(group)


def lock_queues(
    group: str, client_id: str, queues: Iterable[MessageQueue]
) -> Operation[list[MessageQueue]]:
    """Lock queues for one member of a group; returns those that are its own now (41)."""
    body = LockRequest(consumer_group=group, client_id=client_id, queues=list(queues))
    return _Plain(
        _request(RequestCode.LOCK_BATCH_MQ, body=body.encode()),
        f"{len(body.queues)} queue locks for {client_id} of group {group!r}",
        lambda response: LockResponse.decode(response.body).queues,
    )


def unlock_queues(group: str, client_id: str, queues: Iterable[MessageQueue]) -> Operation[None]:
    """Give queue locks back (42)."""
    body = LockRequest(consumer_group=group, client_id=client_id, queues=list(queues))
    request = _request(RequestCode.UNLOCK_BATCH_MQ, body=body.encode())
    return _Plain(request, f"to unlock {len(body.queues)} queues of group {group!r}", _nothing)


# ------------------------------------------------------------------- asked of a name server


def route(topic: str) -> Operation[TopicRoute]:
    """Where a topic lives (105)."""
    request = _request(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteRequest(topic=topic))
    return _Plain(
        request, f"the route of topic {topic!r}", lambda response: TopicRoute.decode(response.body)
    )


def cluster_info() -> Operation[ClusterInfo]:
    """All clusters and brokers (106)."""
    request = _request(RequestCode.GET_BROKER_CLUSTER_INFO)
    return _Plain(request, "the clusters", lambda response: ClusterInfo.decode(response.body))


def topic_list() -> Operation[list[str]]:
    """The names of all topics, the system's among them (206)."""
    request = _request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    return _Plain(request, "the list of topics", _topic_names)


def delete_topic_routes(topic: str) -> Operation[None]:
    """Make a name server forget a topic (216)."""
    header = DeleteTopicRoutesRequest(topic=topic)
    request = _request(RequestCode.DELETE_TOPIC_IN_NAMESRV, header)
    return _Plain(request, f"to forget topic {topic!r}", _nothing)


def _topic_names(response: Command) -> list[str]:
    return TopicList.decode(response.body).topics if response.body else []


# --------------------------------------------------------------- administration of a broker


def update_topic(config: TopicConfig) -> Operation[None]:
    """Create a topic on a broker, or change it (17)."""
    signed = ",".join(f"+{key}={value}" for key, value in sorted(config.attributes.items()))
    header = UpdateTopicRequest(
        topic=config.topic,
        default_topic=DEFAULT_TOPIC,
        read_queue_count=config.read_queue_count,
        write_queue_count=config.write_queue_count,
        perm=config.perm,
        filter_type=config.filter_type,
        topic_sys_flag=config.topic_sys_flag,
        order=config.order,
        attributes=signed or None,
    )
    request = _request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    return _Plain(request, f"to create topic {config.topic!r}", _nothing)


def delete_topic(topic: str) -> Operation[None]:
    """Delete a topic, its queues and the offsets in it from a broker (215)."""
    request = _request(RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequest(topic=topic))
    return _Plain(request, f"to delete topic {topic!r}", _nothing)


def topic_config(topic: str) -> Operation[TopicConfig]:
    """The settings of one topic; 4.9 brokers do not support it (351)."""
    request = _request(RequestCode.GET_TOPIC_CONFIG, TopicConfigRequest(topic=topic))
    return _Plain(
        request,
        f"the settings of topic {topic!r}",
        lambda response: TopicConfig.decode(response.body),
    )


def topic_table() -> Operation[TopicTable]:
    """The settings of all topics of a broker (21)."""
    request = _request(RequestCode.GET_ALL_TOPIC_CONFIG)
    return _Plain(
        request,
        "the settings of all topics",
        lambda response: TopicTable.decode(response.body),
    )


def topic_stats(topic: str) -> Operation[TopicStats]:
    """The bounds of a topic's queues on a broker (202)."""
    request = _request(RequestCode.GET_TOPIC_STATS_INFO, TopicRequest(topic=topic))
    return _Plain(
        request,
        f"the state of topic {topic!r}",
        lambda response: TopicStats.decode(response.body),
    )


def update_group(config: GroupConfig) -> Operation[None]:
    """Create a consumer group on a broker, or change it (200)."""
    request = _request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config.encode())
    return _Plain(request, f"to create group {config.group!r}", _nothing)


def delete_group(group: str, *, forget_offsets: bool = False) -> Operation[None]:
    """Delete a consumer group from a broker (207)."""
    header = DeleteGroupRequest(
        group=group, clean_offset=forget_offsets, remove_offset=forget_offsets
    )
    request = _request(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)
    return _Plain(request, f"to delete group {group!r}", _nothing)


def group_table() -> Operation[GroupTable]:
    """The settings of all consumer groups of a broker (201)."""
    request = _request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    return _Plain(
        request,
        "the settings of all groups",
        lambda response: GroupTable.decode(response.body),
    )


def groups_of_topic(topic: str) -> Operation[list[str]]:
    """The groups that consume a topic, or did (300)."""
    request = _request(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicRequest(topic=topic))
    return _Plain(
        request,
        f"the groups of topic {topic!r}",
        lambda response: GroupList.decode(response.body).groups if response.body else [],
    )


def topics_of_group(group: str) -> Operation[list[str]]:
    """The topics a group consumes; 4.9 brokers do not support it (343)."""
    request = _request(RequestCode.QUERY_TOPICS_BY_CONSUMER, GroupRequest(group=group))
    return _Plain(request, f"the topics of group {group!r}", _topic_names)


def consume_stats(group: str, topic: str | None = None) -> Operation[ConsumeStats]:
    """How far a group is, in one topic or in all it has offsets for (208)."""
    header = ConsumeStatsRequest(consumer_group=group, topic=topic)
    request = _request(RequestCode.GET_CONSUME_STATS, header)
    return _Plain(
        request,
        f"the progress of group {group!r}",
        lambda response: ConsumeStats.decode(response.body),
    )


def consumer_connections(group: str) -> Operation[ConsumerConnections]:
    """The live members of a group; refused with ConsumerNotOnline when there is none (203)."""
    header = ConsumerGroupRequest(consumer_group=group)
    request = _request(RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
    return _Plain(
        request,
        f"the connections of group {group!r}",
        lambda response: ConsumerConnections.decode(response.body),
    )


def broker_state() -> Operation[dict[str, str]]:
    """What a broker says about itself: version, rates, disk, offsets (28)."""
    request = _request(RequestCode.GET_BROKER_RUNTIME_INFO)
    return _Plain(
        request, "the broker's state", lambda response: KVTable.decode(response.body).table
    )
