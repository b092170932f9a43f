"""What the outcome of a put is to clients: a response code and a remark.

The answer to a send says exactly what happened. Requests that make the broker write something, and
whose clients cannot do anything about a late flush, ask ``is_in_log`` first and say less.

Source: RocketMQ SendMessageProcessor.handlePutMessageResult, EndTransactionProcessor.
"""

from pymq.broker.log_writer import Outcome
from pymq.protocol.codes import ResponseCode
from pymq.protocol.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from pymq.store import PutResult, PutStatus

_CODES = {
    PutStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.BUSY: ResponseCode.SYSTEM_BUSY,
    PutStatus.NOT_REPLICATED: ResponseCode.SYSTEM_ERROR,
    PutStatus.NOT_WRITABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
}
#: Stored, but not as safe as promised.
_UNSAFE = {
    Outcome.DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    Outcome.SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    Outcome.NO_SLAVE: ResponseCode.SLAVE_NOT_AVAILABLE,
}
_IN_LOG = frozenset((Outcome.STORED, *_UNSAFE))
_KEPT = frozenset((Outcome.STORED, Outcome.NO_SLAVE))
_AGAIN = (RETRY_PREFIX, DEAD_LETTER_PREFIX)
_NEVER_STORED = frozenset((PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED))


def is_in_log(outcome: Outcome) -> bool:
    """Return whether the message is in the log, proven to be on disk and slaves or not."""
    return outcome in _IN_LOG


def is_kept(outcome: Outcome) -> bool:
    """Return whether nobody could make the message safer by sending it once more.

    So it is with NO_SLAVE. With a controller, no broker that could take over lacks the message.
    Without one, nobody but an operator could give it another copy, or have a slave that is away
    take over, but each further try would store it once more.
    """
    return outcome in _KEPT


def is_never_stored(result: PutResult, outcome: Outcome) -> bool:
    """Return whether the message was refused for what it is: another try would end the same."""
    return outcome is Outcome.REFUSED and result.status in _NEVER_STORED


def send_answer(
    result: PutResult, outcome: Outcome, topic: str = ""
) -> tuple[ResponseCode, str | None]:
    """Return the response code and the remark of a send with this outcome.

    Args:
        result, outcome: what became of it.
        topic: to which it was sent. RocketMQ's consumers send a message to their retry topic that
            they could not send back, and go on whatever status that has: it must be an error.
    """
    if outcome is Outcome.STORED:
        return ResponseCode.SUCCESS, None
    if is_in_log(outcome) and not is_kept(outcome) and topic.startswith(_AGAIN):
        return ResponseCode.SYSTEM_ERROR, f"it may be lost with this broker: {result.remark}"
    if outcome in _UNSAFE:
        return _UNSAFE[outcome], result.remark
    code = _CODES[result.status] if outcome is Outcome.REFUSED else ResponseCode.SYSTEM_ERROR
    return code, result.remark or "refused"
