"""What keeps a consumer from its messages is said once, at WARNING, with cause and cure."""

import asyncio
import logging
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.administration import admin_of
from tests.cluster.played import Played, closed_address
from tests.cluster.running import run
from tests.cluster.scenarios import (
    DEADLINE_S,
    TIMEOUT_S,
    numbers_of,
    receive,
    send_numbers,
    wait_until,
)

from pymq.client.consuming.consumer import Consumer
from pymq.client.group.inbox import FlowLimits
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.protocol.bodies import BrokerData, QueueData, TopicRoute
from pymq.protocol.codes import Permission, RequestCode
from pymq.protocol.command import Command
from pymq.protocol.message import ReceivedMessage
from pymq.testing.cluster import Cluster


def said(caplog: pytest.LogCaptureFixture, text: str, logger: str = "pymq.client") -> list[str]:
    """Return the levels and texts of what a part of the house logged that contains ``text``."""
    return [
        f"{record.levelname} {record.getMessage()}"
        for record in caplog.records
        if text in record.getMessage() and record.name.startswith(logger)
    ]


def member(name_server: str, **options: Any) -> Consumer:
    return Consumer(name_server, "g", timeout_s=TIMEOUT_S, **options)


def warnings_of_clients(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return all of them. Brokers also warn of a disk that others keep busy."""
    records = [one for one in caplog.records if one.name.startswith("pymq.client")]
    return [record for record in records if record.levelno >= logging.WARNING]


@pytest.fixture(autouse=True)
def level(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO, "pymq"):
        yield


@pytest.fixture
def one_queue(pymq_cluster: Cluster) -> Cluster:
    """A cluster with topic T of one queue."""
    with BlockingClient(pymq_cluster.name_server, timeout_s=TIMEOUT_S) as client:
        admin_of(client).topics.create("T", queue_count=1)
    return pymq_cluster


@pytest.fixture
def no_way_back(one_queue: Cluster) -> Cluster:
    """The same, and the broker takes nothing back from group g: its retry topic is read-only."""
    with BlockingClient(one_queue.name_server, timeout_s=TIMEOUT_S) as client:
        admin_of(client).topics.create("%RETRY%g", queue_count=1, perm=int(Permission.READ))
    return one_queue


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pymq.client.group.retry.LOCAL_RETRY_S", 0.05)
    monkeypatch.setattr("pymq.client.group.queue_reader.HELD_BACK_S", 0.1)
    monkeypatch.setattr("pymq.client.group.queue_reader.SLOW_S", 0.2)


# ------------------------------------------------------------------------------------ members


def test_more_members_than_queues(one_queue: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        first, second = (member(one_queue.name_server).subscribe("T") for _ in range(2))
        async with first:
            await wait_until(lambda: first.assignment, "the first has the queue")
            async with second:
                text = "the group has 2 members and the topic 1 queues"
                await wait_until(lambda: said(caplog, text), "one says that it has none")
                # The queue may still be on its way from the first to the second.
                has_it, idle = sorted((first, second), key=lambda one: one.client_id)
                await wait_until(
                    lambda: has_it.assignment and not idle.assignment, "one of them has it"
                )
                await has_it.close()
                again = "this member has queues again, 1 of 1"
                await wait_until(lambda: said(caplog, again), "it says that it has it now")
                (warned,) = said(caplog, text)
                assert warned.startswith("WARNING group 'g', topic 'T': this member gets no")
                assert said(caplog, again)[0].startswith("INFO")

    run(test())


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [
        (("T", "a"), ("T", "b"), "of topic 'T' this one wants "),
        (("T", "*"), ("U", "*"), "reads topic "),
    ],
)
def test_members_that_subscribe_differently(
    pymq_cluster: Cluster,
    caplog: pytest.LogCaptureFixture,
    one: tuple[str, str],
    other: tuple[str, str],
    difference: str,
) -> None:
    async def test() -> None:
        for topic in "TU":
            await send_numbers(pymq_cluster.name_server, topic, range(4))
        async with member(pymq_cluster.name_server).subscribe(*one) as first:
            await wait_until(lambda: first.assignment, "it has queues")
            async with member(pymq_cluster.name_server).subscribe(*other) as second:
                await wait_until(lambda: said(caplog, difference), "a member says so")
                for each in (first, second):  # another rebalance
                    each._rebalance.wake()
                await wait_until(lambda: second.assignment, "it has queues")
                texts = said(caplog, difference)
                assert len(texts) == len(set(texts)) <= 4
                for text in texts:
                    assert text.startswith("WARNING the 2 members of group 'g' subscribe diff")
                    assert "let all members subscribe to the same" in text

    run(test())
    (broker,) = said(caplog, "group g: its members subscribe differently", "pymq.broker")
    assert f"to {one[0]} ({one[1]})" in broker and f"to {other[0]} ({other[1]})" in broker
    assert broker.startswith("WARNING") and "groups of their own" in broker


def test_members_that_subscribe_alike_say_nothing(
    pymq_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        await send_numbers(pymq_cluster.name_server, "T", range(4))
        members = [member(pymq_cluster.name_server) for _ in range(2)]
        async with members[0].subscribe("T", "a || b"), members[1].subscribe("T", "b||a"):
            await wait_until(lambda: all(m.assignment for m in members), "both have queues")
            members[0].subscribe("U")
            members[1].subscribe("U")
            await wait_until(lambda: said(caplog, "waits for a route"), "rebalanced")

    run(test())
    assert not said(caplog, "of topic 'T' this one wants")


# --------------------------------------------------------------------- a reader that stands still


def test_a_message_whose_handler_always_fails_holds_its_queue_back(
    no_way_back: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        got: set[int] = set()
        is_mended = False

        async def handler(message: ReceivedMessage) -> None:
            if int(message.body) == 3 and not is_mended:
                raise ValueError("poison")
            got.add(int(message.body))

        await send_numbers(no_way_back.name_server, "T", range(10))
        limits = FlowLimits(span_max=10, queue_messages_max=5)
        consumer = member(no_way_back.name_server, from_where="earliest", limits=limits)
        async with consumer.subscribe("T"):
            running = asyncio.ensure_future(consumer.run(handler))
            # By the time that this is too much, it is known why the message is not finished.
            await wait_until(lambda: said(caplog, "the handler failed"), "it fails")
            await send_numbers(no_way_back.name_server, "T", range(10, 60))
            text = "reading stands still"
            await wait_until(lambda: said(caplog, text), "it says so")
            await wait_until(lambda: len(said(caplog, "the handler failed")) > 8, "more failures")
            is_mended = True
            await wait_until(lambda: len(got) == 60, "all are handled")
            (warned,) = said(caplog, text)
            for part in (
                "WARNING group 'g', topic 'T', ",
                ":0: reading stands still at offset ",
                "because the message at offset 3 is not finished: its handler failed ",
                "(Limit reached: span_max=10)",
                "ValueError('poison')",
                "and the broker does not take it back (",
                "let it return for what it cannot handle",
            ):
                assert part in warned
            assert said(caplog, "reading goes on behind offset 3")[0].startswith("INFO")
        await running

    run(test())


def test_a_handler_that_does_not_return_holds_its_queue_back(
    one_queue: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        go_on = asyncio.Event()

        async def handler(message: ReceivedMessage) -> None:
            await go_on.wait()

        await send_numbers(one_queue.name_server, "T", range(40))
        limits = FlowLimits(queue_messages_max=20)
        consumer = member(one_queue.name_server, from_where="earliest", limits=limits)
        async with consumer.subscribe("T"):
            running = asyncio.ensure_future(consumer.run(handler, concurrency=1))
            await wait_until(lambda: said(caplog, "stands still"), "it says so")
            (warned,) = said(caplog, "stands still")
            assert "the message at offset 0 is not finished: handler " in warned
            assert re.search(r"handler has had message [0-9A-F]{32} for \d+ s and has not", warned)
            assert "queue_messages_max=20" in warned
            go_on.set()
            await wait_until(lambda: said(caplog, "reading goes on"), "it goes on")
        await running

    run(test())


# --------------------------------------------------------------------------- handlers that fail


@pytest.mark.parametrize("batch_size", [None, 4])
def test_a_failed_handler_is_one_warning(
    no_way_back: Cluster, caplog: pytest.LogCaptureFixture, batch_size: int | None
) -> None:
    kept = "tried again here in 0.05 s, because the broker does not take it back: "

    async def test() -> None:
        failures = 0

        async def handler(messages: Any) -> None:
            nonlocal failures
            if failures < 3:
                failures += 1
                raise ValueError("cannot")

        await send_numbers(no_way_back.name_server, "T", range(4))
        consumer = member(no_way_back.name_server, from_where="earliest").subscribe("T")
        async with consumer:
            running = asyncio.ensure_future(
                consumer.run(handler, concurrency=1, batch_size=batch_size)
            )
            await wait_until(lambda: len(said(caplog, "the handler failed")) == 3, "it says so")
            await wait_until(lambda: failures and not consumer.backlog_count, "all are finished")
        await running

    run(test())
    warnings = warnings_of_clients(caplog)
    assert len(warnings) == 3
    for record in warnings:
        text = record.getMessage()
        assert text.startswith("the handler failed for message ")
        assert "(topic 'T', broker-a:0, offset " in text and kept in text
        assert record.exc_info is not None and isinstance(record.exc_info[1], ValueError)
        several = re.search(r" and (\d+) more ", text)  # those of one call come back one by one
        count = 1 + int(several[1]) if several else 1
        assert (f"{count} of {count} will be" if several else "it will be") in text


# ------------------------------------------------------------------------------ what stays quiet


def test_a_consumer_that_reads_says_nothing(
    pymq_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        await send_numbers(pymq_cluster.name_server, "T", range(50))
        consumer = member(pymq_cluster.name_server, from_where="earliest").subscribe("T")
        async with consumer:
            assert numbers_of(await receive(consumer, 50)) == list(range(50))

    run(test())
    assert not warnings_of_clients(caplog)


# ----------------------------------------------------------------------- nobody names the members


def route_answer(*, address: str, perm: int = 6) -> Callable[[Command], Command]:
    """What a name server says about any topic: one broker with one queue."""
    route = TopicRoute(
        brokers=[BrokerData(cluster="C", broker_name="broker-a", addresses={0: address})],
        queues=[
            QueueData(broker_name="broker-a", read_queue_count=1, write_queue_count=1, perm=perm)
        ],
    )
    return lambda request: request.reply(0, body=route.encode())


@pytest.mark.parametrize(
    ("address", "cause"),
    [(None, "advertises 127.0.0.1:"), ("nonsense", "advertises nonsense, ")],
)
def test_a_consumer_that_starts_while_its_only_broker_is_away_says_so(
    caplog: pytest.LogCaptureFixture, address: str | None, cause: str
) -> None:
    async def test(name_server: str) -> None:
        async with member(name_server).subscribe("T") as consumer:
            for _ in range(3):
                await consumer._rebalance.rebalance()

    with Played(route_answer(address=address or closed_address())) as server:
        run(test(server.address))
    (warning,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    text = warning.getMessage()
    assert text.startswith("group 'g', topic 'T': this member gets no messages, because no broker")
    assert cause in text and "brokerIP1" in text


def test_a_consumer_of_a_topic_that_cannot_be_read_says_so(
    pymq_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    with BlockingClient(pymq_cluster.name_server, timeout_s=TIMEOUT_S) as client:
        admin_of(client).topics.create("T", perm=int(Permission.WRITE))

    async def test() -> None:
        async with member(pymq_cluster.name_server).subscribe("T"):
            await wait_until(lambda: said(caplog, "no queue of the topic can be read"), "it says")

    run(test())
    (text,) = said(caplog, "no queue of the topic can be read")
    assert text.startswith("WARNING group 'g', topic 'T': this member gets no messages")


def test_name_servers_that_go_away_are_said_once_for_all_topics(
    one_queue: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Topics with a known route do not make those without one warn again and again."""
    known = route_answer(address=one_queue.broker_address)

    def answer(request: Command) -> Command:
        topic = (request.fields or {}).get("topic", "")
        return known(request) if topic in ("T", "TBW102") else request.reply(1, "ill")

    async def test(name_server: str) -> None:
        async with member(name_server).subscribe("U").subscribe("T") as consumer:
            await wait_until(lambda: consumer.assignment, "it reads T")
            for _ in range(3):
                await consumer._rebalance.rebalance()

    with Played(answer) as server:
        run(test(server.address))
    (text,) = said(caplog, "waits for a route")
    assert text.startswith("WARNING group 'g' waits for a route of topic 'U', trying again: ")
    assert text.endswith("code 1, ill")


def test_a_client_that_is_closed_while_it_asks_for_the_members_says_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The broker goes at the same time."""
    is_closed = threading.Event()

    def answer(request: Command) -> Command:
        if request.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            assert is_closed.wait(DEADLINE_S)
            raise ConnectionResetError
        return request.reply(0)

    async def test(broker: Played, name_server: str) -> None:
        asks = RequestCode.GET_CONSUMER_LIST_BY_GROUP
        consumer = await member(name_server).subscribe("T").start()
        await wait_until(lambda: broker.count(asks), "it asks")
        closing = asyncio.create_task(consumer.close())
        await wait_until(lambda: not consumer._pool.is_open, "it is closed")
        is_closed.set()
        await closing

    with Played(answer) as broker, Played(route_answer(address=broker.address)) as server:
        run(test(broker, server.address))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
