"""A rebalance listener that closes its consumer: nothing waits for itself, and all is committed."""

import asyncio
import threading

import pytest
from tests.cluster.outcome_scenarios import committed
from tests.cluster.running import ask, run
from tests.cluster.scenarios import QUEUE_COUNT, send_numbers

from pymq import Consumer, MessageQueue, RebalanceListener, blocking
from pymq.client import operations
from pymq.client.group.queue_reader import QueueReader
from pymq.errors import BrokerError
from pymq.testing import Cluster

DEADLINE_S = 60.0
COUNT = 2 * QUEUE_COUNT


class Closing(RebalanceListener):
    """Closes its consumer when queues are revoked or lost, in its own task or in one it waits for.

    Args:
        in_task: of its own.
    """

    def __init__(self, *, in_task: bool = False) -> None:
        self._in_task = in_task
        self.closed = asyncio.Event()
        self.consumer: Consumer

    async def revoked(self, queues: list[MessageQueue]) -> None:
        if self._in_task:
            await asyncio.wait_for(self.consumer.close(), DEADLINE_S)
        else:
            await self.consumer.close()
        self.closed.set()

    lost = revoked


class ClosingThread(RebalanceListener):
    """The same, in a thread."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self.consumer: blocking.Consumer

    def revoked(self, queues: list[MessageQueue]) -> None:
        self.consumer.close()
        self.closed.set()

    lost = revoked


def committed_and_free(cluster: Cluster) -> tuple[int, int]:
    """Return how many messages the group has finished, and how many queues nobody has locked."""
    queues = [MessageQueue("T", cluster.broker_name, n) for n in range(QUEUE_COUNT)]
    free: list[list[MessageQueue]] = []

    async def lock() -> None:
        lock_all = operations.lock_queues("g", "another", queues)
        free.append(await ask(cluster.broker_address, lock_all))

    run(lock())
    return committed(cluster.name_server, "T", "g"), len(free[0])


@pytest.fixture(autouse=True)
def _no_other_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pymq.client.consuming.consumer.COMMIT_S", 3600)


@pytest.mark.parametrize("is_lost", [False, True], ids=["revoked", "lost"])
@pytest.mark.parametrize("orderly", [False, True], ids=["any order", "in order"])
@pytest.mark.parametrize("in_task", [False, True], ids=["directly", "in a task"])
def test_in_the_loop(
    pymq_cluster: Cluster,
    caplog: pytest.LogCaptureFixture,
    in_task: bool,
    orderly: bool,
    is_lost: bool,
) -> None:
    async def test() -> None:
        listener = Closing(in_task=in_task)
        listener.consumer = consumer = Consumer(
            pymq_cluster.name_server,
            "g",
            from_where="earliest",
            orderly=orderly,
            rebalance_listener=listener,
            timeout_s=DEADLINE_S,
        ).subscribe("T")
        async with consumer:
            handled = 0
            async for message in consumer:
                message.ack()
                handled += 1
                if handled == COUNT:
                    break
            held = consumer._parts.held
            if is_lost:
                await held.lose(list(held.readers))
            else:
                consumer.unsubscribe("T")
            async with asyncio.timeout(DEADLINE_S):
                await listener.closed.wait()

    run(send_numbers(pymq_cluster.name_server, "T", range(COUNT)))
    run(test())
    if not is_lost:
        assert committed_and_free(pymq_cluster) == (COUNT, QUEUE_COUNT)
    assert "are not committed" not in caplog.text
    assert "was interrupted" not in caplog.text


def test_a_queue_that_cannot_be_read_is_unlocked_before(
    pymq_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def first_offset(_: QueueReader) -> int:
        raise BrokerError("nobody knows", code=1)

    async def test() -> None:
        listener = Closing()
        listener.consumer = consumer = Consumer(
            pymq_cluster.name_server,
            "g",
            orderly=True,
            rebalance_listener=listener,
            timeout_s=DEADLINE_S,
        ).subscribe("T")
        async with consumer, asyncio.timeout(DEADLINE_S):
            await listener.closed.wait()

    run(send_numbers(pymq_cluster.name_server, "T", range(COUNT)))
    monkeypatch.setattr(QueueReader, "_first_offset", first_offset)
    run(test())
    assert committed_and_free(pymq_cluster) == (0, QUEUE_COUNT)


@pytest.mark.parametrize("is_lost", [False, True], ids=["revoked", "lost"])
@pytest.mark.parametrize("orderly", [False, True], ids=["any order", "in order"])
def test_in_a_thread(pymq_cluster: Cluster, orderly: bool, is_lost: bool) -> None:
    run(send_numbers(pymq_cluster.name_server, "T", range(COUNT)))
    listener = ClosingThread()
    listener.consumer = consumer = blocking.Consumer(
        pymq_cluster.name_server,
        "g",
        from_where="earliest",
        orderly=orderly,
        rebalance_listener=listener,
        timeout_s=DEADLINE_S,
    ).subscribe("T")
    consumer.start()
    for _ in range(COUNT):
        message = consumer.receive(DEADLINE_S)
        assert message is not None
        message.ack()
    if is_lost:
        held = consumer._client._parts.held
        consumer._begin(held.lose(list(held.readers)))
    else:
        consumer.unsubscribe("T")
    assert listener.closed.wait(DEADLINE_S)
    consumer.close()
    assert "pymq consumer" not in [thread.name for thread in threading.enumerate()]
    if not is_lost:
        assert committed_and_free(pymq_cluster) == (COUNT, QUEUE_COUNT)
