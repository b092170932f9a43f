"""Administration while the master of a group of brokers is away, and its slave is there."""

import asyncio
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import running
from tests.cluster.replicated import Pair, eventually, pair_of
from tests.cluster.test_acting_master import ACTING, LATE

from pymq import blocking
from pymq.client import operations
from pymq.errors import BrokersFailed, ConfigurationError, MessageNotFound, RouteNotFound
from pymq.namesrv.config import NamesrvConfig
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.codes import Permission, RequestCode
from pymq.protocol.message import Message
from pymq.testing import Cluster

DEADLINE_S = 60.0
OTHER = "broker-b"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """A master and its slave; a topic with a message, and a group that has committed."""
    with pair_of(tmp_path) as pair:
        yield pair


def admin_at(name_server: str) -> blocking.Admin:
    return blocking.Admin(name_server, timeout_s=DEADLINE_S)


def fill(pair: Pair, admin: blocking.Admin) -> None:
    """Create topic T and group g, send to each queue, commit, and wait for the slave."""
    admin.topics.create("T", queue_count=1)
    admin.groups.create("g")
    limits: Any = {"timeout_s": DEADLINE_S, "deadline_s": DEADLINE_S}
    with blocking.Producer(pair.master.name_server, **limits) as producer:
        for name in admin.topics.route("T").addresses:
            queue = MessageQueue("T", name, 0)
            producer.send(Message("T", name.encode(), keys="k"), queue=queue)
    admin.offsets.reset("g", "T", "earliest")
    pair.wait_equal()
    offset = {"consumerGroup": "g", "topic": "T", "queueId": "0", "setZeroIfNotFound": "false"}

    def has_followed() -> bool:
        asked = (
            (RequestCode.GET_TOPIC_CONFIG, {"topic": "T"}),
            (RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "g"}),
            (RequestCode.QUERY_CONSUMER_OFFSET, offset),
        )
        return all(pair.ask(code, fields).code == 0 for code, fields in asked)

    eventually(has_followed, "the slave has it all")


def take_master(pair: Pair, admin: blocking.Admin) -> None:
    """Kill the master; wait until the name server knows the slave alone."""
    name = pair.master.broker_name
    pair.master.kill_broker()
    eventually(lambda: admin.brokers.addresses().get(name, {}).keys() == {1}, "it is missed")


def bring_master(pair: Pair, admin: blocking.Admin) -> None:
    """Start the master; wait until the name server gives its topic's route."""
    name = pair.master.broker_name
    pair.master.start_broker()
    eventually(lambda: name in admin.topics.route("T").masters(), "it is there again")


def test_what_is_changed_without_one_of_two_masters_says_so(pair: Pair) -> None:
    away, more = pair.master.broker_name, {"name": OTHER}
    server = (pair.master.name_server,)
    with Cluster(broker={**more, "name_servers": server}), admin_at(server[0]) as admin:
        eventually(lambda: OTHER in admin.brokers.masters(), "it is there")
        fill(pair, admin)
        take_master(pair, admin)
        changes: list[Callable[[], object]] = [
            lambda: admin.topics.update("T", perm=int(Permission.READ)),
            lambda: admin.topics.create("U", queue_count=1),
            lambda: admin.groups.create("h"),
            lambda: admin.groups.delete("g", forget_offsets=True),
            lambda: admin.topics.delete("T"),
        ]
        for change in changes:
            with pytest.raises(
                BrokersFailed,
                match=f"done on {OTHER}; not done on {away}: .*master is away, only a slave at",
            ) as caught:
                change()
            assert list(caught.value.answers) == [OTHER]
            assert caught.value.retriable and caught.value.outcome_known
        bring_master(pair, admin)
        # As was said, it has what it had.
        assert "g" in admin.groups.names()
        kept = operations.topic_config("T")
        config = asyncio.run(running.ask(pair.master.broker_address, kept))
        assert config.perm == int(Permission.READ | Permission.WRITE)
        for change in changes[1:]:
            change()
        assert "g" not in admin.groups.names() and "T" not in admin.topics.names()


