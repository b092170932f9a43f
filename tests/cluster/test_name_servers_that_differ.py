"""Administration with two name servers that know different brokers, or of which one is silent."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cluster.cli_processes import pymq
from tests.cluster.played import Played, unreachable_address

from pymq import blocking
from pymq.errors import RouteNotFound
from pymq.protocol.message import Message
from pymq.testing import Cluster

NAMES = ("broker-a", "broker-b")
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def apart() -> Iterator[str]:
    """Two name servers: the first one knows only broker-b, the second one both brokers."""
    with Cluster(broker={"name": "broker-a"}) as a:
        both = {"name": "broker-b", "name_servers": (a.name_server,)}
        with Cluster(broker=both) as b:
            yield f"{b.name_server};{a.name_server}"


@pytest.fixture
def admin(apart: str) -> Iterator[blocking.Admin]:
    with blocking.Admin(apart, timeout_s=DEADLINE_S) as opened:
        yield opened


def create(apart: str, topic: str) -> None:
    """Create a topic at both brokers, through the name server that knows both."""
    _, second = apart.split(";")
    with blocking.Admin(second, timeout_s=DEADLINE_S) as admin:
        admin.topics.create(topic, queue_count=1)


def test_what_any_name_server_knows_is_known(apart: str, admin: blocking.Admin) -> None:
    create(apart, "known")
    assert admin.brokers.masters().keys() == set(NAMES)
    (cluster,) = admin.cluster().clusters.values()
    assert cluster == set(NAMES)
    assert admin.topics.route("known").masters().keys() == set(NAMES)
    assert [queue.broker_name for queue in admin.topics.status("known")] == list(NAMES)


def test_a_topic_that_the_first_name_server_does_not_know_is_listed_and_deleted() -> None:
    with Cluster() as a, Cluster() as b:
        for cluster, topic in ((a, "at-a"), (b, "at-b")):
            with blocking.Admin(cluster.name_server, timeout_s=DEADLINE_S) as admin:
                admin.topics.create(topic)
        both = f"{a.name_server};{b.name_server}"
        with blocking.Admin(both, timeout_s=DEADLINE_S) as admin:
            assert admin.topics.names() == ["at-a", "at-b"]
        # As after a deletion of which one name server was not told.
        assert pymq("topic", "delete", "at-b", "-n", both).returncode == 0
        with blocking.Admin(both, timeout_s=DEADLINE_S) as admin:
            assert admin.topics.names() == ["at-a"]


def test_changes_are_done_at_the_brokers_of_all_name_servers(
    apart: str, admin: blocking.Admin
) -> None:
    create(apart, "changed")
    changed = admin.topics.update("changed", perm=4)
    assert {name: config.perm for name, config in changed.items()} == dict.fromkeys(NAMES, 4)
    admin.topics.update("changed", perm=6)
    admin.groups.create("g")
    limits: Any = {"timeout_s": DEADLINE_S, "deadline_s": DEADLINE_S}
    with blocking.Producer(apart.split(";")[1], **limits) as producer:
        for queue in admin.topics.route("changed").write_queues:
            producer.send(Message("changed", b"x"), queue=queue)
    moved = admin.offsets.reset("g", "changed", "latest")
    assert [(one.queue.broker_name, one.after) for one in moved] == [(name, 1) for name in NAMES]
    assert len(admin.offsets.lag("g", "changed")) == 2
    admin.groups.delete("g", forget_offsets=True)
    admin.topics.delete("changed")
    with blocking.Admin(apart.split(";")[1], timeout_s=DEADLINE_S) as second:
        assert "changed" not in second.topics.names()
        assert "g" not in second.groups.names()


def test_a_topic_that_one_name_server_has_no_whole_route_of_is_told_of(
    admin: blocking.Admin, apart: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pymq.client.administration.topics.ROUTE_WAIT_S", 0.5)
    first, _ = apart.split(";")
    with pytest.raises(RouteNotFound, match=f"was created, but name server {first} has no comp"):
        admin.topics.create("halved")
    assert admin.topics.config("halved").keys() == set(NAMES)


def test_one_that_is_silent_is_waited_for_once(apart: str) -> None:
    with Played(lambda request: None) as silent:
        servers = f"{apart.split(';')[1]};{silent.address}"
        with blocking.Admin(servers, timeout_s=5.0) as admin:
            for _ in range(3):
                assert admin.brokers.masters().keys() == set(NAMES)
    assert len(silent.requests) == 1


def test_one_that_cannot_be_reached_does_not_matter(apart: str) -> None:
    with unreachable_address() as nowhere:
        for servers in (f"{nowhere};{apart}", f"{apart};{nowhere}"):
            with blocking.Admin(servers, timeout_s=DEADLINE_S, connect_timeout_s=2.0) as admin:
                assert admin.brokers.masters().keys() == set(NAMES)


def test_one_that_was_silent_is_asked_when_no_other_answers() -> None:
    with (
        Cluster() as cluster,
        Played(lambda request: None) as played,
        blocking.Admin(f"{cluster.name_server};{played.address}", timeout_s=5.0) as admin,
    ):
        assert admin.brokers.masters()
        asked = len(played.requests)
        with pytest.raises(RouteNotFound, match="not all of them could be asked"):
            admin.topics.route("none")
        assert len(played.requests) == asked + 1


def test_the_doctor_names_what_a_name_server_does_not_know(apart: str) -> None:
    done = pymq("doctor", "-n", apart, "-o", "json", "--timeout", "60")
    assert done.returncode == 1, done
    first, _ = apart.split(";")
    found = json.loads(done.stdout)
    (wrong,) = (one for one in found if one["state"] != "ok")
    assert wrong["check"] == "name server"
    assert wrong["text"].startswith(f"{first} does not know broker-a at 127.0.0.1:")
    assert f"name {first} in namesrvAddr" in wrong["advice"]
    assert {one["text"].split()[0] for one in found if one["check"] == "broker"} == set(NAMES)
