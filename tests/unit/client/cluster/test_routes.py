"""Queues and addresses out of routes, and when a route is asked for again."""

import pytest

from pymq.client.cluster.route_table import (
    ELECTION_AGE_S,
    ELECTION_S,
    LEFT_S,
    MISSED_COUNT_MAX,
    MISSING_S,
    PROVISIONAL_AGE_S,
    RouteTable,
    difference,
)
from pymq.client.cluster.routes import (
    QUEUE_COUNT_MAX,
    existing_route,
    no_route,
    no_write_queue,
    pick_queue,
    provisional_route,
)
from pymq.errors import RemoteProtocolError, RouteNotFound, TopicNotExist
from pymq.protocol.bodies import BrokerData, MessageQueue, QueueData, TopicRoute

READ_WRITE = 6


def found(
    *brokers: tuple[str, dict[int, str], int, int, int], order: str | None = None
) -> TopicRoute:
    """A route of brokers: name, addresses, read queues, write queues, permission."""
    return TopicRoute(
        brokers=[BrokerData(broker_name=name, addresses=at) for name, at, *_ in brokers],
        queues=[
            QueueData(broker_name=name, read_queue_count=r, write_queue_count=w, perm=perm)
            for name, _, r, w, perm in brokers
        ],
        order_topic_conf=order,
    )


def queues(*places: tuple[str, int]) -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue("T", name, number) for name, number in places)


A = ("a", {0: "a:1", 2: "a:3", 1: "a:2"}, 2, 1, READ_WRITE)


@pytest.mark.parametrize(
    ("broker", "write", "read"),
    [
        (A, [("a", 0)], [("a", 0), ("a", 1)]),
        (("a", {0: "a:1"}, 1, 1, 4), [], [("a", 0)]),
        (("a", {0: "a:1"}, 1, 1, 2), [("a", 0)], []),
        (("a", {1: "a:2"}, 1, 1, READ_WRITE), [], [("a", 0)]),  # no master
        (("a", {}, 1, 1, READ_WRITE), [], []),
        (("a", {0: "a:1"}, 0, 0, READ_WRITE), [], []),
    ],
)
def test_queues_of_a_route(
    broker: tuple[str, dict[int, str], int, int, int],
    write: list[tuple[str, int]],
    read: list[tuple[str, int]],
) -> None:
    route = existing_route("T", found(broker))
    assert route.write_queues == queues(*write)
    assert route.read_queues == queues(*read)
    assert not route.is_provisional


@pytest.mark.parametrize("counts", [(10**9, 1), (1, 10**9)])
def test_a_route_with_a_number_of_queues_that_cannot_be_is_refused(counts: tuple[int, int]) -> None:
    read, write = counts
    lie = found(("a", {0: "a:1"}, read, write, READ_WRITE))
    with pytest.raises(RemoteProtocolError, match="'a' 1000000000 queues, expected at most 65536"):
        existing_route("T", lie)
    if write > QUEUE_COUNT_MAX:
        with pytest.raises(RemoteProtocolError, match="expected at most 65536"):
            provisional_route("T", lie, 4)


@pytest.mark.parametrize("count", ["65537", "3000000", "9" * 5000])
def test_an_order_configuration_with_a_number_that_cannot_be_is_refused(count: str) -> None:
    with pytest.raises(RemoteProtocolError, match=r"'b' \d+ queues, expected at most 65536"):
        existing_route("T", found(A, order=f"a:1;b:{count}"))


def test_an_order_configuration_may_have_zeros_and_parts_that_are_none() -> None:
    route = existing_route("T", found(A, order=f"b:{'0' * 20}2;c;d:x;e:\u0662;:3"))
    assert route.write_queues == queues(("b", 0), ("b", 1))


def test_blanks_in_an_order_configuration_do_not_matter() -> None:
    route = existing_route("T", found(A, order=" b:2 ; c : 1;; "))
    assert route.write_queues == queues(("b", 0), ("b", 1), ("c", 0))


