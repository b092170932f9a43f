"""A failed handler is one line in the log, which says what becomes of its messages."""

import asyncio
import logging
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from pymq.client.group.inbox import FlowLimits, Inbox
from pymq.client.group.process_queue import ProcessQueue
from pymq.client.group.retry import FailedMessages
from pymq.client.operations import Send, SendResult, SendStatus
from pymq.errors import (
    BrokerError,
    NotReplicated,
    PymqError,
    RequestTimeout,
    ServiceNotAvailable,
    SystemBusy,
)
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.codes import MQ_VERSION, MQ_VERSION_OWN_TIMES, ResponseCode
from pymq.protocol.message import ReceivedMessage
from pymq.protocol.outcomes import EXPIRED, Outcome, rejected, retried

QUEUE = MessageQueue("T", "broker-a", 0)


class FakePool:
    """Answers what is sent back with the errors in ``refusals``; without one it is taken."""

    def __init__(self) -> None:
        self.heartbeats = self.network = self
        self.is_open = True
        self.version: int | PymqError = MQ_VERSION
        self.refusals: list[PymqError | SendStatus | None] = []
        self.asked: list[Any] = []
        self.loop = asyncio.get_running_loop()

    async def read_channel(self, queue: MessageQueue) -> Any:
        return SimpleNamespace(peer="broker:1")

    def wrap(self, name: str) -> str:
        return name

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self.loop.create_task(work)

    async def ask_version(self, channel: None) -> int:
        if isinstance(self.version, PymqError):
            raise self.version
        return self.version

    async def ask(self, channel: None, operation: Any) -> SendResult | None:
        self.asked.append(operation)
        refusal = self.refusals.pop(0) if self.refusals else None
        if isinstance(refusal, PymqError):
            raise refusal
        if not isinstance(operation, Send):
            return None
        return SendResult(refusal or SendStatus.OK, "ID", "offset id", QUEUE, 0, None)


class Consumer:
    """The parts of a consumer, with some messages taken."""

    def __init__(self, count: int, max_reconsume_times: int | None = 16) -> None:
        self.inbox = Inbox(FlowLimits())
        self.queue = ProcessQueue(QUEUE, 0)
        messages = [
            ReceivedMessage("T", b"x", {"UNIQ_KEY": f"ID{n}"}, "broker-a", 0, n, 0, 0, 0, b"", b"")
            for n in range(count)
        ]
        self.inbox.deliver(self.queue, messages, count)
        taken = [self.inbox.take_nowait() for _ in range(count)]
        self.deliveries = [delivery for delivery in taken if delivery is not None]
        self.pool: Any = FakePool()
        self.failed = FailedMessages(
            group="g",
            max_reconsume_times=max_reconsume_times,
            pool=self.pool,
            inbox=self.inbox,
            is_closing=lambda: False,
        )


def refused() -> SystemBusy:
    return SystemBusy("broker:1 is busy", code=2)


