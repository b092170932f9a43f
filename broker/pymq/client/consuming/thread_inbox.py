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
import itertools
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

    __slots__ = ("deliveries", "is_claimed", "loop", "name", "seen", "thread")

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        self.name = f"thread {self.thread.name!r}"
        self.deliveries: list[Delivery] = []
        #: Has the program got them? An exception of a signal may keep a call from returning them.
        self.is_claimed = False
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
        #: Yields what is taken from ``_ready``; raises IndexError while there is nothing.
        self._popped = iter(self._ready.popleft, None)
        self._fetching = asyncio.Lock()
        # Without a lock, for which the loop might wait: see ``Outcomes``.
        self._held: list[Held] = []
        self._of_thread = _OfThread(self._held.append)

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
            is_empty = False
            try:
                # In one step: nobody would have what an exception of a signal came upon between.
                taken.extend(itertools.islice(self._popped, count_max - len(taken)))
            except IndexError:
                is_empty = True
            for delivery in taken:
                delivery.taken_s = now_s
                delivery.holder = held.name
                if delivery.process_queue.dropped:
                    taken = held.deliveries = [one for one in taken if one is not delivery]
            if is_empty:
                break
        return taken

    def take_for_worker(self, held: Held, count_max: int) -> list[Delivery]:
        """``take_nowait`` for a thread that does nothing but handle messages until it ends."""
        return self.take_nowait(held, count_max)

    def acknowledge(self, held: Held) -> None:
        """What the thread holds was handled; messages with an outcome by name keep that."""
        if held.deliveries:
            decided = self._outcomes.decide(held.deliveries, RETURNED)
            if len(decided) < len(held.deliveries):
                # Others have one by name, or from here: an exception of a signal came then.
                decided = [one for one in held.deliveries if one.outcome is RETURNED]
            self._acknowledged.extend(decided)
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
        self._outcomes.carry_out_left()
        while self._acknowledged:
            self._inbox.acknowledge(self._acknowledged.popleft())
        for held in [one for one in list(self._held) if not one.thread.is_alive()]:
            self._held.remove(held)
            if held.deliveries:
                self.put_back(held.deliveries)
