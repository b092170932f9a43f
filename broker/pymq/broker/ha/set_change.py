"""What a controller's answer to a request for another sync state set says.

Source: RocketMQ BrokerOuterAPI.alterSyncStateSet.
"""

from pymq.errors import BrokerError
from pymq.protocol.codes import ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.controller import SyncStateSet

#: With these, a controller says that it does not change the set. Others leave open whether it has:
#: its store may have taken the change, and not have answered.
_REFUSED = frozenset(
    (
        ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
        ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
        ResponseCode.CONTROLLER_INVALID_MASTER,
        ResponseCode.CONTROLLER_INVALID_REPLICAS,
        ResponseCode.CONTROLLER_BROKER_NOT_ALIVE,
        ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
    )
)


def changed_set(answer: Command) -> SyncStateSet | None:
    """Return the set that there is now; None: the old one, certainly.

    Raises:
        BrokerError: it is unknown which one, or which one it will be.
    """
    if answer.code == ResponseCode.SUCCESS:
        return SyncStateSet.decode(answer.body)
    if answer.code in _REFUSED:
        return None
    raise BrokerError.of(
        answer.code, answer.remark, peer="the controller", request="another sync state set"
    )
