"""Calls to brokers that may be away for a while: repeated until a deadline.

Spark does not retry what fails on its driver, and in local mode no failed task either: one
restart of a broker would end the query.
"""

import logging
import select
import time
from collections.abc import Callable
from typing import TypeVar

from pymq.errors import PymqError, RouteNotFound

LOG = logging.getLogger(__name__)
PAUSE_FIRST_S = 0.05
PAUSE_MAX_S = 2.0
#: A topic nobody knows is more often misspelt than about to be made.
ROUTE_PATIENCE_S = 3.0

_Result = TypeVar("_Result")


class Patience:
    """Decides how long to go on after errors that may pass; for one thing that is tried.

    Args:
        limit_s: seconds without any progress after which an error is final.
        what: what is tried, for the log.
    """

    def __init__(self, limit_s: float, what: str) -> None:
        self._limit_s = limit_s
        self._what = what
        self.progressed()

    def progressed(self) -> None:
        """Start anew: something was achieved."""
        self._since: float | None = None
        self._pause_s = PAUSE_FIRST_S

    def bear(self, error: PymqError, *, limit_s: float | None = None) -> None:
        """Return after a pause if trying again makes sense.

        Args:
            error: what happened.
            limit_s: less patience than usual.

        Raises:
            PymqError: ``error`` itself, when it is final or has lasted too long.
        """
        now = time.monotonic()
        if self._since is None:
            self._since = now
        limit = self._limit_s if limit_s is None else min(limit_s, self._limit_s)
        if not error.retriable or now + self._pause_s > self._since + limit:
            raise error
        LOG.warning(
            "%s failed, trying again for another %.0f s: %s",
            self._what,
            self._since + limit - now,
            error,
        )
        # No event loop and no thread here, and nothing whose change could be waited for: the
        # broker is away. select is the wait that a signal ends.
        select.select((), (), (), self._pause_s)
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)


def persist(
    action: Callable[[], _Result],
    *,
    limit_s: float,
    what: str,
    route_limit_s: float | None = None,
) -> _Result:
    """Return what ``action`` returns, repeating it after errors that may pass.

    Args:
        action: something that does no harm when it is done twice.
        limit_s: seconds after which an error is final.
        what: what it does, for the log.
        route_limit_s: the same for topics without a route.

    Raises:
        PymqError: the error of the last attempt.
    """
    patience = Patience(limit_s, what)
    while True:
        try:
            return action()
        except RouteNotFound as error:
            patience.bear(error, limit_s=route_limit_s)
        except PymqError as error:
            patience.bear(error)
