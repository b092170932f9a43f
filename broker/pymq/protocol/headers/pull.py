"""Headers of PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361)."""

from dataclasses import dataclass

from pymq.protocol.codes import PULL_BYTES_FIELD
from pymq.protocol.headers.codec import Header, wire


@dataclass(slots=True, kw_only=True)
class PullRequest(Header):
    """What to read, and whether to wait for it (PullMessageRequestHeader)."""

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    message_count_max: int = wire("maxMsgNums")
    sys_flag: int
    commit_offset: int
    suspend_timeout_ms: int = wire("suspendTimeoutMillis")
    subscription: str | None = None
    sub_version: int = 0
    expression_type: str | None = None
    message_bytes_max: int | None = wire("maxMsgBytes", default=None)
    broker_name: str | None = wire("bname", default=None)
    #: Extension of pymq, see ``codes.PULL_BYTES_FIELD``.
    extended_bytes_max: int | None = wire(PULL_BYTES_FIELD, default=None)


@dataclass(slots=True, kw_only=True)
class PullResponse(Header):
    """Where to continue reading (PullMessageResponseHeader); sent with codes 0, 19, 20 and 21."""

    suggest_which_broker_id: int
    next_begin_offset: int
    min_offset: int
    max_offset: int
