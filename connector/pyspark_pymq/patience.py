"""Waiting: for name servers that are away for a moment, and between two questions.

Once it has a route the client is patient by itself, in reads and in sends; but every task begins
with a new client, and Spark retries nothing on its driver, and in local mode no task either.
"""

import logging
import math
import select
import time
from collections.abc import Callable
from typing import TypeVar

from pymq.errors import ConnectionFailed, RequestTimeout

LOG = logging.getLogger(__name__)
PAUSE_FIRST_S = 0.05
PAUSE_MAX_S = 1.0

_Result = TypeVar("_Result")


def persist(action: Callable[[], _Result], *, limit_s: float, what: str) -> _Result:
    """Return what ``action`` returns, repeating it while nobody answers.

    Args:
        action: something that does no harm when it is done twice.
        limit_s: seconds after which the failure is final.
        what: what it does, for the log.

    Raises:
        ConnectionFailed, RequestTimeout: of the last attempt.
        PymqError: any other error, at once: an unknown topic is mostly a misspelt one.
    """
    since = time.monotonic()
    pause_s = PAUSE_FIRST_S
    while True:
        try:
            return action()
        except (ConnectionFailed, RequestTimeout) as error:
            left_s = since + limit_s - time.monotonic()
            if left_s < pause_s:
                raise
            LOG.warning("%s failed, trying for another %.0f s: %s", what, left_s, error)
        pause(pause_s)
        pause_s = min(2 * pause_s, PAUSE_MAX_S)


def pause(seconds: float) -> None:
    """Wait where there is no loop and no thread, and nothing here whose change could be awaited.

    What is waited for is in another process, and does not announce itself.
    """
    select.select((), (), (), seconds)


def send_retries(limit_s: float) -> int:
    """Return how many tries of a send take about ``limit_s``: their pauses double from 50 ms."""
    return max(1, math.ceil(math.log2(limit_s / PAUSE_FIRST_S + 1)))
