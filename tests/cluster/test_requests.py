"""Request and reply between our clients."""

import asyncio
import concurrent.futures
import logging

import pytest
from tests.administration import admin_of
from tests.cluster.running import run
from tests.cluster.scenarios import TIMEOUT_S, wait_until

from pymq import (
    BlockingClient,
    Consumer,
    Message,
    Producer,
    ReceivedMessage,
    Reply,
    blocking,
)
from pymq.errors import (
    BrokerSystemError,
    ClientClosed,
    ConnectionFailed,
    LocalProtocolError,
    RequestTimeout,
    RouteNotFound,
)
from pymq.testing import Cluster


def asking(cluster: Cluster) -> Producer:
    """Return a producer for which nothing is too late, if a test does not say so."""
    return Producer(cluster.name_server, timeout_s=TIMEOUT_S, deadline_s=90)


def test_a_request_gets_the_reply_of_its_consumer() -> None:
    large = b"large " * 2000

    async def test(cluster: Cluster) -> None:
        async with asking(cluster) as asks, asking(cluster) as answers:
            await asks.queues("Q")
            consumer = Consumer(cluster.name_server, "g", from_where="earliest").subscribe("Q")

            async def handle(message: ReceivedMessage) -> None:
                await answers.reply(
                    message, message.body * 2, tags="t", properties={"n": message.body[:5].decode()}
                )

            async with consumer:
                handling = asyncio.ensure_future(consumer.run(handle, concurrency=4))
                bodies = [b"%05d" % n for n in range(40)] + [large]
                replies = await asyncio.gather(*(asks.request(Message("Q", b)) for b in bodies))
                assert [reply.body for reply in replies] == [body * 2 for body in bodies]
                for body, reply in zip(bodies, replies, strict=True):
                    assert isinstance(reply, Reply) and reply.tags == "t"
                    assert reply.properties["n"] == body[:5].decode()
                    assert reply.born_host.startswith("127.0.0.1:")
            await handling
            assert not asks._parts.requests._waiting and asks.in_flight_count == 0

    with Cluster(brokers=2) as cluster:
        run(test(cluster))


