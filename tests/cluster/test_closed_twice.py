"""A client that is closed by several: by a signal's handler, and by the block that it lives in."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.cluster.outcome_scenarios import committed
from tests.cluster.running import run
from tests.cluster.scenarios import QUEUE_COUNT, TIMEOUT_S, send_numbers, wait_until
from tests.cluster.test_listener_closes import committed_and_free

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


@pytest.mark.parametrize("orderly", [False, True], ids=["any order", "in order"])
def test_a_close_that_is_cancelled_gives_up_what_is_finished(
    pymq_cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    orderly: bool,
) -> None:
    """But not the queue of a handler that is at work: another one would work beside it."""
    monkeypatch.setattr("pymq.client.consuming.consumer.COMMIT_S", 3600)
    handled: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        if message.body == b"0":
            await asyncio.Event().wait()
        handled.append(message.body)

    async def test() -> None:
        async with Producer(pymq_cluster.name_server, timeout_s=TIMEOUT_S) as producer:
            first = MessageQueue("T", pymq_cluster.broker_name, 0)
            await producer.send(Message("T", b"0"), queue=first)
            for queue in (await producer.queues("T"))[1:]:
                for number in range(5):
                    await producer.send(Message("T", b"%d" % (number + 1)), queue=queue)
        async with consumer_of(pymq_cluster, orderly=orderly, close_timeout_s=3600) as consumer:
            running = asyncio.ensure_future(consumer.run(handle))
            await wait_until(lambda: len(handled) == 15, "all the others are handled")
            await wait_until(lambda: consumer.backlog_count == 1, "and finished")
            closing = asyncio.ensure_future(consumer.close())
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait([closing, running])

    run(test())
    expected = 15, QUEUE_COUNT - 1 if orderly else QUEUE_COUNT
    assert committed_and_free(pymq_cluster) == expected
    assert caplog.text.count("close() was interrupted") == 1
    assert ("1 queues, whose handlers are at work, stay locked" in caplog.text) == orderly


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


async def directly(close: Coroutine[Any, Any, None]) -> None:
    await close


async def gathered(close: Coroutine[Any, Any, None]) -> None:
    await asyncio.gather(close, asyncio.sleep(0))


async def in_a_group(close: Coroutine[Any, Any, None]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(close)


async def limited(close: Coroutine[Any, Any, None]) -> None:
    await asyncio.wait_for(close, DEADLINE_S)  # until Python 3.12 in a task of its own


@pytest.mark.parametrize("how", [directly, gathered, in_a_group, limited])
def test_a_handler_closes_its_consumer_and_waits_for_that(
    pymq_cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    how: Callable[[Coroutine[Any, Any, None]], Coroutine[Any, Any, None]],
) -> None:
    """All that others have handled is committed, also what they had when it began."""
    monkeypatch.setattr("pymq.client.consuming.consumer.COMMIT_S", 3600)
    begun: list[bytes] = []
    handled: list[bytes] = []
    consumer = consumer_of(pymq_cluster, close_timeout_s=3600)

    async def handle(message: ReceivedMessage) -> None:
        begun.append(message.body)
        if len(begun) == COUNT:
            message.ack()
            await how(consumer.close())
        elif len(begun) > COUNT // 2:
            await wait_until(lambda: consumer._parts.is_closing, "it closes")
        handled.append(message.body)

    async def test() -> None:
        async with consumer:
            await consumer.run(handle, concurrency=COUNT)

    run(send_numbers(pymq_cluster.name_server, "T", range(COUNT)))
    run(test())
    assert len(handled) == COUNT
    assert committed(pymq_cluster.name_server, "T", "g") == COUNT
    assert "were not done within" not in caplog.text


def test_a_handler_that_closes_its_consumer_and_works_on_is_waited_for(
    pymq_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pymq.client.consuming.workers.CALLER_S", DEADLINE_S)
    monkeypatch.setattr("pymq.client.consuming.consumer.COMMIT_S", 3600)
    closes: list[asyncio.Task[None]] = []

    async def handle(message: ReceivedMessage) -> None:
        closes.append(asyncio.ensure_future(consumer.close()))
        await wait_until(lambda: consumer._parts.is_closing, "it closes")

    consumer = consumer_of(pymq_cluster)

    async def test() -> None:
        async with consumer:
            await consumer.run(handle)

    run(send_numbers(pymq_cluster.name_server, "T", range(1)))
    run(test())
    assert committed(pymq_cluster.name_server, "T", "g") == 1


def test_a_handler_that_closes_its_consumer_and_never_ends_is_cancelled(
    pymq_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pymq.client.consuming.workers.CALLER_S", 0.1)
    closes: list[asyncio.Task[None]] = []

    async def handle(message: ReceivedMessage) -> None:
        closes.append(asyncio.ensure_future(consumer.close()))
        await asyncio.Event().wait()

    consumer = consumer_of(pymq_cluster)

    async def test() -> None:
        async with consumer:
            await consumer.run(handle)
        await closes[0]

    run(send_numbers(pymq_cluster.name_server, "T", range(1)))
    run(test())
    assert committed(pymq_cluster.name_server, "T", "g") in (0, None)


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
