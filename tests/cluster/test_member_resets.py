"""Groups that are set to other offsets while they have members, which their brokers then tell."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from pymq import Message, Network, ReceivedMessage, blocking
from pymq.testing import Cluster

LIMIT_S = 120.0
COUNT = 40


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    settings = {"server_side_reset": False}  # as brokers of 4.9
    with Cluster(brokers=2, broker=settings) as running:
        yield running


def until(condition: Callable[[], object], what: str | Callable[[], str]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline_s:
            text = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {LIMIT_S:g} s: {text}")
        time.sleep(0.02)


class Member:
    """A consumer whose handler counts, in a thread."""

    def __init__(self, cluster: Cluster, **options: Any) -> None:
        self.counts: Counter[bytes] = Counter()
        self.is_free = threading.Event()
        self.is_free.set()
        self.consumer = blocking.Consumer(
            cluster.name_server, "g", from_where="earliest", timeout_s=LIMIT_S, **options
        ).subscribe("T")
        self._thread = threading.Thread(target=self._run)

    def _handle(self, message: ReceivedMessage) -> None:
        self.counts[message.body] += 1
        assert self.is_free.wait(LIMIT_S)

    def _run(self) -> None:
        self.consumer.run(self._handle)

    @property
    def share(self) -> int:
        """How many queues of the topic are its own."""
        return [queue.topic for queue in self.consumer.assignment].count("T")

    def __enter__(self) -> "Member":
        self.consumer.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_free.set()
        self.consumer.close()
        self._thread.join(LIMIT_S)


def fill(cluster: Cluster, first: int, count: int = COUNT, network: Network | None = None) -> None:
    options = {} if network is None else {"network": network}
    with blocking.Producer(cluster.name_server, timeout_s=LIMIT_S, **options) as producer:
        queues = producer.queues("T")
        for number in range(first, first + count):
            queue = queues[number % len(queues)]
            producer.send(Message("T", b"%d" % number), queue=queue)


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("namespace", [None, "ns"])
def test_members_go_on_where_the_group_was_set_to(
    cluster: Cluster, orderly: bool, namespace: str | None
) -> None:
    network = Network(namespace=namespace)
    with blocking.Admin(cluster.name_server, timeout_s=LIMIT_S, network=network) as admin:
        admin.topics.create("T", queue_count=2)
        with (
            Member(cluster, orderly=orderly, network=network) as one,
            Member(cluster, orderly=orderly, network=network) as two,
        ):
            total = lambda: sum(one.counts.values()) + sum(two.counts.values())  # noqa: E731
            # A queue that changes hands at the moment is nobody's, and nobody hears of the reset.
            until(lambda: one.share == two.share == 2, "each has its share")
            fill(cluster, 0, network=network)
            time.sleep(0.01)
            moment = datetime.now(UTC)
            time.sleep(0.01)
            until(lambda: total() >= COUNT, "all came")
            one.consumer.commit()
            two.consumer.commit()
            count = total()
            changes = admin.offsets.reset("g", "T", "earliest")
            assert {change.after for change in changes} == {0}
            until(lambda: total() >= count + COUNT, "all came again")
            fill(cluster, COUNT, network=network)
            until(lambda: total() >= count + 2 * COUNT, "what is new came")
            admin.offsets.reset("g", "T", moment)
            until(lambda: total() >= count + 3 * COUNT, "what is newer than a time came again")
            assert total() == count + 3 * COUNT
            counts = one.counts + two.counts
        assert {counts[b"%d" % number] for number in range(COUNT, 2 * COUNT)} == {2}
        assert min(counts.values()) == 2
        lags = admin.offsets.lag("g", "T")
        assert sum(lag.lag for lag in lags) == 0


@pytest.mark.parametrize("orderly", [False, True])
def test_what_a_handler_has_and_what_waits(
    cluster: Cluster, orderly: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """To the end: what waits is skipped, and what a handler has does not set the group back."""
    with blocking.Admin(cluster.name_server, timeout_s=LIMIT_S) as admin:
        admin.topics.create("T", queue_count=1)
        fill(cluster, 0)
        with Member(cluster, orderly=orderly) as member:
            until(lambda: len(member.counts) == COUNT, "all came")
            member.consumer.commit()  # The brokers know the group.
            member.is_free.clear()
            fill(cluster, COUNT)
            until(lambda: sum(member.counts.values()) > COUNT, "a handler has one")
            reset = threading.Thread(target=admin.offsets.reset, args=("g", "T", "latest"))
            reset.start()
            told = "the offset of its group was reset"
            until(lambda: caplog.text.count(told) >= 2, "it was told of its two queues")
            member.is_free.set()
            reset.join(LIMIT_S)
            assert not reset.is_alive()
            until(lambda: cluster.lag("g", "T") == 0, "the group is at the end")
            handled = sum(member.counts.values())
            assert handled < 2 * COUNT
            fill(cluster, 2 * COUNT)
            until(lambda: sum(member.counts.values()) == handled + COUNT, "what is new came")


def test_a_broker_is_killed_after_a_reset(cluster: Cluster) -> None:
    with blocking.Admin(cluster.name_server, timeout_s=LIMIT_S) as admin:
        admin.topics.create("T", queue_count=2)
        fill(cluster, 0)
        with Member(cluster) as member:
            until(lambda: len(member.counts) == COUNT, lambda: f"all came: {member.counts}")
            member.consumer.commit()
            admin.offsets.reset("g", "T", "earliest")
            cluster.kill_broker("broker-b")
            cluster.start_broker("broker-b")
            until(lambda: min(member.counts.values()) >= 2, "all came again")
            fill(cluster, COUNT)
            until(lambda: len(member.counts) == 2 * COUNT, "what is new came")
            until(lambda: cluster.lag("g", "T") == 0, "all is committed")
