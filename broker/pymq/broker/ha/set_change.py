"""What a controller's answer to a request for another sync state set says.

Source: RocketMQ BrokerOuterAPI.alterSyncStateSet.
"""

from collections.abc import Collection

from pymq.broker.ha.numbering import REMOVED
from pymq.errors import BrokerError, PymqError
from pymq.net.said_once import SaidOnce
from pymq.protocol.codes import ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.controller import SET_REFUSALS, SyncStateSet

#: With these, it refuses a set for one broker that it does not know, or does not hear.
_FOR_ONE = (
    ResponseCode.CONTROLLER_INVALID_REPLICAS,
    ResponseCode.CONTROLLER_BROKER_NOT_ALIVE,
)


class SetRefused(PymqError):
    """The set stays what it is, and any other one would be refused, too."""


def changed_set(answer: Command) -> SyncStateSet | None:
    """Return the set that there is now; None: the old one, as this one is refused for one broker.

    Raises:
        SetRefused: the old one.
        BrokerError: it is unknown which one, or which one it will be.
    """
    if answer.code == ResponseCode.SUCCESS:
        return SyncStateSet.decode(answer.body)
    if answer.code in _FOR_ONE:
        return None
    if answer.code in SET_REFUSALS:
        raise SetRefused(f"another sync state set is refused: {answer.remark}")
    raise BrokerError.of(
        answer.code, answer.remark, peer="the controller", request="another sync state set"
    )


def say_outcome(
    said: SaidOnce, answer: Command, *, group: str, broker_ids: Collection[int]
) -> None:
    """Log that a set was refused, once for each reason: masters ask several times a second."""
    if answer.code == ResponseCode.SUCCESS:
        for code in SET_REFUSALS:
            said.over(code)
    elif answer.code in SET_REFUSALS:
        said.warn(
            answer.code,
            "the controllers refuse %s as the sync state set of %s: %s%s",
            sorted(broker_ids),
            group,
            answer.remark,
            _consequence(answer.code),
        )


def _consequence(code: int) -> str:
    if code not in _FOR_ONE:
        return ""
    alone = ". Who joins or leaves is decided without that broker until they know it and hear it"
    return f"{alone}. {REMOVED}" if code == ResponseCode.CONTROLLER_INVALID_REPLICAS else alone
