"""Questions about queues: whom they are for, and one about many, asked at the same time.

Where a queue begins and ends, and what was stored in it when, its master says. A slave, which is
read while the master is away, may lag: what it lacks is late, and not absent. So whoever must not
miss a message asks ``master_channel``, and waits while there is none; ``read_channel`` of the pool
is for those who are content with what a slave says. (Blocking clients ask any of them, and
``BulkClient.asks_master`` tells which it was.)
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias, TypeVar

from pymq.client.cluster.pool import ClientPool
from pymq.client.operations import Operation
from pymq.net.channel import AsyncChannel
from pymq.protocol.bodies import MessageQueue

T = TypeVar("T")

#: Returns the connection to a broker that has a queue; raises ``PymqError``.
OpenChannel: TypeAlias = Callable[[MessageQueue], Awaitable[AsyncChannel]]


async def master_channel(pool: ClientPool, queue: MessageQueue) -> AsyncChannel:
    """Return the connection to the master of a queue.

    Raises:
        RouteNotFound: the topic is not known, or that broker has no master at the moment.
        ConnectionFailed: the address it advertises cannot be reached.
        ClientClosed: we are closed.
    """
    route = await pool.routes.route(queue.topic)
    address = route.address(queue.broker_name)
    return await pool.broker_channel(queue.topic, queue.broker_name, address)


async def ask_each(
    pool: ClientPool,
    queues: Iterable[MessageQueue],
    operation: Callable[[MessageQueue], Operation[T]],
) -> dict[MessageQueue, T]:
    """Return the answer for each queue, from its master, or while that is away from a slave.

    Raises:
        PymqError: one could not be had; of several errors, that of the first queue.
    """

    async def ask(queue: MessageQueue) -> T:
        return await pool.ask(await pool.read_channel(queue), operation(queue))

    return await of_each(queues, ask)


async def of_each(
    queues: Iterable[MessageQueue], find: Callable[[MessageQueue], Awaitable[T]]
) -> dict[MessageQueue, T]:
    """Return what is found for each queue; all are looked at together. Raises what they do."""
    wanted = list(dict.fromkeys(queues))
    answers = await asyncio.gather(*map(find, wanted), return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return {
        queue: answer
        for queue, answer in zip(wanted, answers, strict=True)
        if not isinstance(answer, BaseException)
    }
