"""Bounds of many queues, requested from all their brokers at the same time."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pymq.client import operations
from pymq.client.cluster.network import advertised
from pymq.client.cluster.routes import Route
from pymq.client.operations import Operation
from pymq.client.sockets.blocking_pool import PASSING, BlockingPool
from pymq.client.sockets.many_requests import ask_many
from pymq.errors import PymqError, RouteNotFound
from pymq.protocol.bodies import MessageQueue


@dataclass(slots=True)
class BoundsAnswer:
    """The answers to one round of requests.

    Attributes:
        found: (first offset kept, end) of the queues whose brokers answered.
        failed: broker name -> why one of its queues has no answer.
        topic_ids: (topic, broker name) -> which topic of that name it is; of pymq brokers.
    """

    found: dict[MessageQueue, tuple[int, int]] = field(default_factory=dict)
    failed: dict[str, PymqError] = field(default_factory=dict)
    topic_ids: dict[tuple[str, str], str] = field(default_factory=dict)


def ask_bounds(
    pool: BlockingPool, queues: Sequence[MessageQueue], *, timeout_s: float
) -> BoundsAnswer:
    """Ask once for the bounds of queues; a broker that is away costs no other its answer.

    The routes of topics of which a queue has no answer are doubted.

    Args:
        pool: connections and routes.
        queues: each once.
        timeout_s: as for ``ask_many``.

    Raises:
        ClientMisplaced: another thread waits for an answer.
        PymqError: a broker refused, for good.
    """
    answer = BoundsAnswer()

    def failed(queue: MessageQueue, error: PymqError) -> None:
        if not isinstance(error, PASSING):
            raise error
        answer.failed.setdefault(queue.broker_name, error)
        pool.routes.doubt(queue.topic)

    routes = try_routes(pool, {queue.topic for queue in queues})
    routed: list[MessageQueue] = []
    asked: list[tuple[str, Operation[int]]] = []
    hints: dict[str, str] = {}
    for queue in queues:
        route = routes[queue.topic]
        if isinstance(route, PymqError):
            failed(queue, route)
            continue
        try:
            address = route.read_address(queue.broker_name)
        except RouteNotFound as error:
            failed(queue, error)
            continue
        routed.append(queue)
        pair = operations.min_offset(queue), operations.max_offset(queue, answer.topic_ids)
        asked += [(address, one) for one in pair]
        hints[address] = advertised(queue.broker_name)
    results = ask_many(pool, asked, timeout_s=timeout_s, hints=hints)
    for queue, first, end in zip(routed, results[::2], results[1::2], strict=True):
        if isinstance(first, PymqError):
            failed(queue, first)
        elif isinstance(end, PymqError):
            failed(queue, end)
        else:
            answer.found[queue] = (first, max(first, end))
    return answer


def try_routes(pool: BlockingPool, topics: set[str]) -> dict[str, Route | PymqError]:
    """Return the topics' routes, or why there is none.

    Raises:
        PymqError: a name server refused.
    """
    found: dict[str, Route | PymqError] = {}
    for topic in topics:
        try:
            found[topic] = pool.route(topic)
        except PASSING as error:
            found[topic] = error
    return found
