"""What several name servers say, as one."""

import itertools

import pytest

from pymq.client.administration.name_servers import united_clusters, united_routes
from pymq.protocol.bodies import BrokerData, ClusterInfo, QueueData, TopicRoute


def info(addresses: dict[int, str], name: str = "b") -> ClusterInfo:
    broker = BrokerData(broker_name=name, cluster="c", addresses=addresses)
    return ClusterInfo(brokers={name: broker}, clusters={"c": frozenset([name])})


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (({0: "A"}, {0: "A", 1: "B"}), {0: "A", 1: "B"}),
        (({1: "B"}, {0: "A"}, {2: "C"}), {0: "A", 1: "B", 2: "C"}),
        (({1: "B"}, {0: "B"}), {0: "B"}),  # B became the master, and the first has not heard of it
        (({0: "B"}, {0: "B", 1: "B"}), {0: "B"}),
    ],
)
def test_the_addresses_of_a_broker(
    told: tuple[dict[int, str], ...], expected: dict[int, str]
) -> None:
    for answers in itertools.permutations(map(info, told)):
        assert united_clusters(answers).brokers["b"].addresses == expected


def test_the_first_one_counts_where_two_name_another_master() -> None:
    assert united_clusters([info({0: "A"}), info({0: "B"})]).brokers["b"].addresses == {0: "A"}


def test_clusters_and_routes() -> None:
    united = united_clusters([info({0: "A"}, "a"), info({0: "B"}, "b")])
    assert united.brokers.keys() == united.clusters["c"] == {"a", "b"}

    def route(*queues: QueueData) -> TopicRoute:
        brokers = [BrokerData(broker_name=one.broker_name) for one in queues]
        return TopicRoute(queues=list(queues), brokers=brokers)

    here, there = (QueueData(broker_name="a", perm=perm) for perm in (6, 4))
    other = QueueData(broker_name="b")
    found = united_routes([route(here), route(there, other)])
    assert sorted(one.broker_name for one in found.brokers) == ["a", "b"]
    assert sorted(found.queues, key=lambda one: one.broker_name) == [here, other]


def test_a_slave_in_its_masters_place_counts_less_than_the_master() -> None:
    """Only the slave is registered at the second name server, and it acts."""
    whole, acting = (
        TopicRoute(
            queues=[QueueData(broker_name="b", perm=perm)],
            brokers=[BrokerData(broker_name="b", addresses=addresses)],
        )
        for perm, addresses in ((6, {0: "X", 1: "Y"}), (4, {0: "Y"}))
    )
    for answers in itertools.permutations([whole, acting]):
        found = united_routes(answers)
        assert found.queues == whole.queues
        assert found.brokers[0].addresses == {0: "X", 1: "Y"}
