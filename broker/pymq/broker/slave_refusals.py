"""What a slave does not do: it takes no messages, and its settings are its master's.

Source: RocketMQ DefaultMessageStore.checkStoreStatus, AdminBrokerProcessor.validateSlave,
PullMessageProcessor.rejectRequest.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Final, NoReturn
from weakref import WeakSet

from pymq.broker.config import BrokerConfig
from pymq.broker.ha.slave import Slave
from pymq.errors import refusal
from pymq.net.dispatcher import Answer, Handler, Request, Response
from pymq.protocol.bodies import LockResponse
from pymq.protocol.codes import (
    AWAIT_METADATA,
    AWAIT_OFFSETS,
    LanguageCode,
    RequestCode,
    ResponseCode,
    SinkRequest,
)

#: What writes to the log, or would if messages were popped.
_WRITES: Final = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.END_TRANSACTION,
    RequestCode.RESUME_CHECK_HALF_MESSAGE,
    RequestCode.RECALL_MESSAGE,
    RequestCode.POP_MESSAGE,
    RequestCode.ACK_MESSAGE,
    RequestCode.BATCH_ACK_MESSAGE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    RequestCode.NOTIFICATION,
    RequestCode.POLLING_INFO,
    *SinkRequest,
)
_CHANGES: Final = (
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
    RequestCode.SET_MESSAGE_REQUEST_MODE,
    RequestCode.CLEAN_UNUSED_TOPIC,
    RequestCode.CLONE_GROUP_OFFSET,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
)
#: What slaves ask of their master: of this broker, perhaps before it knows that it is theirs.
_FOLLOWS: Final = (AWAIT_METADATA, AWAIT_OFFSETS)

_COMMIT: Final = RequestCode.UPDATE_CONSUMER_OFFSET
_QUERY: Final = RequestCode.QUERY_CONSUMER_OFFSET
_LOCK: Final = RequestCode.LOCK_BATCH_MQ
#: Less than the 5 s for which RocketMQ's consumers wait for an answer to that.
KNOWN_WAIT_S: Final = 4.0
_KNOWN_PAUSE_S: Final = 0.05
#: Most that wait so: more of them would keep the slave from following its master.
_KNOWN_WAITING_MAX: Final = 200
_READS: Final = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)


def with_refusals(
    handlers: Mapping[int, Handler], config: BrokerConfig, slave: Slave, *, has_controller: bool
) -> dict[int, Handler]:
    """Return the handlers of a slave, from those that it would have as a master.

    While it acts for its master, it is read from in any case.

    Unlike RocketMQ's, it takes commits only while its master is away, and has not begun to come
    back: otherwise they would be acknowledged, and then replaced by what the master has. With a
    controller, another broker becomes the master then.

    Unlike RocketMQ's, it tells what is committed only if it knows that: consumers would begin with
    what they have answered for, or, if it knows of no offset at all, begin at the end.

    Unlike RocketMQ's, it grants locks of queues only while it acts: the master grants them, too.
    """
    refused: dict[int, Handler] = {
        **dict.fromkeys(_WRITES, _refuse_write),
        **dict.fromkeys(_CHANGES, _refuse_change),
        **dict.fromkeys(_FOLLOWS, _refuse_slave),
        _COMMIT: _while_alone(handlers[_COMMIT], slave, has_controller=has_controller),
        _QUERY: _when_known(handlers[_QUERY], slave),
        _LOCK: _granted_while_acting(handlers[_LOCK], slave),
    }
    if not config.slave_read:
        refused |= {code: _while_acting(handlers[code], slave) for code in _READS}
    return {**handlers, **refused}


def _while_acting(handle: Handler, slave: Slave) -> Handler:
    return lambda request: handle(request) if slave.is_acting else _refuse_read(request)


def _granted_while_acting(handle: Handler, slave: Slave) -> Handler:
    def lock(request: Request) -> Answer:
        if slave.is_acting:
            return handle(request)
        # No refusal: RocketMQ's consumers would count on what was granted before for longer.
        return request.response(ResponseCode.SUCCESS, body=LockResponse(queues=[]).encode())

    return lock


def _while_alone(handle: Handler, slave: Slave, *, has_controller: bool) -> Handler:
    def commit(request: Request) -> Answer:
        if slave.hands_over:
            raise refusal(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                "the master of this slave is about to be online, and has what was committed here: "
                "commit there in a moment",
            )
        if has_controller or slave.has_master:
            raise refusal(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                "this broker is a slave, and keeps the offsets of its master: commit there",
            )
        return handle(request)

    return commit


class _Place:
    """That of one question that waits."""


def _when_known(handle: Handler, slave: Slave) -> Handler:
    #: A place is taken before its question begins to wait, many of them in one turn of the event
    #: loop. One whose question never begins, because too many handlers wait, is freed with it.
    waiting: WeakSet[_Place] = WeakSet()

    def query(request: Request) -> Answer:
        if slave.knows_offsets():
            return handle(request)
        asks_again = request.command.language == LanguageCode.PYTHON  # pymq's, and elsewhere
        if asks_again or len(waiting) >= _KNOWN_WAITING_MAX:
            _refuse_unknown()
        place = _Place()
        waiting.add(place)
        return wait(request, place)

    async def wait(request: Request, place: _Place) -> Response | None:
        # RocketMQ's consumers do not ask again before the next rebalance.
        deadline_s = asyncio.get_running_loop().time() + KNOWN_WAIT_S
        try:
            while not slave.knows_offsets():
                if asyncio.get_running_loop().time() > deadline_s:
                    _refuse_unknown()
                await asyncio.sleep(_KNOWN_PAUSE_S)
        finally:
            waiting.discard(place)  # a refusal that is raised may keep it alive for longer
        answer = handle(request)
        return await answer if isinstance(answer, Coroutine) else answer

    return query


def _refuse_unknown() -> NoReturn:
    raise refusal(
        ResponseCode.SERVICE_NOT_AVAILABLE,
        "this broker is a slave that does not know what is committed, as it does not follow its "
        "master: ask there",
    )


def _refuse_read(request: Request) -> NoReturn:
    raise refusal(
        ResponseCode.SYSTEM_BUSY,
        "[REJECTREQUEST]system busy, start flow control for a while: this broker is a slave that "
        "nobody may read from (slaveReadEnable)",
    )


def _refuse_write(request: Request) -> NoReturn:
    raise refusal(
        ResponseCode.SERVICE_NOT_AVAILABLE,
        "message store is slave mode, so putMessage is forbidden: this broker is a slave, send to "
        "its master",
    )


def _refuse_change(request: Request) -> NoReturn:
    raise refusal(
        ResponseCode.SYSTEM_ERROR,
        "Can't modify topic or subscription group from slave broker, please execute it from "
        "master broker.",
    )


def _refuse_slave(request: Request) -> NoReturn:
    # Not as a broker that does not know the request: whoever asks would take it for RocketMQ's.
    raise refusal(
        ResponseCode.SERVICE_NOT_AVAILABLE,
        "this broker is a slave: it is not the master, or does not know it yet; ask again",
    )
