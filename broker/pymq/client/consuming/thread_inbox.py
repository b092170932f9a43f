"""Messages handed from a consumer's event loop to the threads that handle them.

::

    Inbox --fetch--> ready --take_nowait--> held by a thread --acknowledge--> acknowledged
                                                  |                                |
                                       its thread has ended                     settle
                                                  v                                v
                                          Inbox.put_back                    Inbox.acknowledge

A thread acknowledges what it holds itself and nothing else: what another thread is still working
on must stay before the committed offset.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable

from pymq.client.consuming.consume_hooks import Consumption
from pymq.client.consuming.outcomes import Outcomes
from pymq.client.group.inbox import Delivery, Inbox
from pymq.protocol.outcomes import RETURNED

#: Messages that change threads at a time: enough that 16 threads seldom have to ask for more.
FETCH_COUNT = 256


class Held:
    """What one thread has taken and not acknowledged."""

    __slots__ = ("deliveries", "loop", "name", "seen", "thread")

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        self.name = f"thread {self.thread.name!r}"
        self.deliveries: list[Delivery] = []
        #: The loop over messages that took them; ``None``: a single call.
        self.loop: object | None = None
        #: What hooks see of it, in a loop.
        self.seen: Consumption | None = None

    def release(self) -> list[Delivery]:
        """Return what the thread holds, which it does no longer."""
        deliveries, self.deliveries = self.deliveries, []
        return deliveries


class _OfThread(threading.local):
    """The ``Held`` of the current thread. Idents of threads are used again; this is not."""

    def __init__(self, register: Callable[[Held], None]) -> None:
        self.held = Held()
        register(self.held)


class ThreadInbox:
    """The way from an ``Inbox`` to several threads and back.

    ``fetch``, ``put_back`` and ``settle`` belong to the event loop, everything else to any thread.

    Args:
        inbox: where messages come from.
        outcomes: gets what became of messages.
    """

    def __init__(self, inbox: Inbox, outcomes: Outcomes) -> None:
        self._inbox = inbox
        self._outcomes = outcomes
        # Of each, one end belongs to the loop and the other to the threads.
        self._ready: deque[Delivery] = deque()
        self._acknowledged: deque[Delivery] = deque()
        self._fetching = asyncio.Lock()
        self._held: list[Held] = []
        self._lock = threading.Lock()  # of the list
        self._of_thread = _OfThread(self._register)

    def _register(self, held: Held) -> None:
        with self._lock:
            self._held.append(held)

    # --- in threads

    @property
    def held(self) -> Held:
        """What the current thread holds."""
        return self._of_thread.held

    def take_nowait(self, held: Held, count_max: int) -> list[Delivery]:
        """Take what is ready, ``count_max`` messages at most; the thread holds that, no more."""
        taken: list[Delivery] = []
        held.deliveries = taken
        now_s = time.monotonic()
        while len(taken) < count_max:
            try:
                delivery = self._ready.popleft()
            except IndexError:
                break
            if not delivery.process_queue.dropped:
                delivery.taken_s = now_s
                delivery.holder = held.name
                taken.append(delivery)
        return taken

    def take_for_worker(self, held: Held, count_max: int) -> list[Delivery]:
        """``take_nowait`` for a thread that does nothing but handle messages until it ends."""
        return self.take_nowait(held, count_max)

    def acknowledge(self, held: Held) -> None:
        """What the thread holds was handled; messages with an outcome by name keep that."""
        if held.deliveries:
            self._acknowledged.extend(self._outcomes.decide(held.deliveries, RETURNED))
            held.deliveries = []

    # --- in the event loop

    async def fetch(self, timeout_s: float | None) -> bool:
        """Wait until a message is ready; ``False``: none came in time, or none will.

        Straight into ``_ready``: a result would be lost when Ctrl-C comes just before it.
        """
        self.settle()
        inbox = self._inbox
        try:
            # One waits at the inbox and the others for what it brings.
            async with asyncio.timeout(timeout_s), self._fetching:
                if self._ready:
                    return True
                delivery = await inbox.take()
        except TimeoutError:
            return False
        if delivery is None:
            return False
        while delivery is not None:
            delivery.taken_s = 0.0  # It waits for a thread.
            self._ready.append(delivery)
            delivery = inbox.take_nowait() if len(self._ready) < FETCH_COUNT else None
        return True

    def put_back(self, deliveries: list[Delivery]) -> None:
        """Deliver messages again, before all others and in their order."""
        while True:  # What is ready came behind them.
            try:
                self._inbox.put_back(self._ready.pop())
            except IndexError:
                break
        for delivery in reversed(deliveries):
            self._inbox.put_back(delivery)

    def settle(self) -> None:
        """Finish what was acknowledged, and deliver again what threads that have ended held."""
        while self._acknowledged:
            self._inbox.acknowledge(self._acknowledged.popleft())
        with self._lock:
            ended = [held for held in self._held if not held.thread.is_alive()]
            if ended:
                self._held = [held for held in self._held if held.thread.is_alive()]
        for held in ended:
            if held.deliveries:
                self.put_back(held.deliveries)
