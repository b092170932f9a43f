"""Transactions of our producer: nobody sees a message before its commit, whatever fails."""

import asyncio
import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.cluster.running import run
from tests.cluster.scenarios import TIMEOUT_S

from pymq import (
    ConfigurationError,
    Message,
    Producer,
    ReceivedMessage,
    Transaction,
    TransactionStatus,
    blocking,
)
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.errors import ClientClosed, LocalProtocolError, PymqError, RouteNotFound
from pymq.protocol.record import decode_records
from pymq.testing import Cluster

COMMIT, ROLLBACK, UNKNOWN = (
    TransactionStatus.COMMIT,
    TransactionStatus.ROLLBACK,
    TransactionStatus.UNKNOWN,
)
#: Longer than the 30 s after which a producer comes back to a broker that has restarted.
CHECKED_S = 90.0


def never(message: ReceivedMessage) -> TransactionStatus:
    raise AssertionError(f"asked about {message}")


@pytest.fixture
def checking() -> Iterator[Cluster]:
    """Two brokers that ask every 0.1 s about what is 0.3 s old."""
    quick = {
        "transaction_check_interval_ms": 100,
        "transaction_timeout_ms": 300,
        # Ours comes back to a broker that has restarted when it sends again, or after 30 s.
        "transaction_check_max": 10_000,
    }
    with Cluster(brokers=2, broker=quick) as cluster:
        yield cluster


def delivered(cluster: Cluster, topic: str = "T") -> list[bytes]:
    with BlockingClient(cluster.name_server, timeout_s=TIMEOUT_S) as client:
        return [
            bytes(record.body)
            for queue, (first, end) in client.bounds(client.read_queues(topic)).items()
            for chunk in client.pull_range(queue, first, end)
            for record in decode_records(chunk.buffer)
        ]


async def wait_delivered(cluster: Cluster, count: int) -> list[bytes]:
    async with asyncio.timeout(CHECKED_S):
        while len(found := await asyncio.to_thread(delivered, cluster)) < count:
            await asyncio.sleep(0.05)
    return found


def producer_of(cluster: Cluster, **more: Any) -> Producer:
    """Return a producer; a half message that is not answered in time would be an error."""
    return Producer(cluster.name_server, group="pg", timeout_s=TIMEOUT_S, **more)