def test_a_body_that_cannot_be_read_says_when_it_becomes_a_dead_letter(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        consumer = Consumer(2, max_reconsume_times=3)
        consumer.deliveries[1].message.reconsume_times = 3
        for delivery in consumer.deliveries:
            consumer.failed.send_back_undecodable(delivery)
        async with asyncio.timeout(60):
            while consumer.inbox.message_count:
                await asyncio.sleep(0)

    asyncio.run(test())
    (record,) = caplog.records
    assert "message ID1" in record.getMessage() and "dead letter (%DLQ%g)" in record.getMessage()


@pytest.mark.parametrize(
    ("refusals", "outcome", "left"),
    [
        ([], "for message ID0 (topic 'T', broker-a:0, offset 0); the broker delivers it again", 0),
        ([refused()], "it will be tried again here in 5 s, because the broker does not take it", 1),
        ([None, None, None], "ID0 and 2 more (topic 'T', broker-a:0, offset 0); the broker del", 0),
        ([None, refused(), None], "1 of 3 will be tried again here in 5 s, because", 1),
    ],
)
def test_one_line_says_who_delivers_them_again(
    caplog: pytest.LogCaptureFixture, refusals: list[PymqError | None], outcome: str, left: int
) -> None:
    async def test() -> None:
        consumer = Consumer(max(len(refusals), 1))
        consumer.pool.refusals = refusals
        await consumer.failed.handler_failed(consumer.deliveries, ValueError("cannot"))
        assert consumer.inbox.message_count == left
        if left:
            why = consumer.inbox.why_unfinished(consumer.queue)
            assert "its handler failed 1 times, last with ValueError('cannot'), and the bro" in why
            assert "(broker:1 is busy); mend the handler" in why

    asyncio.run(test())
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert outcome in record.getMessage()
    assert record.exc_info is not None and isinstance(record.exc_info[1], ValueError)


@pytest.mark.parametrize(
    ("tries_max", "times", "refusals", "outcome"),
    [
        (0, [0], [], "; it was tried 1 times and becomes a dead letter (%DLQ%g)"),
        (2, [2], [], "; it was tried 3 times and becomes a dead letter (%DLQ%g)"),
        (2, [1], [], "; the broker delivers it again later"),
        (None, [0], [], "; the broker delivers it again later, or makes it a dead letter"),
        (
            *(2, [2, 0, 2], []),
            "; 2 of 3 were tried up to 3 times and become dead letters (%DLQ%g); the broker "
            "delivers 1 of 3 again later",
        ),
        (
            *(None, [0, 0], []),
            "; the broker delivers 2 of 2 again later, or makes them dead letters",
        ),
        (
            *(0, [0, 0], [refused(), None]),
            "; 1 of 2 were tried up to 1 times and become dead letters (%DLQ%g); 1 of 2 will be "
            "tried again here in 5 s, because the broker does not take it back: broker:1 is busy",
        ),
    ],
)
def test_the_line_says_what_becomes_a_dead_letter(
    caplog: pytest.LogCaptureFixture,
    tries_max: int | None,
    times: list[int],
    refusals: list[PymqError | None],
    outcome: str,
) -> None:
    async def test() -> None:
        consumer = Consumer(len(times), tries_max)
        consumer.pool.refusals = list(refusals)
        for delivery, count in zip(consumer.deliveries, times, strict=True):
            delivery.message.reconsume_times = count
        await consumer.failed.handler_failed(consumer.deliveries, ValueError("cannot"))

    asyncio.run(test())
    (message,) = caplog.messages
    assert message.endswith(outcome)


def test_tries_here_are_not_counted_by_the_broker(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        consumer = Consumer(1, 1)
        consumer.pool.refusals = [refused()]
        for _ in range(2):
            await consumer.failed.handler_failed(consumer.deliveries, ValueError("cannot"))

    asyncio.run(test())
    assert caplog.messages[1].endswith(
        "; the broker delivers it again later, or makes it a dead letter"
    )


@pytest.mark.parametrize(
    ("tries_max", "outcome", "said"),
    [
        (None, rejected("why"), "was tried 2 times and becomes a dead letter (%DLQ%g): why"),
        (9, rejected(None), "was tried 2 times and becomes a dead letter (%DLQ%g): reject()"),
        (1, retried(None), "was tried 2 times and becomes a dead letter (%DLQ%g): retry()"),
        (1, EXPIRED, "was tried 2 times and becomes a dead letter (%DLQ%g): the time-out"),
        (2, retried(None), None),
        (None, retried(None), None),
    ],
)
@pytest.mark.parametrize("is_dropped", [False, True])
def test_an_outcome_by_name_that_makes_a_dead_letter_is_said(
    caplog: pytest.LogCaptureFixture,
    tries_max: int | None,
    outcome: Outcome,
    said: str | None,
    is_dropped: bool,
) -> None:
    async def test() -> None:
        consumer = Consumer(1, tries_max)
        (delivery,) = consumer.deliveries
        delivery.outcome, delivery.message.reconsume_times = outcome, 1
        consumer.failed.send_back_soon(delivery)
        consumer.queue.dropped = is_dropped  # Before anything is sent.
        await consumer.failed.wait_sent(60)
        assert len(consumer.pool.asked) == (not is_dropped)

    asyncio.run(test())
    place = "message ID0 (topic 'T', broker-a:0, offset 0) "
    assert caplog.messages == ([] if said is None or is_dropped else [place + said])
    assert all(record.levelno == logging.WARNING for record in caplog.records)


def test_a_handler_that_fails_while_the_consumer_closes_is_said_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        consumer = Consumer(1)
        consumer.pool.ask = lambda channel, operation: asyncio.Event().wait()
        task = asyncio.ensure_future(
            consumer.failed.handler_failed(consumer.deliveries, ValueError("cannot"))
        )
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(test())
    (record,) = caplog.records
    assert "delivered again, because the consumer was closed" in record.getMessage()


@pytest.mark.parametrize(
    ("given", "code", "version", "sent"),
    [
        (None, ResponseCode.SYSTEM_ERROR, MQ_VERSION_OWN_TIMES - 1, [None, "16"]),
        # It could not store the message, or it has stored it and not flushed it in time.
        (None, ResponseCode.SYSTEM_ERROR, MQ_VERSION_OWN_TIMES, [None]),
        (None, ResponseCode.SYSTEM_BUSY, MQ_VERSION_OWN_TIMES - 1, [None]),
        (3, ResponseCode.SYSTEM_ERROR, MQ_VERSION_OWN_TIMES - 1, ["3"]),
    ],
)
def test_brokers_that_need_a_number_of_tries_get_one(
    given: int | None, code: int, version: int, sent: list[str | None]
) -> None:
    async def test() -> None:
        consumer = Consumer(1, given)
        consumer.pool.version = version
        consumer.pool.refusals = [BrokerError("java.lang.NullPointerException", code=code)]
        await consumer.failed.handler_failed(consumer.deliveries, ValueError("x"))
        fields = [one.request.fields for one in consumer.pool.asked]
        assert [one.get("maxReconsumeTimes") for one in fields] == sent

    asyncio.run(test())


def test_the_reason_is_what_the_broker_said_first(caplog: pytest.LogCaptureFixture) -> None:
    """Not that it does not say which version it has, either."""

    async def test() -> None:
        consumer = Consumer(1, None)
        consumer.pool.version = RequestTimeout("broker:1 did not answer a heartbeat")
        consumer.pool.refusals = [BrokerError("disk full", code=ResponseCode.SYSTEM_ERROR)]
        await consumer.failed.handler_failed(consumer.deliveries, ValueError("x"))
        assert "(disk full)" in consumer.inbox.why_unfinished(consumer.queue)

    asyncio.run(test())
    (record,) = caplog.records
    assert record.getMessage().endswith("the broker does not take it back: disk full")


# ------------------------------------------------------------- what may be lost with its broker


UNSAFE = NotReplicated("broker:1 refused to take it back: its slave has not got it", code=12)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pymq.client.group.retry.LOCAL_RETRY_S", 0.0)


async def finished(consumer: Consumer) -> None:
    async with asyncio.timeout(60):
        while consumer.inbox.message_count:
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    "refusal",
    [UNSAFE, BrokerError("not stored", code=1), ServiceNotAvailable("a slave", code=14), refused()],
)
def test_what_is_not_surely_taken_back_stays_before_what_is_committed(refusal: PymqError) -> None:
    async def test() -> None:
        consumer = Consumer(2)
        first, second = consumer.deliveries
        consumer.pool.refusals = [refusal]
        await consumer.failed.handler_failed([first], ValueError("cannot"))
        consumer.inbox.acknowledge(second)
        assert (consumer.queue.commit_offset, consumer.inbox.message_count) == (0, 1)
        await consumer.failed.handler_failed([first], ValueError("cannot"))
        assert (consumer.queue.commit_offset, consumer.inbox.message_count) == (2, 0)

    asyncio.run(test())


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("outcome", [rejected(None), EXPIRED])
def test_what_needs_no_handler_is_sent_back_until_it_is_taken(
    caplog: pytest.LogCaptureFixture, outcome: Outcome
) -> None:
    async def test() -> None:
        consumer = Consumer(1)
        (delivery,) = consumer.deliveries
        delivery.outcome = outcome
        consumer.pool.refusals = [UNSAFE, UNSAFE]
        consumer.failed.send_back_soon(delivery)
        await finished(consumer)
        assert len(consumer.pool.asked) == 3

    asyncio.run(test())
    said = [one for one in caplog.records if "stays here" in one.getMessage()]
    assert len(said) == 1 and said[0].levelno == logging.WARNING
    assert "its slave has not got it" in said[0].getMessage()


@pytest.mark.usefixtures("quick")
def test_a_body_that_cannot_be_read_and_is_not_taken_back_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        consumer = Consumer(1)
        (delivery,) = consumer.deliveries
        delivery.is_held = True
        consumer.pool.refusals = [UNSAFE, UNSAFE]
        consumer.failed.send_back_undecodable(delivery)
        await finished(consumer)
        assert len(consumer.pool.asked) == 3

    asyncio.run(test())
    (said,) = caplog.messages
    assert "stays here: its body cannot be read, and the broker does not take it back" in said


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "unsafe",
    [SendStatus.FLUSH_SLAVE_TIMEOUT, SendStatus.FLUSH_DISK_TIMEOUT, refused(), UNSAFE]
    + [ServiceNotAvailable("a slave", code=14)],
)
def test_a_dead_letter_with_a_reason_is_made_until_it_is_safe(
    caplog: pytest.LogCaptureFixture, unsafe: PymqError | SendStatus
) -> None:
    """And keeps its reason, whatever its broker is busy with."""

    async def test() -> None:
        consumer = Consumer(1)
        (delivery,) = consumer.deliveries
        delivery.outcome = rejected("why")
        consumer.pool.refusals = [unsafe]
        consumer.failed.send_back_soon(delivery)
        await finished(consumer)
        assert [type(one) for one in consumer.pool.asked] == [Send, Send]

    asyncio.run(test())
    stays, ends = caplog.messages
    assert "message ID0 (topic 'T', broker-a:0, offset 0) stays here: it" in stays
    assert ends.endswith("becomes a dead letter (%DLQ%g): why")


def test_a_dead_letter_that_no_slave_could_have_is_made_once() -> None:
    async def test() -> None:
        consumer = Consumer(1)
        (delivery,) = consumer.deliveries
        delivery.outcome = rejected("why")
        consumer.pool.refusals = [SendStatus.SLAVE_NOT_AVAILABLE]
        consumer.failed.send_back_soon(delivery)
        await finished(consumer)
        assert len(consumer.pool.asked) == 1

    asyncio.run(test())
