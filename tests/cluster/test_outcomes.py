"""What becomes of a message is said by its handler's end or by name, and stored by its broker."""

import asyncio
import logging
from typing import Any

import pytest
from tests.administration import admin_of
from tests.cluster.outcome_scenarios import (
    WAYS,
    committed,
    dead_letters,
    outcomes_by_name,
    outcomes_from_another_thread,
)
from tests.cluster.running import run
from tests.cluster.scenarios import TIMEOUT_S, numbers_of, receive, send_numbers, wait_until

from pymq.client.consuming.consumer import Consumer
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.errors import AlreadySettled, ConfigurationError, NotInHand
from pymq.protocol.codes import Permission
from pymq.protocol.message import ReceivedMessage
from pymq.testing.cluster import Cluster

pytestmark = pytest.mark.usefixtures("quick_local_retry")


def consumer_of(cluster: Cluster, **options: Any) -> Consumer:
    options = {"from_where": "earliest", "timeout_s": TIMEOUT_S, **options}
    return Consumer(cluster.name_server, "g", **options).subscribe("T")


@pytest.mark.parametrize("way", WAYS)
def test_outcomes_by_name(
    pymq_cluster: Cluster, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    run(outcomes_by_name(pymq_cluster.name_server, "T", way))
    if way != "loop":
        assert caplog.text.count("had its outcome before that, which stays: it was ackn") == 1


def test_outcomes_from_another_thread_in_the_blocking_iterator(pymq_cluster: Cluster) -> None:
    outcomes_from_another_thread(pymq_cluster.name_server, "T")


def test_a_second_outcome_is_refused_and_changes_nothing(pymq_cluster: Cluster) -> None:
    refusals: list[str] = []

    async def handler(message: ReceivedMessage) -> None:
        message.retry(after_s=1.4)
        for again in (message.ack, message.retry, message.reject):
            with pytest.raises(AlreadySettled) as refused:
                again()
            refusals.append(str(refused.value))

    async def once(message: ReceivedMessage) -> None:
        if message.reconsume_times == 0:
            await handler(message)

    async def work() -> None:
        await send_numbers(pymq_cluster.name_server, "T", range(1))
        async with consumer_of(pymq_cluster) as consumer:
            running = asyncio.ensure_future(consumer.run(once))
            await wait_until(lambda: len(refusals) == 3, "all are refused")
            await wait_until(lambda: not consumer.backlog_count, "it is finished")
        await running

    run(work())
    assert "ack() of message " in refusals[0] and "reject() of message " in refusals[2]
    for text in refusals:
        assert "comes too late: the message goes back with retry(after_s=1.4)" in text


def test_wrong_outcomes_leave_the_message_in_hand(pymq_cluster: Cluster) -> None:
    wrong: Any = {"retry": [{"after_s": -1}, {"after_s": "soon"}, {"after_s": float("nan")}]}
    wrong["reject"] = [{"reason": 7}]
    checked = False

    async def handler(message: ReceivedMessage) -> None:
        nonlocal checked
        for name, several in wrong.items():
            for arguments in several:
                with pytest.raises(ConfigurationError, match="expected"):
                    getattr(message, name)(**arguments)
        message.ack()
        checked = True

    async def work() -> None:
        await send_numbers(pymq_cluster.name_server, "T", range(1))
        async with consumer_of(pymq_cluster) as consumer:
            running = asyncio.ensure_future(consumer.run(handler))
            await wait_until(lambda: checked and not consumer.backlog_count, "it is finished")
        await running

    run(work())
    assert committed(pymq_cluster.name_server, "T", "g") == 1


def test_what_is_not_ours_any_more_cannot_be_settled(pymq_cluster: Cluster) -> None:
    async def work() -> None:
        await send_numbers(pymq_cluster.name_server, "T", range(4))
        consumer = consumer_of(pymq_cluster)
        held: list[ReceivedMessage] = []
        with pytest.raises(ZeroDivisionError):
            async with consumer:
                async for message in consumer:
                    held.append(message)
                    break
                consumer.unsubscribe("T")
                await wait_until(lambda: not consumer.backlog_count, "its queue is given up")
                with pytest.raises(NotInHand, match="is read by another member now"):
                    held[0].reject("too late")
                consumer.subscribe("T")
                again = await receive(consumer, 1)
                raise ZeroDivisionError
        with pytest.raises(NotInHand, match="the consumer was closed"):
            again[0].ack()
        async with consumer_of(pymq_cluster) as consumer:
            assert numbers_of(await receive(consumer, 4)) == list(range(4))

    run(work())


def test_a_rejected_message_waits_for_its_broker(
    pymq_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Its handler is not called again; what is committed stays before it until that is done."""
    handled: list[int] = []

    async def handler(message: ReceivedMessage) -> None:
        handled.append(int(message.body))
        message.reject("never")

    with BlockingClient(pymq_cluster.name_server, timeout_s=TIMEOUT_S) as client:
        admin = admin_of(client)
        admin.topics.create("%RETRY%g", queue_count=1, perm=int(Permission.READ))

        async def work() -> None:
            await send_numbers(pymq_cluster.name_server, "T", range(1))
            async with consumer_of(pymq_cluster) as consumer:
                running = asyncio.ensure_future(consumer.run(handler))
                await wait_until(lambda: "stays here: it becomes a dead" in caplog.text, "said")
                assert consumer.backlog_count == 1
                perm = int(Permission.READ | Permission.WRITE)
                await asyncio.to_thread(admin.topics.create, "%RETRY%g", queue_count=1, perm=perm)
                await wait_until(lambda: not consumer.backlog_count, "it is a dead letter")
            await running
            (letter,) = await dead_letters(pymq_cluster.name_server, "g", 1)
            assert letter.properties["DLQ_REASON"] == "never"

        with caplog.at_level(logging.INFO, "pymq.client"):
            run(work())
    assert handled == [0]
    assert caplog.text.count("stays here") == 1
    assert "takes messages back again" in caplog.text
