"""A client that is closed by several: by a signal's handler, and by the block that it lives in."""

import asyncio
import threading
from typing import Any

import pytest
from tests.cluster.outcome_scenarios import committed
from tests.cluster.running import run
from tests.cluster.scenarios import TIMEOUT_S, send_numbers, wait_until

from pymq import (
    ClientClosed,
    Consumer,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    RebalanceListener,
    ReceivedMessage,
    blocking,
)
from pymq.testing import Cluster
from pymq.testing import wait_until as wait_in_thread

DEADLINE_S = 60.0
#: How long each request of the first close takes, so that the second one finds it under way.
SLOW_S = 0.3
COUNT = 20


def consumer_of(cluster: Cluster, **options: Any) -> Consumer:
    options = {"from_where": "earliest", "timeout_s": DEADLINE_S, **options}
    return Consumer(cluster.name_server, "g", **options).subscribe("T")


def close_soon(consumer: Consumer | PullConsumer, kept: list[asyncio.Task[None]]) -> None:
    """Do what the handler of a signal does."""
    asyncio.get_running_loop().call_soon(
        lambda: kept.append(asyncio.ensure_future(consumer.close()))
    )


def test_a_block_waits_for_a_close_that_is_under_way(
    pymq_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the loop would end before anything is committed."""
    monkeypatch.setattr("pymq.client.consuming.consumer.COMMIT_S", 3600)
    handled: list[bytes] = []
    closes: list[asyncio.Task[None]] = []

    async def serve() -> None:
        async with consumer_of(pymq_cluster) as consumer:

            async def handle(message: ReceivedMessage) -> None:
                await asyncio.sleep(0.01)
                handled.append(message.body)
                if len(handled) == COUNT // 2:
                    close_soon(consumer, closes)

            await consumer.run(handle, concurrency=4)

    run(send_numbers(pymq_cluster.name_server, "T", range(COUNT)))
    fault = pymq_cluster.broker().delay(SLOW_S)
    run(serve())
    fault.end()
    assert [one.cancelled() for one in closes] == [False]
    assert committed(pymq_cluster.name_server, "T", "g") == len(handled)


def test_a_block_of_a_pull_consumer_waits_for_a_close_that_is_under_way(
    pymq_cluster: Cluster,
) -> None:
    closes: list[asyncio.Task[None]] = []

    async def serve() -> None:
        made = PullConsumer(
            pymq_cluster.name_server, "g", from_where="earliest", timeout_s=DEADLINE_S
        )
        async with made.subscribe("T") as consumer:
            polled = 0
            while polled < COUNT:
                polled += len(await consumer.poll(COUNT, 1))
            assert await consumer.poll(1, 0) == []  # all is consumed
            close_soon(consumer, closes)
            with pytest.raises(ClientClosed):
                while True:
                    await consumer.poll(1, 1)

    run(send_numbers(pymq_cluster.name_server, "T", range(COUNT)))
    fault = pymq_cluster.broker().delay(SLOW_S)
    run(serve())
    fault.end()
    assert [one.cancelled() for one in closes] == [False]
    assert committed(pymq_cluster.name_server, "T", "g") == COUNT


def test_a_block_of_a_blocking_consumer_waits_for_a_close_that_is_under_way(
    pymq_cluster: Cluster,
) -> None:
    """A thread that does not keep the process alive may have begun it."""
    run(send_numbers(pymq_cluster.name_server, "T", range(COUNT)))
    handled: list[bytes] = []
    consumer = blocking.Consumer(
        pymq_cluster.name_server, "g", from_where="earliest", timeout_s=DEADLINE_S
    ).subscribe("T")
    all_handled = threading.Event()

    def handle(message: ReceivedMessage) -> None:
        handled.append(message.body)
        if len(handled) == COUNT:
            all_handled.set()

    def close() -> None:
        all_handled.wait(DEADLINE_S)
        pymq_cluster.broker().delay(SLOW_S)
        consumer.close()
        is_closed.append(True)

    is_closed: list[bool] = []
    closer = threading.Thread(target=close, daemon=True)
    with consumer:
        closer.start()
        with pytest.raises(ClientClosed):
            while True:
                consumer.run(handle, timeout_s=1)
    assert "pymq consumer" not in [thread.name for thread in threading.enumerate()]
    pymq_cluster.broker().delay(0)
    assert committed(pymq_cluster.name_server, "T", "g") == COUNT
    closer.join(DEADLINE_S)
    assert is_closed


def test_a_close_that_is_cancelled_does_not_keep_the_other_waiting(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        begun = asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            begun.set()
            await asyncio.Event().wait()

        async with consumer_of(pymq_cluster, close_timeout_s=3600) as consumer:
            running = asyncio.ensure_future(consumer.run(handle))
            await begun.wait()
            first = asyncio.ensure_future(consumer.close())
            await asyncio.sleep(0)
            second = asyncio.ensure_future(consumer.close())
            await asyncio.sleep(0)
            assert not second.done()
            first.cancel()
            await second
            assert first.cancelled()
            await asyncio.wait([running])

    run(send_numbers(pymq_cluster.name_server, "T", range(1)))
    run(test())


@pytest.mark.parametrize("is_first", [True, False])
def test_who_is_waited_for_does_not_wait(pymq_cluster: Cluster, is_first: bool) -> None:
    """Handlers and listeners may close their consumer, also when somebody does already."""

    class Closing(RebalanceListener):
        async def revoked(self, queues: list[MessageQueue]) -> None:
            await consumer.close()
            revoked.extend(queues)

    revoked: list[MessageQueue] = []
    begun: list[bytes] = []
    closed: list[bytes] = []
    consumer = consumer_of(pymq_cluster, close_timeout_s=3600, rebalance_listener=Closing())

    async def handle(message: ReceivedMessage) -> None:
        begun.append(message.body)
        await wait_until(lambda: len(begun) == 4, "four are at work")
        if not is_first:
            await wait_until(lambda: consumer._parts.is_closing, "it closes")
        await consumer.close()
        closed.append(message.body)

    async def test() -> None:
        async with consumer:
            running = asyncio.ensure_future(consumer.run(handle, concurrency=4))
            await wait_until(lambda: len(begun) == 4, "four are at work")
            if not is_first:
                await consumer.close()
            await running
        assert len(closed) == 4
        assert revoked

    run(send_numbers(pymq_cluster.name_server, "T", range(4)))
    run(test())


def test_threads_that_are_waited_for_do_not_wait(
    pymq_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The same with plain functions, in the blocking face."""

    class Closing(RebalanceListener):
        def revoked(self, queues: list[MessageQueue]) -> None:
            consumer.close()
            revoked.extend(queues)

    revoked: list[MessageQueue] = []
    begun, closed = threading.Event(), threading.Event()
    consumer = blocking.Consumer(
        pymq_cluster.name_server,
        "g",
        from_where="earliest",
        timeout_s=DEADLINE_S,
        close_timeout_s=2 * DEADLINE_S,  # pytest ends, with all tests, after 600 s
        rebalance_listener=Closing(),
    ).subscribe("T")

    def handle(message: ReceivedMessage) -> None:
        begun.set()
        wait_in_thread(lambda: not consumer._is_open, timeout_s=DEADLINE_S)
        consumer.close()
        closed.set()

    run(send_numbers(pymq_cluster.name_server, "T", range(1)))
    with consumer:
        running = threading.Thread(target=consumer.run, args=(handle,), daemon=True)
        running.start()
        assert begun.wait(DEADLINE_S)
    assert closed.is_set() and revoked
    assert "were not done within" not in caplog.text
    running.join(DEADLINE_S)
    assert committed(pymq_cluster.name_server, "T", "g") == 1


@pytest.mark.parametrize("orderly", [False, True])
def test_a_listener_may_close_its_consumer(pymq_cluster: Cluster, orderly: bool) -> None:
    async def test() -> None:
        closed = asyncio.Event()

        class Listener(RebalanceListener):
            async def revoked(self, queues: list[MessageQueue]) -> None:
                if not closed.is_set():
                    closed.set()
                    await consumer.close()

        consumer = Consumer(
            pymq_cluster.name_server,
            "g",
            from_where="earliest",
            orderly=orderly,
            rebalance_listener=Listener(),
            timeout_s=TIMEOUT_S,
        ).subscribe("T")
        async with Producer(pymq_cluster.name_server, timeout_s=TIMEOUT_S) as producer:
            await producer.send(Message("T", b"x"))
        async with asyncio.timeout(60):
            await consumer.start()
            async for message in consumer:
                message.ack()
                break
            consumer.unsubscribe("T")
            await closed.wait()
            await consumer.close()

    asyncio.run(test())
