"""Whether a group may pop from a topic, or acknowledge messages of it.

Source: RocketMQ PopMessageProcessor, NotificationProcessor, AckMessageProcessor.
"""

from pymq.broker.config import BrokerConfig
from pymq.broker.state.groups import GroupTable
from pymq.broker.state.topics import TopicTable
from pymq.errors import refusal
from pymq.protocol import names
from pymq.protocol.bodies import TopicConfig
from pymq.protocol.codes import Permission, ResponseCode

_READ = int(Permission.READ)


class PopAccess:
    """Checks requests; refuses them by raising."""

    def __init__(self, config: BrokerConfig, topics: TopicTable, groups: GroupTable) -> None:
        self._config = config
        self._topics = topics
        self._groups = groups

    def check_broker(self, what: str) -> None:
        """Check whether this broker may be read from; ``what`` is wanted, for the remark.

        Raises:
            BrokerError: it may not.
        """
        config = self._config
        if not config.is_readable:
            raise refusal(
                ResponseCode.NO_PERMISSION,
                f"the broker[{config.name}] {what} is forbidden "
                f"(broker permission {config.permission})",
            )

    def check_reading(self, topic: str, queue_id: int, group: str) -> None:
        """Check whether a group may read a topic; a queue id below 0 stands for all queues.

        Raises:
            BrokerError: it may not, or one of them does not exist.
        """
        config = self._topics.require(topic)
        if not config.perm & _READ:
            raise refusal(
                ResponseCode.NO_PERMISSION, f"the topic[{topic}] peeking message is forbidden"
            )
        if queue_id >= config.read_queue_count:
            raise refusal(ResponseCode.INVALID_PARAMETER, _illegal_queue(queue_id, config))
        if not self._groups.require(group).consume_enable:
            raise refusal(
                ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}"
            )

    def check_retrying(self, topic: str, group: str) -> None:
        """Check whether messages that are not acknowledged can come back: they need a retry topic.

        Raises:
            BrokerError: its name would be too long.
        """
        if names.is_retry_topic(topic):
            return
        retry = names.pop_retry_topic(topic, group, v2=self._config.pop_retry_v2)
        if len(retry) > names.DERIVED_TOPIC_BYTES_MAX:
            raise refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the names of group {group:.40}... and topic {topic:.40}... are too long: the "
                f"topic for what is to be popped again would have {len(retry)} characters, "
                f"expected at most {names.DERIVED_TOPIC_BYTES_MAX}",
            )

    def check_queue(self, topic: str, queue_id: int) -> None:
        """Check whether there is a queue.

        Raises:
            BrokerError: there is none.
        """
        config = self._topics.require(topic)
        if not 0 <= queue_id < config.read_queue_count:
            raise refusal(ResponseCode.MESSAGE_ILLEGAL, _illegal_queue(queue_id, config))


def _illegal_queue(queue_id: int, topic: TopicConfig) -> str:
    return (
        f"queueId[{queue_id}] is illegal, topic:[{topic.topic}] "
        f"topicConfig.readQueueNums:[{topic.read_queue_count}]"
    )
