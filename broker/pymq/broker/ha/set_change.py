"""What a controller's answer to a request for another sync state set says; and resignations.

A master that could not begin its term asks for a set of nobody: it has acknowledged nothing, so
whoever was in sync before its election may be the master (pymq's controllers; others refuse that).

Source: RocketMQ BrokerOuterAPI.alterSyncStateSet.
"""

import logging
from collections.abc import Collection

from pymq.broker.ha.controllers import Controllers, NoController
from pymq.broker.ha.numbering import REMOVED
from pymq.broker.ha.term import Term
from pymq.errors import BrokerError, PymqError
from pymq.net.said_once import SaidOnce
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.controller import SET_REFUSALS, AlterSyncStateSetRequest, SyncStateSet

_log = logging.getLogger(__name__)

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


async def has_resigned(
    controllers: Controllers, request: AlterSyncStateSetRequest, term: Term
) -> bool:
    """Ask for another master than this one, whose log has nothing of its term.

    Args:
        controllers: who decide.
        request: in the name of the term.
        term: which must not begin as long as this runs.

    Returns:
        Whether it is so, or may be so some time: the term must not begin any more. False: it is the
        master still.
    """
    nobody = SyncStateSet(frozenset(), term.members.epoch)
    try:
        answer = await controllers.request(
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, request, nobody.encode()
        )
    except NoController:
        return False
    except PymqError as error:
        _log.warning(
            "whether the controllers have elected another one than this broker for epoch %d: %s",
            term.number,
            error,
        )
        return True
    if answer.code == ResponseCode.SUCCESS:
        _log.warning(
            "the controllers have elected another one than this broker, which never began epoch %d",
            term.number,
        )
    return answer.code not in SET_REFUSALS
