"""Held pulls: requests that found no message and wait for one, or for their deadline.

What a request waits for is its own affair: it names queues, and a function that decides whether an
arrival in one of them is for it.

Source: RocketMQ PullRequestHoldService, NotifyMessageArrivingListener.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pymq.broker.held_requests import HeldRequest, HeldRequests
from pymq.clock import Clock
from pymq.errors import refusal
from pymq.net.dispatcher import Request
from pymq.net.said_once import SaidOnce
from pymq.protocol.codes import ResponseCode
from pymq.store import Arrival, QueueKey

_log = logging.getLogger(__name__)

_OVERLOADED = "[OVERLOAD]system busy, start flow control for a while"


@dataclass(slots=True, eq=False)
class HeldPull(HeldRequest):
    """One pull that waits; its work does not hold it again.

    Attributes:
        queues: whose arrivals may be for it; at least one.
        wants: whether an arrival in one of them is for it; must not raise.
    """

    queues: Sequence[QueueKey]
    wants: Callable[[Arrival], bool]


class LongPoll(HeldRequests[HeldPull]):
    """The held pulls of a broker, by queue.

    Args:
        count_max: of all of them.
    """

    def __init__(self, clock: Clock, *, count_max: int) -> None:
        super().__init__(clock)
        self._count_max = count_max
        # Dictionaries without values: sets that keep the order.
        self._by_queue: dict[QueueKey, dict[HeldPull, None]] = {}
        self._said = SaidOnce(_log)

    def hold(self, one: HeldPull) -> None:
        """Keep a request until an arrival is for it or its deadline passes.

        Nothing may arrive between its look into the queues and this call: both belong into one
        turn of the event loop.

        Raises:
            BrokerError: SYSTEM_BUSY: as many are held as may. An answer that there is nothing would
                have the client ask again at once; after this one it waits for some seconds.
        """
        if self._count >= self._count_max:
            self._said.warn(
                "held",
                "%d pulls wait for messages, as many as may (pymqHeldPullCountMax): more are "
                "refused (SYSTEM_BUSY), and their consumers come again seconds later. Each queue "
                "of each group needs one; look for consumers that nobody stopped",
                self._count,
            )
            raise refusal(ResponseCode.SYSTEM_BUSY, _OVERLOADED)
        for queue in one.queues:
            self._by_queue.setdefault(queue, {})[one] = None
        self._add(one)

    def take(self, arrivals: list[Arrival]) -> None:
        """Answer the requests that these arrivals are for."""
        if self._count:
            for arrival in arrivals:
                held = self._by_queue.get((arrival.topic, arrival.queue_id))
                if held:
                    self._answer([one for one in held if one.wants(arrival)])

    def wake(self, queue: QueueKey, is_meant: Callable[[Request], bool]) -> int:
        """Answer those requests for a queue that are meant; return how many."""
        held = self._by_queue.get(queue, ())
        return self._answer([one for one in held if is_meant(one.request)])

    def _forgotten(self, one: HeldPull) -> None:
        for queue in one.queues:
            held = self._by_queue[queue]
            del held[one]
            if not held:
                del self._by_queue[queue]
        if self._count <= self._count_max // 2:
            self._said.over("held", "pulls are held again")
