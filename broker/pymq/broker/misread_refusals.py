"""Refusals that are worse than no answer: old consumers take them for something else.

RocketMQ's consumers before 5.0 take whatever refuses QUERY_CONSUMER_OFFSET for "nothing was ever
committed": they begin as a new group does, usually at the end of the queue, and never handle what
is in between. If they get no answer, they ask again at the next rebalance.

Source: RocketMQ RemoteBrokerOffsetStore.readOffset (4.x), RebalancePushImpl.computePullFromWhere.
"""

from typing import Final

from pymq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from pymq.protocol.command import Command

#: MQVersion.V5_0_0_SNAPSHOT.
_VERSION_5: Final = 412


def is_misread(command: Command, code: int) -> bool:
    """Return whether the sender of a request would misread a refusal with a response code."""
    if command.code != RequestCode.QUERY_CONSUMER_OFFSET or code == ResponseCode.QUERY_NOT_FOUND:
        return False
    # RocketMQ's C++ client has never told the refusals apart, and counts its versions otherwise.
    is_old = command.language == LanguageCode.JAVA and command.version < _VERSION_5
    return is_old or command.language == LanguageCode.CPP
