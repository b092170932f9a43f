"""The FastStream broker: handlers, retries, dead letters, requests; a broker that restarts."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

import pytest
from tests.cluster.played import PlayedNameServer
from tests.cluster.running import run
from tests.cluster.scenarios import create_topic, wait_until

pytest.importorskip("faststream")

from faststream import AckPolicy, FastStream
from faststream.exceptions import NackMessage, RejectMessage
from faststream.specification import AsyncAPI
from pydantic import BaseModel

from pymq import ConnectionFailed, Consumer, Message, Network, Producer, ReceivedMessage
from pymq.errors import NotInHand
from pymq.integrations.faststream import (
    CurrentMessage,
    RocketBroker,
    RocketResponse,
    RocketRouter,
)
from pymq.integrations.faststream_testing import TestRocketBroker
from pymq.testing import Cluster


class Order(BaseModel):
    number: int
    city: str = "Ulm"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2, store_settings={"delay_levels_ms": (100,) * 18}) as running:
        yield running


def with_broker(
    cluster: Cluster, work: Callable[[RocketBroker], Awaitable[None]], **options: object
) -> None:
    async def test() -> None:
        broker = RocketBroker(cluster.name_server, logger=None, **options)  # type: ignore[arg-type]
        await work(broker)
        await broker.stop()

    run(test())


def test_models_headers_and_what_is_published_in_turn(cluster: Cluster) -> None:
    orders: list[Order] = []
    parcels: list[tuple[str, dict[str, str], str | None]] = []

    async def test(broker: RocketBroker) -> None:
        @broker.subscriber("orders", "shipping", from_where="earliest", max_workers=4)
        @broker.publisher("parcels", tags="new", headers={"by": "ship"})
        async def ship(order: Order) -> str:
            orders.append(order)
            return f"parcel {order.number}"

        @broker.subscriber("parcels", "doors", from_where="earliest", tags="new")
        async def open_door(body: str, message: CurrentMessage) -> None:
            parcels.append((body, message.headers, message.raw_message.tags))

        await broker.start()
        assert await broker.ping()
        receipt = await broker.publish(Order(number=1), "orders", keys="k1", headers={"h": "v"})
        assert receipt.queue.topic == "orders"
        await broker.publish_batch({"number": 2}, {"number": 3}, topic="orders")
        await wait_until(lambda: len(parcels) == 3, "all are at the door")

    with_broker(cluster, test)
    assert sorted(order.number for order in orders) == [1, 2, 3]
    assert {body for body, _, _ in parcels} == {"parcel 1", "parcel 2", "parcel 3"}
    assert all(headers == {"by": "ship"} and tag == "new" for _, headers, tag in parcels)
    stored = next(one for one in cluster.messages("orders") if one.keys == ["k1"])
    assert stored.properties["h"] == "v"
    assert stored.properties["content-type"] == "application/json"
    assert cluster.lag("shipping") == 0


def test_what_fails_comes_again_and_what_is_rejected_is_a_dead_letter(cluster: Cluster) -> None:
    seen: Counter[str] = Counter()

    async def test(broker: RocketBroker) -> None:
        @broker.subscriber("failing", "again", from_where="earliest")
        async def handle(body: str) -> None:
            seen[body] += 1
            if body == "rejected":
                raise RejectMessage
            if body == "twice" and seen[body] == 1:
                raise ValueError("once more")

        @broker.subscriber(
            "failing", "given-up", from_where="earliest", ack_policy=AckPolicy.REJECT_ON_ERROR
        )
        async def give_up(body: str) -> None:
            if body == "twice":
                raise ValueError("never again")

        @broker.subscriber("failing", "manual", from_where="earliest", ack_policy=AckPolicy.MANUAL)
        async def manually(body: str, message: CurrentMessage) -> None:
            seen[f"manual {body}"] += 1
            if body != "twice" or seen["manual twice"] > 1:
                await message.ack()

        await broker.start()
        for body in ("once", "twice", "rejected"):
            await broker.publish(body, "failing")
        await wait_until(lambda: seen["twice"] == 2, "it comes again")
        await wait_until(lambda: seen["manual twice"] == 2, "what has no outcome comes again")
        await wait_until(lambda: len(cluster.messages("%DLQ%again")) == 1, "it is a dead letter")
        await wait_until(lambda: len(cluster.messages("%DLQ%given-up")) == 1, "so is the other")

    with_broker(cluster, test)
    assert (seen["once"], seen["twice"], seen["rejected"]) == (1, 2, 1)
    (dead,) = cluster.messages("%DLQ%again")
    assert dead.body == b"rejected"


def test_requests_and_replies(cluster: Cluster) -> None:
    async def test(broker: RocketBroker) -> None:
        @broker.subscriber("questions", "answerers", from_where="earliest")
        async def answer(body: str) -> RocketResponse:
            return RocketResponse(body.upper(), headers={"kind": "answer"}, tags="t")

        await broker.start()
        found = await broker.request("word", "questions", timeout=60)
        assert (await found.decode(), found.headers["kind"]) == ("WORD", "answer")
        # One that knows nothing of FastStream asks, too; and an answer may go to a topic.
        async with Producer(cluster.name_server) as producer:
            reply = await producer.request(Message("questions", b"plain"), deadline_s=60)
            assert reply.body == b"PLAIN"
        await broker.publish("topic", "questions", reply_to="answers")
        await wait_until(
            lambda: [one.body for one in cluster.messages("answers")] == [b"TOPIC"], "it is there"
        )

    with_broker(cluster, test)


def test_a_handler_says_when_its_message_comes_again(cluster: Cluster) -> None:
    """Once, and without an error in the log; the delay levels are 0.1 s each here."""
    seen: Counter[str] = Counter()
    errors: list[BaseException] = []

    async def test(broker: RocketBroker) -> None:
        @broker.subscriber("nack", "nack-g", from_where="earliest", ack_policy=AckPolicy.MANUAL)
        async def handle(body: str, message: CurrentMessage) -> None:
            seen[body] += 1
            try:
                await (message.ack() if seen[body] == 3 else message.nack(seen[body] - 1 or None))
            except Exception as error:
                errors.append(error)
                raise

        @broker.subscriber("nack", "raise-g", from_where="earliest")
        async def fail(body: str) -> None:
            seen[f"raised {body}"] += 1
            if seen[f"raised {body}"] < 3:
                raise NackMessage(after_s=1)

        await broker.start()
        await broker.publish("x", "nack")
        await wait_until(lambda: seen["x"] == seen["raised x"] == 3, "all are tried again")
        await wait_until(lambda: cluster.lag("nack-g") == cluster.lag("raise-g") == 0, "done")

    with_broker(cluster, test)
    assert not errors and not cluster.dead_letters("nack-g")


def test_nothing_is_a_result_too(cluster: Cluster) -> None:
    """RocketMQ has no empty bodies, which other brokers have for None."""
    seen: Counter[object] = Counter()

    async def test(broker: RocketBroker) -> None:
        @broker.subscriber("nothing", "nothing-g", from_where="earliest")
        @broker.publisher("nothing-out")
        async def handle(body: str) -> None:
            seen[body] += 1

        @broker.subscriber("nothing-out", "nothing-out-g", from_where="earliest")
        async def read(body: None) -> None:
            seen[body] += 1

        await broker.start()
        found = await broker.request("question", "nothing", timeout=60)
        assert await found.decode() is None
        await broker.publish("x", "nothing")
        await wait_until(lambda: seen[None] == 2, "both results are read")

    with_broker(cluster, test)
    assert seen == {"question": 1, "x": 1, None: 2}


def test_mocks_of_handlers_with_a_real_cluster(cluster: Cluster) -> None:
    async def test() -> None:
        broker = RocketBroker(cluster.name_server, logger=None)

        @broker.subscriber("real", "real-g", from_where="earliest")
        @broker.publisher("real-out")
        async def handle(body: str) -> str:
            return body.upper()

        async with TestRocketBroker(broker, with_real=True) as running:
            await running.publish("x", "real")
            await handle.wait_call(60)
            assert handle.mock is not None
            handle.mock.assert_called_once_with("x")
            await wait_until(lambda: cluster.messages("real-out"), "it is published")

    run(test())
    assert [one.body for one in cluster.messages("real-out")] == [b"X"]


def test_routers_namespaces_and_single_messages(cluster: Cluster) -> None:
    got: list[str] = []

    async def test(broker: RocketBroker) -> None:
        router = RocketRouter(prefix="eu-")
        publisher = router.publisher("out")

        @router.subscriber("in", "routed", from_where="earliest", orderly=True)
        async def handle(body: str) -> None:
            got.append(body)
            await publisher.publish(f"{body}!")

        broker.include_router(router)
        single = broker.subscriber("eu-out", "single", from_where="earliest", persistent=False)
        await broker.start()
        for number in range(5):
            await broker.publish(str(number), "eu-in", sharding_key="one")
        await wait_until(lambda: len(got) == 5, "all came")
        message = await single.get_one(timeout=60)
        assert message is not None and await message.decode() in {f"{n}!" for n in range(5)}
        assert await single.get_one(timeout=60) is not None

    with_broker(cluster, test, network=Network(namespace="fast"))
    assert got == ["0", "1", "2", "3", "4"]
    assert len(cluster.messages("fast%eu-in")) == 5


def test_a_broker_is_killed_and_started_while_an_application_runs(cluster: Cluster) -> None:
    handled: Counter[int] = Counter()

    async def test() -> None:
        options = {"deadline_s": 90.0}
        broker = RocketBroker(cluster.name_server, logger=None, producer_options=options)
        app = FastStream(broker, logger=None)

        @broker.subscriber("load", "loaded", from_where="earliest", max_workers=8)
        async def handle(body: int) -> None:
            handled[body] += 1

        running = asyncio.ensure_future(app.run())
        async with Producer(cluster.name_server) as producer:
            await producer.send(Message("load", b"-1"))
        await wait_until(lambda: handled[-1], "it runs")
        sending = [asyncio.ensure_future(broker.publish(n, "load")) for n in range(200)]
        await asyncio.to_thread(cluster.kill_broker, "broker-b")
        sending += [asyncio.ensure_future(broker.publish(n, "load")) for n in range(200, 400)]
        await asyncio.sleep(1)
        await asyncio.to_thread(cluster.start_broker, "broker-b")
        await asyncio.gather(*sending)
        await wait_until(lambda: set(range(400)) <= handled.keys(), "all are handled")
        app.exit()
        await asyncio.wait_for(running, 90)

    run(test())


@pytest.mark.parametrize("policy", [AckPolicy.NACK_ON_ERROR, AckPolicy.MANUAL])
def test_a_handler_whose_queue_was_given_up_meanwhile(
    cluster: Cluster, policy: AckPolicy, caplog: pytest.LogCaptureFixture
) -> None:
    """The message comes again; of that a policy makes no traceback, and who acknowledges hears."""
    topic, handled, refused = f"given-up-{policy.value}", list[str](), list[str]()
    create_topic(cluster.name_server, topic)  # on both, or its route would stay as it is

    async def test() -> None:
        broker = RocketBroker(cluster.name_server, logger=logging.getLogger("app"))

        subscriber = broker.subscriber(topic, topic, from_where="earliest", ack_policy=policy)

        @subscriber
        async def handle(body: str, message: CurrentMessage) -> None:
            if not handled:
                name = message.raw_message.broker_name
                await asyncio.to_thread(cluster.broker(name).stop)
                held = subscriber._consumer
                assert held is not None
                await wait_until(
                    lambda: name not in {queue.broker_name for queue in held.assignment}, "given up"
                )
                await asyncio.to_thread(cluster.broker(name).start)
            handled.append(body)
            if policy is AckPolicy.MANUAL:
                try:
                    await message.ack()
                except NotInHand as error:
                    refused.append(str(error))

        await broker.start()
        await broker.publish("x", topic)
        await wait_until(lambda: len(handled) > 1, "it comes again")
        await broker.stop()

    with caplog.at_level(logging.INFO):
        run(test())
    assert "read by another member now" in (refused[0] if refused else caplog.text)
    assert bool(refused) is (policy is AckPolicy.MANUAL)
    assert "Traceback" not in caplog.text and not [
        one for one in caplog.records if one.levelno > logging.WARNING
    ]


def test_the_document_of_asyncapi_has_its_channels(cluster: Cluster) -> None:
    broker = RocketBroker(cluster.name_server)

    @broker.subscriber("orders", "shipping")
    @broker.publisher("parcels")
    async def ship(order: Order) -> str:
        return ""

    document = AsyncAPI(broker, schema_version="3.0.0").to_specification().to_jsonable()
    addresses = {channel["address"] for channel in document["channels"].values()}
    assert addresses == {"orders", "parcels"}
    assert "Order" in str(document["components"])


def test_messages_of_others_are_understood(cluster: Cluster) -> None:
    """What was sent without FastStream, and what FastStream sent without a consumer of its own."""
    got: list[object] = []

    async def test(broker: RocketBroker) -> None:
        @broker.subscriber("foreign", "both", from_where="earliest")
        async def handle(body: dict[str, int], message: CurrentMessage) -> None:
            got.append((body, message.message_id))

        await broker.start()
        async with Producer(cluster.name_server) as producer:
            receipt = await producer.send(Message("foreign", b'{"n": 1}'))
        await wait_until(lambda: got, "it came")
        assert got == [({"n": 1}, receipt.message_id)]
        await broker.publish({"n": 2}, "plain", tags="a", sharding_key="k")
        consumer = Consumer(cluster.name_server, "plainly", from_where="earliest")
        consumer.subscribe("plain")
        async with consumer:
            message: ReceivedMessage = await anext(aiter(consumer))
        assert (message.body, message.tags) == (b'{"n":2}', "a")

    with_broker(cluster, test)


def test_what_was_pulled_and_has_no_handler_left_is_not_sent_back(cluster: Cluster) -> None:
    """Neither with a try used up, nor as a dead letter: another member gets it."""
    done: list[int] = []

    async def test() -> None:
        broker = RocketBroker(cluster.name_server, logger=None)
        is_begun, may_end = asyncio.Event(), asyncio.Event()

        @broker.subscriber(
            "backlog", "leaving", from_where="earliest", max_workers=4, max_reconsume_times=0
        )
        async def work(body: int) -> None:
            is_begun.set()
            await may_end.wait()
            done.append(body)

        async with Producer(cluster.name_server, timeout_s=30) as producer:
            for number in range(100):
                await producer.send(Message("backlog", b"%d" % number))
        await broker.start()
        await is_begun.wait()
        stopping = asyncio.ensure_future(broker.stop())
        await asyncio.sleep(0.2)
        may_end.set()
        await stopping

    run(test())
    # Those that were on the way to a handler are the exception.
    assert len(cluster.dead_letters("leaving")) <= 4
    assert 1 <= len(done) <= 8
    assert cluster.lag("leaving") >= 88


def test_what_get_one_returned_is_handled_though_nothing_was_asked_for_after_it(
    cluster: Cluster,
) -> None:
    got: list[bytes | None] = []

    async def get_one(limit_s: float) -> None:
        broker = RocketBroker(cluster.name_server, logger=None)
        single = broker.subscriber("one", "single", from_where="earliest")
        async with broker:
            await broker.start()
            message = await single.get_one(timeout=limit_s)
            got.append(None if message is None else message.body)

    async def test() -> None:
        async with Producer(cluster.name_server) as producer:
            await producer.send(Message("one", b"first"))
        await get_one(60)
        await get_one(1)
        async with Producer(cluster.name_server) as producer:
            await producer.send(Message("one", b"second"))
        await get_one(60)

    run(test())
    assert got == [b"first", None, b"second"]


def test_a_start_that_failed_is_stopped_and_made_again() -> None:
    """The name server goes after the connection was made, and comes back."""

    async def test(server: PlayedNameServer) -> None:
        broker = RocketBroker(server.address, logger=None)
        single = broker.subscriber("one", "single")

        @broker.subscriber("two", "several")
        async def handle(body: str) -> None:
            pass

        for _ in range(2):
            await broker.connect()
            server.stop()
            with pytest.raises(ConnectionFailed):
                await broker.start()
            with pytest.raises(ConnectionFailed):
                await single.get_one(timeout=0.1)
            await broker.stop()
            server.start()
        server.stop()
        with pytest.raises(ConnectionFailed):
            await single.get_one(timeout=0.1)
        server.start()
        await broker.start()
        assert await single.get_one(timeout=0.1) is None
        await broker.stop()

    with PlayedNameServer() as server:
        run(test(server))
