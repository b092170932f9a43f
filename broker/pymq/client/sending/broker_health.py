"""Which brokers get no new messages for a while: those that do not answer, and slow ones.

Latency fault tolerance, where it is switched on: a broker that took long to answer is avoided for a
time that grows with it.

======================  ====  ====  ====  =====
answered after (s)      0.55  1.8   3     5
avoided for (s)         2     5     6     10
======================  ====  ====  ====  =====

and 30 s from 15 s on. While all brokers are to be avoided, all get messages.

Source: RocketMQ 5.x MQFaultStrategy (sendLatencyFaultEnable).
"""

import asyncio
from bisect import bisect_right
from collections.abc import Callable

from pymq.client.sending.queue_selection import AvoidedBrokers
from pymq.clock import Clock

#: A broker that failed gets no new message for this long while another can take it.
AVOID_BROKER_S = 5.0
#: How often we check whether a broker's time is over, while there is one.
FORGIVE_CHECK_S = 0.5
#: Latency from which on a broker is avoided, and for how long; seconds.
LATENCIES_S = (0.55, 1.8, 3.0, 5.0, 15.0)
DURATIONS_S = (2.0, 5.0, 6.0, 10.0, 30.0)
assert len(LATENCIES_S) == len(DURATIONS_S)


def avoid_s(took_s: float) -> float:
    """Return how long a broker is avoided that took this long to answer; 0: it is not."""
    at = bisect_right(LATENCIES_S, took_s)
    return DURATIONS_S[at - 1] if at else 0.0


class BrokerHealth:
    """The brokers that one producer avoids. For one event loop.

    Args:
        clock: for when their time is over.
        is_open: is the producer open?
    """

    def __init__(self, clock: Clock, is_open: Callable[[], bool]) -> None:
        self._clock = clock
        self._is_open = is_open
        self._avoided = AvoidedBrokers()
        #: Their names: a plain set, mostly empty, that is read for each message.
        self.names = self._avoided.names
        self._forgiving: asyncio.TimerHandle | None = None

    def failed(self, name: str) -> None:
        """A broker did not answer, or cannot be reached."""
        self._avoid(name, AVOID_BROKER_S)

    def answered(self, name: str, took_s: float) -> None:
        """A broker answered after this long."""
        if duration_s := avoid_s(took_s):
            self._avoid(name, duration_s)

    def _avoid(self, name: str, duration_s: float) -> None:
        self._avoided.add(name, self._clock.monotonic_s() + duration_s)
        if self._forgiving is None:
            loop = asyncio.get_running_loop()
            self._forgiving = loop.call_later(FORGIVE_CHECK_S, self._forgive)

    def _forgive(self) -> None:
        self._forgiving = None
        self._avoided.expire(self._clock.monotonic_s())
        if self.names and self._is_open():
            loop = asyncio.get_running_loop()
            self._forgiving = loop.call_later(FORGIVE_CHECK_S, self._forgive)
