"""The simple (POP) consumer over loopback: scenarios, two brokers, wrong arguments."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path

import pytest
from tests.cluster import popping
from tests.cluster.played import Played, PlayedNameServer, route_to
from tests.cluster.popping import fill
from tests.cluster.running import TIMEOUT_S, run
from tests.cluster.scenarios import create_topic, wait_until
from tests.spark.two_brokers import TwoBrokers, numbers
from tests.unit.client.test_ranges import record

from pymq import (
    ConfigurationError,
    Message,
    Producer,
    PymqError,
    RequestTimeout,
    RouteNotFound,
    SimpleConsumer,
    blocking,
)
from pymq.clock import Clock
from pymq.protocol.bodies import TopicRoute
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.testing.cluster import Cluster


@pytest.mark.parametrize("scenario", popping.ALL, ids=lambda one: one.__name__)
def test_scenario(
    scenario: Callable[[str, str], Awaitable[None]], pymq_cluster: Cluster, topic: str
) -> None:
    run(scenario(pymq_cluster.name_server, topic))


@pytest.mark.parametrize("trouble", ["killed", "frozen"])
def test_one_of_two_brokers_is_away(
    tmp_path: Path, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(bed: TwoBrokers) -> None:
        bed.create_topic("T")
        bed.send("T", numbers(80))
        got: Counter[bytes] = Counter()
        consumer = SimpleConsumer(bed.name_server, "g", from_where="earliest", timeout_s=4)

        async def consume(until: Callable[[], bool]) -> None:
            async with asyncio.timeout(90):
                while not until():
                    for message in await consumer.receive(8, 5, timeout_s=1):
                        try:
                            await consumer.ack(message)
                        except PymqError:
                            continue  # It comes again.
                        got[message.body] += 1

        async with consumer.subscribe("T"):
            await consume(lambda: len(got) >= 8)
            if trouble == "killed":
                await asyncio.to_thread(bed.broker("broker-b").kill)
            else:
                bed.freeze("broker-b")
            more = numbers(1000, 1040)
            await asyncio.to_thread(lambda: bed.send("T", more, to="broker-a"))
            await consume(lambda: set(more) <= got.keys())
            if trouble == "killed":
                await asyncio.to_thread(bed.start, "broker-b")
            else:
                bed.thaw("broker-b")
            bodies = {one.body for one in bed.acknowledged("T")}
            await consume(lambda: bodies <= got.keys())

    with caplog.at_level(logging.WARNING), TwoBrokers(tmp_path) as bed:
        run(test(bed))
    assert caplog.text.count("gets no messages of broker 'broker-b'") == 1


def test_a_topic_without_a_route_does_not_count_while_name_servers_are_away() -> None:
    async def test(cluster: Cluster) -> None:
        consumer = SimpleConsumer(
            cluster.name_server, "g", from_where="earliest", timeout_s=TIMEOUT_S
        )
        await fill(cluster.name_server, "T", 2)
        async with consumer.subscribe("T").subscribe("a-not-yet").subscribe("not-yet"):
            (first,) = await consumer.receive(1, TIMEOUT_S, timeout_s=TIMEOUT_S)
            await asyncio.to_thread(cluster.namesrv.stop)
            (second,) = await consumer.receive(1, TIMEOUT_S, timeout_s=TIMEOUT_S)
            assert {first.body, second.body} == {b"0", b"1"}

    with Cluster() as cluster:
        run(test(cluster))


@pytest.mark.parametrize("ahead_s", [5, -3600])
def test_the_clocks_of_brokers_may_differ_from_ours(ahead_s: int) -> None:
    class OtherClock(Clock):
        def wall_ms(self) -> int:
            return super().wall_ms() + ahead_s * 1000

    async def test(name_server: str) -> None:
        await fill(name_server, "T", 3)
        consumer = SimpleConsumer(name_server, "g", from_where="earliest", timeout_s=TIMEOUT_S)
        async with consumer.subscribe("T"):
            bodies: set[bytes] = set()
            async with asyncio.timeout(TIMEOUT_S):
                while len(bodies) < 3:
                    bodies |= {one.body for one in await consumer.receive(8, TIMEOUT_S)}

    with Cluster(clock=OtherClock()) as cluster:
        run(test(cluster.name_server))


class ClockAheadBroker(Played):
    """Judges pops as RocketMQ from 5.1.1 on does, by a clock that is ahead of ours."""

    def __init__(self) -> None:
        super().__init__(self._answer)

    def _answer(self, request: Command) -> Command | None:
        if request.code == RequestCode.POP_MESSAGE:
            fields = request.fields or {}
            now_ms = int(time.time() * 1000) + 60_000
            born_ms = int(fields["bornTime"]) or now_ms
            if now_ms - born_ms - int(fields["pollTime"]) > 500:
                remark = "the broker[127.0.0.1] pop message is timeout too much"
                return request.reply(ResponseCode.POLLING_TIMEOUT, remark)
            said = {"popTime": "1", "invisibleTime": "60000", "reviveQid": "0", "restNum": "0"}
            return request.reply(ResponseCode.SUCCESS, fields=said, body=record(5))
        return request.reply(ResponseCode.SUCCESS)


def test_the_clock_of_a_rocketmq_broker_may_be_ahead_of_ours() -> None:
    async def test(name_server: str) -> None:
        async with SimpleConsumer(name_server, "g", timeout_s=TIMEOUT_S).subscribe("T") as consumer:
            (message,) = await consumer.receive(1, TIMEOUT_S, timeout_s=TIMEOUT_S)
            assert message.queue_offset == 5

    with ClockAheadBroker() as broker, PlayedNameServer({"T": route_to(broker.address)}) as names:
        run(test(names.address))


class PopBroker(Played):
    """Has no message for anybody; says nothing at all to pops if it is silent."""

    def __init__(self, name: str, *, is_silent: bool = False) -> None:
        super().__init__(self._answer)
        self.name = name
        self.is_silent = is_silent

    def _answer(self, request: Command) -> Command | None:
        if request.code == RequestCode.POP_MESSAGE:
            return None if self.is_silent else request.reply(ResponseCode.POLLING_TIMEOUT)
        if request.code == RequestCode.NOTIFICATION:
            return request.reply(ResponseCode.SUCCESS, fields={"hasMsg": "false"})
        return request.reply(ResponseCode.SUCCESS)


async def receive_nothing(
    brokers: list[PopBroker], topics: list[str], *, timeout_s: float, receive_s: float
) -> None:
    routes = [route_to(one.address, name=one.name) for one in brokers]
    route = TopicRoute(
        queues=[queue for one in routes for queue in one.queues],
        brokers=[broker for one in routes for broker in one.brokers],
    )
    with PlayedNameServer(dict.fromkeys(topics, route)) as name_server:
        consumer = SimpleConsumer(name_server.address, "g", timeout_s=timeout_s)
        for topic in topics:
            consumer.subscribe(topic)
        async with consumer:
            assert await consumer.receive(1, TIMEOUT_S, timeout_s=receive_s) == []


def test_a_silent_broker_is_waited_for_once_and_not_for_each_topic() -> None:
    with PopBroker("broker-a", is_silent=True) as broker:
        with pytest.raises(RequestTimeout):
            run(receive_nothing([broker], ["A", "B", "C", "D"], timeout_s=2, receive_s=1))
        assert broker.count(RequestCode.POP_MESSAGE) == 1


def test_a_silent_broker_is_not_asked_for_news() -> None:
    with PopBroker("broker-a", is_silent=True) as silent, PopBroker("broker-b") as other:
        run(receive_nothing([silent, other], ["A", "B"], timeout_s=5, receive_s=6))
        assert other.count(RequestCode.POP_MESSAGE) >= 1
        assert silent.count(RequestCode.POP_MESSAGE) == 1
        assert silent.count(RequestCode.NOTIFICATION) == 0


def test_a_message_of_a_broker_that_is_back_is_acknowledged() -> None:
    """Also while the route does not have it again: that is read every 30 s."""

    async def test(cluster: Cluster) -> None:
        consumer = SimpleConsumer(
            cluster.name_server, "g", from_where="earliest", timeout_s=TIMEOUT_S
        )
        async with Producer(cluster.name_server) as producer, consumer.subscribe("T"):
            await producer.send(Message("T", b"x"))
            async with asyncio.timeout(TIMEOUT_S):
                while not (found := await consumer.receive(1, timeout_s=5)):
                    pass
                name = found[0].broker_name
                await asyncio.to_thread(cluster.broker(name).stop)
                with pytest.raises(PymqError):
                    await consumer.ack(found[0])
                routes = consumer._pool.routes
                while name in (await routes.route("T", refresh=True)).masters():
                    await asyncio.sleep(0.02)
            await asyncio.to_thread(cluster.broker(name).start)
            await wait_until(lambda: routes._may_read("T"), "the route was not read just now")
            await consumer.change_invisible(found[0], 60)
            await consumer.ack(found[0])

    with Cluster(brokers=2) as cluster:
        create_topic(cluster.name_server)
        run(test(cluster))


def test_the_blocking_face(pymq_cluster: Cluster, topic: str) -> None:
    async def prepare() -> None:
        await fill(pymq_cluster.name_server, topic, 3)

    run(prepare())
    consumer = blocking.SimpleConsumer(pymq_cluster.name_server, "g", from_where="earliest")
    with consumer.subscribe(topic):
        got = []
        while len(got) < 3:
            for message in consumer.receive(8, 30):
                consumer.change_invisible(message, 40)
                consumer.ack(message)
                got.append(message.body)
        assert sorted(got) == [b"0", b"1", b"2"]


def test_wrong_use_is_refused_with_a_reason(pymq_cluster: Cluster, topic: str) -> None:
    async def test() -> None:
        name_server = pymq_cluster.name_server
        with pytest.raises(ConfigurationError, match="subscribe"):
            await SimpleConsumer(name_server, "g").start()
        with pytest.raises(ConfigurationError, match="'latest' or 'earliest'"):
            SimpleConsumer(name_server, "g", from_where=datetime.now())  # type: ignore[arg-type]
        await fill(name_server, topic, 1)
        async with SimpleConsumer(name_server, "g").subscribe(topic) as consumer:
            for arguments in ((0, 1.0), (33, 1.0), (1, 0.0)):
                with pytest.raises(ConfigurationError, match="expected"):
                    await consumer.receive(*arguments)
            with pytest.raises(ConfigurationError, match="POP_CK"):
                await consumer.ack(None)  # type: ignore[arg-type]
        async with SimpleConsumer(name_server, "g").subscribe("nowhere") as consumer:
            with pytest.raises(RouteNotFound, match="nowhere"):
                await consumer.receive(1, 1, timeout_s=0)

    run(test())
