"""What several name servers say, as one.

They know nothing of each other, and a broker may be registered at some of them only: its
``namesrvAddr`` lacks one, the way there is blocked, or one has just been started. What is said
first counts where they disagree about the same broker.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from pymq.protocol.bodies import BrokerData, ClusterInfo, QueueData, TopicRoute
from pymq.protocol.codes import Permission


def united_clusters(answers: Sequence[ClusterInfo]) -> ClusterInfo:
    """Return all clusters and brokers of which any name server knows."""
    clusters: dict[str, frozenset[str]] = {}
    for answer in answers:
        for name, brokers in answer.clusters.items():
            clusters[name] = clusters.get(name, frozenset()) | brokers
    found = _united(one for answer in answers for one in answer.brokers.values())
    return ClusterInfo(brokers=found, clusters=clusters)


def united_routes(answers: Sequence[TopicRoute]) -> TopicRoute:
    """Return the route to all brokers of a topic of which any name server knows; at least one.

    Where only the slave of a broker is registered, a name server may show it in its master's place,
    without the permission to write: one that shows the master counts more.
    """

    def writable_first(name: str) -> list[TopicRoute]:
        return sorted(answers, key=lambda one: not _is_writable(one, name))

    queues: dict[str, QueueData] = {}
    brokers: list[BrokerData] = []
    for name in dict.fromkeys(_broker_names(answers)):
        for answer in writable_first(name):
            for queue in answer.queues:
                if queue.broker_name == name:
                    queues.setdefault(name, queue)
            brokers += [one for one in answer.brokers if one.broker_name == name]
    return replace(
        answers[0],
        queues=list(queues.values()),
        brokers=list(_united(brokers).values()),
        order_topic_conf=next(filter(None, (one.order_topic_conf for one in answers)), None),
    )


def _broker_names(answers: Sequence[TopicRoute]) -> Iterator[str]:
    for answer in answers:
        yield from (one.broker_name for one in answer.brokers)
        yield from (one.broker_name for one in answer.queues)


def _is_writable(route: TopicRoute, name: str) -> bool:
    return any(one.broker_name == name and one.perm & Permission.WRITE for one in route.queues)


def _united(brokers: Iterable[BrokerData]) -> dict[str, BrokerData]:
    same: dict[str, list[BrokerData]] = {}
    for broker in brokers:
        same.setdefault(broker.broker_name, []).append(broker)
    return {
        name: replace(those[0], addresses=_addresses(those)) for name, those in same.items()
    }


def _addresses(same: list[BrokerData]) -> dict[int, str]:
    """Return the addresses of one broker, each once.

    A master comes before slaves: where one became the master of late, not all know it yet.
    """
    places = [place for broker in same for place in broker.addresses.items()]
    found: dict[int, str] = {}
    for number, address in sorted(places, key=lambda place: place[0]):
        if address not in found.values():
            found.setdefault(number, address)
    return found
