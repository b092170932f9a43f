"""What a program can have called before and after each send of a producer.

Source: RocketMQ SendMessageHook.
"""

import asyncio
import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pymq.client.sending.receipts import SendReceipt
from pymq.client.sending.send_attempt import SendAttempt
from pymq.clock import Clock
from pymq.protocol.message import Message

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class SendOutcome:
    """How the send of a message, or of a batch, ended.

    Attributes:
        group: of the producer.
        messages: what was sent, as it was given.
        receipts: one for each message; ``None``: it failed.
        error: why; ``None``: it did not.
        broker_address: ``host:port`` of the broker that the last attempt went to; ``None``: no
            broker was reached.
        started_ms: when it began; ms since 1970.
        took_s: seconds, all attempts together.
        is_half: is it the half message of a transaction?
    """

    group: str
    messages: Sequence[Message]
    receipts: Sequence[SendReceipt] | None
    error: BaseException | None
    broker_address: str | None
    started_ms: int
    took_s: float
    is_half: bool


class SendHook:
    """Base of hooks; override what you need. Called in the event loop, so it must not block."""

    def before(self, messages: Sequence[Message]) -> None:
        """Called before messages are encoded; may change them, for instance their properties.

        What it raises is raised by the send, and nothing is sent.

        Args:
            messages: one, or those of a batch.
        """

    def after(self, outcome: SendOutcome) -> None:
        """Called when a send has ended, but for one-way sends. What it raises is logged."""


class SendObserver:
    """Calls the hooks of one producer. For one event loop.

    Args:
        hooks: in the order in which they are called.
        group: of the producer.
        clock: for when sends begin.
    """

    def __init__(self, hooks: Sequence[SendHook], group: str, clock: Clock) -> None:
        self._hooks = tuple(hooks)
        self._group = group
        self._clock = clock

    def before(self, messages: Sequence[Message]) -> None:
        """Messages are about to be encoded."""
        for hook in self._hooks:
            hook.before(messages)  # it may add to what is encoded now

    def watch(self, messages: Sequence[Message], send: SendAttempt[Any]) -> None:
        """Have the hooks called when a send has ended."""
        started_ms = self._clock.wall_ms()
        send.future.add_done_callback(
            functools.partial(self._after, messages, send, started_ms)
        )

    def _after(
        self,
        messages: Sequence[Message],
        send: SendAttempt[Any],
        started_ms: int,
        done: asyncio.Future[Any],
    ) -> None:
        error: BaseException | None = None
        receipts: Sequence[SendReceipt] | None = None
        if done.cancelled():
            error = asyncio.CancelledError("nobody waited for the answer")
        elif (error := done.exception()) is None:
            result = done.result()
            receipts = result if isinstance(result, list) else [result]
        outcome = SendOutcome(
            group=self._group,
            messages=messages,
            receipts=receipts,
            error=error,
            broker_address=None if send.template is None else send.template.address,
            started_ms=started_ms,
            took_s=done.get_loop().time() - send.started_s,
            is_half=send.IS_HALF,
        )
        for hook in self._hooks:
            try:
                hook.after(outcome)
            except Exception:
                _log.warning("hook %r failed after a send", hook, exc_info=True)
