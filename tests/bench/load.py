"""Load from our own clients, in this process, against brokers that run in another."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tests.administration import admin_of

from pymq.client.sending.producer import Producer
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.protocol.message import Message
from pymq.protocol.record_batch import read_columns

_T = TypeVar("_T")


def run_loop(work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Run on uvloop when it is installed, as the command line does."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work())
    result: _T = uvloop.run(work())
    return result


def create_topic(name_server: str, topic: str, queue_count: int) -> None:
    """Create a topic with this many queues."""
    with BlockingClient(name_server) as client:
        admin_of(client).topics.create(topic, queue_count=queue_count)


def single_sends(name_server: str, topic: str, size: int, count: int, in_flight: int) -> float:
    """Send messages one by one, this many unanswered at a time; return messages per second."""

    async def work() -> float:
        body = b"x" * size
        async with Producer(name_server, in_flight_max=in_flight) as producer:
            await _send(producer, topic, body, min(count, 20_000), in_flight)
            started = time.perf_counter()
            await _send(producer, topic, body, count, in_flight)
            return count / (time.perf_counter() - started)

    return run_loop(work)


async def _send(producer: Producer, topic: str, body: bytes, count: int, in_flight: int) -> None:
    for _ in range(count):
        while producer.in_flight_count >= in_flight:
            await producer.wait_room()
        producer.send_nowait(Message(topic, body))
    await producer.flush()


def batch_sends(
    name_server: str, topic: str, size: int, batch_count: int, batch: int, in_flight: int
) -> float:
    """Send batches, this many unanswered at a time; return messages per second."""

    async def work() -> float:
        body = b"x" * size
        async with Producer(name_server) as producer:

            async def some(count: int) -> None:
                for _ in range(count):
                    await producer.send_batch([Message(topic, body) for _ in range(batch)])

            await some(10)
            started = time.perf_counter()
            share = batch_count // in_flight
            await asyncio.gather(*(some(share) for _ in range(in_flight)))
            return share * in_flight * batch / (time.perf_counter() - started)

    return run_loop(work)


def pull_columns(name_server: str, topic: str) -> tuple[int, float]:
    """Read a topic's backlog to columns with the blocking client; return (count, per second)."""
    with BlockingClient(name_server) as client:
        bounds = client.bounds(client.read_queues(topic))
        total = 0
        started = time.perf_counter()
        for queue, (first, end) in bounds.items():
            for chunk in client.pull_range(queue, first, end):
                total += len(read_columns(chunk.buffer))
        seconds = time.perf_counter() - started
    assert total == sum(end - first for first, end in bounds.values())
    return total, total / seconds
