"""Messages handed to threads where they are handled in order: a call gets those of one queue.

What is ready is the first message of each queue. The thread that takes it asks for what follows in
the same call; a thread that does nothing else, also for a reserve, which saves it the way to the
event loop and back for each message. It gives the reserve back when it must not go on with it: a
message before was not done, or the queue is suspended, paused, given up, or not surely ours.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable

from pymq.client.cluster.pool import ClientPool
from pymq.client.consuming.ordered_inbox import OrderedInbox
from pymq.client.consuming.outcomes import Outcomes
from pymq.client.consuming.thread_inbox import Held, ThreadInbox
from pymq.client.group.inbox import Delivery

#: Messages of one queue that a thread takes ahead.
RESERVE_COUNT = 32


class OrderedThreadInbox(ThreadInbox):
    """A ``ThreadInbox`` over an inbox that keeps the order.

    Args:
        inbox: where messages come from.
        outcomes: gets what became of messages.
        pool: of the consumer, for its event loop.
    """

    def __init__(self, inbox: OrderedInbox, outcomes: Outcomes, pool: ClientPool) -> None:
        super().__init__(inbox, outcomes)
        self._ordered = inbox
        self._pool = pool
        # By thread, each used by its own, and by ``settle`` when that has ended.
        self._reserves: dict[Held, deque[Delivery]] = {}
        self._last: dict[Held, list[Delivery]] = {}

    # --- in threads

    def take_nowait(self, held: Held, count_max: int) -> list[Delivery]:
        """Take the next message that is ready and, for a call of several, what follows it."""
        taken = super().take_nowait(held, 1)
        if taken and count_max > 1:
            now_s = time.monotonic()
            for delivery in self._following(taken[0], count_max - 1):
                delivery.taken_s = now_s
                taken.append(delivery)
        return taken

    def take_for_worker(self, held: Held, count_max: int) -> list[Delivery]:
        """``take_nowait``, with a reserve."""
        reserve = self._reserves.get(held)
        if reserve and not self._may_go_on(held, reserve[0]):
            del self._reserves[held]
            self._pool.loop.call_soon_threadsafe(self._put_back_all, reserve)
            reserve = None
        if reserve:
            taken = [reserve.popleft() for _ in range(min(count_max, len(reserve)))]
            now_s = time.monotonic()
            for delivery in taken:
                delivery.taken_s = now_s
                delivery.holder = held.name
            held.deliveries = taken
        else:
            taken = super().take_nowait(held, 1)
            if taken:
                following = self._following(taken[0], max(count_max - 1, RESERVE_COUNT))
                for delivery in following[: count_max - 1]:
                    delivery.taken_s = taken[0].taken_s
                    taken.append(delivery)
                self._reserves[held] = deque(following[count_max - 1 :])
        self._last[held] = list(taken)
        return taken

    def _may_go_on(self, held: Held, following: Delivery) -> bool:
        outcomes = [delivery.outcome for delivery in self._last[held]]
        are_done = all(one is not None and one.delay_level is None for one in outcomes)
        return are_done and self._ordered.may_follow(following)

    def _following(self, first: Delivery, count_max: int) -> list[Delivery]:
        work = self._take_following(first, count_max)
        return asyncio.run_coroutine_threadsafe(work, self._pool.loop).result()

    # --- in the event loop

    async def _take_following(self, first: Delivery, count_max: int) -> list[Delivery]:
        found: list[Delivery] = []
        while len(found) < count_max and (more := self._inbox.take_with(first)) is not None:
            more.taken_s = 0.0  # It waits for its turn.
            found.append(more)
        return found

    def _put_back_all(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            self._inbox.put_back(delivery)

    def settle(self) -> None:
        """Finish what was acknowledged, and deliver again what threads that have ended held."""
        for held in [one for one in list(self._reserves) if not one.thread.is_alive()]:
            self._put_back_all(self._reserves.pop(held))
            self._last.pop(held, None)
        super().settle()
