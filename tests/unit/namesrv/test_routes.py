"""The route table: registrations, expiry, permissions, questions."""

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest

from pymq.errors import BrokerSystemError
from pymq.namesrv.registrations import Registration
from pymq.namesrv.routes import MasterAddresses, RouteTable
from pymq.protocol.bodies import DataVersion, QueueData, TopicConfig, TopicTable


def topics(
    *names: str, counter: int = 1, state: int = 0, perm: int = 6, queues: int = 4
) -> TopicTable:
    return TopicTable(
        version=DataVersion(timestamp_ms=1, counter=counter, state_version=state),
        topics={
            name: TopicConfig(
                topic=name, read_queue_count=queues, write_queue_count=queues, perm=perm
            )
            for name in names
        },
    )


def broker(
    name: str = "broker-a",
    broker_id: int = 0,
    port: int = 10911,
    table: TopicTable | None = None,
    **more: object,
) -> Registration:
    values: dict[str, object] = {
        "cluster": "C",
        "broker_name": name,
        "broker_id": broker_id,
        "address": f"10.0.0.1:{port}",
        "topics": topics("T", "TBW102") if table is None else table,
        "ha_address": f"10.0.0.1:{port + 1}",
        **more,
    }
    return Registration(**values)  # type: ignore[arg-type]


def table_of(*brokers: Registration) -> RouteTable:
    table = RouteTable(expiry_s=120)
    for one in brokers:
        table.register(one, 0.0)
    return table


def addresses(table: RouteTable, topic: str = "T") -> dict[str, dict[int, str]]:
    route = table.route(topic)
    return {b.broker_name: b.addresses for b in route.brokers} if route else {}


def perms(table: RouteTable, topic: str = "T") -> dict[str, int]:
    route = table.route(topic)
    return {q.broker_name: q.perm for q in route.queues} if route else {}


# -------------------------------------------------------------------------------- registration


def test_a_registered_broker_is_routed_to() -> None:
    table = table_of(broker(filter_servers=("10.0.0.1:7",), zone_name="z"))
    route = table.route("T")
    assert route is not None
    assert route.queues == [
        QueueData(broker_name="broker-a", read_queue_count=4, write_queue_count=4, perm=6)
    ]
    (data,) = route.brokers
    assert (data.broker_name, data.cluster, data.zone_name) == ("broker-a", "C", "z")
    assert data.addresses == {0: "10.0.0.1:10911"}
    assert data.enable_acting_master is False
    assert route.filter_server_table == {"10.0.0.1:10911": ["10.0.0.1:7"]}
    assert table.route("other") is None


def test_the_same_version_changes_nothing_but_adds_what_is_missing() -> None:
    table = table_of(broker())
    table.delete_topic("TBW102")
    table.register(broker(table=topics("T", "TBW102", perm=4, queues=9)), 1.0)
    assert perms(table) == {"broker-a": 6}
    assert perms(table, "TBW102") == {"broker-a": 4}


@pytest.mark.parametrize("version", [{"counter": 2}, {"state": 1}])
def test_another_version_replaces_queue_data(version: dict[str, int]) -> None:
    table = table_of(broker())
    table.register(broker(table=topics("T", "TBW102", perm=4, queues=9, **version)), 1.0)
    route = table.route("T")
    assert route is not None
    assert (route.queues[0].perm, route.queues[0].write_queue_count) == (4, 9)


def test_a_later_registration_need_not_name_all_topics() -> None:
    table = table_of(broker())
    table.register(broker(table=topics("New", counter=2)), 1.0)
    assert sorted(table.topics().topics) == ["New", "T", "TBW102"]


def test_a_first_registration_of_one_topic_is_refused_and_leaves_nothing() -> None:
    table = RouteTable()
    with pytest.raises(BrokerSystemError, match="register broker failed") as caught:
        table.register(broker(table=topics("T")), 0.0)
    assert caught.value.code == 1
    assert table.clusters().brokers == {}
    assert table.clusters().clusters == {}
    assert not table.heard_of("10.0.0.1:10911", 1.0)
    table.register(broker(table=topics()), 0.0)  # none at all is a whole, empty table
    assert list(table.clusters().brokers) == ["broker-a"]