def test_what_is_read_without_one_of_two_masters_is_whole(pair: Pair) -> None:
    away, more = pair.master.broker_name, {"name": OTHER}
    server = (pair.master.name_server,)
    with Cluster(broker={**more, "name_servers": server}), admin_at(server[0]) as admin:
        eventually(lambda: OTHER in admin.brokers.masters(), "it is there")
        fill(pair, admin)
        take_master(pair, admin)
        both = {away, OTHER}
        assert {one.queue.broker_name: one.lag for one in admin.offsets.lag("g")} == dict.fromkeys(
            both, 1
        )
        assert {one.body.decode() for one in admin.messages.by_key("T", "k")} == both
        assert {queue.broker_name for queue in admin.topics.status("T")} == both
        assert admin.topics.config("T").keys() == admin.groups.config("g").keys() == both
        assert admin.brokers.masters().keys() == {OTHER}


def test_a_lone_slave_tells_and_is_not_changed(pair: Pair) -> None:
    with admin_at(pair.master.name_server) as admin:
        fill(pair, admin)
        consumer = blocking.Consumer(pair.master.name_server, "g", timeout_s=DEADLINE_S)
        with consumer.subscribe("T"):
            eventually(lambda: bool(admin.groups.members("g").connections), "it is a member")
            take_master(pair, admin)
            # Members tell slaves of themselves, too.
            eventually(lambda: bool(admin.groups.members("g").connections), "it is still there")
        name = pair.master.broker_name
        assert [one.queue.broker_name for one in admin.offsets.lag("g")] == [name]
        assert "g" in admin.groups.names() and admin.topics.groups("T") == ["g"]
        (found,) = admin.messages.by_key("T", "k")
        assert admin.messages.by_unique_id("T", str(found.message_id)) == found
        with pytest.raises(MessageNotFound):
            admin.messages.by_unique_id("T", "nobody's")
        for change in (
            lambda: admin.topics.update("T", perm=4),
            lambda: admin.topics.create("U"),
            lambda: admin.topics.delete("T"),
            lambda: admin.groups.create("h"),
            lambda: admin.groups.delete("g"),
            lambda: admin.offsets.reset("g", "T", "latest"),
        ):
            with pytest.raises(RouteNotFound, match=f"{pair.slave.broker_address}"):
                change()


def test_a_reset_is_refused_while_members_read_at_a_slave_that_acts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acting = functools.partial(NamesrvConfig, support_acting_master=True)
    monkeypatch.setattr("pymq.testing.naming.NamesrvConfig", acting)
    settings: dict[str, Any] = {"replication": ACTING, "slave_replication": {**ACTING, **LATE}}
    with pair_of(tmp_path, **settings) as pair, admin_at(pair.master.name_server) as admin:
        fill(pair, admin)
        name = pair.master.broker_name

        def has_members() -> bool:
            return bool(admin.groups.members("g").connections)

        consumer = blocking.Consumer(pair.master.name_server, "g", timeout_s=DEADLINE_S)
        with consumer.subscribe("T"):
            eventually(has_members, "it is a member")
            take_master(pair, admin)
            eventually(lambda: name in admin.topics.route("T").masters(), "the slave acts")
            eventually(has_members, "it is still there")
            for dry_run in (True, False):
                with pytest.raises(ConfigurationError, match=f"master of broker '{name}' is away"):
                    admin.offsets.reset("g", "T", "latest", dry_run=dry_run)
            assert [one.consumer_offset for one in admin.offsets.lag("g")] == [0]
            with pytest.raises(RouteNotFound, match="its master is away"):
                admin.topics.update("T", perm=4)
        eventually(lambda: not has_members(), "it is gone")
        # The slave keeps it for its master.
        (change,) = admin.offsets.reset("g", "T", "latest")
        assert (change.before, change.after) == (0, 1)
        bring_master(pair, admin)
        eventually(lambda: 0 in admin.brokers.addresses()[name], "it is there again")
        assert [one.consumer_offset for one in admin.offsets.lag("g")] == [1]
