"""Waiting for the next request without falling asleep, for a moment.

Who sends one message after another, each when the one before is answered, lets the server sleep
between any two. Waking up costs as much as the request, above all in a virtual machine, where the
host takes the processor away meanwhile and its caches are cold afterwards. So after a turn with
one or two requests the event loop looks for input again and again, for ``poll_s``.

That is done only as long as it helps: when less than a third of the waits were worth it, the next
turns sleep at once, twice as many each time, so that what comes at other intervals costs next to
nothing. When many requests are under way there is no need for it: then more requests in a turn make
each of them cheaper, and the clients need the processors. So does a client that was given many
messages, before it asks for more.

The network's term is busy polling (SO_BUSY_POLL, there done by the kernel).
"""

import asyncio
import os
from pathlib import Path
from time import perf_counter

#: More requests in one turn, or since the last answer, mean that many are under way.
REQUEST_COUNT_MAX = 2
#: Whoever gets this much first has something to do with it: a pull of some 20 small messages.
LARGE_ANSWER_BYTES = 4096
#: What a wait that was worth it adds to the score, and the highest score; one in vain takes 1.
GAIN, SCORE_MAX = 2, 8
#: Most turns that sleep at once, after a wait in vain that left nothing of the score.
REST_MAX = 63

#: Of the control group (version 2), as a container sees it.
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def processor_count() -> int:
    """Return how many processors this process may use; in a container, those of its quota."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    count = len(os.sched_getaffinity(0))
    try:
        quota_us, period_us = _QUOTA.read_text().split()
    except (OSError, ValueError):
        return count
    return count if quota_us == "max" else min(count, int(quota_us) // int(period_us))


class BusyPoll:
    """Keeps an event loop awake after answers. For one event loop.

    Args:
        poll_s: for how long.
    """

    def __init__(self, poll_s: float) -> None:
        self._poll_s = poll_s
        #: Requests that arrived since the last look at them, which is taken once in a turn with
        #: answers, and in each turn while it waits.
        self._request_count = 0
        self._is_look_due = False
        #: Was a large answer among those of this turn?
        self._is_large = False
        #: Does it keep the loop awake now? Until when, by ``perf_counter``.
        self.is_waiting = False
        self._until_s = 0.0
        self._is_answered = False  # since the last step
        self._score = SCORE_MAX
        #: How many turns did not wait after the last wait in vain, and how many are left of them.
        self._rest = self._rest_left = 0

    def heard(self, request_count: int) -> None:
        """Requests have arrived."""
        self._request_count += request_count

    def answered_much(self) -> None:
        """An answer is so large that its receiver will need a processor."""
        self._is_large = True

    def answered(self) -> None:
        """A connection's buffered output was flushed: wait after this turn, if that helps."""
        if self.is_waiting:
            self._is_answered = True
        elif not self._is_look_due:
            # Once for all connections of this turn, whose requests may still be handled.
            self._is_look_due = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        """A turn with answers is over."""
        self._is_look_due = False
        count, self._request_count = self._request_count, 0
        is_large, self._is_large = self._is_large, False
        if count > REQUEST_COUNT_MAX or is_large:
            return
        if self._rest_left:
            self._rest_left -= 1
            return
        self._wait()

    def _wait(self) -> None:
        self.is_waiting = True
        self._until_s = perf_counter() + self._poll_s
        asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        """While it waits, a turn is over."""
        count, self._request_count = self._request_count, 0
        is_answered, self._is_answered = self._is_answered, False
        is_large, self._is_large = self._is_large, False
        if count:
            self._score = min(self._score + GAIN, SCORE_MAX)
            self._rest = 0
        if count > REQUEST_COUNT_MAX or is_large:
            self.is_waiting = False
        elif count or is_answered:
            self._wait()
        elif perf_counter() < self._until_s:
            asyncio.get_running_loop().call_soon(self._step)
        else:
            self.is_waiting = False
            self._score = max(self._score - 1, 0)
            if not self._score:
                self._rest = self._rest_left = min(2 * self._rest + 1, REST_MAX)
