"""The harness's own check: official clients against official brokers."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.interop.conftest import RealCluster, require_peers
from tests.interop.java_client import JavaProducer, JavaPushConsumer
from tests.interop.java_scenarios import (
    AdminFactory,
    ClientFactory,
    JavaSite,
    bodies_with_tag_a,
    check_every_way,
    check_order,
    make_site,
    send_every_way,
)
from tests.interop.java_transactions import wait_until
from tests.interop.java_values import JavaError
from tests.interop.peers import RealBroker, RealNameServer
from tests.interop.processes import PeerFailed

pytestmark = pytest.mark.interop

# (client version, broker version)
PAIRS = [("4.9.7", "4.9.7"), ("5.3.3", "5.3.3"), ("4.5.1", "5.3.3"), ("5.4.0", "5.3.3")]


@pytest.fixture
def site_of(
    real_cluster: Callable[[str], RealCluster],
    java_client: ClientFactory,
    java_admin: AdminFactory,
) -> Callable[[str, str], JavaSite]:
    """Returns a site with a client and a broker of some versions."""

    def make(client_version: str, broker_version: str) -> JavaSite:
        cluster = real_cluster(broker_version)
        return make_site(
            client_version,
            java_client,
            java_admin,
            name_server=cluster.name_server.address,
            broker_name=cluster.broker.name,
            broker_address=cluster.broker.address,
        )

    return make


@pytest.fixture(params=PAIRS, ids=lambda pair: f"client-{pair[0]}-broker-{pair[1]}")
def site(request: pytest.FixtureRequest, site_of: Callable[[str, str], JavaSite]) -> JavaSite:
    return site_of(*request.param)


@pytest.fixture
def alike(site_of: Callable[[str, str], JavaSite]) -> JavaSite:
    """5.3.3 with itself, for what needs no table of versions."""
    return site_of("5.3.3", "5.3.3")


def test_every_way_of_sending_reaches_push_and_pull_consumers(site: JavaSite) -> None:
    check_every_way(site)


def test_tag_expression_is_applied(site: JavaSite) -> None:
    bodies = send_every_way(site)
    with site.push("a || none") as push:
        received = push.wait_count(6)
    expected = [body for body in bodies if body in bodies_with_tag_a()]
    assert sorted(message.body for message in received) == sorted(expected)


def test_lite_pull_assign_seek_and_commit(alike: JavaSite) -> None:
    with alike.producer() as producer:
        for i in range(6):
            producer.send(alike.topic, b"%d" % i, queue_id=i % 2)
    key = (alike.broker_name, 1)
    with alike.lite_pull(mode="assign", queue_ids=[1]) as lite:
        assert [message.body for message in lite.poll_count(3)] == [b"1", b"3", b"5"]
        lite.seek(key, 1)
        assert [message.body for message in lite.poll_count(2)] == [b"3", b"5"]
        lite.commit()
        assert lite.committed(key) == 3


def test_pull_consumer_reports_status_and_next_offset(alike: JavaSite) -> None:
    with alike.producer() as producer:
        producer.send(alike.topic, b"one", queue_id=0)
    key = (alike.broker_name, 0)
    # It was acknowledged before it was in its queue.
    wait_until(lambda: alike.admin.message_count(alike.topic) == 1, "it can be read")
    with alike.pull() as pull:
        status, position, messages = pull.pull(key, 0)
        assert (status, position, [message.body for message in messages]) == ("FOUND", 1, [b"one"])
        assert pull.pull(key, 1) == ("NO_NEW_MSG", 1, [])


def test_orderly_consumer_keeps_each_queues_order_and_retries_in_place(alike: JavaSite) -> None:
    check_order(alike)


def test_failed_delivery_comes_again(alike: JavaSite) -> None:
    # Made beforehand, or the client learns of it at its next rebalance, some seconds later.
    alike.admin.create_topic(f"%RETRY%{alike.group}", 1)
    with (
        alike.producer() as producer,
        alike.push(fail_first=1, retry_delay_level=1) as push,
    ):
        producer.send(alike.topic, b"again")
        (received,) = push.wait_count(1)
        (failed,) = push.failed
    assert (failed.body, failed.reconsume_times) == (b"again", 0)
    assert (received.body, received.reconsume_times, received.topic) == (b"again", 1, alike.topic)


def test_sql_expression_and_compressed_body(alike: JavaSite) -> None:
    body = b"compress me " * 1000
    with alike.producer(CompressMsgBodyOverHowmuch=100) as producer:
        for price in (5, 15):
            producer.send(alike.topic, body, properties={"price": str(price)})
    with alike.push("price > 10", selector="sql") as push:
        (received,) = push.wait_count(1)
    assert received.properties["price"] == "15"
    assert received.body == body
    assert received.store_size < len(body)


def test_java_exceptions_carry_the_response_code(alike: JavaSite) -> None:
    with alike.producer() as producer:
        with pytest.raises(JavaError) as caught:
            producer.send("no/legal*topic", b"x")
        assert caught.value.class_name == "MQClientException"
    with pytest.raises(JavaError):
        alike.admin.topic_stats("no-such-topic")
    assert alike.admin.cluster_info().masters() == [alike.broker_address]


def test_store_survives_kill_and_restart(
    tmp_path: Path, java_client: ClientFactory, java_admin: AdminFactory
) -> None:
    client = java_client("4.9.7")
    topic = f"real-{uuid.uuid4().hex[:12]}"
    with (
        RealNameServer("4.9.7") as name_server,
        RealBroker(
            "4.9.7",
            [name_server.address],
            store_dir=tmp_path / "store",
            mappedFileSizeCommitLog=1 << 20,
        ) as broker,
    ):
        java_admin("4.9.7", name_server.address).create_topic(topic)
        with JavaProducer(client, f"producer-{topic}", name_server.address) as producer:
            sent = [producer.send(topic, b"%d" % i * 1000) for i in range(20)]
        broker.kill()
        assert (broker.store_dir / "abort").exists()
        (segment,) = (broker.store_dir / "commitlog").glob("0*0")
        assert segment.stat().st_size == 1 << 20
        broker.start()
        with JavaPushConsumer(client, f"group-{topic}", name_server.address, topic) as push:
            received = push.wait_count(len(sent))
        assert {(m.queue_id, m.queue_offset) for m in received} == {
            (s.queue_id, s.queue_offset) for s in sent
        }
    assert (tmp_path / "store" / "checkpoint").exists()
    assert not (tmp_path / "store" / "abort").exists()


def test_broker_that_cannot_start_says_why() -> None:
    require_peers("4.9.7")
    with (
        RealNameServer("4.9.7") as name_server,
        pytest.raises(PeerFailed, match=r"(?s)Address already in use.*ended before 'boot"),
        RealBroker("4.9.7", [], listenPort=name_server.port),
    ):
        pass
