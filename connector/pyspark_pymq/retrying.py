"""Waiting before another try, where a task of the connector itself has to try again.

Requests are retried by the client. What is left to the connector are answers that it does not
trust; Spark retries nothing on its driver, and in local mode no task either.
"""

import logging
import select
import socket
import time

from pymq.errors import PymqError

LOG = logging.getLogger(__name__)
PAUSE_FIRST_S = 0.05
PAUSE_MAX_S = 1.0


class Retries:
    """The attempts at one task: they go on until ``limit_s`` has passed without progress.

    Args:
        limit_s: seconds after which a failure is final.
        what: what is attempted, for the log.
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

    def wait_after(self, error: PymqError) -> None:
        """Wait before the next attempt.

        Raises:
            PymqError: ``error`` itself, once ``limit_s`` has passed.
        """
        now_s = time.monotonic()
        if self._since_s is None:
            self._since_s = now_s
        left_s = self._since_s + self._limit_s - now_s
        if left_s < self._pause_s:
            raise error
        if str(error) != self._said:  # once per cause
            self._said = str(error)
            LOG.warning("%s failed, retrying for another %.0f s: %s", self._what, left_s, error)
        pause(self._pause_s)
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)


def note_limit(error: PymqError, seconds: float) -> None:
    """Say in an error how long its cause is waited for."""
    error.add_note(
        f"a broker that is away is waited for, {seconds:g} s at most (option retryTimeoutMs): "
        "start it, or raise the limit"
    )


def pause(seconds: float) -> None:
    """Wait; there is neither an event loop nor a thread here, and nothing to be notified by.

    What is waited for is in another process, and does not announce itself.
    """
    try:
        select.select((), (), (), seconds)
    except OSError:  # Windows wants a socket to wait for: one that nobody can reach
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
            select.select((silent,), (), (), seconds)
