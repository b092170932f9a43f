"""Admin against pymq's own name server and brokers: one, and two of which one is away."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import running
from tests.cluster.played import Played, closed_address
from tests.spark.two_brokers import NAMES, TwoBrokers, wait_until

import pymq
from pymq import blocking
from pymq.client import operations
from pymq.client.operations.operation import Plain
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.errors import (
    BrokersFailed,
    ClientClosed,
    CommitFailed,
    ConfigurationError,
    ConnectionFailed,
    GroupNotExist,
    LocalProtocolError,
    MessageNotFound,
    PymqError,
    RequestTimeout,
    RouteNotFound,
)
from pymq.net.asking import AskingWire
from pymq.protocol.bodies import (
    BrokerData,
    ClusterInfo,
    GroupConfig,
    MessageQueue,
    TopicRoute,
)
from pymq.protocol.codes import Permission, RequestCode
from pymq.protocol.command import Command
from pymq.protocol.message import Message
from pymq.testing import Cluster

#: What comes is waited for so long at most, each answer included.
DEADLINE_S = 60.0
#: For the answer of a broker that is frozen, and only of that one.
FROZEN_S = 0.5


@pytest.fixture(autouse=True)
def patient_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have brokers wait for their key index and for the name server, however busy the machine."""
    monkeypatch.setattr("pymq.broker.handlers.query.INDEX_WAIT_S", DEADLINE_S)
    monkeypatch.setattr("pymq.broker.table_saving.ANNOUNCE_WAIT_S", DEADLINE_S)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(broker={"auto_create_topic": False}) as running:
        yield running


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[blocking.Admin]:
    with admin_at(cluster.name_server) as opened:
        yield opened


def admin_at(name_server: str) -> blocking.Admin:
    return blocking.Admin(name_server, timeout_s=DEADLINE_S)


def send(cluster: Cluster, topic: str, count: int, queue_id: int = 0) -> list[str]:
    """Send messages to one queue and return their ids."""
    queue = MessageQueue(topic, cluster.broker_name, queue_id)
    limits: Any = {"timeout_s": DEADLINE_S, "deadline_s": DEADLINE_S}
    with blocking.Producer(cluster.name_server, **limits) as producer:
        return [
            str(producer.send(Message(topic, b"%d" % n, keys=f"k{n}"), queue=queue).message_id)
            for n in range(count)
        ]


def test_topics(cluster: Cluster, admin: blocking.Admin) -> None:
    admin.topics.create("topics", queue_count=2, attributes={"message.type": "FIFO"})
    assert "topics" in admin.topics.names()
    route = admin.topics.route("topics")
    assert [queue.queue_id for queue in route.read_queues] == [0, 1]
    assert route.masters() == admin.brokers.masters() == {cluster.broker_name: route.address(
        cluster.broker_name
    )}  # fmt: skip
    changed = admin.topics.update("topics", perm=int(Permission.READ))[cluster.broker_name]
    assert (changed.perm, changed.read_queue_count) == (4, 2)
    assert changed.attributes == {"message.type": "FIFO"}
    assert admin.topics.config("topics") == {cluster.broker_name: changed}
    assert admin.topics.update("topics", queue_count=5)[cluster.broker_name].write_queue_count == 5
    assert len(admin.topics.status("topics")) == 5
    admin.topics.delete("topics")
    assert "topics" not in admin.topics.names()
    for ask in (admin.topics.route, admin.topics.config, admin.topics.update, admin.topics.status):
        with pytest.raises(RouteNotFound, match="'topics'.*pymq topic create topics"):
            ask("topics")
    wrong: Any = 16
    with pytest.raises(ConfigurationError, match="perm=16, expected bits of Permission"):
        admin.topics.create("topics", perm=wrong)
    with pytest.raises(LocalProtocolError):
        admin.topics.create("no topic")
    with pytest.raises(ConfigurationError, match="cluster 'none' is not known"):
        admin.topics.create("topics", cluster="none")