def test_an_address_stands_under_one_id() -> None:
    table = table_of(broker(), broker(broker_id=1, port=20911))
    assert addresses(table) == {"broker-a": {0: "10.0.0.1:10911", 1: "10.0.0.1:20911"}}
    table.unregister(broker_name="broker-a", address="10.0.0.1:10911")
    table.register(broker(broker_id=0, port=20911), 1.0)  # the slave became master
    assert addresses(table) == {"broker-a": {0: "10.0.0.1:20911"}}


def test_a_new_address_takes_over_an_id() -> None:
    table = table_of(broker(), broker(port=30911))
    assert addresses(table) == {"broker-a": {0: "10.0.0.1:30911"}}
    table.expire(121.0)
    assert addresses(table) == {}


def test_an_older_state_version_takes_over_nothing() -> None:
    table = table_of(broker(table=topics("T", "U", state=5)))
    assert table.register(broker(port=30911, table=topics("T", "U", state=4)), 1.0) is None
    assert addresses(table) == {"broker-a": {0: "10.0.0.1:10911"}}
    assert not table.heard_of("10.0.0.1:30911", 1.0)
    table.register(broker(port=30911, table=topics("T", "U", state=5)), 1.0)
    assert addresses(table) == {"broker-a": {0: "10.0.0.1:30911"}}


def test_an_address_that_changes_its_broker_name_leaves_the_old_one() -> None:
    table = table_of(broker("old"), broker("new"))
    assert addresses(table) == {"new": {0: "10.0.0.1:10911"}}
    table.unregister(broker_name="old", address="10.0.0.1:10911")  # late: changes nothing
    assert table.heard_of("10.0.0.1:10911", 1.0)
    table.register(broker("new", cluster="D"), 2.0)
    assert table.clusters().clusters == {"D": frozenset({"new"})}


# ------------------------------------------------------------------------------ masters and slaves


def test_an_old_slave_alone_brings_no_queues() -> None:
    table = table_of(broker(broker_id=1))
    assert table.route("T") is None
    assert table.clusters().brokers["broker-a"].addresses == {1: "10.0.0.1:10911"}


def test_a_slave_learns_its_master() -> None:
    table = table_of(broker())
    found = table.register(broker(broker_id=1, port=20911), 1.0)
    assert found == MasterAddresses("10.0.0.1:10911", "10.0.0.1:10912")
    assert table.register(broker(), 2.0) is None
    table.unregister(broker_name="broker-a", address="10.0.0.1:10911")
    assert table.register(broker(broker_id=1, port=20911), 3.0) is None


@pytest.mark.parametrize(("acting", "perm"), [(True, 4), (False, 6)])
def test_the_first_slave_of_5x_speaks_while_there_is_no_master(acting: bool, perm: int) -> None:
    table = table_of(
        broker(broker_id=2, port=20911, acting_master=acting),
        broker(broker_id=3, port=30911, acting_master=acting, table=topics("T", "U")),
    )
    assert perms(table) == {"broker-a": perm}
    assert table.route("U") is None  # the second slave does not speak
    table.register(broker(acting_master=acting), 1.0)
    assert perms(table) == {"broker-a": 6}


def test_clients_see_a_slave_that_acts_in_the_place_of_its_master() -> None:
    table = table_of(
        broker(acting_master=True),
        broker(broker_id=1, port=20911, acting_master=True),
        broker(broker_id=2, port=30911, acting_master=True),
    )

    def seen() -> dict[int, str]:
        route = table.acting_route("T")
        assert route is not None
        return route.brokers[0].addresses

    slaves = {1: "10.0.0.1:20911", 2: "10.0.0.1:30911"}
    assert seen() == {0: "10.0.0.1:10911", **slaves}
    table.unregister(broker_name="broker-a", address="10.0.0.1:10911")
    assert seen() == {0: slaves[1], 2: slaves[2]}
    assert addresses(table) == {"broker-a": slaves}  # brokers and administrators see what is
    table.add_write_permission("broker-a")
    assert seen() == slaves  # nobody acts for a group that can be written to
    table.register(broker(acting_master=True), 1.0)
    assert seen() == {0: "10.0.0.1:10911", **slaves}


