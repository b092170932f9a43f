"""What becomes of a message that a consumer was given: done, once more, or a dead letter.

A message in hand has one outcome. It comes from the handler, which returns or raises, or from a
call of the message's own methods; whatever comes second is refused.
"""

import math
from dataclasses import dataclass
from typing import Any, Protocol

from pymq.errors import AlreadySettled, ConfigurationError, NotInHand

#: The delays of levels 1, 2, ... of a broker that has RocketMQ's default messageDelayLevel.
DELAY_LEVELS_S = (
    *(1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200),
)
#: Delay levels with a meaning of their own when a message is sent back.
GROUP_DELAYS = 0
DEAD_LETTER = -1
#: Of a reason, in characters; properties have 32 KiB together.
REASON_LENGTH_MAX = 1_000


class Delivered(Protocol):
    """What errors say of a message."""

    @property
    def message_id(self) -> str: ...

    @property
    def topic(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one delivery of a message.

    Attributes:
        name: who or what said it.
        text: continues "the message ...".
        delay_level: with which it goes back to its broker; ``None``: it is done.
        reason: why it is a dead letter.
    """

    name: str
    text: str
    delay_level: int | None = None
    reason: str | None = None

    def settle(self, message: Delivered, outcome: "Outcome") -> None:
        """Refuse a second outcome.

        Raises:
            AlreadySettled: always.
        """
        raise AlreadySettled(
            f"{outcome.name} of message {message.message_id} (topic {message.topic!r}) comes too "
            f"late: the message {self.text}, and each delivery has one outcome"
        )


ACKNOWLEDGED = Outcome("ack()", "was acknowledged with ack()")
RETURNED = Outcome("the end", "was finished, because its handler returned or its loop moved on")
RAISED = Outcome("the failure", "goes back, because its handler raised", GROUP_DELAYS)
#: As RocketMQ's ProcessQueue.cleanExpiredMsg sends back what stands for too long: 10 s.
EXPIRED = Outcome(
    "the time-out", "goes back, because it was not finished in time (consume_timeout_s)", 3
)


def retried(after_s: float | None) -> Outcome:
    """Return the outcome of a message that is to be delivered again.

    Args:
        after_s: how much later; ``None``: as the group's delays are, longer after each try.

    Raises:
        ConfigurationError: that is not a number of seconds.
    """
    if after_s is None:
        return Outcome("retry()", "goes back with retry()", GROUP_DELAYS)
    is_number = isinstance(after_s, int | float) and not isinstance(after_s, bool)
    if not is_number or not 0 <= after_s < math.inf:
        raise ConfigurationError(f"after_s={after_s!r:.80}: expected seconds, at least 0")
    name = f"retry(after_s={after_s:g})"
    return Outcome(name, f"goes back with {name}", nearest_level(after_s))


def nearest_level(delay_s: float) -> int:
    """Return the delay level whose delay is nearest; of two that are as near, the longer one."""
    levels = range(1, len(DELAY_LEVELS_S) + 1)
    return min(levels, key=lambda level: (abs(DELAY_LEVELS_S[level - 1] - delay_s), -level))


def rejected(reason: str | None) -> Outcome:
    """Return the outcome of a message that becomes a dead letter.

    Args:
        reason: kept with it, without control characters and at most 1,000 characters of it.

    Raises:
        ConfigurationError: it is not a string.
    """
    if not isinstance(reason, str | None):
        raise ConfigurationError(
            f"reason={reason!r:.80} is a {type(reason).__name__}: expected a str, such as "
            "str(error)"
        )
    text = (reason or "")[:REASON_LENGTH_MAX]
    printable = "".join(c if c.isprintable() else " " for c in text).strip()
    told = "becomes a dead letter with reject()"
    return Outcome("reject()", told, DEAD_LETTER, printable or None)


class InHand(Protocol):
    """What gives a received message its outcome."""

    def settle(self, message: Any, outcome: Outcome) -> None: ...


class Settled:
    """The part of a received message that says what became of it.

    Copies, also those sent to other processes, have no outcome of their own.
    """

    __slots__ = ("_in_hand",)

    def _hold(self, in_hand: InHand) -> None:
        """Have outcomes go to ``in_hand``: the delivery, or the outcome that it has had."""
        self._in_hand = in_hand

    def ack(self) -> None:
        """The message is done: it is not delivered to the group again.

        From any thread, and once for each delivery; so are ``retry`` and ``reject``. Without any
        of them the handler's end counts: returning is ``ack``, raising is ``retry``. What a
        handler does after a call of one of them changes nothing.

        Raises:
            AlreadySettled: it has an outcome; the text says which.
            NotInHand: its queue went to another member, which gets the message again; or the
                consumer was closed; or no consumer with outcomes has delivered it.
        """
        self._settle(ACKNOWLEDGED)

    def retry(self, *, after_s: float | None = None) -> None:
        """Have the message delivered again, to any member of the group.

        Once it was tried again ``max_reconsume_times`` times (of the consumer, or the group's
        setting) it becomes a dead letter.

        Args:
            after_s: how much later. Brokers have levels of delay, and the nearest one is taken: 1,
                5, 10, 30 s, 1 to 10 min, 20 min, 30 min, 1 h, 2 h, unless their
                ``messageDelayLevel`` says otherwise. ``None``: 10 s, 30 s, 1 min, ..., longer
                after each try.

        Raises:
            AlreadySettled: see ``ack``.
            NotInHand: see ``ack``.
            ConfigurationError: ``after_s`` is not a number of seconds.
        """
        self._settle(retried(after_s))

    def reject(self, reason: str | None = None) -> None:
        """Make the message a dead letter of its group, in topic ``%DLQ%group``.

        Args:
            reason: kept in the dead letter's property ``DLQ_REASON``.

        Raises:
            AlreadySettled: see ``ack``.
            NotInHand: see ``ack``.
            ConfigurationError: ``reason`` is not a string.
        """
        self._settle(rejected(reason))

    def _settle(self, outcome: Outcome) -> None:
        try:
            in_hand = self._in_hand
        except AttributeError:
            raise NotInHand(
                f"{outcome.name} is for a message that a Consumer has delivered, and this one was "
                "not, or is a copy: call it on what the handler or the loop was given; what a "
                "SimpleConsumer has received is acknowledged by that: consumer.ack(message)"
            ) from None
        in_hand.settle(self, outcome)

    def __getstate__(self) -> Any:
        state: Any = super().__getstate__()
        state[1].pop("_in_hand", None)
        return state
