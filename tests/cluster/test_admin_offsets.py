"""How far a group is, and setting it elsewhere, where not every broker knows of it."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cluster import running
from tests.cluster.played import Played

from pymq import blocking
from pymq.client import operations
from pymq.errors import GroupNotExist
from pymq.protocol.bodies import (
    BrokerData,
    ClusterInfo,
    GroupTable,
    MessageQueue,
    QueueData,
    TopicRoute,
)
from pymq.protocol.codes import MQ_VERSION_GROUPS_CHECKED, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.message import Message
from pymq.testing import Cluster

DEADLINE_S = 60.0
FIRST, SECOND = (MessageQueue("T", name, 0) for name in ("broker-a", "broker-b"))


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Two brokers with topic T and a message in the queue of the second one."""
    limits: Any = {"timeout_s": DEADLINE_S, "deadline_s": DEADLINE_S}
    with Cluster(brokers=2) as cluster:
        with blocking.Admin(cluster.name_server, timeout_s=DEADLINE_S) as admin:
            admin.topics.create("T", queue_count=1)
        with blocking.Producer(cluster.name_server, **limits) as producer:
            producer.send(Message("T", b"unread"), queue=SECOND)
        yield cluster


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[blocking.Admin]:
    with blocking.Admin(cluster.name_server, timeout_s=DEADLINE_S) as opened:
        yield opened


def lags(admin: blocking.Admin, *where: str) -> dict[MessageQueue, int]:
    return {one.queue: one.lag for one in admin.offsets.lag("g", *where)}


def test_a_group_is_behind_at_a_broker_that_it_never_committed_to(admin: blocking.Admin) -> None:
    admin.groups.create("g")
    assert lags(admin) == {}
    admin.offsets.reset("g", "T", "latest", queue=FIRST)
    assert lags(admin) == lags(admin, "T") == {FIRST: 0, SECOND: 1}


def test_a_group_that_committed_nothing_in_a_topic_has_no_lag_there(admin: blocking.Admin) -> None:
    admin.topics.create("U", queue_count=1)
    for _ in range(2):  # it is not known at first
        assert lags(admin) == lags(admin, "T") == lags(admin, "U") == {}
        admin.groups.create("g")
    admin.offsets.reset("g", "T", "earliest")
    assert lags(admin) == lags(admin, "T") == {FIRST: 0, SECOND: 1}
    assert lags(admin, "U") == {}


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_reset_of_a_group_that_a_broker_does_not_have_changes_nothing(
    admin: blocking.Admin, dry_run: bool
) -> None:
    with pytest.raises(GroupNotExist, match="'g' is not known to broker-a, broker-b; create it"):
        admin.offsets.reset("g", "T", "latest", dry_run=dry_run)
    admin.groups.create("g")
    address = admin.brokers.masters()["broker-b"]
    asyncio.run(running.ask(address, operations.delete_group("g", forget_offsets=True)))
    with pytest.raises(GroupNotExist, match="'g' is not known to broker-b; create it"):
        admin.offsets.reset("g", "T", "latest", dry_run=dry_run)
    assert admin.offsets.lag("g") == []
    (change,) = admin.offsets.reset("g", "T", "latest", queue=FIRST, dry_run=dry_run)
    assert change.queue == FIRST


@pytest.mark.parametrize("version", [MQ_VERSION_GROUPS_CHECKED - 1, MQ_VERSION_GROUPS_CHECKED])
def test_brokers_before_5_3_take_offsets_of_groups_that_they_do_not_have(version: int) -> None:
    """A group may so begin elsewhere before it exists."""

    def answer(request: Command) -> Command:
        code, fields, body = 0, {"offset": "0"}, b"{}"
        if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            body = ClusterInfo(brokers={"b": master}, clusters={"c": frozenset("b")}).encode()
        elif request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            counts = {"read_queue_count": 1, "write_queue_count": 1}
            queues = [QueueData(broker_name="b", perm=6, **counts)]
            body = TopicRoute(queues=queues, brokers=[master]).encode()
        elif request.code == RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG:
            body = GroupTable().encode()
        elif request.code == RequestCode.GET_CONSUMER_CONNECTION_LIST:
            code = ResponseCode.CONSUMER_NOT_ONLINE
        response = request.reply(code, None, fields, body)
        response.version = version
        return response

    with Played(answer) as server:
        master = BrokerData(broker_name="b", cluster="c", addresses={0: server.address})
        with blocking.Admin(server.address, timeout_s=DEADLINE_S) as admin:
            if version >= MQ_VERSION_GROUPS_CHECKED:
                with pytest.raises(GroupNotExist, match="'g' is not known to b;"):
                    admin.offsets.reset("g", "T", "latest")
                assert not server.count(RequestCode.UPDATE_CONSUMER_OFFSET)
            else:
                (change,) = admin.offsets.reset("g", "T", "latest")
                assert change.after == 0
                assert server.count(RequestCode.UPDATE_CONSUMER_OFFSET) == 1
