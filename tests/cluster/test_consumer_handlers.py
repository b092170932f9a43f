"""Handlers of a consumer: failures, the end while they run, and flow control."""

import asyncio
import logging
from typing import Any

import pytest
from tests.cluster.running import ask, run
from tests.cluster.scenarios import TIMEOUT_S, numbers_of, receive, send_numbers, wait_until

from pymq.client import operations
from pymq.client.consuming.consumer import Consumer
from pymq.client.group.inbox import FlowLimits
from pymq.client.operations import PreparedMessage
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.message import ReceivedMessage
from pymq.testing.cluster import Cluster

pytestmark = pytest.mark.usefixtures("quick_local_retry")


def member(cluster: Cluster, **options: Any) -> Consumer:
    settings: dict[str, Any] = {"from_where": "earliest", "timeout_s": TIMEOUT_S, **options}
    return Consumer(cluster.name_server, "g", **settings).subscribe("T")


def test_closing_lets_handlers_finish_and_commits(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        begun: list[int] = []
        finished: list[int] = []
        go_on = asyncio.Event()

        async def handler(message: ReceivedMessage) -> None:
            begun.append(int(message.body))
            await go_on.wait()
            finished.append(int(message.body))

        await send_numbers(pymq_cluster.name_server, "T", range(20))
        consumer = member(pymq_cluster)
        async with consumer:
            running = asyncio.ensure_future(consumer.run(handler, concurrency=4))
            await wait_until(lambda: len(begun) == 4, "four are at work")
            asyncio.get_running_loop().call_later(0.2, go_on.set)  # while it closes
        await running
        assert len(finished) == 4
        async with member(pymq_cluster, from_where="latest") as consumer:
            rest = numbers_of(await receive(consumer, 16))
        assert sorted(rest + finished) == list(range(20))

    run(test())


def test_progress_is_committed_while_it_runs(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        await send_numbers(pymq_cluster.name_server, "T", range(40))
        consumer = member(pymq_cluster)
        async with consumer:
            running = asyncio.ensure_future(consumer.run(ignore))
            await wait_until(lambda: len(consumer.assignment) == 5, "all queues are ours")
            queues = [queue for queue in consumer.assignment if queue.topic == "T"]
            committed = 0
            while committed < 40:
                consumer.commit_nowait()
                offsets = [
                    await ask(pymq_cluster.broker_address, operations.query_offset("g", queue))
                    for queue in queues
                ]
                committed = sum(offset or 0 for offset in offsets)
        await running

    run(test())


async def ignore(message: ReceivedMessage) -> None:
    """Handle a message by doing nothing."""


def test_a_handler_that_does_not_end_is_cancelled_and_its_message_comes_again(
    pymq_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        begun = asyncio.Event()

        async def handler(message: ReceivedMessage) -> None:
            begun.set()
            await asyncio.sleep(1000)

        await send_numbers(pymq_cluster.name_server, "T", range(1))
        consumer = member(pymq_cluster, close_timeout_s=0.1)
        async with consumer:
            running = asyncio.ensure_future(consumer.run(handler))
            await begun.wait()
        await running
        assert "1 handlers were not done within 0.1 s (close_timeout_s)" in caplog.text
        async with member(pymq_cluster, from_where="latest") as consumer:
            assert numbers_of(await receive(consumer, 1)) == [0]

    run(test())


def test_cancelling_run_takes_no_more_and_lets_handlers_finish(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        begun: list[int] = []
        finished: list[int] = []
        go_on = asyncio.Event()

        async def handler(message: ReceivedMessage) -> None:
            begun.append(int(message.body))
            await go_on.wait()
            finished.append(int(message.body))

        await send_numbers(pymq_cluster.name_server, "T", range(10))
        consumer = member(pymq_cluster)
        async with consumer:
            running = asyncio.ensure_future(consumer.run(handler, concurrency=2))
            await wait_until(lambda: len(begun) == 2, "two are at work")
            running.cancel()
            await asyncio.wait([running])
            go_on.set()
            await wait_until(lambda: len(finished) == 2, "those at work finish")
            rest = numbers_of(await receive(consumer, 8))
            assert sorted(finished + rest) == list(range(10))

    run(test())


def test_handlers_of_several_messages_fail_and_succeed_as_a_whole(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        sizes: list[int] = []
        got: dict[int, int] = {}

        async def handler(messages: list[ReceivedMessage]) -> None:
            sizes.append(len(messages))
            if len(sizes) == 1:
                raise ValueError("the first call fails")
            for message in messages:
                got[int(message.body)] = message.reconsume_times

        await send_numbers(pymq_cluster.name_server, "T", range(40))
        consumer = member(pymq_cluster)
        async with consumer:
            running = asyncio.ensure_future(consumer.run(handler, concurrency=1, batch_size=8))
            await wait_until(lambda: len(got) == 40, "all messages")
            await wait_until(lambda: not consumer.backlog_count, "all are finished")
        await running
        assert max(sizes) <= 8
        assert sum(got.values()) == sizes[0]

    run(test())


def test_a_handler_that_raises_cancelled_error_has_failed(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        tries: list[int] = []

        async def handler(message: ReceivedMessage) -> None:
            tries.append(message.reconsume_times)
            if len(tries) == 1:
                raise asyncio.CancelledError

        await send_numbers(pymq_cluster.name_server, "T", range(1))
        consumer = member(pymq_cluster)
        async with consumer:
            running = asyncio.ensure_future(consumer.run(handler, concurrency=1))
            await wait_until(lambda: len(tries) == 2, "it comes again")
        await running
        assert tries == [0, 1]

    run(test())


def test_a_body_that_cannot_be_decompressed_reaches_no_handler_and_blocks_nothing(
    pymq_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        await send_numbers(pymq_cluster.name_server, "T", range(4))
        queue = MessageQueue("T", pymq_cluster.broker_name, 0)
        broken = PreparedMessage(
            "T", b"no zlib stream", "UNIQ_KEY\x01BROKEN\x02", "BROKEN", sys_flag=1
        )
        send = operations.Send(broken, queue, group="p", now_ms=1)
        await ask(pymq_cluster.broker_address, send)
        await send_numbers(pymq_cluster.name_server, "T", range(4, 12))
        with caplog.at_level(logging.WARNING):
            consumer = member(pymq_cluster)
            async with consumer:
                assert numbers_of(await receive(consumer, 12)) == list(range(12))
        assert "its body cannot be read" in caplog.text

    run(test())


def test_slow_handlers_hold_the_pulls_back(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        await send_numbers(pymq_cluster.name_server, "T", range(200))
        got: list[int] = []
        most = 0

        async def handler(message: ReceivedMessage) -> None:
            nonlocal most
            most = max(most, consumer.backlog_count)
            got.append(int(message.body))
            await asyncio.sleep(0.001)

        limits = FlowLimits(queue_messages_max=5, messages_max=12)
        consumer = member(pymq_cluster, limits=limits)
        async with consumer:
            running = asyncio.ensure_future(consumer.run(handler, concurrency=2))
            await wait_until(lambda: len(got) == 200, "all messages")
        await running
        assert sorted(got) == list(range(200))
        # Four queues that asked at the same moment may each bring what was free then.
        assert most <= 20

    run(test())
