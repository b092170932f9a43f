"""Our producer with the official broker and official clients: all that is built on a send."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final

import pytest
from tests.administration import admin_of
from tests.cluster.scenarios import receive, wait_until
from tests.interop.conftest import require_peers
from tests.interop.java_steering import JavaRequester, JavaResponder
from tests.interop.java_transactions import wait_until as wait_for
from tests.interop.jvm import JavaClient
from tests.interop.mqadmin import Mqadmin
from tests.interop.peers import RealBroker, RealNameServer

from pymq import (
    Batcher,
    BlockingClient,
    Consumer,
    Message,
    Producer,
    ReceivedMessage,
    Transaction,
    TransactionStatus,
    selectors,
)

pytestmark = pytest.mark.interop

VERSION: Final = "5.3.3"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
QUEUE_COUNT: Final = 4
#: Of messages that are ended at once: their broker does not ask meanwhile, however slow we are.
NOT_ASKED: Final = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "120"}


@pytest.fixture(scope="module")
def name_server() -> Iterator[str]:
    """The address of a name server whose broker checks transactions soon, and keeps traces."""
    require_peers(VERSION)
    with ExitStack() as stack:
        server = stack.enter_context(RealNameServer(VERSION))
        broker = RealBroker(
            VERSION,
            [server.address],
            transactionTimeOut=1000,
            transactionCheckInterval=1000,
            transactionOpBatchInterval=100,
            traceTopicEnable="true",
            recallMessageEnable="true",
        )
        stack.enter_context(broker)
        yield server.address


@pytest.fixture
def topic(name_server: str) -> str:
    name = f"producer-{uuid.uuid4().hex[:12]}"
    with BlockingClient(name_server) as client:
        admin_of(client).topics.create(name, queue_count=QUEUE_COUNT)
    return name


async def consume(name_server: str, topic: str, count: int) -> list[ReceivedMessage]:
    consumer = Consumer(name_server, f"g-{topic}", from_where="earliest")
    async with consumer.subscribe(topic):
        return await receive(consumer, count)


def test_batches_and_selectors(name_server: str, topic: str) -> None:
    async def run() -> None:
        async with Producer(name_server) as producer, Batcher(producer) as batcher:
            futures = [
                batcher.send_nowait(
                    Message(topic, b"%d" % n, tags="t", keys=f"k{n}"),
                    sharding_key=f"s{n % 5}" if n % 2 else None,
                )
                for n in range(500)
            ]
            receipts = await asyncio.gather(*futures)
            by_hash = await producer.send(Message(topic, b"h"), selector=selectors.by_hash("s1"))
        received = await consume(name_server, topic, 501)
        by_body = {message.body: message for message in received}
        for number, receipt in enumerate(receipts):
            one = by_body[b"%d" % number]
            assert (one.queue_id, one.queue_offset) == (
                receipt.queue.queue_id,
                receipt.queue_offset,
            )
            assert one.offset_message_id == receipt.offset_message_id
            assert (one.tags, one.keys) == ("t", [f"k{number}"])
            key = one.properties.get("__SHARDINGKEY")
            assert key == (f"s{number % 5}" if number % 2 else None)
            if key == "s1":
                assert receipt.queue == by_hash.queue

    asyncio.run(run())


def test_transactions(name_server: str, topic: str) -> None:
    committed: dict[str, TransactionStatus] = {}
    open_ids: set[str] = set()
    asked: list[str] = []

    def check(message: ReceivedMessage) -> TransactionStatus:
        asked.append(message.message_id)
        assert message.topic == topic
        return committed.get(message.message_id, TransactionStatus.ROLLBACK)

    async def run() -> None:
        async with Producer(name_server, group=f"p-{topic}", check_transaction=check) as producer:
            async with Transaction(
                producer, Message(topic, b"committed", tags="t", properties=NOT_ASKED)
            ):
                pass
            with pytest.raises(ValueError, match="no"):
                message = Message(topic, b"rolled back", properties=NOT_ASKED)
                async with Transaction(producer, message):
                    raise ValueError("no")
            for body in (b"checked", b"dropped"):
                transaction = Transaction(producer, Message(topic, body))
                with pytest.raises(asyncio.CancelledError):
                    async with transaction:
                        open_ids.add(transaction.message_id)
                        if body == b"checked":
                            committed[transaction.message_id] = TransactionStatus.COMMIT
                        raise asyncio.CancelledError
            received = await consume(name_server, topic, 2)
            assert sorted(one.body for one in received) == [b"checked", b"committed"]
            assert [one.tags for one in received if one.body == b"committed"] == ["t"]
            # It may also ask about what has just ended.
            await wait_until(lambda: open_ids <= set(asked), "both are asked about")

    asyncio.run(run())


def test_our_request_to_our_consumer(name_server: str, topic: str) -> None:
    async def run() -> None:
        async with Producer(name_server) as asks, Producer(name_server) as answers:
            consumer = Consumer(name_server, f"g-{topic}", from_where="earliest")

            async def handle(message: ReceivedMessage) -> None:
                await answers.reply(message, message.body * 2, tags="t")

            async with consumer.subscribe(topic):
                handling = asyncio.ensure_future(consumer.run(handle))
                for body in (b"small", b"large" * 10_000):
                    reply = await asks.request(Message(topic, body))
                    assert (reply.body, reply.tags) == (body * 2, "t")
            await handling

    asyncio.run(run())


def test_our_request_to_an_official_consumer(
    name_server: str, topic: str, java_client: Callable[[str], JavaClient]
) -> None:
    async def run() -> list[bytes]:
        async with Producer(name_server) as asks:
            return [(await asks.request(Message(topic, b"%d" % n))).body for n in range(3)]

    with JavaResponder(java_client(VERSION), f"g-{topic}", name_server, topic) as consumer:
        # Its first round may have found no route; a request does not wait for the next one.
        wait_for(lambda: consumer.queue_count(topic) == QUEUE_COUNT, "it reads all queues")
        assert asyncio.run(run()) == [b"00", b"11", b"22"]


def test_an_official_request_to_our_consumer(
    name_server: str, topic: str, java_client: Callable[[str], JavaClient]
) -> None:
    async def run() -> None:
        consumer = Consumer(name_server, f"g-{topic}", from_where="earliest")
        async with Producer(name_server) as answers, consumer.subscribe(topic):

            async def handle(message: ReceivedMessage) -> None:
                await answers.reply(message, message.body * 2, properties={"n": "1"})

            handling = asyncio.ensure_future(consumer.run(handle))
            reply, properties = await asyncio.to_thread(ask)
            assert reply == b"xx" and properties["n"] == "1"
        await handling

    options = {"HeartbeatBrokerInterval": 1000}
    client = java_client(VERSION)
    with JavaRequester(client, f"r-{topic}", name_server, **options) as requester:

        def ask() -> tuple[bytes, dict[str, str]]:
            return requester.request(topic, b"x")

        asyncio.run(run())


def test_official_tools_read_our_trace(
    name_server: str, topic: str, java_client: Callable[[str], JavaClient]
) -> None:
    async def run() -> str:
        async with Producer(name_server, group="traced", trace_topic=TRACE_TOPIC) as producer:
            return (await producer.send(Message(topic, b"x", keys="k"))).message_id

    message_id = asyncio.run(run())
    mqadmin = Mqadmin(java_client(VERSION))

    def is_shown() -> bool:
        arguments = ("queryMsgTraceById", "-i", message_id, "-t", TRACE_TOPIC)
        shown = mqadmin.run(name_server, *arguments)
        return "Pub" in shown and "traced" in shown and "success" in shown

    wait_for(is_shown, "RocketMQ has the trace in its index")


def test_the_java_client_reads_how_our_transactions_ended(
    name_server: str, topic: str, java_client: Callable[[str], JavaClient]
) -> None:
    """By the broker's check, too: it asks what became of the one that was left open."""
    decode = java_client(VERSION).jvm.org.apache.rocketmq.client.trace.TraceDataEncoder
    found: dict[str, set[tuple[str, ...]]] = {}

    async def work() -> list[str]:
        producer = Producer(
            name_server,
            group=f"ended-{topic}",
            trace_topic=TRACE_TOPIC,
            check_transaction=lambda _: TransactionStatus.COMMIT,
        )
        traces = Consumer(name_server, f"traces-{topic}", from_where="earliest")
        async with traces.subscribe(TRACE_TOPIC) as reader, producer:
            ids = []
            for number, error in enumerate((None, KeyError, asyncio.CancelledError)):
                immune = {} if error is asyncio.CancelledError else NOT_ASKED
                message = Message(topic, b"%d" % number, tags="t", keys="k", properties=immune)
                with contextlib.suppress(KeyError, asyncio.CancelledError):
                    async with Transaction(producer, message) as transaction:
                        ids.append(transaction.message_id)
                        if error is not None:
                            raise error
            async with asyncio.timeout(120):
                async for trace in reader:
                    for context in decode.decoderFromTraceDataString(trace.body.decode()):
                        bean = context.getTraceBeans().get(0)
                        if str(context.getTraceType()) == "EndTransaction":
                            found.setdefault(bean.getMsgId(), set()).add(
                                (
                                    context.getGroupName(),
                                    bean.getTopic(),
                                    bean.getKeys(),
                                    str(bean.getTransactionState()),
                                    str(bean.isFromTransactionCheck()),
                                )
                            )
                    if all(one in found for one in ids):
                        break
        return ids

    committed, back, asked = asyncio.run(work())
    common = (f"ended-{topic}", topic, "k")
    assert found[committed] == {(*common, "COMMIT_MESSAGE", "False")}
    assert found[back] == {(*common, "ROLLBACK_MESSAGE", "False")}
    assert found[asked] == {(*common, "COMMIT_MESSAGE", "True")}


def test_a_message_is_recalled(name_server: str, topic: str) -> None:
    """What is recalled never comes; what is sent later, and due later, does."""

    async def work() -> list[bytes]:
        async with Producer(name_server) as producer, Producer(name_server) as other:
            receipts = [
                await producer.send(Message(topic, body, delay_s=delay_s))
                for body, delay_s in ((b"recalled", 10), (b"from its handle", 10), (b"stays", 11))
            ]
            assert await producer.recall(receipts[0]) == receipts[0].message_id
            handle = receipts[1].recall_handle
            assert handle is not None
            assert await other.recall(handle) == receipts[1].message_id
        (message,) = await consume(name_server, topic, 1)
        with BlockingClient(name_server) as client:
            ends = client.bounds(client.read_queues(topic)).values()
        return [message.body] * sum(end - first for first, end in ends)

    assert asyncio.run(work()) == [b"stays"]
