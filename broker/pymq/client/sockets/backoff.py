"""When a blocking client tries a read again, and when it gives up."""

import logging
import threading
import time
from collections.abc import Iterable

from pymq.client.cluster.config import ClientConfig
from pymq.client.cluster.route_table import RouteTable
from pymq.errors import PymqError

_log = logging.getLogger(__name__)

#: Pause between two tries: first, and longest.
PAUSE_FIRST_S = 0.05
PAUSE_MAX_S = 1.0
#: What is not over by then is worth a line in the log.
WARN_AFTER_S = 1.0


class Backoff:
    """When to try a read again: after longer and longer pauses, until its deadline.

    The deadline is ``read_deadline_s`` after the first failure since the last progress.
    """

    def __init__(self, config: ClientConfig, routes: RouteTable, closed: threading.Event) -> None:
        self._limit_s = config.read_deadline_s
        self._awaits_routes = config.awaits_routes
        self._routes = routes
        self._closed = closed
        self.progressed()

    def progressed(self) -> None:
        """Start again: something succeeded."""
        self._failed_at: float | None = None
        self._pause_s = PAUSE_FIRST_S
        self._warned = False

    def wait(self, error: PymqError, topics: Iterable[str]) -> None:
        """Wait a little before the next try, or raise the error when it is time to give up.

        A topic that never had a route is a mistake, not a broker that restarts, unless routes are
        awaited: the error is raised at once.
        """
        now = time.monotonic()
        if self._failed_at is None:
            self._failed_at = now
        topics = set(topics)
        known = all(self._routes.find(topic) is not None for topic in topics)
        if self._closed.is_set() or not (known or self._awaits_routes):
            raise error
        left_s = self._failed_at + self._limit_s - now
        if self._pause_s > left_s:
            raise error
        if not self._warned and now - self._failed_at >= WARN_AFTER_S:
            _log.warning("trying again for up to %.0f s more: %s", left_s, error)
            self._warned = True
        for topic in topics:
            self._routes.doubt(topic)
        self._closed.wait(self._pause_s)
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)
