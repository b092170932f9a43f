"""What a broker of a group asks its controllers for.

Source: RocketMQ BrokerOuterAPI.
"""

from pymq.broker.config import BrokerConfig
from pymq.clock import Clock
from pymq.protocol.controller import (
    AlterSyncStateSetRequest,
    ElectMasterRequest,
    RegisterReplicaRequest,
)


class MembershipRequests:
    """The requests of one broker.

    Args:
        config: its name and cluster.
        clock: the time.
        address: ``host:port`` at which clients reach it.
    """

    def __init__(self, config: BrokerConfig, clock: Clock, address: str) -> None:
        self._config = config
        self._clock = clock
        self._address = address

    def register(
        self, broker_id: int, *, log_epoch: int, has_had_id: bool
    ) -> RegisterReplicaRequest:
        """Return what asks for the broker's id, and tells where it is.

        Args:
            log_epoch: the last one in its log; -1: there is none.
            has_had_id: whether this process has had the id.
        """
        return RegisterReplicaRequest(
            cluster_name=self._config.cluster,
            broker_name=self._config.name,
            broker_id=broker_id,
            broker_address=self._address,
            invoke_time_ms=self._clock.wall_ms(),
            log_epoch=log_epoch,
            has_had_id=has_had_id or None,
        )

    def elect(self, broker_id: int) -> ElectMasterRequest:
        """Return what asks for a master, whoever that will be."""
        return ElectMasterRequest(
            cluster_name=self._config.cluster,
            broker_name=self._config.name,
            broker_id=broker_id,
            invoke_time_ms=self._clock.wall_ms(),
        )

    def alter(self, broker_id: int, term: int) -> AlterSyncStateSetRequest:
        """Return what asks for another sync state set, in the name of a term."""
        return AlterSyncStateSetRequest(
            broker_name=self._config.name,
            master_broker_id=broker_id,
            master_epoch=term,
            invoke_time_ms=self._clock.wall_ms(),
        )