@pytest.mark.parametrize("conf", ["b0", "b0:x", "b0:-1;;", ":3", "b0:2:1"])
def test_an_order_configuration_without_a_queue_is_named_in_the_error(conf: str) -> None:
    route = existing_route("T", found(A, order=conf))
    assert route.write_queues == () and route.order_conf == conf
    text = str(no_write_queue(route))
    assert "ORDER_TOPIC_CONFIG" in text and f"says {conf!r}" in text
    assert f"not so: {conf.rstrip(';')!r}" in text
    assert "permission" not in text


def test_the_broker_of_an_order_configuration_that_is_not_there_is_named_with_it() -> None:
    route = existing_route("T", found(A, order="ghost:1"))
    with pytest.raises(RouteNotFound, match=r"no master of broker 'ghost'.*'ghost:1'"):
        route.address("ghost")
    plain = existing_route("T", found(A))
    with pytest.raises(RouteNotFound, match=r"is that broker running\?$"):
        plain.address("ghost")


@pytest.mark.parametrize(
    ("name", "broker_id"),
    [
        pytest.param("a", 7, id="a slave that is away"),
        pytest.param("b", 0, id="a broker of which the slave alone is there"),
        pytest.param("other", 0, id="a broker that is not in it"),
    ],
)
def test_an_order_configuration_that_is_not_the_reason_is_not_named(
    name: str, broker_id: int
) -> None:
    """It is about sending, and names brokers that are there."""
    slave = ("b", {1: "b:2"}, 1, 1, READ_WRITE)
    route = existing_route("T", found(A, slave, order="a:2;b:2"))
    with pytest.raises(RouteNotFound, match=r"is that broker running\?$"):
        route.address(name, broker_id)


def test_parts_of_an_order_configuration_that_are_none_are_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(3):
        existing_route("warned", found(A, order="b:1;c;d:x"))
    (warning,) = caplog.messages
    assert warning.startswith("topic 'warned': the name server's configuration of order topics, ")
    assert "not so: 'c', 'd:x'. Correct it" in warning
    existing_route("warned", found(A, order="b:1;d:1;"))
    assert len(caplog.messages) == 1


