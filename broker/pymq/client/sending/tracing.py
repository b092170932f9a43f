"""Message trace of a producer: what it sent, when and where.

One line for each message, fields as in ``trace_writer``::

    Pub  time  region  group  topic  message-id  tags  keys  store-host  body-bytes  cost-ms
         kind  offset-message-id  success

    EndTransaction  time  region  group  topic  message-id  tags  keys  broker  kind
                    transaction-id  state  from-check

``kind`` is 0 for an ordinary message, 1 for a half message, 2 for the end of a transaction, 3 for a
delayed message. A transaction has its message's id.

Source: RocketMQ TraceDataEncoder, SendMessageTraceHookImpl, EndTransactionTraceHookImpl.
"""

from pymq.client.cluster.pool import ClientPool
from pymq.client.operations import TransactionStatus
from pymq.client.sending.hooks import SendHook, SendOutcome
from pymq.client.sending.receipts import SendReceipt
from pymq.client.sending.send_maker import SendMaker
from pymq.client.sending.sender import Sender
from pymq.client.sending.trace_writer import TraceWriter, joined
from pymq.client.sending.transactions import TransactionEnd
from pymq.clock import Clock
from pymq.protocol.headers.send import REGION
from pymq.protocol.message import Message
from pymq.protocol.message_keys import split_keys

_NORMAL, _HALF, _END, _DELAYED = 0, 1, 2, 3
#: LocalTransactionState.
_STATES = {
    TransactionStatus.COMMIT: "COMMIT_MESSAGE",
    TransactionStatus.ROLLBACK: "ROLLBACK_MESSAGE",
    TransactionStatus.UNKNOWN: "UNKNOW",
}


class Tracer(SendHook):
    """Writes the trace of one producer. For one event loop.

    Args:
        pool, sender: of the producer.
        maker: makes sends that are not traced themselves.
        topic: where to.
        group: of the producer.
        clock: for timestamps.
    """

    def __init__(
        self,
        pool: ClientPool,
        sender: Sender,
        maker: SendMaker,
        topic: str,
        *,
        group: str,
        clock: Clock,
    ) -> None:
        self._group = group
        self._clock = clock
        self._writer = TraceWriter(pool, sender, maker, topic)

    def after(self, outcome: SendOutcome) -> None:
        """Write down what was stored. Of what failed official clients leave no trace, either."""
        if outcome.receipts is None:
            return
        cost_ms = round(outcome.took_s * 1000 / len(outcome.messages))
        lines = []
        for message, receipt in zip(outcome.messages, outcome.receipts, strict=True):
            found = [receipt.message_id, *split_keys(message.keys)]
            lines.append((trace_line(outcome, message, receipt, cost_ms), found))
        self._writer.add(lines)

    def ended(self, end: TransactionEnd) -> None:
        """Write down what a broker was told of a transaction."""
        message_id = end.message_id
        line = joined(
            "EndTransaction",
            str(self._clock.wall_ms()),
            REGION,
            self._group,
            end.topic,
            message_id,
            end.tags or "",
            " ".join(end.keys),
            end.broker_address,
            str(_END),
            message_id,
            _STATES[end.status],
            "true" if end.is_checked else "false",
        )
        self._writer.add([(line, [message_id, *end.keys])])

    def flush(self) -> None:
        """Send what waits."""
        self._writer.flush()


def trace_line(
    outcome: SendOutcome, message: Message, receipt: SendReceipt, cost_ms: int
) -> str:
    """Return the line that tells of one message."""
    keys = message.keys or ""
    body = message.body
    return joined(
        "Pub",
        str(outcome.started_ms),
        REGION,
        outcome.group,
        message.topic,
        receipt.message_id,
        message.tags or "",
        keys if isinstance(keys, str) else " ".join(keys),
        outcome.broker_address or "",
        str(len(body)),
        str(cost_ms),
        str(_kind(outcome, message)),
        receipt.offset_message_id or "",
        "false" if receipt.durability_unknown else "true",
    )


def _kind(outcome: SendOutcome, message: Message) -> int:
    if message.delay_level or message.has_timer:
        return _DELAYED
    return _HALF if outcome.is_half else _NORMAL
