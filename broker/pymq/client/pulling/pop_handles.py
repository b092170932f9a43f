"""The handles of messages that were popped."""

from pymq.errors import ConfigurationError
from pymq.protocol.message import POP_CHECK_POINT, ReceivedMessage
from pymq.protocol.receipt_handles import ReceiptHandle


def handle_of(message: object) -> str:
    """Return the handle of a message that was popped, by which it is acknowledged.

    Raises:
        ConfigurationError: it was not.
    """
    handle = None
    if isinstance(message, ReceivedMessage):
        handle = message.properties.get(POP_CHECK_POINT)
    if handle is None or len(handle.split(" ")) < 8:
        raise ConfigurationError(
            f"{message!r:.80}: expected a message as SimpleConsumer.receive returned it, whose "
            f"property {POP_CHECK_POINT} is the handle to acknowledge it"
        )
    ReceiptHandle.parse(handle)
    return handle