def test_a_slave_that_does_not_act_is_not_shown_as_a_master() -> None:
    table = table_of(broker(), broker(broker_id=1, port=20911))
    table.unregister(broker_name="broker-a", address="10.0.0.1:10911")
    table.wipe_write_permission("broker-a")
    route = table.acting_route("T")
    assert route is not None and route.brokers[0].addresses == {1: "10.0.0.1:20911"}
    assert table.acting_route("unknown") is None


def test_slaves_that_may_act_are_read_only_when_the_master_goes() -> None:
    table = table_of(
        broker(acting_master=True), broker(broker_id=1, port=20911, acting_master=True)
    )
    assert perms(table) == {"broker-a": 6}
    table.unregister(broker_name="broker-a", address="10.0.0.1:10911")
    assert perms(table) == {"broker-a": 4}
    assert addresses(table) == {"broker-a": {1: "10.0.0.1:20911"}}
    table.register(broker(acting_master=True), 1.0)
    assert perms(table) == {"broker-a": 6}


def test_other_slaves_keep_the_permission_when_the_master_goes() -> None:
    table = table_of(broker(), broker(broker_id=1, port=20911))
    table.unregister(broker_name="broker-a", address="10.0.0.1:10911")
    assert perms(table) == {"broker-a": 6}
    assert addresses(table) == {"broker-a": {1: "10.0.0.1:20911"}}


# ------------------------------------------------------------------------------------- leaving


def test_unregistration_removes_what_nobody_else_has() -> None:
    table = table_of(broker(), broker("broker-b", port=20911, cluster="D", table=topics("T", "U")))
    table.unregister(broker_name="broker-a", address="10.0.0.1:10911")
    assert addresses(table) == {"broker-b": {0: "10.0.0.1:20911"}}
    assert table.route("TBW102") is None
    assert sorted(table.topics().topics) == ["T", "U"]
    assert table.clusters().clusters == {"D": frozenset({"broker-b"})}
    table.unregister(broker_name="nobody", address="10.0.0.9:1")


def test_silent_brokers_expire() -> None:
    table = RouteTable(expiry_s=120)
    table.register(broker(), 0.0)
    table.register(broker("quick", port=20911, expiry_s=10.0), 0.0)
    assert table.expire(10.0) == []
    assert [one.broker_name for one in table.expire(10.5)] == ["quick"]
    assert table.heard_of("10.0.0.1:10911", 100.0)
    assert table.expire(220.0) == []
    assert [one.broker_name for one in table.expire(220.5)] == ["broker-a"]
    assert table.topics().topics == []
    assert not table.heard_of("10.0.0.1:10911", 230.0)


def test_a_broker_goes_with_the_connection_it_registered_over_last() -> None:
    first, second = object(), object()
    table = table_of(broker(connection=first), broker(connection=second))
    assert table.connection_ended(first) == []
    assert perms(table) == {"broker-a": 6}
    assert [one.address for one in table.connection_ended(second)] == ["10.0.0.1:10911"]
    assert table.route("T") is None


# -------------------------------------------------------------------------------------- topics


def test_permissions_are_wiped_and_added() -> None:
    table = table_of(broker(), broker("broker-b", port=20911))
    before = table.route("T")
    assert table.wipe_write_permission("broker-a") == 2
    assert perms(table) == {"broker-a": 4, "broker-b": 6}
    table.register(broker(), 1.0)  # same version: still wiped
    assert perms(table) == {"broker-a": 4, "broker-b": 6}
    assert table.add_write_permission("broker-a") == 2
    assert perms(table) == {"broker-a": 6, "broker-b": 6}
    assert table.wipe_write_permission("nobody") == 0
    assert before is not None
    assert [queue.perm for queue in before.queues] == [6, 6]  # handed out: stays as it was