def test_a_broker_that_an_order_configuration_names_twice_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As in Java its queues are there twice, and get twice as much."""
    route = existing_route("twice", found(A, order="a:1;b:1;a:1"))
    places = [(queue.broker_name, queue.queue_id) for queue in route.write_queues]
    assert places == [("a", 0), ("b", 0), ("a", 0)]
    (warning,) = caplog.messages
    assert "named more than once, so that their queues get more than others: 'a'" in warning


@pytest.mark.parametrize("by_order", [False, True])
def test_a_route_with_too_many_queues_of_many_brokers_is_refused(by_order: bool) -> None:
    names = [f"b{number}" for number in range(5)]
    if by_order:
        lie = found(order=";".join(f"{name}:{QUEUE_COUNT_MAX}" for name in names))
    else:
        lie = found(*((name, {0: "a:1"}, QUEUE_COUNT_MAX, 1, READ_WRITE) for name in names))
    with pytest.raises(RemoteProtocolError, match="queues in all, expected at most 262144"):
        existing_route("T", lie)


def test_queues_are_sorted_by_broker_and_number() -> None:
    b = ("b", {0: "b:1"}, 1, 2, READ_WRITE)
    assert existing_route("T", found(b, A)).write_queues == queues(("a", 0), ("b", 0), ("b", 1))


def test_an_order_topic_keeps_its_queues() -> None:
    route = existing_route("T", found(A, order="a:3;gone:2;broken"))
    # Those of a broker that is away, too, or the choice by key would change while it is.
    assert route.write_queues == queues(("a", 0), ("a", 1), ("a", 2), ("gone", 0), ("gone", 1))


def test_a_new_topic_borrows_the_template_and_its_limit() -> None:
    template = found(("a", {0: "a:1"}, 8, 8, 7), ("b", {0: "b:1"}, 1, 1, 7))
    route = provisional_route("T", template, 2)
    assert route.is_provisional
    assert route.write_queues == queues(("a", 0), ("a", 1), ("b", 0))


def test_the_part_of_a_route_that_some_queues_need() -> None:
    route = existing_route("T", found(A, ("b", {0: "b:1"}, 2, 2, READ_WRITE)))
    part = route.only(queues(("b", 1)))
    assert part.addresses == {"b": {0: "b:1"}}
    assert part.read_queues == part.write_queues == queues(("b", 1))
    assert route.only(()).addresses == {}


def test_addresses() -> None:
    route = existing_route("T", found(A, ("slaves", {2: "s:2", 1: "s:1"}, 1, 1, READ_WRITE)))
    assert (route.address("a"), route.address("a", 2)) == ("a:1", "a:3")
    assert route.read_address("a") == "a:1"
    assert route.read_address("a", 1) == "a:2"
    assert route.read_address("a", 9) == "a:1"
    assert route.read_address("slaves") == "s:1"
    assert route.masters() == {"a": "a:1"}
    with pytest.raises(RouteNotFound, match=r"no master of broker 'slaves'.*1: s:1"):
        route.address("slaves")
    with pytest.raises(RouteNotFound, match="'gone'"):
        route.read_address("gone")


def test_a_missing_route_says_who_was_asked_and_what_to_do() -> None:
    text = str(no_route("T", ["n1:9876", "n2:9876"]))
    for part in ("'T'", "n1:9876, n2:9876", "pymq topic create T", "autoCreateTopicEnable"):
        assert part in text
    text = str(no_route("%DLQ%billing", ["n1:9876"]))
    assert "first dead letter of group 'billing'" in text and "topic create" not in text
    missing = TopicNotExist("no route info", code=17)
    missing.add_note("n1 is away")
    error = no_route("T", ["n1", "n2"], missing)
    assert "not all of them could be asked: n1 is away" in str(error) and not error.is_certain
    missing.is_certain = True  # and the note says something else
    error = no_route("T", ["n1", "n2"], missing)
    assert "not all" not in str(error) and error.is_certain


def test_the_turn_goes_round_and_avoids_what_failed() -> None:
    all_queues = queues(("a", 0), ("a", 1), ("b", 0))
    assert [pick_queue(all_queues, turn) for turn in range(4)] == [*all_queues, all_queues[0]]
    for turn in range(5):
        assert pick_queue(all_queues, turn, avoid={"a"}).broker_name == "b"
        assert pick_queue(all_queues, turn, avoid={"a", "b"}) == all_queues[turn % 3]


def test_differences() -> None:
    old = existing_route("T", found(A))
    new = existing_route("T", found(("a", {0: "a:9", 1: "a:2"}, 1, 2, READ_WRITE)))
    change = difference(old, new)
    assert change.write_added == {MessageQueue("T", "a", 1)} and not change.write_removed
    assert change.read_removed == {MessageQueue("T", "a", 1)} and not change.read_added
    assert change.addresses_gone == {"a:1", "a:3"}
    assert change and not difference(new, new)
    assert difference(None, old).read_added == set(old.read_queues)


def test_routes_grow_old() -> None:
    table = RouteTable(30.0)
    assert (table.find("T"), table.fresh("T", 0.0), table.topics) == (None, None, [])
    route = existing_route("T", found(A))
    assert table.put(route, 100.0)
    assert table.fresh("T", 129.9) is route
    assert table.fresh("T", 130.0) is None
    assert table.find("T") is route
    assert (table.stale(129.9), table.stale(130.0)) == ([], ["T"])
    assert not table.put(route, 130.0)
    assert table.stale(131.0) == []


def test_doubted_and_provisional_routes_are_old_soon() -> None:
    table = RouteTable(30.0)
    route = existing_route("T", found(A))
    table.put(route, 100.0)
    table.doubt("other")
    assert table.fresh("T", 100.0) is route
    table.doubt("T")
    assert table.fresh("T", 100.0) is None
    borrowed = provisional_route("T", found(A), 4)
    table.put(borrowed, 200.0)
    assert table.fresh("T", 200.0 + PROVISIONAL_AGE_S / 2) is borrowed
    assert table.fresh("T", 200.0 + PROVISIONAL_AGE_S) is None
    table.forget("T")
    assert table.find("T") is None


def test_a_broker_that_left_a_route_is_looked_for_often_for_a_while() -> None:
    table = RouteTable(30.0)
    both = existing_route("T", found(("a", {0: "a:1"}, 1, 1, 6), ("b", {0: "b:1"}, 1, 1, 6)))
    one = existing_route("T", found(("b", {0: "b:1"}, 1, 1, 6)))
    table.put(both, 100.0)
    table.put(one, 110.0)
    assert (table.stale(111.9), table.stale(112.0)) == ([], ["T"])
    table.put(one, 112.0)
    assert (table.stale(113.9), table.stale(114.0)) == ([], ["T"])
    table.put(both, 114.0)
    assert (table.stale(143.9), table.stale(144.0)) == ([], ["T"])
    table.put(one, 200.0)
    table.put(one, 200.0 + LEFT_S)  # it does not come back
    assert table.stale(200.0 + LEFT_S + 29) == []
    table.put(provisional_route("U", found(A, ("b", {0: "b:1"}, 1, 1, 6)), 4), 0.0)
    table.put(existing_route("U", found(A)), 1.0)  # created on one of two brokers: none has left
    assert reads(table, "U", 1.0, 91.0) == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 62.0]


GROUP = existing_route("T", found(("a", {0: "a:1", 2: "a:2"}, 1, 1, 6)))
SWAPPED = existing_route("T", found(("a", {0: "a:2", 1: "a:1"}, 1, 1, 6)))
MASTERLESS = existing_route("T", found(("a", {1: "a:1", 2: "a:2"}, 1, 1, 6)))


def reads(table: RouteTable, topic: str, begin_s: float, end_s: float) -> list[float]:
    """Read a route when it is stale, looking twice a second; return when, after the begin."""
    found_at = []
    for half in range(int(2 * begin_s), int(2 * end_s)):
        if topic in table.stale(half / 2):
            route = table.find(topic)
            assert route is not None
            table.put(route, half / 2)
            found_at.append(half / 2 - begin_s)
    return found_at


def test_a_topic_that_has_come_to_a_broker_is_looked_for_at_others_soon() -> None:
    """Brokers that create topics do so one after the other, each when somebody sends to it."""
    one = existing_route("T", found(("a", {0: "a:1"}, 1, 1, 6)))
    both = existing_route("T", found(("a", {0: "a:1"}, 1, 1, 6), ("b", {0: "b:1"}, 1, 1, 6)))
    known, waited_for, borrowed = RouteTable(30.0), RouteTable(30.0), RouteTable(30.0)
    waited_for.miss("T")
    waited_for.miss("other")
    borrowed.put(provisional_route("T", found(A), 4), 99.0)
    for table in (known, waited_for, borrowed):
        table.put(one, 100.0)
    known.miss("T")  # a name server that has just started
    assert reads(known, "T", 100.0, 200.0) == [30.0, 60.0, 90.0]
    for table in (waited_for, borrowed):
        assert reads(table, "T", 100.0, 200.0) == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 62.0, 92.0]
    for table in (known, waited_for, borrowed):
        table.put(both, 200.0)
        assert reads(table, "T", 200.0, 230.0) == [1.0, 2.0, 4.0, 8.0, 16.0]
        table.put(one, 230.0)  # fewer is no reason
        table.put(one, 230.0 + LEFT_S)
        assert reads(table, "T", 230.0 + LEFT_S, 290.0 + LEFT_S) == [30.0]


def test_of_topics_that_never_come_the_last_ones_are_remembered() -> None:
    table = RouteTable(30.0)
    for number in range(MISSED_COUNT_MAX + 2):
        table.miss(f"T{number}")
        table.miss("T0")  # looked for again and again
    is_soon = {}
    for topic in ("T0", "T1", "T2", "T3", f"T{MISSED_COUNT_MAX + 1}"):
        table.put(existing_route(topic, found(A)), 0.0)
        is_soon[topic] = topic in table.stale(1.0)
    assert list(is_soon.values()) == [True, False, False, True, True]



def test_a_blocking_client_looks_for_a_new_topic_as_soon() -> None:
    table = RouteTable(30.0)
    assert table.keep("T", 90.0, is_missing=True) is None
    table.put(existing_route("T", found(A)), 100.0)
    table.keep("T", 100.5, is_missing=False)
    assert reads(table, "T", 100.0, 105.0) == [1.5, 3.0]


def test_a_master_that_changes_places_with_a_slave_is_a_change() -> None:
    change = difference(GROUP, SWAPPED)
    assert change and change.masters_changed == {"a"}
    assert not change.addresses_gone and not change.read_added and not change.read_removed
    assert difference(GROUP, MASTERLESS).masters_changed == {"a"}
    assert difference(MASTERLESS, SWAPPED).masters_changed == {"a"}
    assert difference(None, GROUP).masters_changed == {"a"}
    assert not difference(GROUP, GROUP).masters_changed
    # A slave that comes, goes or moves is none.
    alone = existing_route("T", found(("a", {0: "a:1"}, 1, 1, 6)))
    assert not difference(GROUP, alone).masters_changed


def test_a_new_master_is_looked_for_several_times_a_second_for_a_while() -> None:
    table = RouteTable(30.0)
    table.put(GROUP, 100.0)
    table.put(MASTERLESS, 110.0)
    now_s = 110.0
    while now_s < 110.0 + ELECTION_S - 2 * ELECTION_AGE_S:
        assert table.stale(now_s + ELECTION_AGE_S * 0.9) == []
        now_s += ELECTION_AGE_S
        assert table.stale(now_s + 1e-6) == ["T"]
        table.put(MASTERLESS, now_s)
    table.put(MASTERLESS, 110.0 + ELECTION_S)
    assert table.stale(110.0 + ELECTION_S + 1.0) == []  # nobody of them will be
    table.put(SWAPPED, 150.0)
    assert table.stale(151.0) == []
    table.put(MASTERLESS, 160.0)  # again
    assert table.stale(160.0 + ELECTION_AGE_S + 1e-6) == ["T"]


def test_an_election_goes_on_while_no_name_server_answers() -> None:
    table = RouteTable(30.0)
    table.put(MASTERLESS, 100.0)
    table.keep("T", 101.0, is_missing=False)
    assert table.stale(101.0 + ELECTION_AGE_S + 1e-6) == ["T"]
    table.keep("T", 100.0 + ELECTION_S, is_missing=False)
    assert table.stale(100.0 + ELECTION_S + 1.0) == []


def test_a_route_that_name_servers_do_not_give_is_kept_for_a_while() -> None:
    table = RouteTable(30.0)
    assert table.keep("T", 0.0, is_missing=False) is None
    route = existing_route("T", found(A))
    table.put(route, 100.0)
    assert table.keep("T", 500.0, is_missing=False) is route  # nobody answers: for ever
    assert (table.stale(529.9), table.stale(530.0)) == ([], ["T"])
    assert table.keep("T", 600.0, is_missing=True) is route  # they say it is gone: for a minute
    assert (table.stale(600.9), table.stale(601.0)) == ([], ["T"])
    table.put(route, 610.0)  # it was not
    assert table.keep("T", 659.9 + 10, is_missing=True) is route
    assert table.keep("T", 669.9 + MISSING_S, is_missing=True) is None
    assert table.find("T") is None
    table.put(provisional_route("T", found(A), 4), 800.0)
    assert table.keep("T", 801.0, is_missing=True) is None  # it is not there yet, and that is known


def test_all_addresses_of_all_routes() -> None:
    table = RouteTable(30.0)
    table.put(existing_route("T", found(A)), 0.0)
    table.put(existing_route("U", found(("b", {0: "b:1"}, 1, 1, READ_WRITE))), 0.0)
    assert table.addresses() == {"a": {0: "a:1", 1: "a:2", 2: "a:3"}, "b": {0: "b:1"}}


def test_the_route_that_was_read_last_says_where_a_broker_is() -> None:
    """A topic that is gone names the address that its broker had when it was there."""
    table = RouteTable(30.0)
    at_first = found(("a", {0: "a:1", 1: "a:2"}, 1, 1, READ_WRITE))
    for topic in ("T", "gone"):
        table.put(existing_route(topic, at_first), 100.0)
    table.put(existing_route("T", found(("a", {0: "a:9"}, 1, 1, READ_WRITE))), 130.0)
    for now_s in (131.0, 132.0):
        table.keep("gone", now_s, is_missing=True)
        assert table.addresses() == {"a": {0: "a:9"}}
