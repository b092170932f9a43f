"""Waiting: for servers that are away for a moment, and between two questions.

Once it has a route the client retries by itself, in reads and in sends; but Spark retries nothing
on its driver, and in local mode no task either.
"""

import logging
import select
import time
from collections.abc import Callable
from typing import TypeVar

from pymq.errors import (
    ConnectionFailed,
    PymqError,
    RequestTimeout,
    RouteNotFound,
    TopicNotExist,
)

LOG = logging.getLogger(__name__)
PAUSE_FIRST_S = 0.05
PAUSE_MAX_S = 1.0

#: Nobody answers, as when a server restarts.
UNANSWERED = (ConnectionFailed, RequestTimeout)
#: A topic has no route. Mostly it is misspelt; of one that somebody has seen, the brokers are away.
UNROUTED = (RouteNotFound, TopicNotExist)

_Result = TypeVar("_Result")


class Retries:
    """The tries of one undertaking: go on until ``limit_s`` has passed without progress.

    Args:
        limit_s: seconds after which a failure is final.
        what: what is tried, for the log.
    """

    def __init__(self, limit_s: float, what: str) -> None:
        self._limit_s = limit_s
        self._what = what
        self._said = ""
        self.progressed()

    def progressed(self) -> None:
        """Start again: something succeeded."""
        self._since_s: float | None = None
        self._pause_s = PAUSE_FIRST_S

    def after(self, error: PymqError) -> None:
        """Wait before the next try, or raise the error when it is time to give up."""
        now_s = time.monotonic()
        if self._since_s is None:
            self._since_s = now_s
        left_s = self._since_s + self._limit_s - now_s
        if left_s < self._pause_s:
            raise error
        if str(error) != self._said:  # once per cause
            self._said = str(error)
            LOG.warning("%s failed, trying for another %.0f s: %s", self._what, left_s, error)
        pause(self._pause_s)
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)


def persist(
    action: Callable[[], _Result], *, limit_s: float, what: str, awaits_routes: bool = False
) -> _Result:
    """Return what ``action`` returns, repeating it while nobody answers.

    Args:
        action: may be done twice.
        limit_s: seconds after which the failure is final.
        what: what it does, for the log.
        awaits_routes: the topic exists, so that a missing route is a passing failure, too.

    Raises:
        ConnectionFailed, RequestTimeout, RouteNotFound, TopicNotExist: of the last try.
        PymqError: any other error, at once.
    """
    passing = UNANSWERED + UNROUTED if awaits_routes else UNANSWERED
    retries = Retries(limit_s, what)
    while True:
        try:
            return action()
        except passing as error:
            retries.after(error)


def pause(seconds: float) -> None:
    """Wait where there is no loop and no thread, and nothing here whose change could be awaited.

    What is waited for is in another process, and does not announce itself.
    """
    select.select((), (), (), seconds)
