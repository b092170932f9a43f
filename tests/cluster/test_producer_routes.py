"""A producer whose name servers or brokers are away, silent or wrong."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.cluster.fake_broker import FakeBroker
from tests.cluster.played import PlayedBroker, PlayedNameServer, closed_address, route_to
from tests.cluster.running import LIMITS, run
from tests.cluster.scenarios import create_topic

from pymq.client.consuming.consumer import Consumer
from pymq.client.operations import SendStatus
from pymq.client.sending.batcher import Batcher
from pymq.client.sending.producer import Producer
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.errors import (
    ClientClosed,
    ConfigurationError,
    ConnectionFailed,
    RouteNotFound,
    ServiceNotAvailable,
)
from pymq.net.server import ServerConnection
from pymq.protocol.bodies import TopicRoute
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
from pymq.protocol.message import Message
from pymq.testing.cluster import Cluster


def test_all_name_servers_down_are_named() -> None:
    async def test() -> None:
        closed = closed_address()
        producer = Producer(f"{closed};localhost:1")
        for _ in range(2):
            with pytest.raises(ConnectionFailed) as failed:
                await producer.start()
        await producer.close()
        assert f"no name server of {closed}, localhost:1 answers" in str(failed.value)

    run(test())


def test_a_broker_given_as_a_name_server_is_refused_at_the_start(pymq_cluster: Cluster) -> None:
    wrong = pymq_cluster.broker_address
    text = f"{wrong} was given as a name server and is a broker; .* usually 9876"

    async def test() -> None:
        for name_servers in (wrong, f"{wrong};{pymq_cluster.name_server}"):
            for client in (Producer(name_servers), Consumer(name_servers, "g").subscribe("T")):
                with pytest.raises(ConfigurationError, match=text):
                    await client.start()
                with pytest.raises(ClientClosed):
                    await producer_or_loop(client)

    async def producer_or_loop(client: Producer | Consumer) -> object:
        if isinstance(client, Producer):
            return await client.send(Message("T", b"x"))
        return await anext(aiter(client))

    run(test())
    with BlockingClient(wrong) as client:
        for ask in (lambda: client.route("T"), client.cluster_info):
            with pytest.raises(ConfigurationError, match=text):
                ask()


def test_what_answers_no_request_for_routes_is_not_taken_for_a_name_server() -> None:
    class Other(FakeBroker):
        def on_command(self, connection: ServerConnection, command: Command) -> None:
            connection.respond(command, command.reply(3, "not supported"))

    async def test() -> None:
        async with Other() as other:
            with pytest.raises(ConfigurationError, match="does not answer requests for routes"):
                await Producer(other.address).start()

    run(test())


def test_a_silent_name_server_is_passed_over_at_the_start(pymq_cluster: Cluster) -> None:
    class Silent(FakeBroker):
        def on_command(self, connection: ServerConnection, command: Command) -> None:
            pass

    async def test() -> None:
        async with Silent() as silent:
            with pytest.raises(ConnectionFailed, match="no name server of .* did not answer"):
                await Producer(silent.address, timeout_s=0.5).start()
            both = f"{silent.address};{pymq_cluster.name_server}"
            async with Producer(both, timeout_s=3) as producer:
                await producer.send(Message("T", b"x"))

    run(test())


def test_one_name_server_of_several_is_enough(pymq_cluster: Cluster) -> None:
    closed = closed_address()

    async def test() -> None:
        async with Producer([closed, pymq_cluster.name_server]) as producer:
            await producer.send(Message("T", b"x"))

    run(test())


def test_a_name_server_that_goes_is_replaced_by_the_next(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        async with FakeBroker() as other:
            names = f"{other.address},{pymq_cluster.name_server}"
            async with Producer(names) as producer:
                await other.server.close()
                result = await producer.send(Message("T", b"x"))
                assert result.queue.broker_name == pymq_cluster.broker_name

    run(test())


def test_a_route_that_one_name_server_lacks_is_asked_of_the_next(pymq_cluster: Cluster) -> None:
    class Newborn(FakeBroker):
        def on_command(self, connection: ServerConnection, command: Command) -> None:
            connection.respond(command, command.reply(17, "no topic route"))

    async def test() -> None:
        async with Newborn() as newborn:
            names = f"{newborn.address},{pymq_cluster.name_server}"
            async with Producer(names) as producer:
                await producer.send(Message("T", b"x"))
                assert len(await producer.queues("T")) == 4

    run(test())


def test_topics_asked_for_at_the_same_time_reach_the_name_server_that_is_left(
    pymq_cluster: Cluster,
) -> None:
    async def test() -> None:
        async with FakeBroker() as other:
            names = f"{other.address},{pymq_cluster.name_server}"
            async with Producer(names) as producer:
                await other.server.close()
                several = await asyncio.gather(*(producer.queues(f"T{n}") for n in range(4)))
                names = {queue.broker_name for queues in several for queue in queues}
                assert names == {pymq_cluster.broker_name}

    run(test())


def test_a_topic_that_nobody_knows_names_who_was_asked_and_who_could_not_be() -> None:
    closed = closed_address()

    class Newborn(FakeBroker):
        def on_command(self, connection: ServerConnection, command: Command) -> None:
            connection.respond(command, command.reply(17, "no topic route"))

    async def test() -> None:
        async with (
            Newborn() as newborn,
            Producer([closed, newborn.address], retries=0) as producer,
        ):
            with pytest.raises(RouteNotFound) as unknown:
                await producer.send(Message("T", b"x"))
        text = str(unknown.value)
        assert f"[{closed}, {newborn.address}]" in text
        assert f"could be asked: cannot connect to {closed}" in text

    run(test())


def test_an_order_topic_is_sent_to_while_one_of_its_brokers_is_away() -> None:
    class Ordered(FakeBroker):
        def route(self) -> TopicRoute:
            route = super().route()
            route.order_topic_conf = "away:1;broker-a:1"
            return route

    async def test() -> None:
        async with Ordered() as broker, Producer(broker.address, retries=1) as producer:
            for _ in range(4):
                result = await producer.send(Message("T", b"x"))
                assert result.queue.broker_name == "broker-a"
            away, _ = await producer.queues("T")
            with pytest.raises(RouteNotFound, match="no master of broker 'away'"):
                await producer.send(Message("T", b"x"), queue=away)

    run(test())


def test_many_short_lived_producers_use_all_queues() -> None:
    async def test() -> None:
        async with FakeBroker() as broker:
            for _ in range(30):
                async with Producer(broker.address) as producer:
                    await producer.send(Message("T", b"x"))
            assert {(command.fields or {})["e"] for command in broker.sent} == {"0", "1"}

    run(test())


def test_an_advertised_address_that_cannot_be_reached_is_explained() -> None:
    closed = closed_address()

    async def test() -> None:
        async with (
            FakeBroker("far", advertise=closed) as broker,
            Producer(broker.address, retries=1) as producer,
        ):
            with pytest.raises(ConnectionFailed) as failed:
                await producer.send(Message("T", b"x"))
        for part in ("topic 'T'", "broker 'far'", closed, "brokerIP1"):
            assert part in str(failed.value)

    run(test())


def test_a_broker_without_a_master_cannot_be_sent_to() -> None:
    class OnlySlave(FakeBroker):
        def route(self) -> TopicRoute:
            route = super().route()
            route.brokers[0].addresses = {1: self.address}
            return route

    async def test() -> None:
        async with OnlySlave() as broker, Producer(broker.address, retries=0) as producer:
            with pytest.raises(RouteNotFound, match="no queue can be written to"):
                await producer.send(Message("T", b"x"))

    run(test())


@pytest.mark.parametrize("retries", [0, 3])
def test_a_master_that_has_become_a_slave_is_left_for_the_new_one(retries: int) -> None:
    """It lives and answers; the name server knows better, and is asked long before it is due."""

    async def test() -> None:
        async with (
            FakeBroker() as old,
            FakeBroker() as new,
            Producer(old.address, retries=retries) as producer,
        ):
            await producer.send(Message("T", b"first"))
            old.advertise = new.address
            old.answers = [14] * 1_000
            async with asyncio.timeout(25):  # a route is due after 30 s
                while not new.sent:
                    try:
                        await producer.send(Message("T", b"x"))
                    except ServiceNotAvailable:
                        assert not retries
                        await asyncio.sleep(0.02)

    run(test())


def test_a_broker_with_a_new_address_hears_of_a_producer_that_also_used_a_topic_now_gone() -> None:
    async def test(names: PlayedNameServer, old: PlayedBroker, new: PlayedBroker) -> None:
        async with Producer(names.address, **LIMITS) as producer:
            for topic in ("live", "gone"):
                names.routes[topic] = route_to(old.address)
                await producer.send(Message(topic, b"x"))
            del names.routes["gone"]
            names.routes["live"] = route_to(new.address)
            await asyncio.to_thread(old.stop)
            await producer.send(Message("live", b"x"))
            assert new.requests[0].code == RequestCode.HEART_BEAT

    with PlayedNameServer() as names, PlayedBroker() as old, PlayedBroker() as new:
        run(test(names, old, new))


WAYS = ("send", "send_batch", "send_columns", "a batcher", "a batcher with keys")


@pytest.mark.parametrize("way", WAYS)
def test_a_first_send_waits_for_the_only_broker_of_its_topic(way: str) -> None:
    async def send(producer: Producer) -> object:
        message = Message("orders", b"x")
        if way == "send":
            return await producer.send(message)
        if way == "send_batch":
            return await producer.send_batch([message])
        if way == "send_columns":
            pytest.importorskip("pyarrow")
            return await producer.send_columns({"body": [b"x"]}, topic="orders")
        async with Batcher(producer) as batcher:
            return await batcher.send(message, sharding_key="k" if "keys" in way else None)

    with Cluster() as cluster:
        create_topic(cluster.name_server, "orders")
        cluster.broker().stop()

        async def test() -> None:
            async with Producer(cluster.name_server, timeout_s=60, deadline_s=60) as producer:
                sending = asyncio.create_task(send(producer))
                await asyncio.wait([sending], timeout=0.5)
                assert not sending.done(), sending.exception()
                await asyncio.to_thread(cluster.broker().start)
                await sending

        run(test())
        assert len(cluster.messages("orders")) == 1


def test_a_batcher_forgets_topics_that_are_not_sent_to_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pymq.client.sending.batcher.TOPIC_COUNT", 4)

    async def test() -> None:
        async with (
            FakeBroker() as broker,
            Producer(broker.address, **LIMITS) as producer,
            Batcher(producer) as batcher,
        ):
            for day in range(20):
                for key in (None, "k"):
                    await batcher.send(Message(f"day-{day}", b"x"), sharding_key=key)
            assert len(batcher._gathered) <= 8
        assert len(broker.sent) == 40

    run(test())


@pytest.mark.parametrize("is_placed", [False, True])
def test_a_topic_that_no_broker_creates_is_refused_at_once(is_placed: bool) -> None:
    with Cluster(broker={"auto_create_topic": False}) as cluster:

        async def test() -> None:
            # Longer than the test may take.
            async with Producer(cluster.name_server, deadline_s=3_000.0) as producer:
                key = "k" if is_placed else None
                for send in (producer.send, Batcher(producer).send):
                    with pytest.raises(RouteNotFound, match="'nowhere'"):
                        await send(Message("nowhere", b"x"), sharding_key=key)

        run(test())
        with BlockingClient(cluster.name_server) as client, pytest.raises(RouteNotFound):
            client.send(Message("nowhere", b"x"), deadline_s=3_000.0)


def test_columns_to_a_topic_without_a_broker_fail_when_their_time_is_over() -> None:
    pytest.importorskip("pyarrow")
    with Cluster() as cluster:
        create_topic(cluster.name_server, "orders")
        cluster.broker().stop()

        async def test() -> None:
            async with Producer(cluster.name_server) as producer:
                with pytest.raises(RouteNotFound, match="'orders'"):
                    await producer.send_columns({"body": [b"x"]}, topic="orders", deadline_s=0.5)

        run(test())


def test_a_blocking_client_waits_for_the_only_broker_of_a_topic() -> None:
    with Cluster() as cluster, ThreadPoolExecutor(1) as other:
        create_topic(cluster.name_server, "orders")
        cluster.broker().stop()
        with BlockingClient(cluster.name_server, timeout_s=60.0) as client:
            sending = other.submit(client.send, Message("orders", b"x"), deadline_s=60.0)
            with pytest.raises(TimeoutError):
                sending.result(0.5)
            cluster.broker().start()
            assert sending.result(120).status is SendStatus.OK
