"""``Reader.read`` while brokers are away: it waits for what it must not leave out, or raises."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.cluster.played import Played, PlayedNameServer, route_to
from tests.unit.connector.fake import record

from pymq import ConfigurationError, MessageQueue, OffsetOutOfRange, RouteNotFound, blocking
from pymq.errors import NoPermission, SystemBusy
from pymq.protocol.bodies import TopicRoute
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command

END = 40
#: After the last of the messages.
LATE = datetime(2100, 1, 1, tzinfo=UTC)
#: For what must come, and for what is waited for in vain.
LONG_S, SHORT_S = 60.0, 0.3
BOUNDS = (
    RequestCode.GET_MIN_OFFSET,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
)


class PlayedMaster(Played):
    """Has messages ``0..end`` of queue 0; ``refusals`` are its next answers to other questions."""

    def __init__(self, end: int = END) -> None:
        super().__init__(self.give)
        self.end = end
        self.refusals: list[int] = []

    def give(self, request: Command) -> Command:
        fields = request.fields or {}
        if request.code in BOUNDS:
            if self.refusals:
                return request.reply(self.refusals.pop(0), "not now")
            offset = 0 if request.code == RequestCode.GET_MIN_OFFSET else self.end
            return request.reply(0, fields={"offset": str(offset)})
        if request.code != RequestCode.PULL_MESSAGE:
            return request.reply(0, fields={})
        first = int(fields["queueOffset"])
        behind = max(first, min(first + int(fields["maxMsgNums"]), first + 10, self.end))
        answer = {"suggestWhichBrokerId": "0", "nextBeginOffset": str(behind)}
        answer |= {"minOffset": "0", "maxOffset": str(self.end)}
        code = ResponseCode.SUCCESS if behind > first else ResponseCode.PULL_NOT_FOUND
        body = b"".join(record(topic="T", queue_offset=one) for one in range(first, behind))
        return request.reply(code, None, answer, body)

    @property
    def bounds_count(self) -> int:
        return sum(self.count(code) for code in BOUNDS)


@pytest.fixture(autouse=True)
def routes_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pymq.client.cluster.live_routes.ROUTE_READ_MIN_S", 0.0)


@pytest.fixture
def first() -> Iterator[PlayedMaster]:
    with PlayedMaster() as played:
        yield played


@pytest.fixture
def second() -> Iterator[PlayedMaster]:
    with PlayedMaster() as played:
        yield played


@pytest.fixture
def name_server() -> Iterator[PlayedNameServer]:
    with PlayedNameServer() as played:
        yield played


def joined(*routes: TopicRoute) -> TopicRoute:
    return TopicRoute(
        queues=[one for route in routes for one in route.queues],
        brokers=[one for route in routes for one in route.brokers],
    )


def slave_at(address: str) -> TopicRoute:
    route = route_to(address)
    route.brokers[0].addresses = {1: address}
    return route


def come_later(name_server: PlayedNameServer, before: TopicRoute | None, later: TopicRoute) -> None:
    """Play a route that is ``later`` only when it is asked for the fourth time from now on."""
    usual = name_server.answer
    end = len(name_server.requests) + 3

    def answer(request: Command) -> Command | None:
        found = later if len(name_server.requests) > end else before
        if found is None:
            name_server.routes.clear()
        else:
            name_server.routes["T"] = found
        return usual(request)

    name_server.answer = answer


def count(reader: blocking.Reader, *bounds: Any, **arguments: Any) -> int:
    return sum(map(len, reader.read("T", *bounds, **arguments)))


# ------------------------------------------------------------------------ brokers that are missing


def test_a_broker_that_was_there_is_missed(
    name_server: PlayedNameServer, first: PlayedMaster, second: PlayedMaster
) -> None:
    alone = route_to(first.address)
    both = joined(alone, route_to(second.address, name="broker-b"))
    name_server.routes["T"] = both
    with (
        blocking.Reader(name_server.address, deadline_s=SHORT_S) as hasty,
        blocking.Reader(name_server.address, deadline_s=LONG_S) as patient,
    ):
        assert count(hasty) == count(patient) == 2 * END
        name_server.routes["T"] = alone
        with pytest.raises(RouteNotFound, match="broker-b, which was there.*queues on broker-a"):
            count(hasty)
        assert count(hasty, queues=hasty.queues("T")) == END
        come_later(name_server, alone, both)
        assert count(patient) == 2 * END


def test_queues_that_were_shown_are_missed(
    name_server: PlayedNameServer, first: PlayedMaster, second: PlayedMaster
) -> None:
    both = joined(route_to(first.address), route_to(second.address, name="broker-b"))
    name_server.routes["T"] = both
    with blocking.Reader(name_server.address, deadline_s=SHORT_S) as reader:
        assert len(reader.queues("T")) == 2
        name_server.routes["T"] = route_to(first.address)
        with pytest.raises(RouteNotFound, match="broker-b, which was there"):
            count(reader)


def test_brokers_that_are_expected(
    name_server: PlayedNameServer, first: PlayedMaster, second: PlayedMaster
) -> None:
    alone = route_to(first.address)
    both = joined(alone, route_to(second.address, name="broker-b"))
    expected = {"expected_brokers": ["broker-a", "broker-b"]}
    name_server.routes["T"] = alone
    with blocking.Reader(name_server.address, deadline_s=SHORT_S) as reader:
        assert count(reader) == END  # nobody can know
        with pytest.raises(RouteNotFound, match="broker-b, which.*is among expected_brokers"):
            count(reader, **expected)
    for before in (alone, None):
        with blocking.Reader(name_server.address, deadline_s=LONG_S) as reader:
            come_later(name_server, before, both)
            assert count(reader, **expected) == 2 * END
    with blocking.Reader(name_server.address) as reader:
        queues = [MessageQueue("T", "broker-a", 0)]
        with pytest.raises(ConfigurationError, match="names broker-b, of which no queue"):
            count(reader, queues=queues, **expected)
        for wrong in ("broker-a", [""], [1], None):
            with pytest.raises(ConfigurationError, match="expected several names of brokers"):
                count(reader, expected_brokers=wrong)


def test_a_topic_that_nobody_knows_is_not_waited_for(name_server: PlayedNameServer) -> None:
    with (
        blocking.Reader(name_server.address, deadline_s=LONG_S) as reader,
        pytest.raises(RouteNotFound, match="no name server"),
    ):
        count(reader)
    asked = [(one.fields or {})["topic"] for one in name_server.requests]
    assert asked.count("T") == 1


def test_a_broker_that_is_new_is_read(
    name_server: PlayedNameServer, first: PlayedMaster, second: PlayedMaster
) -> None:
    """The route that the reader knows may be half a minute old."""
    name_server.routes["T"] = alone = route_to(first.address)
    with blocking.Reader(name_server.address) as reader:
        assert count(reader) == END
        name_server.routes["T"] = joined(alone, route_to(second.address, name="broker-b"))
        assert count(reader) == 2 * END


# ------------------------------------------------------------- masters that do not say their bounds

PLACES = [("first", "last"), (0, "last"), (LATE, "last"), ("first", LATE), (END + 1, "first")]


@pytest.mark.parametrize(("start", "end"), PLACES, ids=str)
def test_bounds_are_asked_for_again(
    name_server: PlayedNameServer, first: PlayedMaster, start: Any, end: Any
) -> None:
    name_server.routes["T"] = route_to(first.address)
    queues = [MessageQueue("T", "broker-a", 0)]
    with blocking.Reader(name_server.address, deadline_s=LONG_S) as reader:
        for arguments in ({}, {"queues": queues}):
            first.refusals = [int(ResponseCode.SYSTEM_BUSY)] * 3
            if start == END + 1:
                with pytest.raises(OffsetOutOfRange, match="the queue ends at 40"):
                    count(reader, start, end, **arguments)
            else:
                assert count(reader, start, end, **arguments) == (0 if start == LATE else END)
            assert first.refusals == []


def test_bounds_are_given_up_at_the_deadline(
    name_server: PlayedNameServer, first: PlayedMaster
) -> None:
    name_server.routes["T"] = route_to(first.address)
    with blocking.Reader(name_server.address, deadline_s=SHORT_S) as reader:
        first.refusals = [int(ResponseCode.SYSTEM_BUSY)] * 100
        with pytest.raises(SystemBusy):
            count(reader)
        assert first.bounds_count > 2
        first.refusals = [int(ResponseCode.NO_PERMISSION)]
        with pytest.raises(NoPermission):  # for which nothing is waited
            count(reader)
    first.stop()
    with blocking.Reader(name_server.address, deadline_s=LONG_S) as reader:
        usual = name_server.answer

        def starts_meanwhile(request: Command) -> Command | None:
            name_server.answer = usual
            name_server.routes["T"] = route_to(first.start().address)
            return usual(request)

        assert reader.queues("T")
        name_server.answer = starts_meanwhile
        first.refusals.clear()
        assert count(reader) == END


# ---------------------------------------------------------------------- slaves without their master


def test_a_slave_does_not_say_where_a_queue_ends(
    name_server: PlayedNameServer, first: PlayedMaster
) -> None:
    with PlayedMaster(end=10) as slave:
        alone = slave_at(slave.address)
        name_server.routes["T"] = alone
        with blocking.Reader(name_server.address, deadline_s=SHORT_S) as reader:
            for start, end in [("first", 10), (0, "last"), (LATE, 10), (0, LATE)]:
                with pytest.raises(RouteNotFound, match="no master of broker 'broker-a'"):
                    count(reader, start, end)
            assert slave.bounds_count == 0
            assert count(reader, 0, 10) == 10  # for which nobody need be asked
        with blocking.Reader(name_server.address, deadline_s=LONG_S) as reader:
            come_later(name_server, alone, route_to(first.address))
            assert count(reader) == END


@pytest.mark.parametrize("tags", ["*", "a"])
def test_what_a_slave_lacks_is_waited_for(
    name_server: PlayedNameServer, first: PlayedMaster, tags: str
) -> None:
    with PlayedMaster(end=10) as slave:
        alone = slave_at(slave.address)
        name_server.routes["T"] = alone
        with (
            blocking.Reader(name_server.address, deadline_s=SHORT_S) as reader,
            pytest.raises(RouteNotFound, match=r"offset 10 of .* a slave has, which may lag"),
        ):
            count(reader, 0, END, tags=tags)
        usual = slave.answer

        def master_is_back(request: Command) -> Command | None:
            if (request.fields or {}).get("queueOffset") == "10":
                name_server.routes["T"] = route_to(first.address)
            return usual(request)

        slave.answer = master_is_back
        with blocking.Reader(name_server.address, deadline_s=LONG_S) as reader:
            assert count(reader, 0, END, tags=tags) == (END if tags == "*" else 0)
            with pytest.raises(
                OffsetOutOfRange, match="offset 40 of"
            ):  # the master's word is final
                count(reader, 0, END + 1, tags=tags)
