"""What ``pymq consume --group --no-follow`` commits when a broker goes, or it is interrupted."""

from collections.abc import Callable, Iterator

import pytest
from tests.administration import admin_of
from tests.cluster.cli_processes import pymq, refusal

from pymq.cli.consuming import consume
from pymq.client.cluster.network import PLAIN
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.errors import PymqError
from pymq.protocol.bodies import GroupConfig, MessageQueue
from pymq.protocol.message import Message, ReceivedMessage
from pymq.testing import Cluster

TIMEOUT_S = 60.0
MESSAGES = 4


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Two brokers with a message in each of their two queues, and group g."""
    with Cluster(brokers=2) as running:
        with BlockingClient(running.name_server, timeout_s=TIMEOUT_S) as client:
            admin = admin_of(client)
            admin.topics.create("T", queue_count=2)
            admin.groups.create(GroupConfig(group="g"))
            for queue in client.write_queues("T"):
                client.send(Message("T", b"x"), queue)
        yield running


def drain(cluster: Cluster, show: Callable[[ReceivedMessage], None]) -> None:
    # What is tried again in vain need not be tried for long.
    with BlockingClient(cluster.name_server, timeout_s=TIMEOUT_S, read_deadline_s=0.5) as client:
        consume(
            client, "T", network=PLAIN, timeout_s=TIMEOUT_S, group="g", start="earliest",
            tags="*", follow=False, count=None, queue=None, show=show,
        )  # fmt: skip


def committed(cluster: Cluster, broker_name: str) -> list[int | None]:
    with BlockingClient(cluster.name_server, timeout_s=TIMEOUT_S) as client:
        return [client.committed_offset("g", MessageQueue("T", broker_name, n)) for n in (0, 1)]


class Shown:
    """Kills broker-a after the last message, and then ends with an error if there is one."""

    def __init__(self, cluster: Cluster, error: BaseException | None = None) -> None:
        self._cluster = cluster
        self._error = error
        self.count = 0

    def __call__(self, message: ReceivedMessage) -> None:
        self.count += 1
        if self.count == MESSAGES:
            self._cluster.broker("broker-a").kill()
            if self._error is not None:
                raise self._error


def test_what_one_broker_does_not_take_is_committed_at_the_others(cluster: Cluster) -> None:
    shown = Shown(cluster)
    with pytest.raises(PymqError, match="broker-a") as caught:
        drain(cluster, shown)
    assert shown.count == MESSAGES
    (note,) = caught.value.__notes__
    assert note == "committed: broker-b:0,1; not, or not for certain: broker-a:0,1"
    assert committed(cluster, "broker-b") == [1, 1]


@pytest.mark.parametrize("kind", [PymqError, KeyboardInterrupt])
def test_what_ended_the_reading_stays_the_error(
    cluster: Cluster, kind: type[BaseException]
) -> None:
    error = kind("the reading failed")
    with pytest.raises(kind, match="the reading failed") as caught:
        drain(cluster, Shown(cluster, error))
    (note,) = caught.value.__notes__
    assert "broker-a" in note and "committed: broker-b:0,1; not, or" in note
    assert sorted(map(str, committed(cluster, "broker-b"))) in (["0", "1"], ["1", "1"])


def test_the_time_that_was_given_counts(cluster: Cluster) -> None:
    where = ("-n", cluster.name_server, "--timeout", "5")
    with cluster.broker().delay(TIMEOUT_S):
        found = refusal(pymq("consume", "T", "--group", "g", "--no-follow", *where))
    assert found.status == 3 and "within 5 s" in found.line
