"""Topics, groups and the state of one broker."""

from pymq.client.operations.name_server import topic_names
from pymq.client.operations.operation import Operation, Plain, new_request, nothing
from pymq.protocol.bodies import (
    ConsumerConnections,
    ConsumeStats,
    GroupConfig,
    GroupList,
    GroupTable,
    KVTable,
    TopicConfig,
    TopicStats,
    TopicTable,
)
from pymq.protocol.client_bodies import ConsumerRunningInfo
from pymq.protocol.codes import MQ_VERSION_GROUPS_CHECKED, RequestCode
from pymq.protocol.command import Command
from pymq.protocol.headers.groups import (
    ConsumerGroupRequest,
    ConsumeStatsRequest,
    DeleteGroupRequest,
    GroupRequest,
    RunningInfoRequest,
)
from pymq.protocol.headers.topics import TopicConfigRequest, TopicRequest, UpdateTopicRequest
from pymq.protocol.names import DEFAULT_TOPIC


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
    request = new_request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    return Plain(request, f"to create topic {config.topic!r}", nothing)


def delete_topic(topic: str) -> Operation[None]:
    """Delete a topic, its queues and the offsets in it from a broker (215)."""
    request = new_request(RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequest(topic=topic))
    return Plain(request, f"to delete topic {topic!r}", nothing)


def topic_config(topic: str) -> Operation[TopicConfig]:
    """The settings of one topic; 4.9 brokers do not support it (351)."""
    request = new_request(RequestCode.GET_TOPIC_CONFIG, TopicConfigRequest(topic=topic))
    return Plain(
        request,
        f"the settings of topic {topic!r}",
        lambda response: TopicConfig.decode(response.body),
    )


def topic_table() -> Operation[TopicTable]:
    """The settings of all topics of a broker (21)."""
    request = new_request(RequestCode.GET_ALL_TOPIC_CONFIG)
    return Plain(
        request,
        "the settings of all topics",
        lambda response: TopicTable.decode(response.body),
    )


def topic_stats(topic: str) -> Operation[TopicStats]:
    """The bounds of a topic's queues on a broker (202)."""
    request = new_request(RequestCode.GET_TOPIC_STATS_INFO, TopicRequest(topic=topic))
    return Plain(
        request,
        f"the state of topic {topic!r}",
        lambda response: TopicStats.decode(response.body),
    )


def update_group(config: GroupConfig) -> Operation[None]:
    """Create a consumer group on a broker, or change it (200)."""
    request = new_request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config.encode())
    return Plain(request, f"to create group {config.group!r}", nothing)


def delete_group(group: str, *, forget_offsets: bool = False) -> Operation[None]:
    """Delete a consumer group from a broker (207)."""
    header = DeleteGroupRequest(
        group=group, clean_offset=forget_offsets, remove_offset=forget_offsets
    )
    request = new_request(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)
    return Plain(request, f"to delete group {group!r}", nothing)


def group_table() -> Operation[GroupTable]:
    """The settings of all consumer groups of a broker (201)."""
    request = new_request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    return Plain(
        request,
        "the settings of all groups",
        lambda response: GroupTable.decode(response.body),
    )


def groups_with_offsets() -> Operation[list[str] | None]:
    """The groups that a broker takes offsets of, ``None``: of any, also one it does not have (201).

    To ask for the settings of one group would create it on brokers of RocketMQ.
    """

    def read(response: Command) -> list[str] | None:
        if response.version < MQ_VERSION_GROUPS_CHECKED:
            return None
        return list(GroupTable.decode(response.body).groups)

    request = new_request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    return Plain(request, "the names of all groups", read)


def group_config(group: str) -> Operation[GroupConfig]:
    """The settings of one consumer group; 4.9 brokers do not support it (352)."""
    request = new_request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupRequest(group=group))
    return Plain(
        request,
        f"the settings of group {group!r}",
        lambda response: GroupConfig.decode(response.body),
    )


def groups_of_topic(topic: str) -> Operation[list[str]]:
    """The groups that consume a topic, or did (300)."""
    request = new_request(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicRequest(topic=topic))
    return Plain(
        request,
        f"the groups of topic {topic!r}",
        lambda response: GroupList.decode(response.body).groups if response.body else [],
    )


def topics_of_group(group: str) -> Operation[list[str]]:
    """The topics a group consumes; 4.9 brokers do not support it (343)."""
    request = new_request(RequestCode.QUERY_TOPICS_BY_CONSUMER, GroupRequest(group=group))
    return Plain(request, f"the topics of group {group!r}", topic_names)


def consume_stats(group: str, topic: str | None = None) -> Operation[ConsumeStats]:
    """How far a group is, in one topic or in all it has offsets for (208)."""
    header = ConsumeStatsRequest(consumer_group=group, topic=topic)
    request = new_request(RequestCode.GET_CONSUME_STATS, header)
    return Plain(
        request,
        f"the progress of group {group!r}",
        lambda response: ConsumeStats.decode(response.body),
    )


def consumer_connections(group: str) -> Operation[ConsumerConnections]:
    """The live members of a group; refused with ConsumerNotOnline when there is none (203)."""
    header = ConsumerGroupRequest(consumer_group=group)
    request = new_request(RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
    return Plain(
        request,
        f"the connections of group {group!r}",
        lambda response: ConsumerConnections.decode(response.body),
    )


def running_info(
    group: str, client_id: str, *, stacks: bool = False
) -> Operation[ConsumerRunningInfo]:
    """What one member of a group says that it is at, by way of a broker (307)."""
    header = RunningInfoRequest(consumer_group=group, client_id=client_id, jstack_enable=stacks)
    return Plain(
        new_request(RequestCode.GET_CONSUMER_RUNNING_INFO, header),
        f"what member {client_id} of group {group!r} is at",
        lambda response: ConsumerRunningInfo.decode(response.body),
    )


def broker_state() -> Operation[dict[str, str]]:
    """What a broker says about itself: version, rates, disk, offsets (28)."""
    request = new_request(RequestCode.GET_BROKER_RUNTIME_INFO)
    return Plain(
        request, "the broker's state", lambda response: KVTable.decode(response.body).table
    )


def delete_expired_log() -> Operation[None]:
    """Begin to delete commit-log files past their time, whatever the hour (329)."""
    request = new_request(RequestCode.DELETE_EXPIRED_COMMITLOG)
    return Plain(request, "to delete expired log files", nothing)


def clean_expired_queues() -> Operation[None]:
    """Delete consume queues that hold nothing any more (306)."""
    request = new_request(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
    return Plain(request, "to delete expired queues", nothing)
