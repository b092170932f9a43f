"""What a consumer can be told: the settings of all clients, and those of a group's member."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pymq.client.checks import check_count, check_seconds
from pymq.client.cluster.config import ClientConfig
from pymq.client.consuming.local_offsets import find_file, root_directory
from pymq.client.group.allocation import Allocation, averagely
from pymq.client.group.inbox import FlowLimits
from pymq.client.group.rebalance_listener import RebalanceListener, check_listener
from pymq.client.group.start_policy import StartPolicy
from pymq.errors import ConfigurationError
from pymq.protocol.bodies import MessageModel
from pymq.protocol.names import check_group

#: What brokers can be told; with their longest delay, 2 h, nobody will live to see it.
TIMES_MAX = (1 << 31) - 1
CLOSE_TIMEOUT_S = 10.0
#: suspendCurrentQueueTimeMillis
SUSPEND_S = 1.0
#: What the ids of Java's broadcasting consumers end with, so that they find their offsets again.
BROADCASTING_INSTANCE = "DEFAULT"
#: RocketMQ consumeTimeout, 15 minutes.
CONSUME_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """Settings of one consumer; fixed for its lifetime.

    Attributes:
        group: consumer group.
        start: where the group begins in queues for which it has no committed offset.
        message_model: do the members share the messages, or does each get all?
        orderly: are the messages of a queue handled one after the other?
        suspend_s: how long a queue waits after a failure, where messages are handled in order.
        max_reconsume_times: so often at most a message that failed is tried again before it becomes
            a dead letter; ``math.inf``: without limit; ``None``: as the group's setting says, in
            order without limit.
        allocation: how the queues are divided among the members.
        rebalance_listener: told of queues that come and go.
        limits: how much is pulled ahead.
        consume_timeout_s: a message that somebody has had for longer goes back to its broker.
        close_timeout_s: how long ``close`` waits for handlers; 0: not at all.
        local_offsets_dir: root of the offset files of members that get everything.
    """

    group: str
    start: StartPolicy
    message_model: str = MessageModel.CLUSTERING
    orderly: bool = False
    suspend_s: float = SUSPEND_S
    max_reconsume_times: float | None = None
    allocation: Allocation = averagely
    rebalance_listener: RebalanceListener | None = None
    limits: FlowLimits = field(default_factory=FlowLimits)
    consume_timeout_s: float = CONSUME_TIMEOUT_S
    close_timeout_s: float = CLOSE_TIMEOUT_S
    local_offsets_dir: str | Path | None = None

    def __post_init__(self) -> None:
        # Without slots it would be super().__post_init__(); with them the class is made twice.
        ClientConfig.__post_init__(self)
        check_group(self.group)
        if self.message_model not in tuple(MessageModel):
            raise ConfigurationError(
                f"message_model={self.message_model!r:.80}: expected 'CLUSTERING' (the members "
                "share the messages) or 'BROADCASTING' (each gets all)"
            )
        if not isinstance(self.orderly, bool):
            raise ConfigurationError(f"orderly={self.orderly!r:.80}: expected True or False")
        check_seconds("suspend_s", self.suspend_s)
        if self.max_reconsume_times == -1:
            raise ConfigurationError(
                "max_reconsume_times=-1: this is 16 in Java, and without a limit in order there; "
                "give the number that you mean, math.inf for no limit, or None for the default"
            )
        if self.max_reconsume_times not in (None, math.inf):
            check_count("max_reconsume_times", self.max_reconsume_times, 0, TIMES_MAX)
        if not callable(self.allocation):
            raise ConfigurationError(
                f"allocation={self.allocation!r:.80}: expected a function, such as those of "
                "pymq.allocation"
            )
        if self.is_broadcasting and self.allocation is not averagely:
            raise ConfigurationError(
                "allocation: in a broadcasting group every member reads all queues; leave it out"
            )
        if self.rebalance_listener is not None:
            check_listener(self.rebalance_listener)
        if not isinstance(self.limits, FlowLimits):
            raise ConfigurationError(f"limits={self.limits!r:.80}: expected a FlowLimits")
        check_seconds("consume_timeout_s", self.consume_timeout_s)
        if self.close_timeout_s != 0:
            check_seconds("close_timeout_s", self.close_timeout_s)
        self._check_local()

    def _check_local(self) -> None:
        if self.local_offsets_dir is not None:
            if not isinstance(self.local_offsets_dir, str | Path):
                raise ConfigurationError(
                    f"local_offsets_dir={self.local_offsets_dir!r:.80}: expected a path"
                )
            if not self.is_broadcasting:
                raise ConfigurationError(
                    "local_offsets_dir: only members of a broadcasting group keep their offsets in "
                    "files; the others commit to the brokers"
                )
        if self.is_broadcasting:
            root_directory(self.local_offsets_dir)

    @property
    def is_broadcasting(self) -> bool:
        """Does every member get everything?"""
        return self.message_model == MessageModel.BROADCASTING

    @property
    def instance_name(self) -> str | None:
        """What the client id ends with unless ``network`` says; ``None``: something unique."""
        return BROADCASTING_INSTANCE if self.is_broadcasting else None

    def find_offsets(self, client_id: str, name_servers: Sequence[str]) -> Path:
        """Return where a broadcasting member keeps its offsets; in a thread: see ``find_file``."""
        root = root_directory(self.local_offsets_dir)
        return find_file(root, client_id, self.network.wrap(self.group), name_servers)
