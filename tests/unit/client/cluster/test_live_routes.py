"""Routes of an asyncio client: read when needed, kept while no name server gives new ones."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from pymq.client.cluster.live_routes import LiveRoutes
from pymq.client.operations import Operation
from pymq.clock import Clock
from pymq.errors import ClientClosed, ConnectionFailed, PymqError, RouteNotFound, TopicNotExist
from pymq.net.tasks import Tasks
from pymq.protocol.bodies import BrokerData, ClusterInfo, QueueData, TopicRoute
from pymq.protocol.codes import RequestCode

GONE = TopicNotExist("no route info", code=17)


class ManualClock(Clock):
    """Stands still until it is moved."""

    now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s


class FakeNameServers:
    """Answers with the route or the error that is set, by topic."""

    addresses = ("ns:1",)

    def __init__(self) -> None:
        self.answers: dict[str, TopicRoute | PymqError] = {}
        self.cluster: ClusterInfo | PymqError = ClusterInfo()
        self.asked: list[str] = []

    async def ask(self, make: Callable[[], Operation[Any]]) -> TopicRoute | ClusterInfo:
        request = make().request
        answer: TopicRoute | ClusterInfo | PymqError = self.cluster
        if request.code != RequestCode.GET_BROKER_CLUSTER_INFO:
            topic = str((request.fields or {})["topic"])
            self.asked.append(topic)
            answer = self.answers.get(topic, GONE)
        if isinstance(answer, PymqError):
            raise answer
        return answer


class Bed:
    """Live routes over fake name servers, and what they reported."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.servers: Any = FakeNameServers()
        self.changed: list[str] = []
        self.is_open = True
        self.routes = LiveRoutes(
            self.servers,
            Tasks("test"),
            age_s=30.0,
            check_open=self._check_open,
            on_change=self.changed.append,
            clock=self.clock,
        )

    def _check_open(self) -> None:
        if not self.is_open:
            raise ClientClosed("closed")


def of_queues(count: int, address: str = "a:1") -> TopicRoute:
    return TopicRoute(
        brokers=[BrokerData(broker_name="a", addresses={0: address})],
        queues=[
            QueueData(broker_name="a", read_queue_count=count, write_queue_count=count, perm=6)
        ],
    )


def run(test: Callable[[Bed], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await test(Bed())

    asyncio.run(main())


def test_a_known_route_is_not_read_again_before_it_is_old() -> None:
    async def test(bed: Bed) -> None:
        bed.servers.answers["T"] = of_queues(2)
        both = await asyncio.gather(bed.routes.route("T"), bed.routes.route("T"))
        assert both[0] is both[1] is bed.routes.find("T") and len(both[0].read_queues) == 2
        assert await bed.routes.refresh() == 0
        assert bed.servers.asked == ["T"] and bed.changed == ["T"]
        bed.clock.now_s += 31
        assert await bed.routes.refresh() == 1
        assert bed.changed == ["T"]  # it is the same

    run(test)


def test_a_doubted_route_is_read_again() -> None:
    async def test(bed: Bed) -> None:
        bed.servers.answers["T"] = of_queues(2)
        await bed.routes.route("T")
        bed.servers.answers["T"] = of_queues(2, "a:9")
        assert (await bed.routes.route("T", refresh=True)).address("a") == "a:1"  # just read
        bed.clock.now_s += 1
        bed.routes.doubt("T")
        assert await bed.routes.refresh() == 1
        assert bed.routes.addresses() == {"a": {0: "a:9"}} and bed.changed == ["T", "T"]

    run(test)


@pytest.mark.parametrize("error", [GONE, ConnectionFailed("no name server answers")])
def test_without_a_new_route_the_old_one_is_kept(error: PymqError) -> None:
    async def test(bed: Bed) -> None:
        bed.servers.answers["T"] = of_queues(2)
        old = await bed.routes.route("T")
        bed.servers.answers["T"] = error
        bed.clock.now_s += 31
        assert await bed.routes.route("T", refresh=True) is old
        assert bed.servers.asked == ["T", "T"]

    run(test)


def test_a_topic_without_a_route() -> None:
    async def test(bed: Bed) -> None:
        with pytest.raises(RouteNotFound, match="ns:1"):
            await bed.routes.route("T")
        with pytest.raises(RouteNotFound):
            await bed.routes.route("T", create_queue_count=4)  # no broker creates topics
        bed.servers.answers["TBW102"] = of_queues(8)
        borrowed = await bed.routes.route("T", create_queue_count=4)
        assert borrowed.is_provisional and len(borrowed.write_queues) == 4
        bed.servers.answers["U"] = ConnectionFailed("no name server answers")
        with pytest.raises(ConnectionFailed):
            await bed.routes.route("U", create_queue_count=4)

    run(test)


@pytest.mark.parametrize(
    "cluster, is_certain",
    [
        (ClusterInfo(brokers={"a": BrokerData(broker_name="a", addresses={0: "a:1"})}), True),
        # A broker that restarts, or a name server that has just started.
        (ClusterInfo(brokers={"a": BrokerData(broker_name="a", addresses={1: "a:2"})}), False),
        (ClusterInfo(), False),
        (ConnectionFailed("no name server answers"), False),
    ],
)
def test_that_there_is_no_such_topic_is_certain_only_while_there_are_brokers(
    cluster: ClusterInfo | PymqError, is_certain: bool
) -> None:
    async def test(bed: Bed) -> None:
        bed.servers.cluster = cluster
        with pytest.raises(RouteNotFound) as failed:
            await bed.routes.route("T", create_queue_count=4)
        assert failed.value.is_certain == is_certain

    run(test)


def test_a_client_that_is_closed_has_no_routes() -> None:
    async def test(bed: Bed) -> None:
        bed.is_open = False
        with pytest.raises(ClientClosed):
            await bed.routes.route("T")

    run(test)
