"""Changes with ``--cluster`` while a broker of another cluster is silent, and what they tell."""

from collections.abc import Iterator

import pytest
from tests.administration import admin_of
from tests.cluster.cli_processes import array, pymq, refusal
from tests.cluster.played import Played

from pymq import blocking
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.errors import BrokerError
from pymq.protocol.bodies import BrokerData, ClusterInfo, TopicConfig, TopicRoute
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
from pymq.testing import Cluster

TIMEOUT_S = 60.0
#: A broker that answers after this does not answer.
NEVER_S = 3600.0


@pytest.fixture
def clusters() -> Iterator[tuple[Cluster, Cluster]]:
    """Cluster A and, at its name server, cluster B; topic T and group g are in both."""
    with Cluster(broker={"name": "ca", "cluster": "A"}) as a:
        more = {"name": "cb", "cluster": "B", "name_servers": (a.name_server,)}
        with Cluster(broker=more) as b:
            with BlockingClient(a.name_server, timeout_s=TIMEOUT_S) as client:
                admin = admin_of(client)
                admin.topics.create("T", queue_count=2)
                admin.groups.create("g")
            yield a, b


def test_a_silent_broker_of_another_cluster_matters_to_no_change(
    clusters: tuple[Cluster, Cluster],
) -> None:
    a, b = clusters
    where = ("--cluster", "A", "-n", a.name_server, "-o", "json")
    with b.broker().delay(NEVER_S):
        assert array(pymq("topic", "create", "T", "--queues", "3", *where)) == [
            {"topic": "T", "queues": 3}
        ]
        (changed,) = array(pymq("topic", "update", "T", "--perm", "4", *where))
        assert (changed["broker"], changed["readQueues"], changed["perm"]) == ("ca", 3, 4)
        assert array(pymq("group", "delete", "g", *where))[0]["deleted"]
        again = refusal(pymq("group", "delete", "g", *where))
        assert again.status == 1 and "there is no group 'g' to delete" in again.line


def test_what_was_changed_is_told_when_it_cannot_be_read_back() -> None:
    """By one broker, which answers no question any more after the change."""
    changes: list[Command] = []

    def answer(request: Command) -> Command:
        body = b""
        broker = BrokerData(broker_name="ca", cluster="A", addresses={0: server.address})
        match request.code:
            case RequestCode.GET_BROKER_CLUSTER_INFO:
                clusters = {"A": frozenset(["ca"])}
                body = ClusterInfo(brokers={"ca": broker}, clusters=clusters).encode()
            case RequestCode.GET_ROUTEINFO_BY_TOPIC:
                body = TopicRoute(brokers=[broker]).encode()
            case RequestCode.UPDATE_AND_CREATE_TOPIC:
                changes.append(request)
            case RequestCode.GET_TOPIC_CONFIG if changes:
                return request.reply(1, "not now")
            case RequestCode.GET_TOPIC_CONFIG:
                body = TopicConfig(topic="T").encode()
        return request.reply(0, body=body)

    with (
        Played(answer) as server,
        blocking.Admin(server.address, timeout_s=TIMEOUT_S) as admin,
        pytest.raises(BrokerError, match="not now") as caught,
    ):
        admin.topics.update("T", perm=4)
    assert caught.value.__notes__ == ["topic 'T' is changed on ca"]
    assert len(changes) == 1
