"""What a broker of a group tells its controllers every now and then: that it is alive, and how far.

Source: RocketMQ ReplicasManager.sendHeartbeatToController.
"""

from typing import Protocol

from pymq.broker.config import BrokerConfig
from pymq.broker.replication_config import ReplicationConfig
from pymq.protocol.headers.routes import BrokerHeartbeatRequest


class LogPosition(Protocol):
    """How far this broker's log is; heartbeats tell the controller."""

    def position(self) -> tuple[int, int, int]:
        """Return the last epoch, and the physical offsets of its end and what is confirmed."""


def heartbeat(
    config: BrokerConfig,
    replication: ReplicationConfig,
    *,
    broker_id: int,
    address: str,
    position: tuple[int, int, int],
) -> BrokerHeartbeatRequest:
    """Return a heartbeat.

    Args:
        config: the broker's name and cluster.
        replication: how long it may be silent, and how willing it is to be the master.
        broker_id: the controller's.
        address: ``host:port`` at which clients reach the broker.
        position: see ``LogPosition``.
    """
    epoch, end, confirmed_end = position
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
        election_priority=replication.election_priority,
    )
