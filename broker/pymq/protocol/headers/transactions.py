"""Headers of END_TRANSACTION (37), CHECK_TRANSACTION_STATE (39) and their like (323)."""

from dataclasses import dataclass

from pymq.protocol.headers.codec import Header, wire


@dataclass(slots=True, kw_only=True)
class EndTransactionRequest(Header):
    """What became of a transaction (EndTransactionRequestHeader).

    The offsets are those of the half message in the half topic and in the log.
    """

    producer_group: str
    queue_offset: int = wire("tranStateTableOffset")
    physical_offset: int = wire("commitLogOffset")
    #: The transaction bits of ``MessageFlag``; 0: not known yet.
    decision: int = wire("commitOrRollback")
    #: Is it the answer to a check?
    is_checked: bool = wire("fromTransactionCheck", default=False)
    message_id: str | None = wire("msgId", default=None)
    transaction_id: str | None = None
    topic: str | None = None
    broker_name: str | None = wire("bname", default=None)


@dataclass(slots=True, kw_only=True)
class CheckTransactionRequest(Header):
    """The question what became of a transaction (CheckTransactionStateRequestHeader).

    The offsets are those of the half message in the half topic and in the log; ``message_id`` is
    the client's, ``offset_message_id`` the broker's.
    """

    topic: str
    queue_offset: int = wire("tranStateTableOffset")
    physical_offset: int = wire("commitLogOffset")
    message_id: str | None = wire("msgId", default=None)
    transaction_id: str | None = None
    offset_message_id: str = wire("offsetMsgId")
    broker_name: str = wire("bname")


@dataclass(slots=True, kw_only=True)
class ResumeCheckRequest(Header):
    """Counts the checks of a transaction from 0 again (ResumeCheckHalfMessageRequestHeader)."""

    #: The broker's id of its half message, or of the message that was discarded.
    message_id: str = wire("msgId")
    topic: str | None = None
