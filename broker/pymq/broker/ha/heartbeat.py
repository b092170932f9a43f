"""What a broker of a group tells its controllers every now and then: that it is alive, and how far.

Source: RocketMQ ReplicasManager.sendHeartbeatToController.
"""

from typing import NamedTuple, Protocol

from pymq.broker.config import BrokerConfig
from pymq.broker.replication_config import ReplicationConfig
from pymq.protocol.headers.routes import BrokerHeartbeatRequest

#: The priority that is elected last. A broker that can be the master never says it, whatever is set
#: (it is the default): of those that are equally far, one that cannot comes after it.
LAST_PRIORITY = (1 << 31) - 1


class Position(NamedTuple):
    """How far a broker's log is.

    Attributes:
        epoch: the last one.
        end, confirmed_end: physical offsets of its end and what is confirmed.
        is_able: whether it can be the master, as far as is known.
    """

    epoch: int
    end: int
    confirmed_end: int
    is_able: bool = True


class LogPosition(Protocol):
    """How far this broker's log is; heartbeats tell the controller."""

    def position(self) -> Position:
        """Return how far it is."""


def heartbeat(
    config: BrokerConfig,
    replication: ReplicationConfig,
    *,
    broker_id: int,
    address: str,
    position: Position,
) -> BrokerHeartbeatRequest:
    """Return a heartbeat.

    Args:
        config: the broker's name and cluster.
        replication: how long it may be silent, and how willing it is to be the master.
        broker_id: the controller's.
        address: ``host:port`` at which clients reach the broker.
        position: how far its log is.
    """
    epoch, end, confirmed_end, is_able = position
    priority = min(replication.election_priority, LAST_PRIORITY - 1)
    return BrokerHeartbeatRequest(
        cluster_name=config.cluster,
        broker_address=address,
        broker_name=config.name,
        broker_id=broker_id,
        epoch=epoch,
        # Any other one is better, should brokers outside of the set be elected: for a controller
        # of RocketMQ's, any of the same epoch. That is told nevertheless: otherwise, with old
        # data, controllers could give it to a later master.
        max_offset=-1 if replication.is_learner else end,
        confirm_offset=confirmed_end,
        heartbeat_timeout_ms=replication.controller_timeout_ms,
        # It is its offset that is told, also if it is not able: controllers go on with the furthest
        # that they were told, and the one with its id at another address must not have less.
        election_priority=priority if is_able else LAST_PRIORITY,
    )
