"""Queues that cannot be read: said once, for all queues of a broker that is away."""

from collections.abc import Hashable

from pymq.errors import ConnectionFailed, PymqError, RequestTimeout, RouteNotFound
from pymq.net.said_once import SaidOnce
from pymq.protocol.bodies import MessageQueue

#: The broker is away, or seems so: all its queues fail for one reason.
AWAY = (ConnectionFailed, RequestTimeout, RouteNotFound)


def say_unread(
    troubles: SaidOnce, group: str, queue: MessageQueue, error: PymqError
) -> Hashable:
    """Say why a queue cannot be read, once for all queues of a broker that is away.

    Returns:
        The cause, for ``troubles.over``.
    """
    cause: Hashable
    if isinstance(error, AWAY):
        cause = queue.broker_name
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
