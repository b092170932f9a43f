"""Who may pull what: the checks of a pull, before anything is read.

Source: RocketMQ PullMessageProcessor.
"""

from pymq.broker.config import BrokerConfig
from pymq.broker.selections import Selections
from pymq.broker.state.filters import SQL92
from pymq.broker.state.groups import GroupTable
from pymq.broker.state.topics import TopicTable
from pymq.errors import BrokerError, refusal
from pymq.protocol.codes import Permission, PullFlag, RequestCode, ResponseCode
from pymq.protocol.headers.pull import FORBIDDEN_FIELD, Forbidden, PullRequest
from pymq.store import Selection

#: Plain numbers: combining flags of an enumeration costs a microsecond, and every pull asks.
_READ = int(Permission.READ)
_SUBSCRIPTION = int(PullFlag.SUBSCRIPTION)


class PullChecks:
    """Checks pulls, and knows what they select."""

    def __init__(
        self, config: BrokerConfig, topics: TopicTable, groups: GroupTable, selections: Selections
    ) -> None:
        self._config = config
        self._topics = topics
        self._groups = groups
        self._selections = selections

    def check_code(self, code: int) -> None:
        """Check that a kind of pull is served at all.

        Raises:
            BrokerError: it is not.
        """
        if not self._config.lite_pull and code == RequestCode.LITE_PULL_MESSAGE:
            raise _forbidden(
                Forbidden.BROKER,
                f"the broker[{self._config.name}] for lite pull consumer is forbidden "
                "(litePullMessageEnable)",
            )

    def is_ready(self, header: PullRequest) -> bool:
        """Return whether ``check`` will not take long; if not, ``prepare`` first."""
        if not header.sys_flag & _SUBSCRIPTION or header.expression_type != SQL92:
            return True
        return self._selections.is_ready(header.topic, None, header.subscription)

    async def prepare(self, header: PullRequest) -> None:
        """Compile the filter in the request."""
        await self._selections.prepare(header.subscription or "")

    def check(self, header: PullRequest) -> Selection:
        """Check that a pull may be served; return what it selects.

        Raises:
            BrokerError: it may not.
        """
        config = self._config
        if not config.is_readable:
            raise _forbidden(
                Forbidden.BROKER,
                f"the broker[{config.name}] pulling message is forbidden "
                f"(broker permission {config.permission})",
            )
        group = self._groups.require(header.consumer_group)
        if not group.consume_enable:
            raise _forbidden(
                Forbidden.GROUP, f"subscription group no permission, {header.consumer_group}"
            )
        topic = self._topics.require(header.topic)
        if not topic.perm & _READ:
            raise _forbidden(
                Forbidden.TOPIC,
                f"the topic[{header.topic}] pulling message is forbidden "
                f"(topic permission {topic.perm})",
            )
        if not 0 <= header.queue_id < topic.read_queue_count:
            raise refusal(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_count}]",
            )
        if header.sys_flag & _SUBSCRIPTION:
            return self._selections.of_expression(
                header.topic,
                header.subscription,
                header.expression_type,
                group=header.consumer_group,
            )
        if self._groups.is_read_forbidden(header.consumer_group, header.topic):
            raise _forbidden(
                Forbidden.SUBSCRIPTION,
                f"the consumer group[{header.consumer_group}] is forbidden for "
                f"topic[{header.topic}]",
            )
        return self._selections.of_group(group, header.topic, header.sub_version)


def _forbidden(kind: Forbidden, remark: str) -> BrokerError:
    return refusal(ResponseCode.NO_PERMISSION, remark, {FORBIDDEN_FIELD: str(int(kind))})
