"""What a program can have called before and after messages are handled.

Source: RocketMQ ConsumeMessageHook.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pymq.client.group.inbox import Delivery
from pymq.clock import Clock
from pymq.protocol.message import ReceivedMessage
from pymq.protocol.outcomes import DEAD_LETTER, RAISED, RETURNED, Outcome

_log = logging.getLogger(__name__)


class ConsumeResult(StrEnum):
    """What becomes of a message that was handled."""

    DONE = "done"
    RETRY = "retry"
    DEAD_LETTER = "dead letter"


@dataclass(slots=True, kw_only=True)
class ConsumeOutcome:
    """How a call of a handler, or a turn of a loop, ended.

    Attributes:
        group: of the consumer.
        messages: one, or those of a batch.
        results: one for each message. In a loop that was left at its message it is ``RETRY``.
        error: what the handler raised; ``None``: it returned.
        started_ms: when it began; ms since 1970.
        took_s: how long it took, seconds.
    """

    group: str
    messages: Sequence[ReceivedMessage]
    results: Sequence[ConsumeResult]
    error: BaseException | None
    started_ms: int
    took_s: float


class ConsumeHook:
    """Base of hooks; override what you need.

    Called where the messages are handled: for coroutine functions and ``async for`` in the event
    loop, which a hook must not block, for plain functions and the blocking iterator in their
    thread, several at a time.
    """

    def before(self, messages: Sequence[ReceivedMessage]) -> None:
        """Called before messages are handled.

        What it raises counts as the handler's failure, without a call of the handler; a loop raises
        it, and its message is delivered again.

        Args:
            messages: one, or those of a batch.
        """

    def after(self, outcome: ConsumeOutcome) -> None:
        """Called when messages were handled. What it raises is logged."""


class ConsumeObserver:
    """Calls the hooks of one consumer. For any thread.

    Args:
        hooks: in the order in which they are called.
        group: of the consumer.
        clock: for when calls begin.
    """

    def __init__(self, hooks: Sequence[ConsumeHook], group: str, clock: Clock) -> None:
        self.hooks = tuple(hooks)
        self.group = group
        self._clock = clock

    def begin(self, deliveries: Sequence[Delivery]) -> "Consumption":
        """Messages are about to be handled."""
        return Consumption(self, deliveries, self._clock.wall_ms())


class Consumption:
    """One call of a handler, or one turn of a loop, as hooks see it."""

    __slots__ = ("_deliveries", "_messages", "_observer", "_started_ms", "_started_s")

    def __init__(
        self, observer: ConsumeObserver, deliveries: Sequence[Delivery], started_ms: int
    ) -> None:
        self._observer = observer
        self._deliveries = deliveries
        self._messages = [delivery.message for delivery in deliveries]
        self._started_ms = started_ms
        self._started_s = time.monotonic()

    def before(self) -> None:
        """Call the hooks. Raises what they raise."""
        for hook in self._observer.hooks:
            hook.before(self._messages)

    def after(self, error: BaseException | None, *, is_left: bool = False) -> None:
        """Call the hooks.

        Args:
            error: what the handler raised; ``None``: nothing.
            is_left: a loop was left at its message.
        """
        default = RETURNED if error is None and not is_left else RAISED
        outcome = ConsumeOutcome(
            group=self._observer.group,
            messages=self._messages,
            results=[_result(delivery.outcome or default) for delivery in self._deliveries],
            error=error,
            started_ms=self._started_ms,
            took_s=time.monotonic() - self._started_s,
        )
        for hook in self._observer.hooks:
            try:
                hook.after(outcome)
            except Exception:
                _log.warning("hook %r failed after messages were handled", hook, exc_info=True)


def _result(outcome: Outcome) -> ConsumeResult:
    if outcome.delay_level is None:
        return ConsumeResult.DONE
    return ConsumeResult.DEAD_LETTER if outcome.delay_level == DEAD_LETTER else ConsumeResult.RETRY
