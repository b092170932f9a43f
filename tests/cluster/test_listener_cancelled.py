"""A rebalance listener in which a cancellation comes up that is its own: it fails, nothing else."""

import asyncio
from collections.abc import Iterator

import pytest
from tests.cluster.running import run
from tests.cluster.scenarios import (
    QUEUE_COUNT,
    TIMEOUT_S,
    numbers_of,
    receive,
    send_numbers,
    wait_until,
)
from tests.cluster.test_listener_closes import committed_and_free

from pymq import Consumer, MessageQueue, RebalanceListener
from pymq.testing import Cluster

COUNT = 2 * QUEUE_COUNT


class Ending(RebalanceListener):
    """Ends a task of its own, and waits for it."""

    def __init__(self) -> None:
        self.revoked_count = 0

    async def assigned(self, queues: list[MessageQueue]) -> None:
        own = asyncio.ensure_future(asyncio.Event().wait())
        own.cancel()
        await own

    async def revoked(self, queues: list[MessageQueue]) -> None:
        self.revoked_count += len(queues)
        await self.assigned(queues)


def member(cluster: Cluster, listener: RebalanceListener, *, orderly: bool = False) -> Consumer:
    return Consumer(
        cluster.name_server,
        "g",
        from_where="earliest",
        orderly=orderly,
        rebalance_listener=listener,
        timeout_s=TIMEOUT_S,
    ).subscribe("T")


@pytest.fixture(autouse=True)
def _no_other_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pymq.client.consuming.consumer.COMMIT_S", 3600)


@pytest.fixture(autouse=True)
def _expected(unawaited: list[str]) -> Iterator[None]:
    """The traceback of a bug that is the program's is logged."""
    yield
    unawaited.clear()


in_any_order_or_in_order = pytest.mark.parametrize(
    "orderly", [False, True], ids=["any order", "in order"]
)


@in_any_order_or_in_order
def test_at_the_close(
    pymq_cluster: Cluster, caplog: pytest.LogCaptureFixture, orderly: bool
) -> None:
    async def test() -> None:
        async with member(pymq_cluster, Ending(), orderly=orderly) as consumer:
            await receive(consumer, COUNT)

    run(send_numbers(pymq_cluster.name_server, "T", range(COUNT)))
    run(test())
    assert committed_and_free(pymq_cluster) == (COUNT, QUEUE_COUNT)
    assert caplog.text.count("Ending.revoked failed for 4 queues") == 1


@in_any_order_or_in_order
def test_when_queues_are_given_up(pymq_cluster: Cluster, orderly: bool) -> None:
    async def test() -> None:
        listener = Ending()
        async with member(pymq_cluster, listener, orderly=orderly) as consumer:
            (*_, last) = await receive(consumer, COUNT)
            last.ack()
            consumer.unsubscribe("T")
            await wait_until(lambda: listener.revoked_count == QUEUE_COUNT, "it is told")
            await wait_until(lambda: not consumer._parts.held._revoking, "they are given up")

    run(send_numbers(pymq_cluster.name_server, "T", range(COUNT)))
    run(test())
    assert committed_and_free(pymq_cluster) == (COUNT, QUEUE_COUNT)


def test_queues_that_come_are_read(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        async with member(pymq_cluster, Ending()) as consumer:
            assert numbers_of(await receive(consumer, COUNT)) == list(range(COUNT))

    run(send_numbers(pymq_cluster.name_server, "T", range(COUNT)))
    run(test())
