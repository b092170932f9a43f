"""The consumer over loopback: scenarios, failures of brokers and handlers, limits, errors."""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.cluster import scenarios
from tests.cluster.scenarios import numbers_of, receive, send_numbers, wait_until
from tests.cluster.test_producer import FakeBroker

from pymq.client import operations, threaded
from pymq.client.admin import BlockingAdmin
from pymq.client.blocking import BlockingClient
from pymq.client.consumer import Consumer
from pymq.client.inbox import FlowLimits
from pymq.client.loop_thread import LoopThread
from pymq.client.operations import PreparedMessage
from pymq.errors import ClientClosed, ConfigurationError, ConnectionFailed, LocalProtocolError
from pymq.net.channel import AsyncChannel
from pymq.net.server import ServerConnection
from pymq.protocol.bodies import ConsumeFromWhere, GroupConfig, MessageQueue
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
from pymq.protocol.message import Message, ReceivedMessage
from pymq.testing.cluster import Cluster

DEADLINE_S = 60.0


def run(work: Awaitable[None]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(work, DEADLINE_S)

    asyncio.run(limited())


@pytest.fixture(autouse=True)
def quick_local_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pymq.client.retry.LOCAL_RETRY_S", 0.1)


@pytest.mark.parametrize("scenario", scenarios.ALL, ids=lambda scenario: scenario.__name__)
def test_scenario(scenario: Callable[[str, str], Awaitable[None]], pymq_cluster: Cluster) -> None:
    run(scenario(pymq_cluster.name_server, "topic"))


async def ask(address: str, operation: operations.Operation[Any]) -> Any:
    channel = await AsyncChannel.connect(address, 5)
    try:
        return operation.result(await channel.request(operation.request, 5), peer=address)
    finally:
        channel.close()


# ----------------------------------------------------------------------------- where to begin


def test_the_policies_choose_where_a_group_begins(pymq_cluster: Cluster) -> None:
    async def first_of(group: str, count: int, **options: Any) -> list[int]:
        consumer = Consumer(pymq_cluster.name_server, group, **options).subscribe("T")
        async with consumer:
            return numbers_of(await receive(consumer, count))

    async def test() -> None:
        await send_numbers(pymq_cluster.name_server, "T", range(10))
        between = datetime.now(UTC)
        await asyncio.sleep(0.01)  # store times have milliseconds
        await send_numbers(pymq_cluster.name_server, "T", range(10, 20))
        assert await first_of("g1", 20, from_where="earliest") == list(range(20))
        assert await first_of("g2", 20, from_where=ConsumeFromWhere.FIRST_OFFSET)
        if not await young_queues_start_at_zero(pymq_cluster):
            assert await first_of("g3", 10, from_where=between) == list(range(10, 20))

    run(test())


async def young_queues_start_at_zero(cluster: Cluster) -> bool:
    """Does the broker answer 0 for a group without offset, as RocketMQ does for young queues?"""
    operation = operations.query_offset("nobody", MessageQueue("T", cluster.broker_name, 0))
    return await ask(cluster.broker_address, operation) == 0


def test_an_offset_beyond_the_end_is_moved_back(
    pymq_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        await send_numbers(pymq_cluster.name_server, "T", range(8))
        await ask(pymq_cluster.broker_address, operations.update_group(GroupConfig(group="g")))
        for number in range(4):
            queue = MessageQueue("T", pymq_cluster.broker_name, number)
            await ask(pymq_cluster.broker_address, operations.update_offset("g", queue, 1000))
        async with Consumer(pymq_cluster.name_server, "g").subscribe("T") as consumer:
            await wait_until(lambda: "outside the queue" in caplog.text, "the offset is moved")
            await wait_until(lambda: caplog.text.count("outside the queue") == 4, "all are")
            await send_numbers(pymq_cluster.name_server, "T", range(100, 108))
            assert numbers_of(await receive(consumer, 8)) == list(range(100, 108))

    run(test())


def test_a_topic_that_is_deleted_and_created_again_is_read_from_its_beginning(
    pymq_cluster: Cluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader is beyond the end of the new queue, where an official client would go on."""
    monkeypatch.setattr("pymq.client.queue_reader.SUSPEND_S", 0.1)
    name_server = pymq_cluster.name_server

    def replace_topic() -> None:
        with BlockingClient(name_server) as client:
            admin = BlockingAdmin(client)
            admin.delete_topic("T")
            admin.create_topic("T", queue_count=4)

    async def test() -> None:
        old, new = set(range(40)), set(range(100, 104))
        got: set[int] = set()
        await send_numbers(name_server, "T", range(40))
        async with Consumer(name_server, "g", from_where="earliest").subscribe("T") as consumer:
            async for message in consumer:
                got.add(int(message.body))
                if got == old:
                    await asyncio.to_thread(replace_topic)
                    await send_numbers(name_server, "T", range(100, 104))  # one in each queue
                if got == old | new:
                    break

    run(test())
    assert caplog.text.count("its topic was deleted and created again, or its broker lost") == 4


class OffsetlessBroker(FakeBroker):
    """Cannot say what was committed, as long as it is ill."""

    def __init__(self) -> None:
        super().__init__()
        self.is_ill = True
        self.seen: list[Command] = []

    def on_command(self, connection: ServerConnection, command: Command) -> None:
        self.seen.append(command)
        if command.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            body = b'{"consumerIdList":["%s"]}' % self.client_id.encode()
            connection.respond(command, command.reply(0, body=body))
        elif command.code == RequestCode.QUERY_CONSUMER_OFFSET:
            answer = command.reply(1, "ill") if self.is_ill else command.reply(22, "none")
            connection.respond(command, answer)
        elif command.code in (RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET):
            connection.respond(command, command.reply(0, fields={"offset": "77"}))
        elif command.code != RequestCode.PULL_MESSAGE:  # pulls are held
            super().on_command(connection, command)

    def count(self, code: RequestCode) -> int:
        return sum(command.code == code for command in self.seen)

    client_id = ""


def test_a_queue_whose_offset_is_unknown_is_left_until_it_is_known() -> None:
    async def test() -> None:
        async with OffsetlessBroker() as broker:
            consumer = Consumer(broker.address, "g").subscribe("T")
            async with consumer:
                broker.client_id = consumer.client_id
                asked = RequestCode.QUERY_CONSUMER_OFFSET
                await wait_until(lambda: broker.count(asked) >= 8, "it asks again and again")
                assert not broker.count(RequestCode.PULL_MESSAGE)
                assert not broker.count(RequestCode.GET_MAX_OFFSET)
                assert not broker.count(RequestCode.UPDATE_CONSUMER_OFFSET)
                broker.is_ill = False
                pull = RequestCode.PULL_MESSAGE
                await wait_until(lambda: broker.count(pull) >= 2, "it pulls")
                told = [c for c in broker.seen if c.code == RequestCode.UPDATE_CONSUMER_OFFSET]
                assert {(c.fields or {})["commitOffset"] for c in told} == {"77"}
                pulls = [c.fields or {} for c in broker.seen if c.code == pull]
                assert {fields["queueOffset"] for fields in pulls} == {"77"}
                assert all(int(fields["sysFlag"]) & 0b11 == 0b11 for fields in pulls)
                assert {fields["suspendTimeoutMillis"] for fields in pulls} == {"15000"}
            assert broker.count(RequestCode.UNREGISTER_CLIENT) == 1

    run(test())


# ------------------------------------------------------------------------- brokers that fail


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


# ------------------------------------------------------------------------------- finishing


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


def test_runs_that_ended_are_forgotten(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        async with Consumer(pymq_cluster.name_server, "g").subscribe("T") as consumer:
            for _ in range(5):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(consumer.run(lambda message: None), 0.01)
            assert len(consumer._worker_pools) <= 2

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


def test_closing_lets_handlers_finish_and_commits(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        finished: list[int] = []
        begun = asyncio.Event()

        async def handler(message: ReceivedMessage) -> None:
            begun.set()
            await asyncio.sleep(0.2)
            finished.append(int(message.body))

        await send_numbers(pymq_cluster.name_server, "T", range(20))
        consumer = Consumer(pymq_cluster.name_server, "g", from_where="earliest").subscribe("T")
        async with consumer:
            running = asyncio.ensure_future(consumer.run(handler, concurrency=4))
            await begun.wait()
        await running
        assert len(finished) == 4
        async with Consumer(pymq_cluster.name_server, "g").subscribe("T") as consumer:
            rest = numbers_of(await receive(consumer, 16))
        assert sorted(rest + finished) == list(range(20))

    run(test())


def test_progress_is_committed_while_it_runs(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        await send_numbers(pymq_cluster.name_server, "T", range(40))
        consumer = Consumer(pymq_cluster.name_server, "g", from_where="earliest").subscribe("T")
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
        consumer = Consumer(
            pymq_cluster.name_server, "g", from_where="earliest", close_timeout_s=0.1
        ).subscribe("T")
        async with consumer:
            running = asyncio.ensure_future(consumer.run(handler))
            await begun.wait()
        await running
        assert "1 handlers were not done within 0.1 s (close_timeout_s)" in caplog.text
        async with Consumer(pymq_cluster.name_server, "g").subscribe("T") as consumer:
            assert numbers_of(await receive(consumer, 1)) == [0]

    run(test())


def test_cancelling_run_takes_no_more_and_lets_handlers_finish(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        finished: list[int] = []
        begun = asyncio.Event()
        go_on = asyncio.Event()

        async def handler(message: ReceivedMessage) -> None:
            begun.set()
            await go_on.wait()
            finished.append(int(message.body))

        await send_numbers(pymq_cluster.name_server, "T", range(10))
        consumer = Consumer(pymq_cluster.name_server, "g", from_where="earliest").subscribe("T")
        async with consumer:
            running = asyncio.ensure_future(consumer.run(handler, concurrency=2))
            await begun.wait()
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
        consumer = Consumer(pymq_cluster.name_server, "g", from_where="earliest").subscribe("T")
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
        consumer = Consumer(pymq_cluster.name_server, "g", from_where="earliest").subscribe("T")
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
            consumer = Consumer(pymq_cluster.name_server, "g", from_where="earliest").subscribe("T")
            async with consumer:
                assert numbers_of(await receive(consumer, 12)) == list(range(12))
        assert "its body cannot be read" in caplog.text

    run(test())


# ----------------------------------------------------------------------------------- limits


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
        consumer = Consumer(
            pymq_cluster.name_server, "g", from_where="earliest", limits=limits
        ).subscribe("T")
        async with consumer:
            running = asyncio.ensure_future(consumer.run(handler, concurrency=2))
            await wait_until(lambda: len(got) == 200, "all messages")
        await running
        assert sorted(got) == list(range(200))
        # Four queues that asked at the same moment may each bring what was free then.
        assert most <= 20

    run(test())


# ----------------------------------------------------------------------------------- errors


def test_wrong_use_says_what_is_right(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        name_server = pymq_cluster.name_server
        with pytest.raises(ConfigurationError, match="group of its own"):
            Consumer(name_server, "g", message_model="BROADCASTING")
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"close_timeout_s": "10"}, "close_timeout_s='10': expected seconds"),
            ({"close_timeout_s": -1}, "close_timeout_s=-1"),
            ({"max_reconsume_times": -5}, "max_reconsume_times=-5: expected a whole number"),
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


# --------------------------------------------------------------------------------- blocking


def test_blocking_consumer(pymq_cluster: Cluster) -> None:
    name_server = pymq_cluster.name_server
    with threaded.Producer(name_server) as producer:
        for number in range(200):
            producer.send(Message("T", b"%d" % number))
    with threaded.Consumer(name_server, "g", from_where="earliest").subscribe("T") as consumer:
        numbers = []
        for message in consumer:
            numbers.append(int(message.body))
            if len(numbers) == 100:
                break
    with threaded.Consumer(name_server, "g").subscribe("T") as consumer:
        rest = [int(message.body) for message in consumer.messages(timeout_s=1)]
        assert len(consumer.assignment) == 5
    assert sorted(numbers + rest) == list(range(200))
    consumer.close()
    with pytest.raises(ClientClosed):
        consumer.receive(1)


def test_blocking_consumer_gives_back_what_its_handler_refuses(pymq_cluster: Cluster) -> None:
    name_server = pymq_cluster.name_server
    with threaded.Producer(name_server) as producer:
        for number in range(5):
            producer.send(Message("T", b"%d" % number))
    tries: dict[int, int] = {}

    def handler(message: ReceivedMessage) -> None:
        number = int(message.body)
        tries[number] = tries.get(number, 0) + 1
        if number == 2 and tries[number] == 1:
            raise ValueError("not 2")

    with threaded.Consumer(name_server, "g", from_where="earliest").subscribe("T") as consumer:
        consumer.run(handler, timeout_s=1)
    assert tries == {0: 1, 1: 1, 2: 2, 3: 1, 4: 1}


def test_blocking_consumer_whose_body_fails_gets_the_message_again(pymq_cluster: Cluster) -> None:
    name_server = pymq_cluster.name_server
    with threaded.Producer(name_server) as producer:
        for number in range(5):
            producer.send(Message("T", b"%d" % number))
    with (
        pytest.raises(ZeroDivisionError),
        threaded.Consumer(name_server, "g", from_where="earliest").subscribe("T") as consumer,
    ):
        for _ in consumer:
            raise ZeroDivisionError
    with threaded.Consumer(name_server, "g").subscribe("T") as consumer:
        assert sorted(int(m.body) for m in consumer.messages(timeout_s=1)) == list(range(5))


def send_to_one_queue(name_server: str, count: int) -> None:
    with threaded.Producer(name_server) as producer:
        queue = producer.queues("T")[0]
        for number in range(count):
            producer.send(Message("T", b"%d" % number), queue=queue)


def test_ctrl_c_loses_nothing_that_was_taken(
    pymq_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: LoopThread, work: Any) -> None:
        self.begin(work).result()
        raise KeyboardInterrupt  # in the last moment

    name_server = pymq_cluster.name_server
    send_to_one_queue(name_server, 20)
    with threaded.Consumer(name_server, "g", from_where="earliest").subscribe("T") as consumer:
        with monkeypatch.context() as patched:
            patched.setattr(LoopThread, "call", interrupted)
            with pytest.raises(KeyboardInterrupt):
                consumer.receive()
        assert [int(m.body) for m in consumer.messages(timeout_s=1)] == list(range(20))


def test_ctrl_c_interrupts_a_blocking_consumer(pymq_cluster: Cluster) -> None:
    consumer = threaded.Consumer(pymq_cluster.name_server, "g").subscribe("T")
    with pytest.raises(KeyboardInterrupt), consumer:
        interrupt = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        interrupt.start()
        consumer.receive(timeout_s=DEADLINE_S)
    interrupt.join()
    with pytest.raises(ClientClosed):
        consumer.receive()
