"""Unmodified official Java clients against our name server and broker."""

import time
import uuid
from collections.abc import Callable, Iterator

import pytest
from tests.interop.java_client import JavaPushConsumer
from tests.interop.java_scenarios import (
    QUEUE_COUNT,
    AdminFactory,
    ClientFactory,
    JavaSite,
    bodies_with_tag_a,
    check_every_way,
    check_order,
    make_site,
    send_every_way,
)
from tests.interop.java_values import JavaError

from pymq.testing import Cluster

pytestmark = pytest.mark.interop

VERSIONS = ["4.5.1", "4.9.7", "5.3.3", "5.4.0"]
BALANCED_S = 120.0  # a consumer whose first round found no route waits for the next one


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


@pytest.fixture
def site_of(
    cluster: Cluster, java_client: ClientFactory, java_admin: AdminFactory
) -> Callable[[str], JavaSite]:
    """Returns a site with a client of a version."""

    def make(version: str) -> JavaSite:
        return make_site(
            version,
            java_client,
            java_admin,
            name_server=cluster.name_server,
            broker_name=cluster.broker_name,
            broker_address=cluster.broker_address,
        )

    return make


@pytest.fixture(params=VERSIONS)
def site(request: pytest.FixtureRequest, site_of: Callable[[str], JavaSite]) -> JavaSite:
    return site_of(request.param)


@pytest.fixture
def newest(site_of: Callable[[str], JavaSite]) -> JavaSite:
    return site_of("5.4.0")


def wait_until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(0.02)


def test_every_way_of_sending_reaches_push_and_pull_consumers(site: JavaSite) -> None:
    check_every_way(site)


def test_a_waiting_push_consumer_gets_messages_as_they_come(site: JavaSite) -> None:
    with site.push("a || none") as push:
        bodies = send_every_way(site)
        wanted = [body for body in bodies if body in bodies_with_tag_a()]
        received = push.wait_count(len(wanted))
        assert sorted(message.body for message in received) == sorted(wanted)


def test_two_consumers_share_and_one_leaving_hands_over(newest: JavaSite) -> None:
    with newest.push(InstanceName="one") as first:
        with newest.push(InstanceName="two") as second, newest.producer() as producer:
            count = 0
            deadline = time.monotonic() + BALANCED_S
            while not (first.messages and second.messages):
                assert time.monotonic() < deadline, "the group was never balanced"
                producer.send(newest.topic, b"%d" % count, queue_id=count % QUEUE_COUNT)
                count += 1
                time.sleep(0.01)
        with newest.producer() as producer:
            for _ in range(8):
                producer.send(newest.topic, b"%d" % count, queue_id=count % QUEUE_COUNT)
                count += 1
        missing = {b"%d" % n for n in range(count)} - {m.body for m in second.messages}
        wait_until(lambda: missing <= {message.body for message in first.messages})


def test_an_orderly_consumer_locks_queues_and_keeps_their_order(newest: JavaSite) -> None:
    check_order(newest)


def test_a_topic_nobody_created_is_created_by_the_first_send(newest: JavaSite) -> None:
    topic = f"fresh-{uuid.uuid4().hex[:12]}"
    with newest.producer() as producer:
        assert producer.send(topic, b"first").status == "SEND_OK"
    with JavaPushConsumer(newest.client, newest.group, newest.name_server, topic) as push:
        (received,) = push.wait_count(1)
    assert (received.topic, received.body) == (topic, b"first")


def test_a_compressed_body_passes_through(newest: JavaSite) -> None:
    body = b"compress me " * 1000
    with newest.producer(CompressMsgBodyOverHowmuch=100) as producer:
        producer.send(newest.topic, body)
    with newest.push() as push:
        (received,) = push.wait_count(1)
    assert received.body == body
    assert received.store_size < len(body)


def test_administration_through_the_official_tools(site: JavaSite) -> None:
    assert site.admin.cluster_info().masters() == [site.broker_address]
    assert site.admin.message_count(site.topic) == 0
    with pytest.raises(JavaError):
        site.admin.topic_stats("no-such-topic")
