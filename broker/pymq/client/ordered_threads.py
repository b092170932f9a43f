"""Messages handed to threads where they are handled in order: a call gets those of one queue."""

import asyncio

from pymq.client.inbox import Delivery
from pymq.client.ordered_inbox import OrderedInbox
from pymq.client.outcomes import Outcomes
from pymq.client.pool import ClientPool
from pymq.client.thread_inbox import Held, ThreadInbox


class OrderedThreadInbox(ThreadInbox):
    """A ``ThreadInbox`` over an inbox that keeps the order.

    What is ready is the first message of each queue. What follows it in the same call is asked for
    by the thread that has taken the first one.

    Args:
        inbox: where messages come from.
        outcomes: gets what became of messages.
        pool: of the consumer, for its event loop.
    """

    def __init__(self, inbox: OrderedInbox, outcomes: Outcomes, pool: ClientPool) -> None:
        super().__init__(inbox, outcomes)
        self._pool = pool

    def take_nowait(self, held: Held, count_max: int) -> list[Delivery]:
        """Take the next message that is ready and, for a call of several, what follows it."""
        taken = super().take_nowait(held, 1)
        if taken and count_max > 1:
            following = self._following(taken[0], count_max - 1)
            taken.extend(asyncio.run_coroutine_threadsafe(following, self._pool.loop).result())
        return taken

    async def _following(self, first: Delivery, count_max: int) -> list[Delivery]:
        found: list[Delivery] = []
        while len(found) < count_max and (more := self._inbox.take_with(first)) is not None:
            more.holder = first.holder
            found.append(more)
        return found
