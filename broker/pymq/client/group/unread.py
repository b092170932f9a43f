"""Queues that cannot be read: said once for all queues of a broker that is away, or a slave now."""

import time
from collections.abc import Collection, Hashable

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
#: A queue that has not failed for so long waits: for room, or because it was paused while a pull
#: failed. One that is read fails again sooner, after ``queue_reader.PULL_TIMEOUT_S``, too.
LAPSE_S = 60.0


class UnreadQueues:
    """Which queues of a group cannot be read, and why. For one event loop.

    What all queues of a broker have in common is over when the last of them is read again. It
    belongs to queues, not to their readers: one that cannot find out where to begin ends, and the
    next one takes its place.

    Args:
        group: consumer group.
        troubles: says it.
    """

    def __init__(self, group: str, troubles: SaidOnce) -> None:
        self._group = group
        self._troubles = troubles
        #: Cause -> queue -> when it failed last, in that order; monotonic.
        self._failed_s: dict[Hashable, dict[MessageQueue, float]] = {}
        self._causes: dict[MessageQueue, set[Hashable]] = {}

    def failed(self, queue: MessageQueue, error: PymqError) -> None:
        """Say why a queue cannot be read, once for all of a broker if it fails at all of them."""
        cause: Hashable
        if isinstance(error, (*AWAY, *_REFUSES_ALL)):
            cause = queue.broker_name, isinstance(error, AWAY)
            self._note(cause, queue)
            self._troubles.warn(
                cause,
                "group %r cannot read the queues of broker %r, trying again: %s",
                self._group,
                queue.broker_name,
                error,
            )
        else:
            cause = (queue, type(error), getattr(error, "code", None))
            self._note(cause, queue)
            self._troubles.warn(
                cause,
                "group %r, topic %r: queue %d of broker %r cannot be read, trying again: %s",
                self._group,
                queue.topic,
                queue.queue_id,
                queue.broker_name,
                error,
            )

    def _note(self, cause: Hashable, queue: MessageQueue) -> None:
        failed_s = self._failed_s.setdefault(cause, {})
        if not _goes_on(failed_s):
            self._troubles.over(cause)  # Nobody was there to say so.
            failed_s.clear()
        failed_s.pop(queue, None)
        failed_s[queue] = time.monotonic()
        self._causes.setdefault(queue, set()).add(cause)

    def succeeded(self, queue: MessageQueue) -> None:
        """A queue is read: what kept it from that is over, unless others still fail so."""
        for cause in self._causes.pop(queue, ()):
            failed_s = self._failed_s.get(cause, {})
            failed_s.pop(queue, None)
            if not _goes_on(failed_s):
                self._failed_s.pop(cause, None)
                self._troubles.over(
                    cause,
                    "group %r, topic %r, %s:%d: reading goes on after a failure",
                    self._group,
                    queue.topic,
                    queue.broker_name,
                    queue.queue_id,
                )

    def forget(self, queue: MessageQueue) -> None:
        """A queue is not read any more by this member, or for the moment: it fails no more."""
        for cause in self._causes.pop(queue, ()):
            failed_s = self._failed_s.get(cause, {})
            failed_s.pop(queue, None)
            if not failed_s:
                self._failed_s.pop(cause, None)
                self._troubles.over(
                    cause,
                    "group %r, topic %r, %s:%d: it could not be read, and is given up or paused",
                    self._group,
                    queue.topic,
                    queue.broker_name,
                    queue.queue_id,
                )

    def keep(self, topic: str, queues: Collection[MessageQueue]) -> None:
        """Forget all queues of a topic but some: those of this member, as they are divided now."""
        for queue in [one for one in self._causes if one.topic == topic and one not in queues]:
            self.forget(queue)


def _goes_on(failed_s: dict[MessageQueue, float]) -> bool:
    """Does a queue still fail?"""
    return bool(failed_s) and time.monotonic() - next(reversed(failed_s.values())) < LAPSE_S
