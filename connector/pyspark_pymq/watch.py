"""What the driver knows of the queues: their first and next offsets, asked for sparingly.

An idle query asks for its latest offset about ninety times a second. Brokers are asked at most
every ``AGE_MIN_S`` while messages arrive, and the less often the longer nothing does.
"""

import time
from collections.abc import Callable

from pymq.client.blocking import BlockingClient
from pymq.errors import PymqError
from pymq.protocol.bodies import MessageQueue
from pyspark_pymq.offsets import Bounds
from pyspark_pymq.options import SourceOptions
from pyspark_pymq.patience import ROUTE_PATIENCE_S, persist

AGE_MIN_S = 0.01
AGE_MAX_S = 0.2
#: How often name servers are asked for queues that are new or gone.
ROUTE_AGE_MAX_S = 10.0


class QueueWatch:
    """Bounds of all queues of the subscribed topics. Lives in one driver process, for one query.

    Args:
        options: of the source.
        monotonic_s: the clock.
        connect: makes the client.
    """

    def __init__(
        self,
        options: SourceOptions,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
        connect: Callable[..., BlockingClient] = BlockingClient,
    ) -> None:
        self._options = options
        self._monotonic_s = monotonic_s
        self._connect = connect
        self._client: BlockingClient | None = None
        self._queues: list[MessageQueue] = []
        self._queues_at: float | None = None
        self._bounds: Bounds = {}
        self._bounds_at: float | None = None
        self._age_s = AGE_MIN_S

    def bounds(self, *, fresh: bool = False) -> Bounds:
        """Return (first kept, next to be assigned) of every queue that has a route.

        Args:
            fresh: ask, however new the last answer is.

        Raises:
            PymqError: no answer within the patience the options give.
        """
        now = self._monotonic_s()
        if not fresh and self._bounds_at is not None and now - self._bounds_at < self._age_s:
            return self._bounds
        bounds = persist(
            self._ask,
            limit_s=self._options.retry_timeout_s,
            what="asking for offsets",
            # Before the first answer a topic without a route is a mistake to be told soon.
            route_limit_s=ROUTE_PATIENCE_S if self._bounds_at is None else None,
        )
        changed = bounds != self._bounds
        self._age_s = AGE_MIN_S if changed else min(2 * self._age_s, AGE_MAX_S)
        self._bounds, self._bounds_at = bounds, self._monotonic_s()
        return bounds

    def known(self) -> Bounds:
        """Return the last answer, without asking anybody; empty before the first."""
        return self._bounds

    def close(self) -> None:
        """Close the connections. What is asked afterwards opens new ones."""
        client, self._client = self._client, None
        self._queues_at = None
        if client is not None:
            client.close()

    def _ask(self) -> Bounds:
        if self._client is None:
            self._client = self._connect(
                self._options.name_servers, timeout_s=self._options.request_timeout_s
            )
        try:
            return self._client.bounds(self._current_queues(self._client))
        except PymqError:
            self.close()  # the next attempt asks for routes anew, on new connections
            raise

    def _current_queues(self, client: BlockingClient) -> list[MessageQueue]:
        now = self._monotonic_s()
        if self._queues_at is None or now - self._queues_at > ROUTE_AGE_MAX_S:
            topics = self._options.topics
            self._queues = [queue for topic in topics for queue in client.read_queues(topic)]
            self._queues_at = now
        return self._queues
