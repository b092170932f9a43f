"""Both names of the topic of popped messages that come again: at our broker, and at a real one."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from tests.interop.conftest import require_peers, some
from tests.interop.java_scenarios import AdminFactory, ClientFactory, JavaSite, make_site
from tests.interop.peers import RealBroker, RealNameServer

from pymq.protocol import names
from pymq.testing import Cluster

pytestmark = pytest.mark.interop

VERSION = "5.3.3"
#: What failed comes again after ten seconds, the first of the client's delays.
AGAIN_S = 120.0

#: (whether retry topics have names of the new form) -> (name server, broker's name, its address)
Place = tuple[str, str, str]
Start = Callable[[bool], AbstractContextManager[Place]]


@pytest.fixture(params=some([("pymq",), ("official",)]))
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Start:
    """Start a broker whose store is there again at the next start."""
    store = tmp_path / "store"

    @contextmanager
    def ours(v2: bool) -> Iterator[Place]:
        with Cluster(store, broker={"pop_retry_v2": v2}) as cluster:
            yield cluster.name_server, cluster.broker_name, cluster.broker_address

    @contextmanager
    def official(v2: bool) -> Iterator[Place]:
        with (
            RealNameServer(VERSION) as name_server,
            RealBroker(
                VERSION,
                [name_server.address],
                store_dir=store,
                enableRetryTopicV2=v2,
                mappedFileSizeCommitLog=1 << 24,
            ) as broker,
        ):
            yield name_server.address, broker.name, broker.address

    if request.param == "pymq":
        return ours
    require_peers(VERSION)
    return official


def waiting(site: JavaSite, *, v2: bool) -> int:
    """Return how many messages were put into a retry topic so far; 0 when it does not exist."""
    topic = names.pop_retry_topic(site.topic, site.group, v2=v2)
    return site.admin.message_count(topic) if topic in site.admin.topics() else 0


def wait_retried(site: JavaSite, count: int, *, v2: bool) -> None:
    deadline = time.monotonic() + AGAIN_S
    while waiting(site, v2=v2) < count:
        assert time.monotonic() < deadline, f"{waiting(site, v2=v2)} of {count} came again"
        time.sleep(0.2)
    assert waiting(site, v2=v2) == count
    assert waiting(site, v2=not v2) == 0


def send(site: JavaSite, bodies: list[bytes]) -> None:
    with site.producer() as producer:
        for body in bodies:
            producer.send(site.topic, body)


def test_what_failed_has_the_new_name_and_what_waited_under_the_old_one_is_popped_too(
    start: Start, java_client: ClientFactory, java_admin: AdminFactory
) -> None:
    old = [b"old %d" % n for n in range(4)]
    new = [b"new %d" % n for n in range(4)]
    with start(False) as (name_server, broker_name, broker_address):
        site = make_site(
            VERSION,
            java_client,
            java_admin,
            name_server=name_server,
            broker_name=broker_name,
            broker_address=broker_address,
        )
        site.pop_mode()
        send(site, old)
        with site.push("*", ClientRebalance=False, fail_first=len(old)) as consumer:
            deadline = time.monotonic() + AGAIN_S
            while len(consumer.failed) < len(old):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            time.sleep(1)  # the client tells the broker after its listener returned
        wait_retried(site, len(old), v2=False)
    with start(True) as (name_server, broker_name, broker_address):
        site = dataclasses.replace(
            site,
            admin=java_admin(VERSION, name_server),
            name_server=name_server,
            broker_address=broker_address,
        )
        send(site, new)
        with site.push("*", ClientRebalance=False, fail_first=len(new) + len(old)) as consumer:
            received = consumer.wait_count(len(old) + len(new), AGAIN_S)
        assert Counter(message.body for message in received) == Counter(old + new)
        times = {message.body: message.reconsume_times for message in received}
        # Everything failed once more; that which waited under the old name counts on.
        assert times == {**dict.fromkeys(old, 2), **dict.fromkeys(new, 1)}
        new_name = names.pop_retry_topic(site.topic, site.group, v2=True)
        assert new_name in site.admin.topics()
