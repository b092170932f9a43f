"""Clients in a second event loop, in another thread's, and in a child made by fork."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.cluster.children import in_child
from tests.cluster.scenarios import wait_until

from pymq.client.consuming.consumer import Consumer
from pymq.client.sending.batcher import Batcher
from pymq.client.sending.producer import Producer
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.errors import ClientMisplaced
from pymq.protocol.message import Message, ReceivedMessage
from pymq.protocol.record import decode_records
from pymq.testing.cluster import Cluster

DEADLINE_S = 90.0
Use = Callable[[], Coroutine[Any, Any, object]]


async def next_of(consumer: Consumer) -> ReceivedMessage:
    return await anext(aiter(consumer))


def uses(producer: Producer, consumer: Consumer) -> dict[str, Use]:
    """Return every way to use both."""

    async def nowait() -> object:
        return await producer.send_nowait(Message("T", b"wrong"))

    return {
        "send": lambda: producer.send(Message("T", b"wrong")),
        "send_nowait": nowait,
        "send_batch": lambda: producer.send_batch([Message("T", b"wrong")]),
        "send_one_way": lambda: producer.send_one_way(Message("T", b"wrong")),
        "start": producer.start,
        "consumer loop": lambda: next_of(consumer),
        "consumer run": lambda: consumer.run(print),
        "consumer start": consumer.start,
    }


async def answers(producer: Producer, consumer: Consumer) -> dict[str, str]:
    """Return what each use says."""
    found = {}
    for name, use in uses(producer, consumer).items():
        try:
            async with asyncio.timeout(DEADLINE_S / 3):
                found[name] = repr(await use())
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


async def started(cluster: Cluster) -> tuple[Producer, Consumer]:
    producer = await Producer(cluster.name_server).start()
    await producer.send(Message("T", b"first"))
    consumer = Consumer(cluster.name_server, "g", from_where="earliest").subscribe("T")
    await consumer.start()
    return producer, consumer


def bodies(cluster: Cluster) -> set[bytes]:
    with BlockingClient(cluster.name_server) as client:
        return {
            record.body
            for queue, (first, end) in client.bounds(client.read_queues("T")).items()
            for chunk in client.pull_range(queue, first, end)
            for record in decode_records(chunk.buffer)
        }


def test_a_flush_in_a_second_event_loop_is_refused(pymq_cluster: Cluster) -> None:
    """With something in flight it waited for ever, as the first loop does not wake the second."""
    with asyncio.Runner() as first, asyncio.Runner() as second:
        producer = first.run(Producer(pymq_cluster.name_server).start())
        for one in (producer, Batcher(producer)):
            with pytest.raises(ClientMisplaced, match="in another event loop"):
                second.run(one.flush())
        batcher = Batcher(producer)
        with pytest.raises(ClientMisplaced, match="in another event loop"):
            second.run(batcher.close())
        first.run(batcher.send(Message("T", b"still open")))
        first.run(producer.close())
        second.run(producer.flush())  # There is nothing to wait for any more.


def test_a_second_event_loop_is_refused(pymq_cluster: Cluster) -> None:
    async def close(client: Producer | Consumer) -> None:
        with pytest.raises(ClientMisplaced, match="another event loop, which has ended"):
            await client.close()

    with asyncio.Runner() as first:
        producer, consumer = first.run(started(pymq_cluster))
        with asyncio.Runner() as second:
            found = second.run(answers(producer, consumer))
        assert len(found) == 8
        for name, answer in found.items():
            assert answer.startswith("ClientMisplaced: the client was started in another"), name
        # Where it was started, it goes on.
        first.run(producer.send(Message("T", b"second")))
        assert isinstance(first.run(next_of(consumer)), ReceivedMessage)
        first.run(consumer.close())
        first.run(producer.close())
        left = first.run(started(pymq_cluster))
    for client in left:
        asyncio.run(close(client))
    assert bodies(pymq_cluster) == {b"first", b"second"}


def test_the_loop_of_another_thread_is_refused(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        producer, consumer = await started(pymq_cluster)
        async with consumer, producer:
            found = await asyncio.to_thread(lambda: asyncio.run(answers(producer, consumer)))
            for name, answer in found.items():
                assert answer.startswith("ClientMisplaced: the client was started in"), name
            changes: list[Callable[[], object]] = [
                lambda: consumer.subscribe("U"),
                lambda: consumer.unsubscribe("T"),
                consumer.commit_nowait,
            ]
            for change in changes:
                with pytest.raises(ClientMisplaced, match="in another event loop"):
                    await asyncio.to_thread(change)
            await producer.send(Message("T", b"second"))

    asyncio.run(test())
    assert bodies(pymq_cluster) == {b"first", b"second"}


def test_a_fork_is_refused_and_does_not_disturb_its_parent(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        producer, consumer = await started(pymq_cluster)
        got: list[bytes] = []

        async def handler(message: ReceivedMessage) -> None:
            got.append(message.body)

        async with producer, consumer:
            child = in_child(lambda: asyncio.run(answers(producer, consumer)))
            assert isinstance(child, dict), child
            for name, answer in child.items():
                assert answer.startswith("ClientMisplaced: the client was started in process"), name
                assert "make a client in each process" in answer
            assert in_child(lambda: asyncio.run(close_both(producer, consumer))) is None
            running = asyncio.ensure_future(consumer.run(handler))
            await producer.send(Message("T", b"second"))
            await wait_until(lambda: {*got} == {b"first", b"second"}, "the parent goes on")
        await running

    async def close_both(producer: Producer, consumer: Consumer) -> None:
        await consumer.close()
        await producer.close()

    asyncio.run(test())
    assert bodies(pymq_cluster) == {b"first", b"second"}


def test_a_loop_that_forks_delivers_to_the_parent_alone(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        producer, consumer = await started(pymq_cluster)
        async with producer, consumer:
            await producer.send_batch([Message("T", b"x") for _ in range(10)])
            messages = aiter(consumer)
            await anext(messages)

            def next_in_child() -> object:
                try:
                    anext(messages).send(None)  # type: ignore[attr-defined]
                except ClientMisplaced as error:
                    return str(error)
                except StopIteration as done:
                    return repr(done.value)
                return "waits"

            assert "in each process" in in_child(next_in_child)
            await anext(messages)

    asyncio.run(test())


def test_a_blocking_client_has_connections_and_ids_of_its_own_in_each_process(
    pymq_cluster: Cluster,
) -> None:
    def send(client: BlockingClient, who: str) -> list[str]:
        results = [client.send(Message("T", f"{who}{n}".encode())) for n in range(50)]
        return [str(result.message_id) for result in results]

    # Two processes may stand still, one after the other.
    made = [BlockingClient(pymq_cluster.name_server, timeout_s=DEADLINE_S) for _ in range(2)]
    with made[0] as client:
        send(client, "before")
        with made[1] as other:
            other.read_queues("T")
            child = in_child(lambda: [send(client, "child"), len(other.read_queues("T"))])
        ours = send(client, "parent")
        assert isinstance(child, list), child
        assert child[1] == len(client.read_queues("T"))
        assert len({*child[0], *ours}) == 100
        assert {key[:20] for key in child[0]} != {key[:20] for key in ours}
    assert len(bodies(pymq_cluster)) == 150