def test_a_topic_that_is_deleted_in_its_only_cluster_has_no_route(
    cluster: Cluster, admin: blocking.Admin
) -> None:
    (name,) = admin.cluster().clusters
    admin.topics.create("gone", queue_count=1)
    for _ in range(2):  # one that does not exist is not an error
        admin.topics.delete("gone", cluster=name)
        assert "gone" not in admin.topics.names()
        with pytest.raises(RouteNotFound, match="'gone'"):
            admin.topics.route("gone")


@pytest.mark.parametrize(
    ("version", "brokers", "is_told"), [(401, "ab", True), (400, "a", True), (400, "ab", False)]
)
def test_a_topic_of_two_clusters_is_deleted_in_one(
    version: int, brokers: str, is_told: bool
) -> None:
    """Name servers before 4.9.4 would forget its route to the other cluster, too."""

    def answer(request: Command) -> Command:
        body = b""
        if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            clusters = {f"cluster-{one}": frozenset([f"broker-{one}"]) for one in "ab"}
            there = {one.broker_name: one for one in route("ab").brokers}
            body = ClusterInfo(brokers=there, clusters=clusters).encode()
        elif request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            body = route(brokers).encode()
        response = request.reply(0, body=body)
        response.version = version
        return response

    def route(names: str) -> TopicRoute:
        return TopicRoute(
            brokers=[
                BrokerData(
                    broker_name=f"broker-{one}",
                    cluster=f"cluster-{one}",
                    addresses={0: server.address},
                )
                for one in names
            ]
        )

    with Played(answer) as server, admin_at(server.address) as admin:
        if is_told:
            admin.topics.delete("T", cluster="cluster-a")
        else:
            with pytest.raises(ConfigurationError, match=f"{server.address} .*restart it"):
                admin.topics.delete("T", cluster="cluster-a")
        assert server.count(RequestCode.DELETE_TOPIC_IN_BROKER) == 1
    code = RequestCode.DELETE_TOPIC_IN_NAMESRV
    told = [one.fields for one in server.requests if one.code == code]
    assert told == [{"topic": "T", "clusterName": "cluster-a"}] * is_told


