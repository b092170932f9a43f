"""What a check of transactions may do: cancel a task of its own, close its producer."""

import asyncio
import logging
from collections.abc import Iterator

import pytest
from tests.cluster.running import run
from tests.cluster.scenarios import DEADLINE_S, TIMEOUT_S, wait_until

from pymq import Message, Producer, ReceivedMessage, Transaction, TransactionStatus
from pymq.testing import Cluster


@pytest.fixture
def asking() -> Iterator[Cluster]:
    """A broker that asks every 0.1 s about what is 0.3 s old."""
    quick = {
        "transaction_check_interval_ms": 100,
        "transaction_timeout_ms": 300,
        "transaction_check_max": 10_000,
    }
    with Cluster(broker=quick) as cluster:
        yield cluster


async def leave_open(producer: Producer) -> None:
    """Begin a transaction of which the broker hears nothing."""
    async with Transaction(producer, Message("T", b"x")) as transaction:
        await transaction.leave_open()


def test_a_cancellation_of_its_own_counts_as_unknown(
    asking: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []

    async def check(message: ReceivedMessage) -> TransactionStatus:
        asked.append(message.message_id)
        if len(asked) == 1:
            own = asyncio.ensure_future(asyncio.Event().wait())
            own.cancel()
            await own
        return TransactionStatus.COMMIT

    async def test() -> None:
        async with Producer(
            asking.name_server, group="pg", timeout_s=TIMEOUT_S, check_transaction=check
        ) as producer:
            await leave_open(producer)
            await wait_until(lambda: asking.messages("T"), "it is committed")

    run(test())
    assert caplog.text.count("which counts as UNKNOWN") == 1


def test_it_may_close_its_producer_in_a_task_that_it_waits_for(asking: Cluster) -> None:
    closed = asyncio.Event()

    async def check(message: ReceivedMessage) -> TransactionStatus:
        await asyncio.gather(producer.close(), asyncio.sleep(0))
        closed.set()
        return TransactionStatus.COMMIT

    producer = Producer(
        asking.name_server, group="pg", timeout_s=TIMEOUT_S, check_transaction=check
    )

    async def test() -> None:
        await producer.start()
        await leave_open(producer)
        await asyncio.wait_for(closed.wait(), DEADLINE_S)
        await producer.close()

    run(test())


def test_checks_beyond_those_that_may_run_are_said_each_time_it_comes_to_that(
    asking: Cluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "pymq.client.sending.transactions")
    monkeypatch.setattr("pymq.client.sending.transactions.CHECKS_MAX", 1)
    may_end = asyncio.Event()

    async def check(message: ReceivedMessage) -> TransactionStatus:
        await may_end.wait()
        return TransactionStatus.UNKNOWN

    def said() -> list[str]:
        return [one.levelname for one in caplog.records if "check" in one.getMessage()]

    async def test() -> None:
        async with Producer(
            asking.name_server, group="pg", timeout_s=TIMEOUT_S, check_transaction=check
        ) as producer:
            for _ in range(2):
                await leave_open(producer)
            await wait_until(lambda: said() == ["WARNING"], "it is said")
            may_end.set()
            await wait_until(lambda: "INFO" in said(), "it is over")
            may_end.clear()
            await wait_until(lambda: len(said()) > 2, "it is said again")
            may_end.set()

    run(test())
    assert said()[:3] == ["WARNING", "INFO", "WARNING"]
