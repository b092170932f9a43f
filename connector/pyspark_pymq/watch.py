"""What the driver knows of the queues: their first and next offsets, asked for sparingly.

An idle query asks for its latest offset about ninety times a second. So the answer is held back:
brokers are asked at most every ``PAUSE_MIN_S`` while messages arrive, and the less often the longer
nothing does. An answer is never older than the question; ``processAllAvailable`` relies on it.
"""

import logging
import time
from collections.abc import Callable

from pymq.client.blocking import BlockingClient
from pymq.errors import ConnectionFailed, PymqError, RequestTimeout
from pymq.protocol.bodies import MessageQueue
from pyspark_pymq.offsets import Bounds
from pyspark_pymq.options import SourceOptions
from pyspark_pymq.patience import pause, persist

LOG = logging.getLogger(__name__)

PAUSE_MIN_S = 0.01
PAUSE_MAX_S = 0.2  # other sources of the same query wait, too
#: Patience at the start of a query: then a wrong address is likelier than a broker that restarts.
START_PATIENCE_S = 3.0


class QueueWatch:
    """Bounds of all queues of the subscribed topics. Lives in one driver process, for one query.

    Args:
        options: of the source.
        monotonic_s: the clock.
        wait: waits so many seconds.
        connect: makes the client.
    """

    def __init__(
        self,
        options: SourceOptions,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = pause,
        connect: Callable[..., BlockingClient] = BlockingClient,
    ) -> None:
        self._options = options
        self._monotonic_s = monotonic_s
        self._wait = wait
        self._connect = connect
        self._client: BlockingClient | None = None
        self._queues: list[MessageQueue] = []
        self._bounds: Bounds = {}
        self._asked_at: float | None = None
        self._pause_s = PAUSE_MIN_S

    def bounds(self, *, at_once: bool = False) -> Bounds:
        """Return (first kept, next to be assigned) of every queue that has a route.

        Args:
            at_once: without a pause, however short ago the last question was.

        Raises:
            PymqError: no answer within the patience the options give.
        """
        if self._asked_at is not None and not at_once:
            rest_s = self._asked_at + self._pause_s - self._monotonic_s()
            if rest_s > 0:
                self._wait(rest_s)
        bounds = self._ask()
        changed = bounds != self._bounds
        self._pause_s = PAUSE_MIN_S if changed else min(2 * self._pause_s, PAUSE_MAX_S)
        self._bounds, self._asked_at = bounds, self._monotonic_s()
        return bounds

    def known(self) -> Bounds:
        """Return the last answer, without asking anybody; empty before the first."""
        return self._bounds

    def close(self) -> None:
        """Close the connections. What is asked afterwards opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _ask(self) -> Bounds:
        started = self._asked_at is not None
        if self._client is None:
            options = self._options
            patience_s = options.retry_timeout_s if started else START_PATIENCE_S
            self._client = self._connect(
                options.name_servers,
                timeout_s=options.request_timeout_s,
                read_deadline_s=min(patience_s, options.retry_timeout_s),
            )
        try:
            self._queues = self._current_queues(self._client)
            return self._client.bounds(self._queues)
        except PymqError:
            self.close()
            raise
        finally:
            if not started:
                self.close()  # the next client is more patient

    def _current_queues(self, client: BlockingClient) -> list[MessageQueue]:
        """Return the queues of all topics; the client asks for routes now and then."""
        try:
            return persist(
                lambda: [q for topic in self._options.topics for q in client.read_queues(topic)],
                limit_s=0.0 if self._queues else START_PATIENCE_S,
                what="asking for routes",
            )
        except (ConnectionFailed, RequestTimeout) as error:
            if not self._queues:
                raise
            LOG.warning("no name server answers; going on with the queues known: %s", error)
            return self._queues
