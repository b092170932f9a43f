"""The consumer over loopback: scenarios, restarts of brokers, changes while it runs, errors."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.cluster import scenarios
from tests.cluster.running import run
from tests.cluster.scenarios import numbers_of, receive, send_numbers, wait_until

from pymq.client.cluster.patience import first_contact
from pymq.client.consuming.consume_hooks import ConsumeHook
from pymq.client.consuming.consumer import Consumer
from pymq.client.group.allocation import by_circle
from pymq.client.group.inbox import FlowLimits
from pymq.client.pulling.pull_consumer import PullConsumer
from pymq.errors import ClientClosed, ConfigurationError, ConnectionFailed, LocalProtocolError
from pymq.protocol.message import ReceivedMessage
from pymq.testing.cluster import Cluster

pytestmark = pytest.mark.usefixtures("quick_local_retry")


@pytest.mark.parametrize("scenario", scenarios.ALL, ids=lambda scenario: scenario.__name__)
def test_scenario(scenario: Callable[[str, str], Awaitable[None]], pymq_cluster: Cluster) -> None:
    run(scenario(pymq_cluster.name_server, "topic"))


def test_consumption_goes_on_after_a_restart_of_the_broker(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        got: set[int] = set()

        async def handler(message: ReceivedMessage) -> None:
            got.add(int(message.body))

        await send_numbers(pymq_cluster.name_server, "T", range(10))
        consumer = Consumer(pymq_cluster.name_server, "g", from_where="earliest").subscribe("T")
        async with consumer:
            running = asyncio.ensure_future(consumer.run(handler))
            await wait_until(lambda: len(got) == 10, "10 messages")
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, pymq_cluster.restart_broker)
            await send_numbers(pymq_cluster.name_server, "T", range(10, 30))
            await wait_until(lambda: len(got) == 30, "30 messages")
        await running

    run(test())


def test_a_topic_that_comes_later_is_waited_for(
    pymq_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        consumer = Consumer(pymq_cluster.name_server, "g", from_where="earliest").subscribe("late")
        async with consumer:
            await wait_until(lambda: "waits for a route" in caplog.text, "it says so")
            await send_numbers(pymq_cluster.name_server, "late", range(5))
            assert numbers_of(await receive(consumer, 5)) == list(range(5))

    run(test())
    assert caplog.text.count("waits for a route") == 1


def test_subscriptions_change_while_it_runs(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        await send_numbers(pymq_cluster.name_server, "A", range(3))
        await send_numbers(pymq_cluster.name_server, "B", range(10, 13))
        consumer = Consumer(pymq_cluster.name_server, "g", from_where="earliest").subscribe("A")
        async with consumer:
            assert numbers_of(await receive(consumer, 3)) == [0, 1, 2]
            consumer.subscribe("B")
            # Leaving the first loop with `break` did not finish its last message.
            numbers = numbers_of(await receive(consumer, 4))
            assert numbers[-3:] == [10, 11, 12]
            consumer.unsubscribe("A")
            await wait_until(
                lambda: {q.topic for q in consumer.assignment} == {"B", "%RETRY%g"}, "A is given up"
            )

    run(test())


def test_a_message_at_which_a_loop_was_left_comes_again(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        await send_numbers(pymq_cluster.name_server, "T", range(3))
        consumer = Consumer(pymq_cluster.name_server, "g", from_where="earliest").subscribe("T")
        async with consumer:
            (left,) = await receive(consumer, 1)
            messages = await receive(consumer, 3)
            assert messages[0] is left
            assert numbers_of(messages) == [0, 1, 2]
            await wait_until(lambda: consumer.backlog_count == 1, "all but the last are finished")

    run(test())


def test_a_message_of_a_task_that_failed_comes_again(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        async def failing() -> None:
            async for _ in consumer:
                raise ZeroDivisionError

        await send_numbers(pymq_cluster.name_server, "T", range(3))
        consumer = Consumer(pymq_cluster.name_server, "g", from_where="earliest").subscribe("T")
        async with consumer:
            with pytest.raises(ZeroDivisionError):
                await asyncio.create_task(failing())
            assert numbers_of(await receive(consumer, 3)) == [0, 1, 2]

    run(test())


def test_starting_twice_is_starting_once(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        consumer = await Consumer(pymq_cluster.name_server, "g").subscribe("T").start()
        async with consumer:
            names = [task.get_name() for task in asyncio.all_tasks()]
            assert names.count("client: rebalance") == 1

    run(test())


@pytest.mark.parametrize("of", [Consumer, PullConsumer])
def test_who_starts_it_meanwhile_waits_for_that_or_does_it(
    of: type[Consumer | PullConsumer], pymq_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        goes_on = asyncio.Event()
        failures = [ConnectionFailed("not yet")]

        async def first_contact_later(*args: Any) -> Any:
            await goes_on.wait()
            if failures:
                raise failures.pop()
            return await first_contact(*args)

        await send_numbers(pymq_cluster.name_server, "T", range(1))
        monkeypatch.setattr("pymq.client.cluster.pool.first_contact", first_contact_later)
        consumer = of(pymq_cluster.name_server, "g").subscribe("T")
        starts = [asyncio.ensure_future(consumer.start()) for _ in range(3)]
        await asyncio.sleep(0.05)
        assert not any(start.done() for start in starts)
        goes_on.set()
        results = await asyncio.gather(*starts, return_exceptions=True)
        assert isinstance(results[0], ConnectionFailed) and results[1:] == [consumer] * 2
        await wait_until(lambda: "T" in {q.topic for q in consumer.assignment}, "it reads")
        closing = asyncio.ensure_future(consumer.close())
        await asyncio.sleep(0)
        with pytest.raises(ClientClosed):
            await consumer.start()
        await closing

    run(test())


def test_runs_that_ended_are_forgotten(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        async with Consumer(pymq_cluster.name_server, "g").subscribe("T") as consumer:
            for _ in range(5):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(consumer.run(lambda message: None), 0.01)
            pools = consumer._worker_pools
            await wait_until(lambda: not any(one.is_running for one in pools), "threads end")
            running = asyncio.ensure_future(consumer.run(lambda message: None))
            await asyncio.sleep(0)
            assert len(consumer._worker_pools) == 1 and consumer._worker_pools[0] not in pools
        await running

    run(test())


def test_several_tasks_may_loop(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        got: list[int] = []

        async def loop() -> None:
            async for message in consumer:
                got.append(int(message.body))
                await asyncio.sleep(0)

        await send_numbers(pymq_cluster.name_server, "T", range(100))
        consumer = Consumer(pymq_cluster.name_server, "g", from_where="earliest").subscribe("T")
        async with consumer:
            loops = [asyncio.ensure_future(loop()) for _ in range(5)]
            await wait_until(lambda: len(got) == 100, "100 messages")
            await wait_until(lambda: not consumer.backlog_count, "all are finished")
        await asyncio.gather(*loops)  # closing ends them
        assert sorted(got) == list(range(100))

    run(test())


def test_wrong_use_says_what_is_right(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        name_server = pymq_cluster.name_server
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"close_timeout_s": "10"}, "close_timeout_s='10': expected seconds"),
            ({"close_timeout_s": -1}, "close_timeout_s=-1"),
            ({"hooks": ConsumeHook()}, "hooks=<.*: expected a list of ConsumeHook"),
            ({"hooks": [ConsumeHook]}, r"hooks=\[<class .*instances of .*pymq\.ConsumeHook"),
            ({"trace_topic": "a b"}, "trace_topic='a b': topic name"),
            ({"max_reconsume_times": -5}, r"max_reconsume_times=-5: expected 0\.\."),
            ({"message_model": "ALL"}, "message_model='ALL': expected 'CLUSTERING'"),
            ({"orderly": "yes"}, "orderly='yes': expected True or False"),
            ({"suspend_s": 0}, "suspend_s=0: expected seconds"),
            ({"allocation": "circle"}, "allocation='circle': expected a function"),
            (
                {"allocation": by_circle, "message_model": "BROADCASTING"},
                "every member reads all queues",
            ),
            ({"rebalance_listener": print}, "rebalance_listener=<.*: expected an instance"),
            ({"local_offsets_dir": "/tmp"}, "local_offsets_dir: only members of a broadcasting"),
            ({"limits": 1000}, "limits=1000: expected a FlowLimits"),
        ]
        for arguments, reason in wrong:
            with pytest.raises(ConfigurationError, match=reason):
                Consumer(name_server, "g", **arguments)
        with pytest.raises(ConfigurationError, match="queue_bytes_max='1': expected a whole"):
            FlowLimits(queue_bytes_max="1")  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="'latest', 'earliest' or a datetime"):
            Consumer(name_server, "g", from_where="yesterday")
        with pytest.raises(LocalProtocolError, match="group name 'a b' has ' '"):
            Consumer(name_server, "a b")
        with pytest.raises(ConfigurationError, match="host:port"):
            Consumer("nowhere", "g")
        with pytest.raises(ConfigurationError, match="call subscribe"):
            await Consumer(name_server, "g").start()
        consumer = Consumer(name_server, "g")
        for topic, tags in (("a/b", "*"), ("", "*"), ("T", "||"), (b"T", "*"), ("T", None)):
            with pytest.raises(LocalProtocolError):
                consumer.subscribe(topic, tags)  # type: ignore[arg-type]
        for sql in ("a > 5", "TAGS is not null"):
            with pytest.raises(LocalProtocolError, match="SQL expression, expected .*'TagA"):
                consumer.subscribe("T", sql)
        consumer.subscribe("T")
        with pytest.raises(ClientClosed, match="async with"):
            consumer.__aiter__()
        async with consumer:
            with pytest.raises(ConfigurationError, match="concurrency=0"):
                await consumer.run(print, concurrency=0)
            with pytest.raises(ConfigurationError, match="expected a function"):
                await consumer.run(None)  # type: ignore[arg-type]
        await consumer.close()
        with pytest.raises(ClientClosed):
            await consumer.run(print)

    run(test())


def test_all_name_servers_down() -> None:
    async def test() -> None:
        with pytest.raises(ConnectionFailed, match="no name server of 127.0.0.1:1 answers"):
            await Consumer("127.0.0.1:1", "g").subscribe("T").start()

    run(test())
