"""The official push consumer in POP mode, rebalanced by the broker: ours, and a real one."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.interop.conftest import RealCluster
from tests.interop.java_scenarios import AdminFactory, ClientFactory, JavaSite, make_site

from pymq.testing import Cluster

pytestmark = pytest.mark.interop

VERSION = "5.3.3"
#: What failed comes again after ten seconds, the first of the client's delays.
AGAIN_S = 120.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


@pytest.fixture(params=["pymq", "official"])
def site(
    request: pytest.FixtureRequest,
    cluster: Cluster,
    real_cluster: Callable[[str], RealCluster],
    java_client: ClientFactory,
    java_admin: AdminFactory,
) -> JavaSite:
    """A topic that its group pops, at our broker and at an official one."""
    if request.param == "pymq":
        place = cluster.name_server, cluster.broker_name, cluster.broker_address
    else:
        real = real_cluster(VERSION)
        place = real.name_server.address, real.broker.name, real.broker.address
    name_server, broker_name, broker_address = place
    site = make_site(
        VERSION,
        java_client,
        java_admin,
        name_server=name_server,
        broker_name=broker_name,
        broker_address=broker_address,
    )
    # The name of the retry topic, of group and topic, takes two bytes to tell its length.
    site = dataclasses.replace(site, group=f"{site.group}-{'g' * 90}")
    assert len(f"%RETRY%{site.group}_{site.topic}") > 127
    site.pop_mode()
    return site


def popping(site: JavaSite, expression: str = "*", **options: Any) -> Any:
    return site.push(expression, ClientRebalance=False, **options)


def send(site: JavaSite, count: int, first: int = 0, **more: Any) -> list[bytes]:
    bodies = [b"message %d" % n for n in range(first, first + count)]
    with site.producer() as producer:
        for body in bodies:
            producer.send(site.topic, body, **more)
    return bodies


def test_every_message_is_consumed_and_failures_come_again(site: JavaSite) -> None:
    bodies = send(site, 40)
    with popping(site, fail_first=3) as consumer:
        received = consumer.wait_count(40, AGAIN_S)
        failed = consumer.failed
        time.sleep(2)
        assert len(consumer.messages) == 40
    assert Counter(message.body for message in received) == Counter(bodies)
    assert {message.topic for message in received} == {site.topic}
    again = [message for message in received if message.reconsume_times]
    assert sorted(m.body for m in again) == sorted(m.body for m in failed)
    assert {message.reconsume_times for message in again} == {1}
    for message in again:
        (first,) = (one for one in failed if one.body == message.body)
        # The client changes the invisible time of what failed: that is its first pop now.
        first_pop = int(message.properties["1ST_POP_TIME"])
        assert 0 <= first_pop - int(first.properties["1ST_POP_TIME"]) < 10_000
        handle = message.properties["POP_CK"].split(" ")
        assert handle[4:7] == ["1", site.broker_name, "0"]
        assert message.born_timestamp == first.born_timestamp
        assert set(message.properties) == set(first.properties)


def test_members_share_the_queues(site: JavaSite) -> None:
    with popping(site) as one, popping(site) as other:
        bodies: list[bytes] = []
        deadline = time.monotonic() + AGAIN_S
        while not (one.messages and other.messages):  # until both have their queues
            assert time.monotonic() < deadline, "one of them gets nothing"
            bodies += send(site, 40, len(bodies))
        bodies += send(site, 200, len(bodies))
        while len(one.messages) + len(other.messages) < len(bodies):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        found = Counter(message.body for message in one.messages + other.messages)
    assert found == Counter(bodies)


def test_tags_select(site: JavaSite) -> None:
    wanted = send(site, 10, tags="a")
    send(site, 10, tags="b")
    with popping(site, "a") as consumer:
        received = consumer.wait_count(10, AGAIN_S)
        time.sleep(1)
        assert len(consumer.messages) == 10
    assert sorted(message.body for message in received) == sorted(wanted)
    assert {message.tags for message in received} == {"a"}