def test_a_topic_is_deleted_everywhere_or_in_one_cluster() -> None:
    table = table_of(broker(), broker("broker-b", port=20911, cluster="D"))
    table.delete_topic("T", cluster="D")
    assert perms(table) == {"broker-a": 6}
    table.delete_topic("T")
    assert table.route("T") is None
    table.delete_topic("T")
    assert table.topics().topics == ["TBW102"]


def test_a_topic_of_known_brokers_can_be_registered_alone() -> None:
    table = table_of(broker())
    queue = QueueData(broker_name="broker-a", read_queue_count=1, write_queue_count=1, perm=6)
    assert table.register_topic("New", [queue])
    assert perms(table, "New") == {"broker-a": 6}
    assert not table.register_topic("Other", [queue, replace(queue, broker_name="nobody")])
    assert not table.register_topic("Other", [])
    assert table.route("Other") is None


# ---------------------------------------------------------- brokers in each other's way


@pytest.mark.parametrize("slave", [False, True])
def test_a_broker_is_back_when_the_one_that_put_it_out_is_gone(
    slave: bool, caplog: pytest.LogCaptureFixture
) -> None:
    right, wrong = broker(table=topics("T", "U")), broker(port=20911, table=topics("T", "V"))
    others = [broker(broker_id=1, port=30911)] if slave else []
    for leave in ("unregister", "end", "expire"):
        table = table_of(right, *others)
        table.register(replace(wrong, connection="wrong", expiry_s=5.0), 1.0)
        assert addresses(table)["broker-a"][0] == wrong.address
        assert table.heard_of(right.address, 2.0)
        if leave == "unregister":
            table.unregister(broker_name="broker-a", address=wrong.address)
        elif leave == "end":
            table.connection_ended("wrong")
        else:
            table.expire(7.0)
        assert addresses(table)["broker-a"][0] == right.address
        assert addresses(table, "U")["broker-a"][0] == right.address
        said = [one for one in caplog.messages if right.address in one and wrong.address in one]
        assert len(said) == 1, leave
        caplog.clear()
        table.unregister(broker_name="broker-a", address=right.address)
        assert 0 not in addresses(table).get("broker-a", {})


def test_a_broker_that_was_put_out_and_is_not_heard_since_is_not_back() -> None:
    """Its host has lost its power, which nobody tells, and it was started on another one."""
    dead, new = broker(table=topics("T", "U")), broker(port=20911, table=topics("T", "U"))
    table = table_of(dead)
    table.heard_of(dead.address, 8.0)
    for now_s in (10.0, 20.0):
        table.register(new, now_s)
    table.grant(50.0, 70.0)
    table.unregister(broker_name="broker-a", address=new.address)
    assert addresses(table) == {}
    # Both alive, and each in its turn.
    table = table_of(dead)
    for now_s in (10.0, 40.0):
        table.register(new, now_s)
        table.register(dead, now_s + 5.0)
    table.register(new, 70.0)
    table.unregister(broker_name="broker-a", address=new.address)
    assert addresses(table)["broker-a"][0] == dead.address


def test_brokers_that_go_together_are_not_each_others_heirs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = broker(table=topics("T", "U"), connection="c")
    other = broker(port=20911, table=topics("T", "U"), connection="c")
    table = table_of(other)
    table.register(one, 1.0)
    table.heard_of(other.address, 2.0)
    table.register(other, 3.0)
    assert [gone.address for gone in table.connection_ended("c")] == [other.address, one.address]
    assert addresses(table) == {} and table._brokers == {} and table._topics == {}
    assert not [text for text in caplog.messages if "again" in text]


def test_a_master_that_was_deposed_is_not_back() -> None:
    old, new = broker(table=topics("T", "U", state=1)), broker(port=2, table=topics("T", state=2))
    table = table_of(old, new)
    table.heard_of(old.address, 1.0)
    table.unregister(broker_name="broker-a", address=new.address)
    assert addresses(table) == {}