@pytest.mark.parametrize("is_old", [True, False])
def test_each_name_server_that_keeps_the_route_of_a_deleted_topic_is_named(
    is_old: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Two that are too old, or one that refuses; the last one is down, or seems to be."""

    def answer(request: Command) -> Command:
        body = b""
        if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            master = BrokerData(
                broker_name="broker-a", cluster="c", addresses={0: servers[0].address}
            )
            clusters = {"c": frozenset(["broker-a"])}
            body = ClusterInfo(brokers={"broker-a": master}, clusters=clusters).encode()
        elif request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            others = [BrokerData(broker_name=f"broker-{one}", cluster=one) for one in "cd"]
            body = TopicRoute(brokers=others).encode()
        response = request.reply(0, body=body)
        response.version = 400 if is_old else 401
        return response

    def refuse(request: Command) -> Command:
        if request.code == RequestCode.DELETE_TOPIC_IN_NAMESRV and not is_old:
            return request.reply(1, "not me")
        return answer(request)

    servers = [Played(refuse), Played(answer)]
    first, second = (one.address for one in servers)
    down = closed_address()
    with servers[0], servers[1], admin_at(f"{first};{second};{down}") as admin:
        with pytest.raises(BrokersFailed) as caught:
            admin.topics.delete("T", cluster="c")
        kept = {first, second} if is_old else {first}
        assert caught.value.failures.keys() == kept
        assert caught.value.answers.keys() == {first, second} - kept
        assert all(f" done on {one}: " in str(caught.value) for one in kept)
    (warned,) = (one.getMessage() for one in caplog.records if down in one.getMessage())
    assert f"name server {down} could not be told that topic 'T' is deleted" in warned
    assert "if it runs, it keeps the route" in warned


def test_groups_and_members(cluster: Cluster, admin: blocking.Admin) -> None:
    admin.topics.create("members", queue_count=1)
    admin.groups.create(GroupConfig(group="team", retry_max_times=3))
    assert admin.groups.config("team")[cluster.broker_name].retry_max_times == 3
    assert admin.groups.members("team").connections == []
    with blocking.Consumer(cluster.name_server, "team").subscribe("members") as consumer:
        deadline_s = time.monotonic() + DEADLINE_S
        while not (found := admin.groups.members("team")).connections:
            assert time.monotonic() < deadline_s
        assert [one.client_id for one in found.connections] == [consumer.client_id]
        assert "members" in found.subscriptions
    admin.groups.delete("team")
    with pytest.raises(GroupNotExist, match="pymq group create team"):
        admin.groups.config("team")


def test_a_deleted_group_leaves_no_retry_topic_and_dead_letters_if_wanted(
    cluster: Cluster, admin: blocking.Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = {"%RETRY%gone", "%DLQ%gone"}

    def left() -> set[str]:
        """Return which of them are known to the name server, or to the broker."""
        table = asyncio.run(running.ask(cluster.broker_address, operations.topic_table()))
        return topics & {*admin.topics.names(with_system=True), *table.topics}

    admin.groups.create("gone")
    for topic in topics:
        admin.topics.create(topic, queue_count=1)
    admin.groups.delete("gone")
    assert left() == {"%DLQ%gone"}
    admin.groups.delete("gone", with_dead_letters=True)
    assert left() == set()
    # What is left of a group that is gone can be found by this.
    monkeypatch.setattr(
        "pymq.client.operations.delete_topic_routes", lambda *_: operations.delete_topic("/")
    )
    with pytest.raises(PymqError) as caught:
        admin.groups.delete("gone", with_dead_letters=True)
    assert caught.value.__notes__ == [
        "group 'gone' is deleted, %RETRY%gone and %DLQ%gone perhaps not everywhere: delete what is "
        "left as a topic (pymq topic delete)"
    ]


def test_a_reset_says_before_what_it_changes_and_then_does_that(
    cluster: Cluster, admin: blocking.Admin
) -> None:
    admin.topics.create("reset", queue_count=2)
    admin.groups.create("readers")
    send(cluster, "reset", 5)
    first, second = (MessageQueue("reset", cluster.broker_name, n) for n in (0, 1))

    def reset(to: Any, **more: Any) -> list[tuple[int | None, int]]:
        changes = admin.offsets.reset("readers", "reset", to, **more)
        for change in changes:
            assert (change.first, change.end) == {first: (0, 5), second: (0, 0)}[change.queue]
        return [(change.before, change.after) for change in changes]

    def committed() -> dict[MessageQueue, int]:
        return {lag.queue: lag.consumer_offset for lag in admin.offsets.lag("readers")}

    assert reset("latest", dry_run=True) == [(None, 5), (None, 0)]
    assert committed() == {}
    assert reset("latest") == [(None, 5), (None, 0)]
    assert committed() == {first: 5, second: 0}
    assert reset(2, queue=first) == [(5, 2)]
    assert committed() == {first: 2, second: 0}
    at = admin.messages.by_offset(first, 3).store_timestamp_ms
    moment = datetime.fromtimestamp(at / 1000, UTC)
    ((before, after), _) = reset(moment)
    assert before == 2 and after <= 3
    assert admin.messages.by_offset(first, after).store_timestamp_ms == at
    assert reset(datetime(2100, 1, 1, tzinfo=UTC))[0] == (after, 5)
    (back, _) = admin.offsets.reset("readers", "reset", "earliest")
    assert (back.moved, committed()[first]) == (-5, 0)
    with pytest.raises(ConfigurationError, match=r"to=9: .*:0 of topic 'reset' has offsets 0 to 5"):
        reset(9, queue=first)
    with pytest.raises(ConfigurationError, match="expected 'earliest', 'latest', a datetime"):
        reset("yesterday")
    with pytest.raises(ConfigurationError, match="has no such queue, found"):
        reset(0, queue=MessageQueue("reset", cluster.broker_name, 7))


def test_members_go_where_a_reset_sends_them() -> None:
    with Cluster() as cluster, admin_at(cluster.name_server) as admin:
        admin.topics.create("T", queue_count=1)
        admin.groups.create("g")
        send(cluster, "T", 3)
        seen: list[bytes] = []
        consumer = blocking.Consumer(cluster.name_server, "g", from_where="earliest")
        with consumer.subscribe("T"):
            consumed = consumer.messages()
            seen += [next(consumed).body for _ in range(3)]
            (change,) = admin.offsets.reset("g", "T", "earliest")
            assert change.after == 0
            seen += [next(consumed).body for _ in range(3)]
        assert seen == [b"0", b"1", b"2"] * 2


def test_members_that_were_assigned_their_queues_go_where_a_reset_sends_them() -> None:
    with Cluster() as cluster, admin_at(cluster.name_server) as admin:
        admin.topics.create("T", queue_count=1)
        send(cluster, "T", 10)
        queue = MessageQueue("T", cluster.broker_name, 0)
        with assigned(cluster, queue) as consumer:
            for _ in range(2):
                seen: list[bytes] = []
                while len(seen) < 10:
                    polled = consumer.poll(10 - len(seen), DEADLINE_S)
                    assert polled, seen
                    seen += [message.body for message in polled]
                assert seen == [b"%d" % n for n in range(10)]
                consumer.commit()
                (change,) = admin.offsets.reset("g", "T", "earliest")
                assert (change.before, change.after) == (10, 0)


def test_a_reset_counts_although_no_member_has_heard_of_the_one_before() -> None:
    with Cluster() as cluster, admin_at(cluster.name_server) as admin:
        admin.topics.create("T", queue_count=1)
        admin.groups.create("g")
        send(cluster, "T", 3)
        queue = MessageQueue("T", cluster.broker_name, 0)
        # As for members that died before their next pull.
        told = operations.reset_queue("g", queue, 0)
        asyncio.run(running.ask(cluster.broker_address, told))
        (change,) = admin.offsets.reset("g", "T", 2)
        assert change.after == 2
        (lag,) = admin.offsets.lag("g")
        assert lag.consumer_offset == 2


def test_a_reset_that_a_broker_ignores_is_an_error() -> None:
    """It accepts commits and keeps an earlier reset, and now it makes no other one."""
    off = Command(RequestCode.UPDATE_BROKER_CONFIG, {}, b"useServerSideResetOffset=false")
    with (
        Cluster(broker={"allow_config_update": True}) as cluster,
        admin_at(cluster.name_server) as admin,
    ):
        admin.topics.create("T", queue_count=2)
        admin.groups.create("g")
        send(cluster, "T", 3)
        queue = MessageQueue("T", cluster.broker_name, 0)
        for told in (operations.reset_queue("g", queue, 1), Plain(off, "settings", str)):
            asyncio.run(running.ask(cluster.broker_address, told))
        with pytest.raises(CommitFailed, match=r"accepted.*queue 0 is at 1, not at 3"):
            admin.offsets.reset("g", "T", "latest")
        with assigned(cluster, queue) as consumer:
            assert [message.body for message in consumer.poll(1, DEADLINE_S)] == [b"1"]
        wait_until(lambda: not admin.groups.members("g").connections, "its farewell")
        (change, _) = admin.offsets.reset("g", "T", "latest")
        assert change.after == 3


def test_a_broker_of_4_9_cannot_tell_members_that_were_assigned_their_queues() -> None:
    with (
        Cluster(broker={"server_side_reset": False}) as cluster,
        admin_at(cluster.name_server) as admin,
    ):
        admin.topics.create("T", queue_count=1)
        send(cluster, "T", 3)
        queue = MessageQueue("T", cluster.broker_name, 0)
        with assigned(cluster, queue) as consumer:
            assert consumer.poll(1, DEADLINE_S)
            with pytest.raises(ConfigurationError, match="assigned .*stop them"):
                admin.offsets.reset("g", "T", "earliest")
        wait_until(lambda: not admin.groups.members("g").connections, "its farewell")
        admin.offsets.reset("g", "T", 2)
        with assigned(cluster, queue) as consumer:
            assert [message.body for message in consumer.poll(1, DEADLINE_S)] == [b"2"]


def assigned(cluster: Cluster, queue: MessageQueue) -> blocking.PullConsumer:
    consumer = blocking.PullConsumer(
        cluster.name_server, "g", from_where="earliest", timeout_s=DEADLINE_S
    )
    return consumer.assign([queue])


def test_what_a_broker_of_4_9_cannot_tell_members_is_refused() -> None:
    with (
        Cluster(broker={"server_side_reset": False}) as cluster,
        admin_at(cluster.name_server) as admin,
    ):
        admin.topics.create("T", queue_count=1)
        send(cluster, "T", 3)
        queue = MessageQueue("T", cluster.broker_name, 0)
        consumer = blocking.Consumer(cluster.name_server, "g", from_where="earliest")
        with consumer.subscribe("T"):
            next(consumer.messages())
            for more in ({"to": "earliest", "queue": queue}, {"to": 1}):
                wanted: Any = more
                with pytest.raises(ConfigurationError, match="has members in topic 'T', and"):
                    admin.offsets.reset("g", "T", **wanted)


def test_messages_are_found_by_id_key_place_and_time(
    cluster: Cluster, admin: blocking.Admin
) -> None:
    admin.topics.create("found", queue_count=2)
    began = datetime.now(UTC)
    ids = send(cluster, "found", 40, 1)
    queue = MessageQueue("found", cluster.broker_name, 1)
    third = admin.messages.by_offset(queue, 3)
    assert third.body == b"3"
    assert admin.messages.by_unique_id("found", ids[3]) == third
    assert admin.messages.by_id(third.offset_message_id) == third
    assert admin.messages.by_key("found", "k3") == [third]
    every = admin.messages.by_time("found", datetime.fromtimestamp(0, UTC))
    assert [message.body for message in every] == [b"%d" % n for n in range(40)]
    assert admin.messages.by_time("found", began, count_max=2) == every[:2]
    assert admin.messages.by_time("found", began, datetime.fromtimestamp(1, UTC)) == []
    with pytest.raises(MessageNotFound, match="no message at offset 40, its offsets are 0 to 39"):
        admin.messages.by_offset(queue, 40)
    with pytest.raises(MessageNotFound):
        admin.messages.by_unique_id("found", "nobody's")
    wrong: Any = "x"
    nothing: Any = None
    for name, call in (
        ("begin", lambda: admin.messages.by_time("found", wrong)),
        ("end", lambda: admin.messages.by_time("found", began, wrong)),
        ("count_max", lambda: admin.messages.by_key("found", "k3", count_max=wrong)),
        ("count_max", lambda: admin.messages.by_key("found", "k3", count_max=65)),
        ("message_id", lambda: admin.messages.by_id(nothing)),
    ):
        with pytest.raises(ConfigurationError, match=f"{name}="):
            call()


def test_brokers_and_the_cluster(cluster: Cluster, admin: blocking.Admin) -> None:
    name, address = cluster.broker_name, cluster.broker_address
    assert admin.brokers.addresses() == {name: {0: address}}
    assert admin.cluster().brokers[name].addresses == {0: address}
    assert admin.brokers.state(name)["brokerVersionDesc"] == "V5_3_3"
    assert f"brokerName={name}" in admin.brokers.config(address).splitlines()
    with pytest.raises(ConfigurationError, match="no broker 'b' has a master, found"):
        admin.brokers.state("b")


def test_the_asyncio_one(cluster: Cluster) -> None:
    async def test() -> None:
        async with pymq.Admin(cluster.name_server, timeout_s=DEADLINE_S) as admin:
            await admin.topics.create("over-asyncio", queue_count=1)
            assert "over-asyncio" in await admin.topics.names()
        with pytest.raises(ClientClosed):
            await admin.topics.names()

    asyncio.run(test())


def test_arguments_of_a_wrong_kind_are_named(admin: blocking.Admin) -> None:
    wrong: Any = 7
    with pytest.raises(LocalProtocolError, match="7"):
        admin.groups.create(wrong)
    for ask in (
        lambda: admin.messages.by_offset(wrong, 0),
        lambda: admin.offsets.reset("g", "T", "latest", queue=wrong),
    ):
        with pytest.raises(ConfigurationError, match="queue=7: expected a MessageQueue"):
            ask()


def test_one_that_is_not_open_says_so(cluster: Cluster) -> None:
    with pytest.raises(ClientClosed, match="use it inside `with`"):
        blocking.Admin(cluster.name_server).topics.names()
    with pytest.raises(ConnectionFailed, match="no name server of 127.0.0.1:1 answers"):
        blocking.Admin("127.0.0.1:1").start()
    with pytest.raises(ConfigurationError, match="is a broker"):
        blocking.Admin(cluster.broker_address).start()


# ----------------------------------------------------------------------------- two brokers


@contextmanager
def frozen(bed: TwoBrokers, name: str) -> Iterator[None]:
    """Freeze a broker; what it is asked is given up soon, what others are asked is waited for."""
    address, register = bed.broker(name).address, AskingWire.register

    def give_up_soon(
        wire: AskingWire, description: str, timeout_s: float, *more: Any, **options: Any
    ) -> int:
        is_frozen = getattr(wire, "peer", None) == address
        return register(wire, description, FROZEN_S if is_frozen else timeout_s, *more, **options)

    bed.freeze(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AskingWire, "register", give_up_soon)
        yield
    bed.thaw(name)


def create_at_both(admin: blocking.Admin, topic: str, queue_count: int) -> None:
    """Create a topic, and wait until the name server has heard of it from both brokers."""

    def is_routed() -> bool:
        try:
            return admin.topics.route(topic).masters().keys() == set(NAMES)
        except RouteNotFound:
            return False

    admin.topics.create(topic, queue_count=queue_count)
    wait_until(is_routed, f"a route of {topic}")


def test_what_two_brokers_did_of_which_one_is_silent(tmp_path: Path) -> None:
    with TwoBrokers(tmp_path) as bed, admin_at(bed.name_server) as admin:
        create_at_both(admin, "T", 2)
        admin.groups.create("g")
        masters = admin.brokers.masters()
        changes: list[Callable[[], object]] = [
            lambda: admin.topics.create("T2"),
            lambda: admin.groups.create("g2"),
            lambda: admin.groups.delete("g"),
        ]
        with frozen(bed, "broker-b"):
            for change in changes:
                with pytest.raises(
                    BrokersFailed, match="done on broker-a; perhaps done on broker-b: .*; it may be"
                ) as caught:
                    change()
                assert list(caught.value.answers) == ["broker-a"]
                assert isinstance(caught.value.failures["broker-b"], RequestTimeout)
                assert caught.value.retriable and not caught.value.outcome_known
            # It was only asked what it has.
            with pytest.raises(
                BrokersFailed, match="done on broker-a; not done on broker-b: .* the settings of"
            ) as caught:
                admin.topics.update("T", queue_count=3)
            assert caught.value.retriable and caught.value.outcome_known
            for read in (admin.groups.names, lambda: admin.topics.status("T")):
                with pytest.raises(BrokersFailed, match="answered by broker-a; not by broker-b: "):
                    read()
            # What was said to be done is done.
            assert groups_at(masters["broker-a"], bed) == {"g2"}
        for change in changes:
            change()
        admin.topics.update("T", queue_count=3)
        assert [one.read_queue_count for one in admin.topics.config("T").values()] == [3, 3]
        assert groups_at(masters["broker-b"], bed) == {"g2"}


def test_a_reset_of_which_one_broker_is_silent(tmp_path: Path) -> None:
    with TwoBrokers(tmp_path) as bed, admin_at(bed.name_server) as admin:
        create_at_both(admin, "T", 1)
        admin.groups.create("g")
        with (
            frozen(bed, "broker-b"),
            pytest.raises(BrokersFailed, match="not by broker-b"),
        ):
            admin.offsets.reset("g", "T", "latest")
        assert admin.offsets.lag("g") == [], "nothing was changed before all was known"


def test_a_broker_that_was_killed_takes_part_again(tmp_path: Path) -> None:
    with TwoBrokers(tmp_path) as bed, admin_at(bed.name_server) as admin:
        create_at_both(admin, "T", 1)
        with bed.load("T") as load:
            load.wait_acknowledged(20)
            bed.kill("broker-b")
            assert admin.topics.config("T").keys() == {"broker-a"}
            bed.start("broker-b")
            load.wait_acknowledged(20)
        admin.topics.update("T", queue_count=2)
        assert admin.topics.config("T").keys() == {"broker-a", "broker-b"}


def groups_at(address: str, bed: TwoBrokers) -> set[str]:
    """Return the groups that one broker has, without those it has from the start."""
    with BlockingClient(bed.name_server, timeout_s=DEADLINE_S) as client:
        return set(client._pool.ask(address, operations.group_table()).groups) & {"g", "g2"}
