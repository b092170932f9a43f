"""Writes lines of the message trace to a topic that consoles read.

One trace message holds many lines; each ends with U+0002, its fields are separated by U+0001. The
keys of the trace message are the ids and keys of the messages that it tells of: that is how they
are found.

Traces are worth less than the messages: they wait in memory for ``FLUSH_S``, and are dropped
above ``WAITING_MAX``, or when they cannot be sent.

Source: RocketMQ TraceDataEncoder, AsyncTraceDispatcher.
"""

import asyncio
import logging
from collections.abc import Sequence

from pymq.client.cluster.pool import ClientPool
from pymq.client.sending.receipts import SendReceipt
from pymq.client.sending.send_attempt import MessageSend
from pymq.client.sending.send_maker import SendMaker
from pymq.client.sending.sender import Sender
from pymq.net.said_once import SaidOnce
from pymq.protocol.message import Message

_log = logging.getLogger(__name__)

#: How long lines wait for others.
FLUSH_S = 0.5
#: Lines of one trace message.
LINES_MAX = 100
#: Lines that may wait; those beyond are dropped.
WAITING_MAX = 10_000
#: When none were dropped for this long, it is said again.
QUIET_S = 60.0

_FIELD, _LINE = "\x01", "\x02"


def joined(*fields: str) -> str:
    """Return one line of a trace."""
    return _FIELD.join(fields) + _LINE


class TraceWriter:
    """Writes the trace of one client. For one event loop.

    Args:
        pool, sender: of the client.
        maker: makes sends that are not traced themselves.
        topic: where to.
    """

    def __init__(self, pool: ClientPool, sender: Sender, maker: SendMaker, topic: str) -> None:
        self._pool = pool
        self._sender = sender
        self._maker = maker
        self.topic = topic
        self._lines: list[tuple[str, Sequence[str]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._said = SaidOnce(_log)
        #: When the last lines were dropped because too many waited.
        self._full_s = 0.0

    def add(self, lines: Sequence[tuple[str, Sequence[str]]]) -> None:
        """Have lines written; each comes with the ids and keys by which it is found."""
        if len(self._lines) >= WAITING_MAX:
            self._full_s = self._pool.loop.time()
            self._said.warn(
                "full", "%d lines of trace wait to be sent: others are dropped", WAITING_MAX
            )
            return
        self._lines.extend(lines)
        if self._timer is None and self._pool.is_open:
            self._timer = self._pool.loop.call_later(FLUSH_S, self.flush)

    def flush(self) -> None:
        """Send what waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pool.loop.time() - self._full_s > QUIET_S:
            self._said.over("full", "no lines of trace are dropped any more")
        lines, self._lines = self._lines, []
        for first in range(0, len(lines), LINES_MAX):
            some = lines[first : first + LINES_MAX]
            keys = dict.fromkeys(key for _, found in some for key in found if " " not in key)
            body = "".join(line for line, _ in some).encode(errors="replace")
            message = Message(self.topic, body, keys=list(keys))
            try:
                send: MessageSend = self._maker.prepare(message, None, None)
                self._sender.begin(send).add_done_callback(self._sent)
            except Exception as error:  # Whatever it is, no message may fail of it.
                self._failed(error)

    def _sent(self, done: asyncio.Future[SendReceipt]) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is not None:
            self._failed(error)
        else:
            self._said.over("failed", "the trace is written to topic %r again", self.topic)

    def _failed(self, error: BaseException) -> None:
        self._said.warn(
            "failed",
            "the trace of messages cannot be written to topic %r and is dropped: %s; brokers have "
            "that topic with traceTopicEnable=true",
            self.topic,
            error,
        )
