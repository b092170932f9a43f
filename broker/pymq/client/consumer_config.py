"""What a consumer can be told: the settings of all clients, and those of a group's member."""

from dataclasses import dataclass, field

from pymq.client.checks import check_count, check_seconds
from pymq.client.config import ClientConfig
from pymq.client.inbox import FlowLimits
from pymq.client.start_policy import StartPolicy
from pymq.errors import ConfigurationError
from pymq.protocol.bodies import MessageModel
from pymq.protocol.names import check_group

MAX_RECONSUME_TIMES = 16
CLOSE_TIMEOUT_S = 10.0
#: RocketMQ consumeTimeout, 15 minutes.
CONSUME_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """Settings of one consumer; fixed for its lifetime.

    Attributes:
        group: consumer group.
        start: where the group begins in queues for which it has no committed offset.
        message_model: clustering.
        max_reconsume_times: after this many failed tries a message becomes a dead letter.
        limits: how much is pulled ahead.
        consume_timeout_s: a message that somebody has had for longer goes back to its broker.
        close_timeout_s: how long ``close`` waits for handlers; 0: not at all.
    """

    group: str
    start: StartPolicy
    message_model: str = MessageModel.CLUSTERING
    max_reconsume_times: int = MAX_RECONSUME_TIMES
    limits: FlowLimits = field(default_factory=FlowLimits)
    consume_timeout_s: float = CONSUME_TIMEOUT_S
    close_timeout_s: float = CLOSE_TIMEOUT_S

    def __post_init__(self) -> None:
        # Without slots it would be super().__post_init__(); with them the class is made twice.
        ClientConfig.__post_init__(self)
        check_group(self.group)
        if self.message_model != MessageModel.CLUSTERING:
            raise ConfigurationError(
                f"message_model={self.message_model!r}: only CLUSTERING is supported; for every "
                "process to get every message, give each a group of its own"
            )
        check_count("max_reconsume_times", self.max_reconsume_times, 0)
        if not isinstance(self.limits, FlowLimits):
            raise ConfigurationError(f"limits={self.limits!r:.80}: expected a FlowLimits")
        check_seconds("consume_timeout_s", self.consume_timeout_s)
        if self.close_timeout_s != 0:
            check_seconds("close_timeout_s", self.close_timeout_s)
