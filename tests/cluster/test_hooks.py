"""Hooks around sends, and the message trace."""

import asyncio
import logging
from collections.abc import Sequence

import pytest
from tests.administration import admin_of
from tests.cluster.fake_broker import FakeBroker
from tests.cluster.running import run
from tests.cluster.scenarios import wait_until

from pymq import (
    Batcher,
    BlockingClient,
    Consumer,
    Message,
    Producer,
    ReceivedMessage,
    SendHook,
    SendOutcome,
    Transaction,
    TransactionStatus,
)
from pymq.errors import MessageIllegal
from pymq.protocol.names import TRACE_TOPIC
from pymq.testing import Cluster


@pytest.fixture
def trace_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a producer that closes write its trace, all in one, however long it was at work."""
    monkeypatch.setattr("pymq.client.sending.trace_writer.FLUSH_S", 3600.0)


class Recorder(SendHook):
    """Adds a property to every message, and remembers outcomes."""

    def __init__(self) -> None:
        self.outcomes: list[SendOutcome] = []

    def before(self, messages: Sequence[Message]) -> None:
        for message in messages:
            message.properties["trace"] = "on"

    def after(self, outcome: SendOutcome) -> None:
        self.outcomes.append(outcome)


class Broken(SendHook):
    def after(self, outcome: SendOutcome) -> None:
        raise ValueError("a hook that fails")


class Refusing(SendHook):
    def before(self, messages: Sequence[Message]) -> None:
        raise PermissionError("not this one")


def test_hooks_see_every_send_and_its_outcome(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()

    async def test() -> None:
        async with (
            FakeBroker() as broker,
            Producer(broker.address, group="pg", hooks=[Broken(), recorder]) as producer,
        ):
            receipt = await producer.send(Message("T", b"1"))
            receipts = await producer.send_batch([Message("T", b"2"), Message("T", b"3")])
            async with Batcher(producer) as batcher:
                gathered = await asyncio.gather(
                    *(batcher.send_nowait(Message("T", b"%d" % n)) for n in range(4, 7))
                )
            broker.answers = [2, 13]
            with pytest.raises(MessageIllegal):
                await producer.send(Message("T", b"7"))
            await producer.send_one_way(Message("T", b"8"))
            assert [outcome.receipts for outcome in recorder.outcomes] == [
                [receipt], receipts, gathered, None,
            ]  # fmt: skip
            for outcome in recorder.outcomes:
                assert outcome.group == "pg" and outcome.broker_address == broker.address
                assert outcome.took_s >= 0 and outcome.started_ms > 1.7e12
                assert (outcome.error is None) == (outcome.receipts is not None)
            bodies = [[one.body for one in outcome.messages] for outcome in recorder.outcomes]
            assert bodies == [[b"1"], [b"2", b"3"], [b"4", b"5", b"6"], [b"7"]]
            assert isinstance(recorder.outcomes[-1].error, MessageIllegal)
            assert all("trace" in str(one.fields) + str(one.body) for one in broker.sent)

    with caplog.at_level(logging.WARNING):
        run(test())
    assert "a hook that fails" in caplog.text


def test_a_hook_can_refuse_a_message() -> None:
    async def test() -> None:
        async with (
            FakeBroker() as broker,
            Producer(broker.address, hooks=[Refusing()]) as producer,
        ):
            for sending in (
                producer.send(Message("T", b"x")),
                producer.send_batch([Message("T", b"x")]),
                producer.send_one_way(Message("T", b"x")),
            ):
                with pytest.raises(PermissionError, match="not this one"):
                    await sending
            assert not broker.sent and producer.in_flight_count == 0

    run(test())


# --------------------------------------------------------------------------------------- trace


def commit(message: ReceivedMessage) -> TransactionStatus:
    return TransactionStatus.COMMIT


@pytest.mark.usefixtures("trace_at_the_end")
def test_the_trace_tells_of_every_message() -> None:
    with Cluster(broker={"trace_topic": True}) as cluster:

        async def test() -> None:
            producer = Producer(
                cluster.name_server, group="pg", trace_topic=TRACE_TOPIC, check_transaction=commit
            )
            async with producer:
                large = b"x" * 10_000
                single = await producer.send(Message("T", large, tags="a", keys=["k1", "k2"]))
                batch = await producer.send_batch([Message("T", b"2"), Message("T", b"3")])
                delayed = await producer.send(Message("T", b"4", delay_level=2))
                last = Message("T", b"5", tags="t", keys="k3")
                async with Transaction(producer, last) as transaction:
                    half = transaction.receipt
            consumer = Consumer(cluster.name_server, "g", from_where="earliest")
            async with consumer.subscribe(TRACE_TOPIC):
                trace = await asyncio.wait_for(anext(aiter(consumer)), 120)
            assert set(trace.keys) == {
                *("k1", "k2", "k3", single.message_id, half.message_id, delayed.message_id),
                *(receipt.message_id for receipt in batch),
            }
            text = trace.body.decode()
            assert text.endswith("\x02")
            lines = [line.split("\x01") for line in text[:-1].split("\x02")]
            (end,) = [line for line in lines if line[0] == "EndTransaction"]
            assert end[2:] == [
                *("DefaultRegion", "pg", "T", half.message_id, "t", "k3", cluster.broker_address),
                *("2", half.message_id, "COMMIT_MESSAGE", "false"),
            ]
            lines.remove(end)
            assert len(lines) == 5 and {len(line) for line in lines} == {14}
            by_id = {line[5]: line for line in lines}
            line = by_id[single.message_id]
            assert line[:1] + line[2:10] == [
                *("Pub", "DefaultRegion", "pg", "T", single.message_id, "a", "k1 k2"),
                *(cluster.broker_address, "10000"),
            ]
            assert line[11:] == ["0", single.offset_message_id, "true"]
            assert by_id[batch[1].message_id][12] == batch[1].offset_message_id
            assert (by_id[half.message_id][11], by_id[delayed.message_id][11]) == ("1", "3")

        run(test())


@pytest.mark.usefixtures("trace_at_the_end")
def test_the_trace_tells_how_transactions_ended() -> None:
    """Those that the producer ends, and those that brokers ask about; of two brokers."""
    answers = [TransactionStatus.UNKNOWN, TransactionStatus.COMMIT]

    def check(message: ReceivedMessage) -> TransactionStatus:
        return answers.pop(0)

    with Cluster(brokers=2, broker={"trace_topic": True}) as cluster:

        async def test() -> None:
            producer = Producer(
                cluster.name_server, group="pg", trace_topic=TRACE_TOPIC, check_transaction=check
            )
            async with producer:
                with pytest.raises(KeyError):
                    async with Transaction(producer, Message("T", b"1")) as back:
                        raise KeyError
                with pytest.raises(asyncio.CancelledError):
                    async with Transaction(producer, Message("T", b"2", keys="k")) as asked:
                        raise asyncio.CancelledError
                await asyncio.to_thread(cluster.clock.advance, 70)
                await wait_until(lambda: len(answers) == 1, "it was asked")
                await asyncio.to_thread(cluster.clock.advance, 70)
                await wait_until(lambda: bool(cluster.messages("T")), "the answer was heard")
            assert not answers
            text = "".join(one.body.decode() for one in cluster.messages(TRACE_TOPIC))
            lines = [line.split("\x01") for line in text[:-1].split("\x02")]
            ends = [line for line in lines if line[0] == "EndTransaction"]
            assert [(line[5], line[7], *line[11:]) for line in ends] == [
                (back.message_id, "", "ROLLBACK_MESSAGE", "false"),
                (asked.message_id, "k", "UNKNOW", "true"),
                (asked.message_id, "k", "COMMIT_MESSAGE", "true"),
            ]
            assert {line[8] for line in ends} <= {cluster.address(n) for n in cluster.broker_names}

        run(test())


def test_a_trace_that_cannot_be_written_harms_no_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Cluster(broker={"auto_create_topic": False}) as cluster:
        with BlockingClient(cluster.name_server, timeout_s=30.0) as client:
            admin_of(client).topics.create("T")

        async def test() -> None:
            async with Producer(cluster.name_server, trace_topic=TRACE_TOPIC) as producer:
                for _ in range(3):
                    await producer.send(Message("T", b"x"))

        with caplog.at_level(logging.WARNING):
            run(test())
    assert caplog.text.count("brokers have that topic with traceTopicEnable=true") == 1
