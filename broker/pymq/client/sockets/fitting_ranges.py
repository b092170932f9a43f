"""How far ranges of many queues go within a number of bytes, requested from all their brokers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pymq.client import operations
from pymq.client.cluster.network import advertised
from pymq.client.operations import Operation
from pymq.client.sockets.blocking_pool import BlockingPool
from pymq.client.sockets.many_requests import ask_many
from pymq.client.sockets.queue_bounds import try_routes
from pymq.errors import PymqError
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.range_bodies import RANGES_MAX, Fitting, QueueRange


@dataclass(slots=True)
class FittingAnswer:
    """The answers to one round of requests.

    Attributes:
        found: what fits, of the queues whose brokers answered.
        failed: broker name -> why one of its queues has no answer.
    """

    found: dict[MessageQueue, Fitting] = field(default_factory=dict)
    failed: dict[str, PymqError] = field(default_factory=dict)


def ask_fitting(
    pool: BlockingPool, wanted: Mapping[MessageQueue, tuple[int, int, int]], *, timeout_s: float
) -> FittingAnswer:
    """Ask once what fits of ranges of queues; a broker that is away costs no other its answer.

    Args:
        pool: connections and routes.
        wanted: first queue offset, end, and the bytes there may be, of each queue.
        timeout_s: as for ``ask_many``.

    Raises:
        ClientMisplaced: another thread waits for an answer.
        ClientClosed: the pool is closed.
        PymqError: a name server refused.
    """
    answer = FittingAnswer()
    routes = try_routes(pool, {queue.topic for queue in wanted})
    by_broker: dict[tuple[str, str], list[MessageQueue]] = {}
    for queue in wanted:
        route = routes[queue.topic]
        try:
            if isinstance(route, PymqError):
                raise route
            address = route.read_address(queue.broker_name)
        except PymqError as error:
            answer.failed.setdefault(queue.broker_name, error)
        else:
            by_broker.setdefault((queue.broker_name, address), []).append(queue)
    asked: list[tuple[str, Operation[Sequence[Fitting]]]] = []
    parts: list[list[MessageQueue]] = []
    for (_, address), queues in by_broker.items():
        for start in range(0, len(queues), RANGES_MAX):
            parts.append(queues[start : start + RANGES_MAX])
            ranges = [QueueRange(q.topic, q.queue_id, *wanted[q]) for q in parts[-1]]
            asked.append((address, operations.fitting_ranges(ranges)))
    hints = {address: advertised(name) for name, address in by_broker}
    results = ask_many(pool, asked, timeout_s=timeout_s, hints=hints)
    for part, found in zip(parts, results, strict=True):
        if isinstance(found, PymqError):
            answer.failed.setdefault(part[0].broker_name, found)
        else:
            answer.found.update(zip(part, found, strict=True))
    return answer
