"""Queues that cannot be read: said once for all queues of a broker that is away, or a slave now."""

from collections.abc import Hashable

from pymq.errors import (
    ConnectionFailed,
    PymqError,
    RequestTimeout,
    RouteNotFound,
    ServiceNotAvailable,
    SystemBusy,
)
from pymq.net.said_once import SaidOnce
from pymq.protocol.bodies import MessageQueue

#: The broker is away, or seems so: all its queues fail for one reason.
AWAY = (ConnectionFailed, RequestTimeout, RouteNotFound)
#: Likewise of one that is busy, or a slave that nobody may read from.
_REFUSES_ALL = (ServiceNotAvailable, SystemBusy)


def broker_causes(broker_name: str) -> set[Hashable]:
    """Return the causes that all queues of a broker have in common; a restart has both."""
    return {(broker_name, is_away) for is_away in (True, False)}


def say_unread(troubles: SaidOnce, group: str, queue: MessageQueue, error: PymqError) -> Hashable:
    """Say why a queue cannot be read, once for all queues of a broker if it fails at all of them.

    Returns:
        The cause, for ``troubles.over``.
    """
    cause: Hashable
    if isinstance(error, (*AWAY, *_REFUSES_ALL)):
        cause = queue.broker_name, isinstance(error, AWAY)
        troubles.warn(
            cause,
            "group %r cannot read the queues of broker %r, trying again: %s",
            group,
            queue.broker_name,
            error,
        )
    else:
        cause = (queue, type(error), getattr(error, "code", None))
        troubles.warn(
            cause,
            "group %r, topic %r: queue %d of broker %r cannot be read, trying again: %s",
            group,
            queue.topic,
            queue.queue_id,
            queue.broker_name,
            error,
        )
    return cause
