"""Message trace: what a producer sent, when and where, written to a topic that consoles read.

One trace message holds many lines; each ends with U+0002, its fields are separated by U+0001::

    Pub  time  region  group  topic  message-id  tags  keys  store-host  body-bytes  cost-ms
         kind  offset-message-id  success

``kind`` is 0 for an ordinary message, 1 for a half message, 3 for a delayed one. The keys of the
trace message are the ids and keys of the messages that it tells of: that is how they are found.

Traces are worth less than the messages: they wait in memory for ``FLUSH_S``, and are dropped
above ``WAITING_MAX``, or when they cannot be sent.

Source: RocketMQ TraceDataEncoder, AsyncTraceDispatcher, SendMessageTraceHookImpl.
"""

import asyncio
import logging
from collections.abc import Sequence

from pymq.client.hooks import SendHook, SendOutcome
from pymq.client.pool import ClientPool
from pymq.client.receipts import SendReceipt
from pymq.client.send_attempt import MessageSend
from pymq.client.send_maker import SendMaker
from pymq.client.sender import Sender
from pymq.net.said_once import SaidOnce
from pymq.protocol.headers.send import REGION
from pymq.protocol.message import Message

_log = logging.getLogger(__name__)

#: How long lines wait for others.
FLUSH_S = 0.5
#: Lines of one trace message.
LINES_MAX = 100
#: Lines that may wait; those beyond are dropped.
WAITING_MAX = 10_000

_NORMAL, _HALF, _DELAYED = 0, 1, 3
_FIELD, _LINE = "\x01", "\x02"


class Tracer(SendHook):
    """Writes the trace of one producer. For one event loop.

    Args:
        pool, sender: of the producer.
        maker: makes sends that are not traced themselves.
        topic: where to.
    """

    def __init__(self, pool: ClientPool, sender: Sender, maker: SendMaker, topic: str) -> None:
        self._pool = pool
        self._sender = sender
        self._maker = maker
        self._topic = topic
        self._lines: list[tuple[str, Sequence[str]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._said = SaidOnce(_log)

    def after(self, outcome: SendOutcome) -> None:
        """Write down what was stored. Of what failed official clients leave no trace, either."""
        if outcome.receipts is None:
            return
        if len(self._lines) >= WAITING_MAX:
            self._said.warn(
                "full", "%d lines of trace wait to be sent: others are dropped", WAITING_MAX
            )
            return
        cost_ms = round(outcome.took_s * 1000 / len(outcome.messages))
        for message, receipt in zip(outcome.messages, outcome.receipts, strict=True):
            keys = message.keys or ()
            found = [receipt.message_id, *(keys.split() if isinstance(keys, str) else keys)]
            self._lines.append((trace_line(outcome, message, receipt, cost_ms), found))
        if self._timer is None and self._pool.is_open:
            self._timer = self._pool.loop.call_later(FLUSH_S, self.flush)

    def flush(self) -> None:
        """Send what waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lines, self._lines = self._lines, []
        for first in range(0, len(lines), LINES_MAX):
            some = lines[first : first + LINES_MAX]
            keys = dict.fromkeys(key for _, found in some for key in found if " " not in key)
            body = "".join(line for line, _ in some).encode(errors="replace")
            message = Message(self._topic, body, keys=list(keys))
            try:
                send: MessageSend = self._maker.prepare(message, None, None)
                self._sender.begin(send).add_done_callback(self._sent)
            except Exception as error:  # Whatever it is, no message may fail of it.
                self._failed(error)

    def _sent(self, done: asyncio.Future[SendReceipt]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        self._said.warn(
            "failed",
            "the trace of messages cannot be written to topic %r and is dropped: %s; brokers have "
            "that topic with traceTopicEnable=true",
            self._topic,
            error,
        )


def trace_line(
    outcome: SendOutcome, message: Message, receipt: SendReceipt, cost_ms: int
) -> str:
    """Return the line that tells of one message."""
    keys = message.keys or ""
    body = message.body
    fields = (
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
    return _FIELD.join(fields) + _LINE


def _kind(outcome: SendOutcome, message: Message) -> int:
    if message.delay_level or message.has_timer:
        return _DELAYED
    return _HALF if outcome.is_half else _NORMAL
