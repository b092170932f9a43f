"""What a controller's answer to a request for another sync state set says.

Source: RocketMQ BrokerOuterAPI.alterSyncStateSet.
"""

import logging
from collections.abc import Collection

from pymq.broker.ha.numbering import REMOVED
from pymq.errors import BrokerError
from pymq.net.said_once import SaidOnce
from pymq.protocol.codes import ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.controller import SyncStateSet

_log = logging.getLogger(__name__)

#: With these, it refuses a set for one broker that it does not know, or does not hear.
_FOR_ONE = (
    ResponseCode.CONTROLLER_INVALID_REPLICAS,
    ResponseCode.CONTROLLER_BROKER_NOT_ALIVE,
)
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


def say_outcome(
    said: SaidOnce, answer: Command, *, group: str, broker_ids: Collection[int]
) -> None:
    """Log that a set was refused: masters ask several times a second."""
    if answer.code == ResponseCode.SUCCESS:
        for code in _FOR_ONE:
            said.over(code)
    elif answer.code in _FOR_ONE:
        said.warn(
            answer.code,
            "the controllers refuse %s as the sync state set of %s: %s. Who joins or leaves is "
            "decided without that broker until they know it and hear it%s",
            sorted(broker_ids),
            group,
            answer.remark,
            f". {REMOVED}" if answer.code == ResponseCode.CONTROLLER_INVALID_REPLICAS else "",
        )
    else:
        _log.info("sync state set %s was refused: %s", sorted(broker_ids), answer.remark)
