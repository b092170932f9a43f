"""Open transactions that a slave has sent to another group while it acted for this master."""

import logging
from collections.abc import Callable

from pymq.broker.log_writer import LogWriter
from pymq.broker.state.transactions import OpenTransactions
from pymq.errors import StoreError
from pymq.protocol.record import NewRecord

_log = logging.getLogger(__name__)


async def close_escaped(
    table: OpenTransactions, log_writer: LogWriter, op: Callable[[int], NewRecord], end: int
) -> None:
    """Close what another group decides about by now, before anything is checked here.

    Args:
        table: which half messages are open.
        log_writer: writes the ops.
        op: makes one, for the offset of a half message.
        end: half offset; what is open before it was sent there.
    """
    for first, last in list(table.open_runs(end)):
        for offset in range(first, last):
            try:
                place = await log_writer.append_and_wait(op(offset))
            except StoreError as error:
                _log.error(
                    "transactions from %d on were sent to another group, and are checked here, "
                    "too: %s",
                    offset,
                    error,
                )
                return
            table.close(offset, place.queue_offset)
