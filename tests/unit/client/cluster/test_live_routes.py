"""Routes of an asyncio client: read when needed, kept while no name server gives new ones."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from pymq.client.cluster.live_routes import LiveRoutes
from pymq.client.cluster.refusing_masters import LOOK_MAX_S
from pymq.client.operations import Operation
from pymq.clock import Clock
from pymq.errors import (
    ClientClosed,
    ConnectionFailed,
    NotReplicated,
    PymqError,
    RouteNotFound,
    ServiceNotAvailable,
    SystemBusy,
    TooManyPending,
    TopicNotExist,
)
from pymq.net.tasks import Tasks
from pymq.protocol.bodies import BrokerData, ClusterInfo, QueueData, TopicRoute
from pymq.protocol.codes import RequestCode

GONE = TopicNotExist("no route info", code=17)
GONE.is_certain = True
GONE.add_note("which does not count, because notes are for people")
AWAY = ConnectionFailed("no name server answers")


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
        #: Topics that are asked about in vain.
        self.silent: set[str] = set()

    async def ask(self, make: Callable[[], Operation[Any]]) -> TopicRoute | ClusterInfo:
        request = make().request
        answer: TopicRoute | ClusterInfo | PymqError = self.cluster
        if request.code != RequestCode.GET_BROKER_CLUSTER_INFO:
            topic = str((request.fields or {})["topic"])
            self.asked.append(topic)
            if topic in self.silent:
                await asyncio.Event().wait()
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

    async def pass_s(self, time_s: float) -> dict[str, list[float]]:
        """Let time pass, refreshing routes twice a second; return when each topic was asked for."""
        begun_s, asked = self.clock.now_s, dict[str, list[float]]()
        while self.clock.now_s < begun_s + time_s:
            self.servers.asked.clear()
            await self.routes.refresh()
            for topic in self.servers.asked:
                asked.setdefault(topic, []).append(self.clock.now_s - begun_s)
            self.clock.now_s += 0.5
        return asked

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


@pytest.mark.parametrize("error", [GONE, AWAY])
def test_without_a_new_route_the_old_one_is_kept(error: PymqError) -> None:
    async def test(bed: Bed) -> None:
        bed.servers.answers["T"] = of_queues(2)
        old = await bed.routes.route("T")
        bed.servers.answers["T"] = error
        bed.clock.now_s += 31
        assert await bed.routes.route("T", refresh=True) is old
        assert bed.servers.asked == ["T", "T"]

    run(test)


def test_a_topic_that_is_gone_is_asked_for_less_and_less_often_and_forgotten() -> None:
    """Its broker is known, with other topics."""

    async def test(bed: Bed) -> None:
        for topic in ("T", "gone"):
            bed.servers.answers[topic] = of_queues(2)
            await bed.routes.route(topic)
        bed.servers.answers["gone"] = GONE
        bed.clock.now_s += 30
        bed.changed.clear()
        asked = await bed.pass_s(200)
        assert asked["gone"] == [0, 1, 2, 4, 8, 16, 32, 62]
        assert asked["T"] == [0, 30, 60, 90, 120, 150, 180]
        assert bed.routes.find("gone") is None and bed.changed == ["gone"]
        with pytest.raises(RouteNotFound):
            await bed.routes.route("gone")
        bed.servers.answers["gone"] = of_queues(4)
        assert len((await bed.routes.route("gone")).read_queues) == 4

    run(test)


@pytest.mark.parametrize("error", [GONE, AWAY])
def test_a_topic_whose_broker_is_away_is_waited_for(error: PymqError) -> None:
    async def test(bed: Bed) -> None:
        for topic in ("T", "U"):
            bed.servers.answers[topic] = of_queues(2)
            await bed.routes.route(topic)
            bed.servers.answers[topic] = error
        bed.clock.now_s += 30
        for topics in (await bed.pass_s(180)).values():
            assert topics == [0, 1, 2, 4, 8, 16, 32, 62, 92, 122, 152]
        assert bed.routes.addresses() == {"a": {0: "a:1"}}
        bed.servers.answers["U"] = of_queues(2, "a:9")
        bed.routes.doubt("U")  # a pull or a send failed
        assert (await bed.pass_s(0.5))["U"] == [0]
        assert bed.routes.addresses() == {"a": {0: "a:9"}}

    run(test)


def test_a_topic_is_not_gone_while_a_name_server_could_not_be_asked() -> None:
    async def test(bed: Bed) -> None:
        for topic in ("T", "U"):
            bed.servers.answers[topic] = of_queues(2)
            await bed.routes.route(topic)
        bed.servers.answers["U"] = TopicNotExist("no route info", code=17)
        assert len((await bed.pass_s(600))["U"]) < 30
        assert bed.routes.find("U") is not None
        bed.servers.answers["U"] = GONE
        await bed.pass_s(120)
        assert bed.routes.find("U") is None

    run(test)


def test_a_borrowed_route_of_a_topic_that_nobody_creates_is_forgotten() -> None:
    async def test(bed: Bed) -> None:
        bed.servers.answers["TBW102"] = of_queues(8)
        await bed.routes.route("T", create_queue_count=4)
        asked = (await bed.pass_s(200))["T"]
        assert asked[0] == 1 and asked[-1] < 70
        assert bed.routes.find("T") is None

    run(test)


def test_a_route_that_no_name_server_gives_keeps_no_other_waiting() -> None:
    async def test(bed: Bed) -> None:
        for topic in ("silent", "T"):
            bed.servers.answers[topic] = of_queues(2)
            await bed.routes.route(topic)
        bed.servers.silent.add("silent")
        bed.servers.answers["T"] = of_queues(2, "a:9")
        bed.clock.now_s += 30
        refreshing = asyncio.ensure_future(bed.routes.refresh())
        async with asyncio.timeout(60):
            while bed.routes.addresses() != {"a": {0: "a:9"}}:
                await asyncio.sleep(0)
        refreshing.cancel()

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
        bed.servers.answers["U"] = AWAY
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


def with_slave(master: str, slave: str, name: str = "a") -> TopicRoute:
    broker = BrokerData(cluster="c", broker_name=name, addresses={0: master, 1: slave})
    data = QueueData(broker_name=name, read_queue_count=1, write_queue_count=1, perm=6)
    return TopicRoute(queues=[data], brokers=[broker])


def test_a_master_that_fails_as_slaves_do_has_its_routes_read_again() -> None:
    """Not those of others; nor, if it is only busy, again and again."""

    async def test() -> None:
        bed = Bed()
        bed.servers.answers = {"T": with_slave("a:1", "a:2"), "U": with_slave("a:2", "a:1", "b")}
        for topic in "TU":
            await bed.routes.route(topic)

        async def fail(error: PymqError) -> list[str]:
            bed.servers.asked.clear()
            with pytest.raises(type(error)), bed.routes.hearing("a:1"):
                raise error
            await bed.routes.refresh()
            return list(bed.servers.asked)

        masters: list[str] = []
        bed.routes.on_new_master = masters.append
        assert await fail(TopicNotExist("it has no such topic", code=17)) == []
        assert await fail(SystemBusy("it may not be read from", code=2)) == ["T"]
        assert await fail(SystemBusy("it may not be read from", code=2)) == [], "just now"
        bed.clock.now_s += 0.25
        bed.servers.answers["T"] = with_slave("a:2", "a:1")
        assert await fail(ServiceNotAvailable("it is a slave", code=14)) == ["T"]
        assert await fail(ServiceNotAvailable("it is a slave", code=14)) == [], "it is known"
        found = bed.routes.find("T")
        assert found is not None and found.masters() == {"a": "a:2"} and bed.changed[-1] == "T"
        assert masters == ["a:2"]
        # Back again, at once: that it has refused before does not count.
        bed.servers.answers["T"] = with_slave("a:1", "a:2")
        bed.routes.doubt("T")
        await bed.routes.refresh()
        assert await fail(NotReplicated("it has no slaves", code=12)) == ["T"]

    asyncio.run(test())


def refuse(bed: Bed, address: str = "a:1") -> None:
    """A master fails as one does that is busy, or a slave now."""
    with pytest.raises(SystemBusy), bed.routes.hearing(address):
        raise SystemBusy("it refuses", code=2)


def test_of_a_master_that_is_only_busy_one_route_is_read_now_and_then() -> None:
    """Another one each time, and not of a topic that is gone, which would tell nothing."""

    async def test(bed: Bed) -> None:
        topics = [f"T{number}" for number in range(50)]
        bed.servers.answers = dict.fromkeys(topics, with_slave("a:1", "a:2"))
        for topic in topics:
            await bed.routes.route(topic)
            bed.clock.now_s += 0.001
        bed.servers.answers["T0"] = TopicNotExist("no route info", code=17)
        bed.servers.asked.clear()
        for _ in range(5):
            refuse(bed)
            await bed.routes.refresh()
            bed.clock.now_s += 1.0
        assert bed.servers.asked[0] == "T0"
        assert [topic for topic in bed.servers.asked if topic != "T0"] == topics[1:5]

    run(test)


def test_of_a_master_that_is_busy_for_minutes_hardly_more_is_read_than_in_any_case() -> None:
    """That would be 1000 routes here."""

    async def test(bed: Bed) -> None:
        bed.routes._table.age_s = 1e9  # None is read because of its age.
        topics = [f"T{number}" for number in range(50)]
        bed.servers.answers = dict.fromkeys(topics, with_slave("a:1", "a:2"))
        for topic in topics:
            await bed.routes.route(topic)
        bed.servers.asked.clear()
        for _ in range(1200):
            refuse(bed)
            await bed.routes.refresh()
            bed.clock.now_s += 0.5
        assert 600 / LOOK_MAX_S <= len(bed.servers.asked) < 600 / LOOK_MAX_S + 40, "in ten minutes"

    run(test)


def test_when_one_route_has_another_master_the_others_are_read() -> None:
    """Also those that were read of a name server that did not know it yet."""

    async def test(bed: Bed) -> None:
        topics = [f"T{number}" for number in range(40)]
        before, after = with_slave("a:1", "a:2"), with_slave("a:2", "a:1")
        bed.servers.answers = dict.fromkeys(topics, before)
        bed.servers.answers["far"] = with_slave("b:1", "b:2", "b")
        for topic in bed.servers.answers:
            await bed.routes.route(topic)
        bed.servers.answers |= dict.fromkeys(topics[:30], after)
        refuse(bed)
        for count in (1, 39, 0):
            bed.servers.asked.clear()
            assert await bed.routes.refresh() == count
        assert "far" not in bed.servers.asked
        now = [bed.routes.find(topic) for topic in topics]
        assert [one.address("a") for one in now if one is not None] == ["a:2"] * 30 + ["a:1"] * 10
        bed.servers.answers |= dict.fromkeys(topics, after)
        refuse(bed)
        for count in (1, 9, 0):
            assert await bed.routes.refresh() == count
        now = [bed.routes.find(topic) for topic in topics]
        assert all(one is not None and one.address("a") == "a:2" for one in now)

    run(test)


def test_a_new_master_that_cannot_be_greeted_is_told_of() -> None:
    async def test(bed: Bed) -> None:
        bed.servers.answers["T"] = with_slave("a:1", "a:2")
        await bed.routes.route("T")
        bed.servers.answers["T"] = with_slave("a:2", "a:1")
        bed.clock.now_s += 1
        bed.changed.clear()

        def greet(address: str) -> None:
            raise TooManyPending("100 requests are unanswered")

        bed.routes.on_new_master = greet
        with pytest.raises(TooManyPending):
            await bed.routes.route("T", refresh=True)
        assert bed.changed == ["T"]

    run(test)
