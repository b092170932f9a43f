"""One question about many queues, asked of all their brokers at the same time."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from pymq.client.cluster.pool import ClientPool
from pymq.client.operations import Operation
from pymq.protocol.bodies import MessageQueue

T = TypeVar("T")


async def ask_each(
    pool: ClientPool,
    queues: Iterable[MessageQueue],
    operation: Callable[[MessageQueue], Operation[T]],
) -> dict[MessageQueue, T]:
    """Return the answer for each queue.

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
