"""Single messages: VIEW_MESSAGE_BY_ID (33).

Source: RocketMQ QueryMessageProcessor.
"""

from collections.abc import Mapping

from pymq.broker.handling import Handler
from pymq.broker.transfer import RecordTransfer
from pymq.errors import CorruptRecord, OffsetOutOfRange, refusal
from pymq.net.server import ServerConnection
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.query import ViewMessageRequest
from pymq.store import MessageStore


class QueryHandlers:
    """Looks messages up."""

    def __init__(self, store: MessageStore, transfer: RecordTransfer) -> None:
        self._store = store
        self._transfer = transfer

    def table(self) -> Mapping[int, Handler]:
        """Return what each code leads to."""
        return {RequestCode.VIEW_MESSAGE_BY_ID: self.view}

    def view(self, connection: ServerConnection, command: Command) -> None:
        """VIEW_MESSAGE_BY_ID (33): the message at a physical offset."""
        offset = ViewMessageRequest.from_fields(command.fields).physical_offset
        try:
            buffer = self._store.record_view(offset)
        except (OffsetOutOfRange, CorruptRecord) as error:
            raise refusal(
                ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}: {error}"
            ) from error
        self._transfer.send(
            connection, command, command.reply(ResponseCode.SUCCESS), [buffer], [offset]
        )
