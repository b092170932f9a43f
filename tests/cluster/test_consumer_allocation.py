"""Members that divide the queues of a group in other ways than the default, and in wrong ways."""

import asyncio
from collections.abc import Iterator

import pytest
from tests.cluster.running import run
from tests.cluster.scenarios import create_topic, numbers_of, receive, send_numbers, wait_until

from pymq import allocation
from pymq.client.consuming.consumer import Consumer
from pymq.client.group.allocation import Allocation
from pymq.protocol.bodies import MessageQueue
from pymq.testing.cluster import Cluster


@pytest.fixture
def two_brokers() -> Iterator[Cluster]:
    with Cluster(brokers=2) as running:
        create_topic(running.name_server)
        yield running


def queues_of(consumer: Consumer) -> set[tuple[str, int]]:
    return {(q.broker_name, q.queue_id) for q in consumer.assignment if q.topic == "T"}


@pytest.mark.parametrize(
    "way", [allocation.by_circle, allocation.consistent_hash(), allocation.consistent_hash(50)]
)
def test_members_share_all_queues(two_brokers: Cluster, way: Allocation) -> None:
    async def test() -> None:
        await send_numbers(two_brokers.name_server, "T", range(40))

        def member() -> Consumer:
            made = Consumer(two_brokers.name_server, "g", from_where="earliest", allocation=way)
            return made.subscribe("T")

        async with member() as one, member() as other:
            await wait_until(
                lambda: (
                    len(queues_of(one)) + len(queues_of(other)) == 8
                    and not queues_of(one) & queues_of(other)
                    and queues_of(other)
                ),
                "they share eight queues",
            )
            if way is allocation.by_circle:
                parities = [{n % 2 for _, n in queues_of(each)} for each in (one, other)]
                assert sorted(parities, key=min) == [{0}, {1}]

    run(test())


def test_a_list_of_queues_and_the_retry_topic(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        await send_numbers(pymq_cluster.name_server, "T", range(40))
        name = pymq_cluster.broker_name
        own = [MessageQueue("T", name, 1), MessageQueue("T", name, 3)]
        consumer = Consumer(
            pymq_cluster.name_server,
            "g",
            from_where="earliest",
            allocation=allocation.by_config(*own),
        ).subscribe("T")
        async with consumer:
            await wait_until(lambda: len(consumer.assignment) == 3, "two queues and retries")
            assert queues_of(consumer) == {(name, 1), (name, 3)}
            assert len(numbers_of(await receive(consumer, 20))) == 20

    run(test())


def test_a_wrong_function_is_named_once_and_takes_nothing_away(
    pymq_cluster: Cluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pymq.client.group.rebalance.REBALANCE_SOON_S", 0.05)
    is_wrong = False

    def moody(queues: list[MessageQueue], _: list[str], __: str) -> list[MessageQueue]:
        return [MessageQueue("other", "b", 0)] if is_wrong else queues

    async def test() -> None:
        nonlocal is_wrong
        await send_numbers(pymq_cluster.name_server, "T", range(4))
        consumer = Consumer(
            pymq_cluster.name_server, "g", from_where="earliest", allocation=moody
        ).subscribe("T")
        async with consumer:
            await wait_until(lambda: len(queues_of(consumer)) == 4, "it has all")
            is_wrong = True
            consumer._rebalance.wake()
            await wait_until(lambda: "which is not one of them" in caplog.text, "it says so")
            await asyncio.sleep(0.2)
            assert len(queues_of(consumer)) == 4
            is_wrong = False
            assert numbers_of(await receive(consumer, 4)) == list(range(4))

    run(test())
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    (of_topic,) = [text for text in said if text.startswith("group 'g', topic 'T': allocation=")]
    assert "moody was given 4 queues and returned" in of_topic
    assert "so this member keeps the queues it has" in of_topic
