"""Values that users give: of the right type and in range, or an error that names them."""

import sys
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from pymq.errors import ConfigurationError, LocalProtocolError
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.names import check_topic

if TYPE_CHECKING:
    import numpy as np

    #: What ``moment_ms`` takes.
    Moment: TypeAlias = datetime | np.datetime64
else:  # numpy need not be installed
    Moment = datetime

#: Longest time that makes sense anywhere.
SECONDS_MAX = 86_400

H = TypeVar("H")


def check_seconds(name: str, value: object) -> None:
    """Accept a time to wait.

    Raises:
        ConfigurationError: it is not a number, or out of range.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < SECONDS_MAX:  # type: ignore[operator]
        raise ConfigurationError(f"{name}={value!r:.80}: expected seconds, 0 < s < {SECONDS_MAX}")


def check_count(name: str, value: object, least: int, most: int | None = None) -> None:
    """Accept a whole number.

    Args:
        name: of the argument, for the error message.
        value: what was given.
        least, most: the range; ``most=None``: no upper limit.

    Raises:
        ConfigurationError: it is not a whole number, or out of range.
    """
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if not is_number or value < least or (most is not None and value > most):  # type: ignore[operator]
        expected = f"{least}..{most}" if most is not None else f"a whole number, at least {least}"
        raise ConfigurationError(f"{name}={value!r:.80}: expected {expected}")


def is_moment(value: object) -> bool:
    """Is it a ``datetime`` or a ``numpy.datetime64``?"""
    return isinstance(value, datetime) or _is_datetime64(value)


def moment_ms(name: str, value: object) -> int:
    """Return a moment in ms since 1970.

    A datetime without a zone is local time, as everywhere in Python. A ``numpy.datetime64`` is
    UTC, as columns have it.

    Raises:
        ConfigurationError: it is no moment, or one that has no such number.
    """
    try:
        if isinstance(value, datetime):
            return int(round(value.timestamp() * 1000, 3))  # 3: what the product rounded off
        if _is_datetime64(value):
            return round(_utc(value).timestamp() * 1000)
    except (ValueError, OverflowError, OSError) as error:
        raise ConfigurationError(f"{name}={value!r:.80}: {error}") from error
    raise ConfigurationError(f"{name}={value!r:.80}: expected a datetime")


def _is_datetime64(value: object) -> bool:
    numpy = sys.modules.get("numpy")  # Who has a value of it has imported it.
    return numpy is not None and isinstance(value, numpy.datetime64)


def _utc(value: Any) -> datetime:
    found = value.astype("datetime64[ms]").item()
    if not isinstance(found, datetime):
        raise ValueError("it is not a time, or outside of the years 1 to 9999")
    return found.replace(tzinfo=UTC)


def check_queue(value: object) -> None:
    """Accept a MessageQueue.

    Raises:
        ConfigurationError: it is something else.
    """
    if not isinstance(value, MessageQueue):
        raise ConfigurationError(
            f"queue={value!r:.80}: expected a MessageQueue, such as "
            "MessageQueue('orders', 'broker-a', 0)"
        )


def check_producer(producer: object, kind: type, *, name: str, other: str) -> None:
    """Accept the producer of something that sends with one.

    Args:
        producer: what was given.
        kind: what it must be.
        name: of that.
        other: what takes those that are for asyncio, or those that are not.

    Raises:
        ConfigurationError: it is something else.
    """
    if not isinstance(producer, kind):
        text = f"producer={producer!r:.80}: expected a {name}"
        if any(base.__name__ == kind.__name__ for base in type(producer).__mro__):
            text += f"; {other} takes those of the other kind"
        raise ConfigurationError(text)


def check_hooks(hooks: object, kind: type[H], trace_topic: str | None) -> tuple[H, ...]:
    """Return the hooks that a client was given; accept its topic for the message trace.

    Args:
        hooks: what was given.
        kind: their class.
        trace_topic: ``None``: there is no trace.

    Raises:
        ConfigurationError: they are not a list or the like, one of them is no hook, or no topic
            can have that name.
    """
    # A generator would be empty for the client that a blocking one makes itself after a fork.
    if not isinstance(hooks, Collection) or isinstance(hooks, str | bytes | Mapping):
        raise ConfigurationError(f"hooks={hooks!r:.80}: expected a list of {kind.__name__}")
    found = tuple(hooks)
    for hook in found:
        if not isinstance(hook, kind):
            raise ConfigurationError(
                f"hooks=[{hook!r:.80}]: expected instances of classes that inherit from "
                f"pymq.{kind.__name__}"
            )
    try:
        if trace_topic is not None:
            check_topic(trace_topic)
    except LocalProtocolError as error:
        raise ConfigurationError(f"trace_topic={trace_topic!r:.80}: {error}") from error
    return found
