"""Queues for which no name server knows a route, although their brokers are there.

Their topic was deleted, or its brokers are just registering. A broker's master knows which: it is
asked directly, at the address it registered. Of a queue it does not have, it says that it is empty.
"""

from collections.abc import Callable, Collection, Iterable

from pymq.client import operations
from pymq.client.cluster.routes import MASTER_ID
from pymq.client.sockets.blocking_pool import PASSING
from pymq.client.sockets.bulk_client import BulkClient
from pymq.errors import PymqError, RouteNotFound, TopicNotExist
from pymq.protocol.bodies import MessageQueue
from pyspark_pymq.offsets import Bounds

#: There is no route, or one to a broker that does not know the topic.
UNROUTED = (RouteNotFound, TopicNotExist)
#: An answer is used for this long: a route is what is waited for, and that is looked at each time.
ANSWER_AGE_S = 1.0


def knows_all(client: BulkClient) -> bool:
    """Say whether a topic that no name server knows is not there.

    One that gives no answer may know what the others do not, and one that has just started knows
    no broker: then it is not certain.
    """
    asked = [(address, operations.cluster_info()) for address in client.name_servers]
    answers = client.ask_many(asked)
    return all(not isinstance(answer, PymqError) and answer.brokers for answer in answers)


def master_bounds(client: BulkClient, queues: Iterable[MessageQueue]) -> Bounds:
    """Return the bounds of those queues whose brokers' masters are registered and answer.

    Raises:
        PymqError: one refused.
    """
    found: dict[MessageQueue, tuple[int, int]] = {}
    silent: set[str] = set()
    try:
        brokers = client.cluster_info().brokers
    except PASSING:
        return found
    for queue in queues:
        name = queue.broker_name
        address = brokers[name].addresses.get(MASTER_ID) if name in brokers else None
        if address is None or name in silent:
            continue
        try:
            first = client.ask(address, operations.min_offset(queue))
            end = client.ask(address, operations.max_offset(queue))
        except PASSING:
            silent.add(name)
        else:
            found[queue] = first, max(first, end)
    return found


class UnroutedQueues:
    """What masters said of a query's queues that have no route.

    Args:
        monotonic_s: the clock.
    """

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._bounds: Bounds = {}
        self._until_s = 0.0

    def known(self, routed: Collection[MessageQueue]) -> Bounds:
        """Return the answers that can still be used: of queues that have had no route since."""
        if self._monotonic_s() >= self._until_s:
            self.forget()
        self._bounds = {q: some for q, some in self._bounds.items() if q not in routed}
        return self._bounds

    def forget(self) -> None:
        """Have masters asked again."""
        self._bounds = {}

    def ask(self, client: BulkClient, queues: Iterable[MessageQueue]) -> Bounds:
        """Return what ``master_bounds`` does, and keep it."""
        self._bounds = master_bounds(client, queues)
        self._until_s = self._monotonic_s() + ANSWER_AGE_S
        return self._bounds