def test_without_a_reply_the_request_ends_at_its_deadline(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        async with asking(pymq_cluster) as producer:
            await producer.send(Message("Q", b"first"))  # or the request might not get that far
            with pytest.raises(RequestTimeout, match="no reply to request .* within 2 s") as late:
                await producer.request(Message("Q", b"x"), deadline_s=2)
            assert not late.value.outcome_known

    run(test())


def test_a_request_that_cannot_be_sent_fails_at_once() -> None:
    with Cluster(broker={"auto_create_topic": False}) as cluster:

        async def test() -> None:
            async with Producer(cluster.name_server) as producer:
                with pytest.raises(RouteNotFound, match="'nowhere'"):
                    await producer.request(Message("nowhere", b"x"))
                with pytest.raises(LocalProtocolError):
                    await producer.request(Message("T", b""))
                assert not producer._parts.requests._waiting
            with pytest.raises(ClientClosed):
                await producer.request(Message("T", b"x"))

        run(test())


def test_a_request_that_waited_for_a_name_server_in_vain_says_so() -> None:
    async def test(cluster: Cluster) -> None:
        async with Producer(cluster.name_server, timeout_s=600) as producer:
            fault = await asyncio.to_thread(cluster.namesrv.delay, 600)
            try:
                with pytest.raises(ConnectionFailed, match="no name server of") as failed:
                    await producer.request(Message("Q", b"x"), deadline_s=0.5)
                assert failed.value.outcome_known
                assert producer.in_flight_count == 0
            finally:
                await asyncio.to_thread(fault.end)

    with Cluster() as cluster:
        run(test(cluster))


def test_a_reply_to_someone_who_has_gone_says_so(
    pymq_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        consumer = Consumer(pymq_cluster.name_server, "g", from_where="earliest").subscribe("Q")
        async with asking(pymq_cluster) as answers, consumer:
            async with asking(pymq_cluster) as asks:
                messages = aiter(consumer)
                await asks.send(Message("Q", b"first"))
                await anext(messages)
                with pytest.raises(RequestTimeout):
                    await asks.request(Message("Q", b"x"), deadline_s=2)
                request = await anext(messages)
                with caplog.at_level(logging.INFO):  # it is there, but does not wait any more
                    await answers.reply(request, b"late")
                    await wait_until(lambda: "for which nobody waits" in caplog.text, "it is told")
            with pytest.raises(BrokerSystemError, match="channel of .* not found"):
                await answers.reply(request, b"too late")
            await answers.send(Message("Q", b"no request"))
            plain = await anext(messages)
            with pytest.raises(LocalProtocolError, match="lacks CORRELATION_ID, REPLY_TO_CLIENT"):
                await answers.reply(plain, b"x")
            with pytest.raises(LocalProtocolError, match="expected the ReceivedMessage"):
                await answers.reply(Message("Q", b"x"), b"x")  # type: ignore[arg-type]

    run(test())


def test_a_reply_finds_its_way_while_a_broker_is_away() -> None:
    """The one who asked is known at both brokers, so a reply may take the other one."""

    async def test(cluster: Cluster) -> None:
        async with asking(cluster) as asks, asking(cluster) as answers:
            queues = await asks.queues("Q")
            first = queues[0].broker_name
            consumer = Consumer(cluster.name_server, "g", from_where="earliest").subscribe("Q")
            async with consumer:
                reply = asyncio.ensure_future(asks.request(Message("Q", b"x"), queue=queues[0]))
                request = await anext(aiter(consumer))
                await answers.queues("DefaultCluster_REPLY_TOPIC")
                await asyncio.to_thread(cluster.kill_broker, first)
                await answers.reply(request, b"y")
                assert (await reply).body == b"y"

    with Cluster(brokers=2) as cluster:
        with BlockingClient(cluster.name_server) as client:
            admin_of(client).topics.create("Q", queue_count=2)
        run(test(cluster))


def test_a_reply_comes_from_a_broker_that_was_restarted_meanwhile(pymq_cluster: Cluster) -> None:
    """It does not know who asked any more, and who waits for a reply sends nothing."""

    async def test() -> None:
        consumer = Consumer(pymq_cluster.name_server, "g", from_where="earliest").subscribe("Q")
        async with asking(pymq_cluster) as asks, asking(pymq_cluster) as answers, consumer:
            waits_s = 20.0  # less than until the next heartbeat
            replies = [
                asyncio.ensure_future(asks.request(Message("Q", b"%d" % n), deadline_s=waits_s))
                for n in (1, 2)
            ]
            messages = aiter(consumer)
            requests = [await anext(messages), await anext(messages)]
            await answers.reply(requests[0], b"before")
            address = pymq_cluster.broker_address
            await asyncio.to_thread(pymq_cluster.broker().kill)
            await wait_until(lambda: asks._pool.open_channel(address) is None, "it is lost")
            await asyncio.to_thread(pymq_cluster.broker().start)
            await wait_until(lambda: asks._pool.open_channel(address) is not None, "it is back")
            await answers.reply(requests[1], b"after")
            assert {(await reply).body for reply in replies} == {b"before", b"after"}
            keeping = asks._parts.requests._keeping_known
            assert keeping is not None
            await keeping  # no longer than requests wait

    run(test())


def test_the_blocking_face(pymq_cluster: Cluster) -> None:
    with (
        blocking.Producer(pymq_cluster.name_server) as producer,
        blocking.Consumer(pymq_cluster.name_server, "g", from_where="earliest").subscribe(
            "Q"
        ) as consumer,
        concurrent.futures.ThreadPoolExecutor() as threads,
    ):
        reply = threads.submit(producer.request, Message("Q", b"x"), deadline_s=60)
        request = consumer.receive(60)
        assert request is not None
        producer.reply(request, b"y")
        assert reply.result(60).body == b"y"


def test_a_broker_that_is_silent_does_not_take_the_time_of_requests_to_another() -> None:
    async def test(cluster: Cluster) -> None:
        producer = Producer(cluster.name_server, timeout_s=600, deadline_s=60)
        consumer = Consumer(cluster.name_server, "g", from_where="earliest").subscribe("Q")
        async with producer, asking(cluster) as answers, consumer:
            for queue in await answers.queues("Q"):  # each broker makes the topic
                await answers.send(Message("Q", b"first"), queue=queue)

            async def handle(message: ReceivedMessage) -> None:
                if message.body == b"?":
                    await answers.reply(message, b"yes")

            handling = asyncio.ensure_future(consumer.run(handle))
            name, silent = cluster.broker_names
            queue = next(one for one in await producer.queues("Q") if one.broker_name == name)
            fault = await asyncio.to_thread(cluster.broker(silent).delay, 600)
            try:
                for _ in range(2):
                    reply = await producer.request(Message("Q", b"?"), queue=queue)
                    assert reply.body == b"yes"
            finally:
                await asyncio.to_thread(fault.end)
            handling.cancel()

    with Cluster(brokers=2) as cluster:
        run(test(cluster))
