"""Classes of requests: how long one of each may wait to be handled, and how many may.

RocketMQ has a queue and threads for each class. Here all are handled by one event loop, in the
order in which they arrive; what waits is input that was read in an earlier turn, puts that wait for
the disk, and handlers that wait for a disk or a peer. The limits are RocketMQ's, and so are the
answers beyond them.

Source: RocketMQ BrokerController.registerProcessor, BrokerFastFailure, BrokerConfig.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pymq.protocol.codes import SEND_RECORDS, RequestCode, SinkRequest


@dataclass(frozen=True, slots=True)
class RequestClass:
    """One class.

    Attributes:
        name: for logs.
        count_field: of ``BrokerConfig``: how many of its requests may wait.
        wait_field: of ``BrokerConfig``: how long they may, ms; None: as long as it takes.
    """

    name: str
    count_field: str
    wait_field: str | None = None


SEND = RequestClass("sends", "waiting_send_count_max", "send_wait_ms")
REPLY = RequestClass("replies", "waiting_reply_count_max")
PULL = RequestClass("pulls", "waiting_pull_count_max", "pull_wait_ms")
LITE_PULL = RequestClass("lite pulls", "waiting_lite_pull_count_max", "lite_pull_wait_ms")
ACK = RequestClass("acknowledgements", "waiting_ack_count_max", "ack_wait_ms")
QUERY = RequestClass("queries", "waiting_query_count_max")
HEARTBEAT = RequestClass("heartbeats", "waiting_heartbeat_count_max", "heartbeat_wait_ms")
CLIENT = RequestClass("requests of clients", "waiting_client_count_max")
CONSUMER = RequestClass("requests of consumers", "waiting_consumer_count_max")
ASSIGNMENT = RequestClass("assignments", "waiting_assignment_count_max")
TRANSACTION = RequestClass(
    "ends of transactions", "waiting_transaction_count_max", "transaction_wait_ms"
)
ADMIN = RequestClass("administration", "waiting_admin_count_max", "admin_wait_ms")

#: All other codes are administration.
CLASSES: Mapping[int, RequestClass] = {
    RequestCode.SEND_MESSAGE: SEND,
    RequestCode.SEND_MESSAGE_V2: SEND,
    RequestCode.SEND_BATCH_MESSAGE: SEND,
    SEND_RECORDS: SEND,
    SinkRequest.STAGE_RECORDS: SEND,
    RequestCode.CONSUMER_SEND_MSG_BACK: SEND,
    RequestCode.RECALL_MESSAGE: SEND,
    RequestCode.SEND_REPLY_MESSAGE: REPLY,
    RequestCode.SEND_REPLY_MESSAGE_V2: REPLY,
    RequestCode.PULL_MESSAGE: PULL,
    RequestCode.POP_MESSAGE: PULL,
    RequestCode.NOTIFICATION: PULL,
    RequestCode.POLLING_INFO: PULL,
    RequestCode.LITE_PULL_MESSAGE: LITE_PULL,
    RequestCode.ACK_MESSAGE: ACK,
    RequestCode.BATCH_ACK_MESSAGE: ACK,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: ACK,
    RequestCode.QUERY_MESSAGE: QUERY,
    RequestCode.VIEW_MESSAGE_BY_ID: QUERY,
    RequestCode.HEART_BEAT: HEARTBEAT,
    RequestCode.UNREGISTER_CLIENT: CLIENT,
    RequestCode.CHECK_CLIENT_CONFIG: CLIENT,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: CONSUMER,
    RequestCode.UPDATE_CONSUMER_OFFSET: CONSUMER,
    RequestCode.QUERY_CONSUMER_OFFSET: CONSUMER,
    RequestCode.QUERY_ASSIGNMENT: ASSIGNMENT,
    RequestCode.SET_MESSAGE_REQUEST_MODE: ASSIGNMENT,
    RequestCode.END_TRANSACTION: TRANSACTION,
}

#: What a broker that does not get its messages onto the disk refuses (rejectRequest of RocketMQ's
#: SendMessageProcessor).
NEEDS_DISK = frozenset(
    (
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        SEND_RECORDS,
        SinkRequest.STAGE_RECORDS,
        SinkRequest.PUBLISH_BATCH,
        RequestCode.CONSUMER_SEND_MSG_BACK,
    )
)


def class_of(code: int) -> RequestClass:
    """Return the class of a request code."""
    return CLASSES.get(code, ADMIN)
