"""Whether a failed send is tried again, and after which pause: pure rules.

* Failures that time may heal (nobody answers, the broker is busy, a route lacks its master, a name
  server is not ready) are tried again until the deadline of the send.
* Refusals that another broker may not share, but time does not heal (no permission, no such topic)
  are tried a few times, on other brokers if there are any.
* Of a message that must go to one queue, only what surely was not stored is tried again: a second
  copy could come after the message that was sent next.
* A topic that no name server knows, and that no broker creates, is a mistake, and final.

An outcome that is unknown is tried again, too (but for the third rule): that may store a second
copy, with the same message id.
"""

import random

from pymq.client.operations import may_send_elsewhere
from pymq.errors import (
    ConnectionFailed,
    PymqError,
    RequestTimeout,
    RouteNotFound,
    ServiceNotAvailable,
    SystemBusy,
    TooManyPending,
)

#: Attempts of what time does not heal: RocketMQ's retryTimesWhenSendFailed and the first one.
REFUSALS_MAX = 3
#: Pause between attempts, first and longest; the first retry at another broker needs none.
PAUSE_FIRST_S = 0.05
PAUSE_MAX_S = 1.0

_PASSING = (
    ConnectionFailed,
    RequestTimeout,
    RouteNotFound,
    ServiceNotAvailable,
    SystemBusy,
    TooManyPending,
)


def may_try_again(
    error: PymqError,
    *,
    failures: int,
    retries: int | None,
    is_bound: bool,
    is_placed: bool = True,
) -> bool:
    """Say whether a send is tried again, if there is time.

    Args:
        error: of the last attempt.
        failures: failed attempts, this one included.
        retries: how many may follow the first attempt; ``None``: any number.
        is_bound: must it go to one certain queue?
        is_placed: had it a queue? Before that, it was a name server that refused.
    """
    if retries is not None and failures > retries:
        return False
    if isinstance(error, RouteNotFound) and error.is_certain:
        return False
    if is_bound and not (error.retriable and error.outcome_known):
        return False
    if isinstance(error, _PASSING) or (error.retriable and not is_placed):
        return True
    return may_send_elsewhere(error) and failures < REFUSALS_MAX


def pause_s(failures: int, *, has_other: bool) -> float:
    """Return how long to wait before the next attempt.

    Args:
        failures: failed attempts; at least one.
        has_other: is there a broker that did not just fail?
    """
    if has_other and failures == 1:
        return 0.0
    longest = min(PAUSE_FIRST_S * 2.0 ** min(failures - 1, 10), PAUSE_MAX_S)
    # Not all at once: many sends fail together when a broker goes.
    return longest * random.uniform(0.5, 1.0)
