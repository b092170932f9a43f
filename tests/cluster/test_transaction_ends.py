"""The end of a transaction that is called for twice, or where it cannot be."""

import asyncio

from tests.cluster.children import in_child
from tests.cluster.running import run
from tests.cluster.scenarios import TIMEOUT_S

from pymq import (
    Message,
    Producer,
    ReceivedMessage,
    Transaction,
    TransactionStatus,
    blocking,
)
from pymq.testing import Cluster


def unknown(_: ReceivedMessage) -> TransactionStatus:
    return TransactionStatus.UNKNOWN


def test_a_second_commit_waits_for_the_first(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        producer = Producer(
            pymq_cluster.name_server,
            group="pg",
            timeout_s=TIMEOUT_S,
            check_transaction=unknown,
        )
        async with producer:
            transaction = await Transaction(producer, Message("T", b"x")).begin()
            await asyncio.gather(transaction.commit(), transaction.commit(), transaction.commit())
            await transaction.commit()

    run(test())
    assert [one.body for one in pymq_cluster.messages("T")] == [b"x"]


def test_a_child_cannot_leave_the_transaction_of_its_parent_open(cluster: Cluster) -> None:
    producer = blocking.Producer(
        cluster.name_server, group="pg", timeout_s=TIMEOUT_S, check_transaction=unknown
    )
    with producer, blocking.Transaction(producer, Message("T", b"x")) as transaction:

        def leave() -> str:
            try:
                transaction.leave_open()
            except Exception as error:
                return type(error).__name__
            return "it was left open"

        assert in_child(leave) == "ClientMisplaced"
