"""Whose word an answer about a queue is: its master's, or a slave's, which may lag behind.

A slave that acts for its master (``enableSlaveActingMaster``) is what routes have in the master's
place, read-only. What tells it apart is the list of all brokers, which has it under its own id. So
that list is asked for only where an answer looks like a loss.
"""

from collections.abc import Iterable, Mapping

from pymq.client.cluster.routes import MASTER_ID, Route
from pymq.client.sockets.blocking_pool import PASSING
from pymq.client.sockets.bulk_client import BulkClient
from pymq.protocol.bodies import MessageQueue
from pyspark_pymq.offsets import Bounds


def asks_master(client: BulkClient, queue: MessageQueue) -> bool:
    """Say whether what is missing in a queue is so by its master's word.

    Args:
        client: that asked.
        queue: with a route.
    """
    return client.asks_master(queue) and queue not in _without_known_master(client, [queue])


def said_by_masters(
    client: BulkClient, position: Mapping[MessageQueue, int], bounds: Bounds
) -> set[MessageQueue]:
    """Return the queues whose bounds are their masters' word.

    Those of a slave that acts for its master are taken for that if they hold what was read: then
    nothing is missing.

    Args:
        client: that asked.
        position: where a query stands, in the queues it knows.
        bounds: what was answered.
    """
    found = {queue for queue in bounds if client.asks_master(queue)}
    outside = [
        queue
        for queue in found & position.keys()
        if not bounds[queue][0] <= position[queue] <= bounds[queue][1]
    ]
    return found - _without_known_master(client, outside)


def _without_known_master(client: BulkClient, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
    """Return those queues that are not at a master for certain, although routes have one there.

    A route is older than the list: what stands in it may be a slave that does not act any more.
    """
    queues = list(queues)
    if not queues:  # mostly, and asked for very often
        return set()
    routes = {route.topic: route for route in client.known_routes()}
    known = [one for one in queues if one.topic in routes]
    doubtful = {one for one in known if _may_be_acting_slave(routes[one.topic], one)}
    if not doubtful:
        return doubtful
    try:
        brokers = client.cluster_info().brokers
    except PASSING:
        return doubtful
    masters = {name: broker.addresses.get(MASTER_ID) for name, broker in brokers.items()}
    return {
        queue
        for queue in doubtful
        if masters.get(queue.broker_name) != routes[queue.topic].masters().get(queue.broker_name)
    }


def _may_be_acting_slave(route: Route, queue: MessageQueue) -> bool:
    """Say whether a slave may stand in a route for the master of a queue: nothing is sent to it."""
    written = {one.broker_name for one in route.write_queues}
    return bool(route.order_conf) or queue.broker_name not in written
