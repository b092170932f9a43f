"""The end of a transaction that is called for twice, where it cannot be, or that no slave has."""

import asyncio
from pathlib import Path

import pytest
from tests.cluster.children import in_child
from tests.cluster.fake_broker import FakeBroker
from tests.cluster.replicated import eventually, pair_of, slaves_of
from tests.cluster.running import run
from tests.cluster.scenarios import TIMEOUT_S

from pymq import (
    BrokerError,
    DurabilityUnknown,
    Message,
    Producer,
    ReceivedMessage,
    Transaction,
    TransactionStatus,
    blocking,
)
from pymq.broker.replication_config import Role
from pymq.net.server import ServerConnection
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.record import offset_message_id
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


def test_an_end_that_no_slave_has_is_an_end(tmp_path: Path) -> None:
    """It is in the log, and consumers see the message: nobody may undo his local transaction."""
    rules = {"role": Role.SYNC_MASTER, "slave_timeout_ms": 60_000}
    with pair_of(tmp_path, replication=rules) as pair:
        pair.admin.topics.create("T", queue_count=1)
        eventually(lambda: len(slaves_of(pair)) == 1)
        producer = blocking.Producer(
            pair.master.name_server, group="pg", timeout_s=TIMEOUT_S, check_transaction=unknown
        )
        with producer:
            first, second = (
                blocking.Transaction(producer, Message("T", body)).begin()
                for body in (b"commit", b"rollback")
            )
            with blocking.Transaction(producer, Message("T", b"leave")):
                pair.slave.stop_broker()
                eventually(lambda: not slaves_of(pair))
                first.commit()
                second.rollback()
            with pytest.raises(DurabilityUnknown, match="was rolled back before it began"):
                blocking.Transaction(producer, Message("T", b"alone")).begin()
        assert [one.body for one in pair.master.messages("T")] == [b"commit", b"leave"]


class EndingBroker(FakeBroker):
    """Answers ends with chosen codes, too.

    Attributes:
        end_codes: of the next ends; 0 without one.
        end_count: how many ends there were.
    """

    def __init__(self, *end_codes: int) -> None:
        super().__init__()
        self.end_codes = list(end_codes)
        self.end_count = 0

    def on_command(self, connection: ServerConnection, command: Command) -> None:
        if command.code == RequestCode.END_TRANSACTION:
            self.end_count += 1
            code = self.end_codes.pop(0) if self.end_codes else 0
            connection.respond(command, command.reply(code, "as wanted"))
        elif command.code == RequestCode.SEND_MESSAGE_V2:
            answer = self.answers.pop(0) if self.answers else 0
            assert isinstance(answer, int)
            place = {"msgId": offset_message_id(bytes(8), 0), "queueId": "0", "queueOffset": "0"}
            connection.respond(command, command.reply(answer, None, place))
        else:
            super().on_command(connection, command)


def test_an_end_that_is_stored_or_not_is_told_again() -> None:
    """So do earlier brokers answer what they have carried out, and RocketMQ's slaves any."""
    codes = (
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    )

    async def test() -> None:
        async with EndingBroker(*codes) as broker:
            producer = Producer(broker.address, group="pg", check_transaction=unknown)
            async with producer, Transaction(producer, Message("T", b"x")):
                pass
            assert broker.end_count == 4

    run(test())


def test_whether_it_is_stored_is_not_known_until_that_is_answered() -> None:
    async def test() -> None:
        async with EndingBroker(*[ResponseCode.SLAVE_NOT_AVAILABLE] * 1000) as broker:
            producer = Producer(
                broker.address, group="pg", check_transaction=unknown, deadline_s=1.0
            )
            async with producer:
                transaction = await Transaction(producer, Message("T", b"x")).begin()
                with pytest.raises(BrokerError) as failed:
                    await transaction.commit()
                assert not failed.value.outcome_known

    run(test())


def test_a_half_message_that_no_slave_has_says_so_whatever_becomes_of_its_end() -> None:
    async def test() -> None:
        async with EndingBroker(ResponseCode.NO_PERMISSION) as broker:
            broker.answers = [int(ResponseCode.SLAVE_NOT_AVAILABLE)]
            producer = Producer(broker.address, group="pg", check_transaction=unknown)
            async with producer:
                with pytest.raises(DurabilityUnknown, match="SLAVE_NOT_AVAILABLE") as failed:
                    await Transaction(producer, Message("T", b"x")).begin()
                assert "refused ROLLBACK" in str(failed.value)

    run(test())