def test_two_brokers_with_one_address_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    one, other = broker("broker-a", connection="a"), broker("broker-b", connection="b")

    def said() -> list[str]:
        found = [line for line in caplog.messages if "brokerIP1" in line]
        caplog.clear()
        return found

    table = table_of(one, other)
    (text,) = said()
    assert "broker-a" in text and "broker-b" in text and one.address in text
    for _ in range(3):
        for again in (one, one, other):
            table.register(again, 1.0)
    assert said() == []
    table.connection_ended("a")
    table.register(other, 2.0)
    table.register(replace(one, connection="c"), 3.0)
    assert len(said()) == 1


def test_a_broker_that_was_renamed_is_no_other_one(caplog: pytest.LogCaptureFixture) -> None:
    table = table_of(broker("broker-a", connection="a"))
    table.connection_ended("a")
    table.register(broker("broker-b", connection="b"), 1.0)
    table.register(broker("broker-c", connection="b"), 2.0)
    assert addresses(table) == {"broker-c": {0: "10.0.0.1:10911"}}
    assert not caplog.messages


def test_lists() -> None:
    table = table_of(broker(), broker("broker-b", port=20911, cluster="D", table=topics("T", "U")))
    assert sorted(table.topics().topics) == ["T", "TBW102", "U"]
    assert sorted(table.topics_of_cluster("D").topics) == ["T", "U"]
    assert table.topics_of_cluster("nowhere").topics == []
    system = table.system_topics()
    assert sorted(system.topics) == ["C", "D", "broker-a", "broker-b"]
    assert system.broker_address == "10.0.0.1:10911"
    assert RouteTable().system_topics().broker_address is None
    info = table.clusters()
    assert info.clusters == {"C": frozenset({"broker-a"}), "D": frozenset({"broker-b"})}
    assert info.brokers["broker-b"].addresses == {0: "10.0.0.1:20911"}
    assert table.version_of("10.0.0.1:20911") == DataVersion(timestamp_ms=1, counter=1)
    assert table.version_of("10.0.0.1:1") is None


# ------------------------------------------------------------------------------------ invariants


def check_invariants(table: RouteTable, names: Iterable[str]) -> None:
    info = table.clusters()
    for name, data in info.brokers.items():
        assert data.addresses, f"{name} has no address"
        assert len(set(data.addresses.values())) == len(data.addresses), data
        for address in data.addresses.values():
            assert table.version_of(address) is not None, f"{address} is not watched"
    assert set().union(*info.clusters.values()) == set(info.brokers)
    for topic in table.topics().topics:
        route = table.route(topic)
        assert route is not None, f"{topic} is listed without a route"
        assert {q.broker_name for q in route.queues} <= set(names)
        assert {q.broker_name for q in route.queues} == {b.broker_name for b in route.brokers}


def test_random_comings_and_goings_keep_the_invariants(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    table, now_s, connections = RouteTable(expiry_s=50), 0.0, [object() for _ in range(4)]
    names = ("a", "b", "c")
    for _ in range(3000):
        now_s += rng.random() * 5
        name, port = rng.choice(names), rng.choice((1, 2, 3, 4))
        match rng.randrange(8):
            case 0 | 1 | 2:
                chosen = rng.sample(("T", "U", "V"), rng.choice((0, 2, 3)))
                table.register(
                    broker(
                        name,
                        rng.randrange(3),
                        port,
                        topics(*chosen, counter=rng.randrange(3), state=rng.randrange(2)),
                        cluster=rng.choice("CD"),
                        acting_master=rng.choice((None, False, True)),
                        connection=rng.choice(connections),
                    ),
                    now_s,
                )
            case 3:
                table.unregister(broker_name=name, address=f"10.0.0.1:{port}")
            case 4:
                table.expire(now_s)
            case 5:
                table.connection_ended(rng.choice(connections))
            case 6:
                table.delete_topic(rng.choice("TUV"), cluster=rng.choice((None, "C")))
            case 7:
                table.heard_of(f"10.0.0.1:{port}", now_s)
                table.wipe_write_permission(name)
        check_invariants(table, names)
    table.expire(now_s + 51)
    assert table.clusters().brokers == {}
    assert table.topics().topics == []