def test_a_message_is_there_when_its_block_is_left(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        async with producer_of(pymq_cluster, check_transaction=never) as producer:
            await producer.send(Message("T", b"first"))
            async with Transaction(producer, Message("T", b"in", tags="a")) as transaction:
                assert await asyncio.to_thread(delivered, pymq_cluster) == [b"first"]
                assert transaction.status is UNKNOWN and len(transaction.message_id) == 32
            assert transaction.status is COMMIT
            await transaction.commit()  # idempotent
            with pytest.raises(LocalProtocolError, match="told COMMIT before"):
                await transaction.rollback()
            with pytest.raises(ClientClosed, match="begun already"):
                await transaction.begin()
            with pytest.raises(ValueError, match="no"):
                async with Transaction(producer, Message("T", b"out")) as transaction:
                    raise ValueError("no")
            assert transaction.status is ROLLBACK
            async with Transaction(producer, Message("T", b"out")) as transaction:
                await transaction.rollback()
            with pytest.raises(ClientClosed, match="not begun"):
                await Transaction(producer, Message("T", b"x")).commit()
            with pytest.raises(LocalProtocolError, match="delay"):
                await Transaction(producer, Message("T", b"x", delay_level=1)).begin()
        assert sorted(await asyncio.to_thread(delivered, pymq_cluster)) == [b"first", b"in"]

    run(test())


@pytest.mark.parametrize("is_raised", [True, False])
def test_who_does_not_know_leaves_it_open(checking: Cluster, is_raised: bool) -> None:
    """The producer lives on, and yet its check is asked; a broker is killed meanwhile."""
    asked: list[str] = []

    def check(message: ReceivedMessage) -> TransactionStatus:
        asked.append(message.message_id)
        return COMMIT

    async def test() -> None:
        async with producer_of(checking, check_transaction=check) as producer:
            try:
                async with Transaction(producer, Message("T", b"x")) as transaction:
                    await transaction.leave_open()
                    await transaction.leave_open()  # idempotent
                    with pytest.raises(LocalProtocolError, match="which was left open"):
                        await transaction.commit()
                    if is_raised:
                        raise TimeoutError("no answer of the database")
            except TimeoutError:
                assert is_raised
            assert transaction.status is UNKNOWN
            broker = checking.broker(transaction.receipt.queue.broker_name)
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
            while not asked:  # a producer comes back to a broker when it sends
                await producer.send(Message("U", b"again"))
                await asyncio.sleep(0.05)
            assert await wait_delivered(checking, 1) == [b"x"]
            assert set(asked) == {transaction.message_id}
            async with Transaction(producer, Message("T", b"y")) as ended:
                await ended.commit()
                with pytest.raises(LocalProtocolError, match="told COMMIT before"):
                    await ended.leave_open()
            with pytest.raises(ClientClosed, match="not begun"):
                await Transaction(producer, Message("T", b"z")).leave_open()

    run(test())


@pytest.mark.parametrize("trouble", ["killed", "slow", "cancelled"])
def test_a_commit_that_failed_is_no_success_when_it_is_called_again(
    pymq_cluster: Cluster, trouble: str
) -> None:
    """Again only if the broker has surely not heard it; one message in the end."""
    broker = pymq_cluster.broker()

    async def fail(transaction: Transaction) -> None:
        limit_s = 0.3 if trouble == "cancelled" else None
        async with asyncio.timeout(limit_s):
            await transaction.commit()

    async def test() -> None:
        async with producer_of(pymq_cluster, check_transaction=lambda _: COMMIT) as producer:
            transaction = await Transaction(producer, Message("T", b"x")).begin()
            if trouble == "killed":
                await asyncio.to_thread(broker.kill)
            else:
                slow = broker.delay(600)
            # From now on nobody answers in time.
            ends = producer._transactions
            ends._config = dataclasses.replace(ends._config, deadline_s=1)
            producer._pool.timeout_s = 0.5 if trouble == "slow" else TIMEOUT_S
            with pytest.raises(TimeoutError if trouble == "cancelled" else PymqError) as caught:
                await fail(transaction)
            assert "outcome_known" not in dir(caught.value) or "asks what" in str(caught.value)
            with pytest.raises(PymqError, match="asks what became of") as again:
                await transaction.commit()
            assert again.value.outcome_known is (trouble == "killed")
            with pytest.raises(LocalProtocolError, match="COMMIT"):
                await transaction.rollback()
            if trouble == "killed":
                await asyncio.to_thread(broker.start)
                async with asyncio.timeout(CHECKED_S):
                    while True:
                        try:
                            await transaction.commit()
                        except PymqError as error:
                            assert error.outcome_known
                        else:
                            break
            else:
                slow.end()  # what has waited is handled
                producer._pool.timeout_s = TIMEOUT_S
                with pytest.raises(PymqError, match="asks what became of"):
                    await transaction.commit()
            assert await wait_delivered(pymq_cluster, 1) == [b"x"]

    run(test())


def test_what_a_transaction_needs_is_named(pymq_cluster: Cluster) -> None:
    with pytest.raises(ConfigurationError, match="give group= a name of its own"):
        Producer("127.0.0.1:1", check_transaction=never)
    wrong: Any = "commit"
    with pytest.raises(ConfigurationError, match="check_transaction='commit': expected a function"):
        Producer("127.0.0.1:1", group="g", check_transaction=wrong)

    async def test() -> None:
        async with Producer(pymq_cluster.name_server, group="g") as producer:
            with pytest.raises(ConfigurationError, match="without check_transaction="):
                await Transaction(producer, Message("T", b"x")).begin()

    run(test())


def test_a_topic_to_be_checked_that_nobody_knows_is_an_error_at_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Cluster(broker={"auto_create_topic": False}) as cluster:

        async def test() -> None:
            producer = Producer(cluster.name_server, group="pg", check_topics=["nowhere"])
            with pytest.raises(RouteNotFound, match="'nowhere'"):
                await producer.start()
            with pytest.raises(ClientClosed):
                await producer.send(Message("T", b"x"))

        run(test())
    assert "without close()" not in caplog.text


class Ledger:
    """What a local transaction would have written, and what was asked."""

    def __init__(self) -> None:
        self.committed: dict[str, TransactionStatus] = {}
        self.asked: list[str] = []
        self.threads: set[str] = set()

    def check(self, message: ReceivedMessage) -> TransactionStatus:
        self.asked.append(message.message_id)
        self.threads.add(threading.current_thread().name)
        return self.committed.get(message.message_id, ROLLBACK)

    async def check_soon(self, message: ReceivedMessage) -> TransactionStatus:
        await asyncio.sleep(0)
        return self.check(message)


@pytest.mark.parametrize("kind", ["check", "check_soon"])
def test_a_broker_that_hears_nothing_asks(checking: Cluster, kind: str) -> None:
    ledger = Ledger()
    check: Callable[[ReceivedMessage], Any] = getattr(ledger, kind)

    async def test() -> None:
        async with producer_of(checking, check_transaction=check) as producer:
            await producer.send(Message("T", b"first"))
            for number in range(8):
                transaction = Transaction(producer, Message("T", b"%d" % number))
                with pytest.raises(asyncio.CancelledError):
                    async with transaction:
                        if number % 2:
                            ledger.committed[transaction.message_id] = COMMIT
                        raise asyncio.CancelledError
                assert transaction.status is UNKNOWN
            found = await wait_delivered(checking, 5)
            assert sorted(found) == [b"1", b"3", b"5", b"7", b"first"]
            async with asyncio.timeout(CHECKED_S):
                while len(set(ledger.asked)) < 8:
                    await asyncio.sleep(0.05)

    run(test())
    own = threading.main_thread().name
    assert (own in ledger.threads) == (kind == "check_soon")


def test_a_transaction_in_progress_is_not_asked_about(checking: Cluster) -> None:
    async def test() -> None:
        async with producer_of(checking, check_transaction=never) as producer:
            async with Transaction(producer, Message("T", b"long")):
                await asyncio.sleep(1.5)  # several checks
            assert await wait_delivered(checking, 1) == [b"long"]

    run(test())


def test_another_producer_of_the_group_answers_for_one_that_is_gone(
    checking: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger()
    failures = iter([ValueError("database away"), "commit"])

    def check(message: ReceivedMessage) -> TransactionStatus:
        failure = next(failures, None)
        if isinstance(failure, Exception):
            raise failure
        return failure or ledger.check(message)  # type: ignore[return-value]

    async def test() -> None:
        async with producer_of(checking, check_transaction=never) as gone:
            transaction = await Transaction(gone, Message("T", b"x")).begin()
            ledger.committed[transaction.message_id] = COMMIT
        async with producer_of(checking, check_transaction=check, check_topics=["T"]):
            assert await wait_delivered(checking, 1) == [b"x"]

    with caplog.at_level(logging.WARNING):
        run(test())
    assert "database away" in caplog.text and "returned 'commit'" in caplog.text


def test_one_without_a_check_says_that_it_is_asked_in_vain(
    checking: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with producer_of(checking, check_transaction=never) as gone:
            await Transaction(gone, Message("T", b"x")).begin()
        async with producer_of(checking, check_topics=["T"]):
            async with asyncio.timeout(CHECKED_S):
                while "has no check_transaction=" not in caplog.text:
                    await asyncio.sleep(0.05)

    run(test())
    assert caplog.text.count("has no check_transaction=") == 1


def test_the_blocking_face(checking: Cluster) -> None:
    ledger = Ledger()
    with blocking.Producer(
        checking.name_server, group="pg", check_transaction=ledger.check, timeout_s=TIMEOUT_S
    ) as producer:
        with blocking.Transaction(producer, Message("T", b"in")) as transaction:
            assert delivered(checking) == []
            assert transaction.receipt.message_id == transaction.message_id
        assert transaction.status is COMMIT
        other = blocking.Transaction(producer, Message("T", b"o"))
        with pytest.raises(ValueError, match="no"), other:
            raise ValueError("no")
        interrupted = blocking.Transaction(producer, Message("T", b"asked"))
        with pytest.raises(KeyboardInterrupt), interrupted:
            ledger.committed[interrupted.message_id] = COMMIT
            raise KeyboardInterrupt
        run(wait_for_two(checking))
    assert sorted(delivered(checking)) == [b"asked", b"in"]


async def wait_for_two(cluster: Cluster) -> None:
    await wait_delivered(cluster, 2)


def test_each_transaction_has_one_outcome_while_brokers_go_and_come_back(
    checking: Cluster,
) -> None:
    """What was committed, here or in the ledger, is delivered once; what was not, never."""
    ledger = Ledger()
    expected: set[bytes] = set()
    refused: list[PymqError] = []

    async def one(producer: Producer, number: int) -> None:
        body = b"%d" % number
        transaction = Transaction(producer, Message("T", body), deadline_s=30.0)
        try:
            await transaction.begin()
        except PymqError as error:
            refused.append(error)  # the check says ROLLBACK of it
            return
        if number % 3:
            ledger.committed[transaction.message_id] = COMMIT
            expected.add(body)
        try:
            await (transaction.commit() if number % 3 else transaction.rollback())
        except PymqError as error:
            assert "it asks what became" in str(error)

    async def test() -> None:
        async with producer_of(
            checking, check_transaction=ledger.check, deadline_s=30.0
        ) as producer:
            await producer.queues("T")
            sending = []
            for round_ in range(2):
                name = checking.broker_names[round_]
                for number in range(100):
                    if number == 50:
                        await asyncio.to_thread(checking.kill_broker, name)
                    sending.append(asyncio.ensure_future(one(producer, 100 * round_ + number)))
                    await asyncio.sleep(0.002)
                await asyncio.to_thread(checking.start_broker, name)
            await asyncio.gather(*sending)
            found = await wait_delivered(checking, len(expected))
            await asyncio.sleep(1.0)  # nothing comes later
            found = await asyncio.to_thread(delivered, checking)
            assert sorted(found) == sorted(expected)

    run(test())
    assert len(expected) > 50
