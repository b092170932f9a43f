"""Numbers that users give: of the right type and in range, or an error that names them."""

from pymq.errors import ConfigurationError
from pymq.protocol.bodies import MessageQueue

#: Longest time that makes sense anywhere.
SECONDS_MAX = 86_400


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
