"""Where a bounded stream ends: it never returns an offset beyond, however often it is restarted.

An offset is what it is. A moment is looked up until a message was stored then or later; its offset
is the end from then on, and again when the query is restarted. A queue that has been read up to
its end is done with: whatever becomes of it later is no loss.
"""

import logging
from collections.abc import Callable, Iterable, Mapping

from pymq.client.sockets.bulk_client import BulkClient
from pymq.errors import PymqError
from pymq.protocol.bodies import MessageQueue
from pyspark_pymq.offsets import LATEST, At, Bound, Bounds, Offsets
from pyspark_pymq.source.limits import capped
from pyspark_pymq.source.lookups import offset_at
from pyspark_pymq.source.subscribed_topics import SubscribedTopics

LOG = logging.getLogger(__name__)
#: Before that much before a moment nobody's clock has reached it.
CLOCK_SKEW_MS = 60_000


class StreamEnd:
    """The end of one stream. Lives in one driver process.

    Args:
        bound: where; queues at ``LATEST`` have no end.
        topics: whom to ask.
        group: to ask in.
        wall_s: the clock.
    """

    def __init__(
        self, bound: Bound, topics: SubscribedTopics, group: str, wall_s: Callable[[], float]
    ) -> None:
        self._named = dict(bound.named)
        self._unnamed = bound.unnamed
        self._topics = topics
        self._group = group
        self._wall_s = wall_s
        self._ends: dict[MessageQueue, int] = {}  # of moments, found out
        self._asked_at: dict[MessageQueue, int] = {}  # where a queue ended when nothing was found
        self._has_told = False
        #: Whether there are queues of which nobody has said where they end.
        self.is_unclear = False
        #: Why some brokers have not said it, by name.
        self.unanswered: dict[str, PymqError] = {}

    def cap(self, bounds: Bounds, offsets: Mapping[MessageQueue, int]) -> Bounds:
        """Return the bounds of what is to be read of each queue.

        Queues of which that cannot be found out now are left out, and so are those of which
        nothing is left to read.

        Args:
            bounds: of all queues there are.
            offsets: where the stream stands.

        Raises:
            PymqError: a broker refused.
        """
        unclear: list[MessageQueue] = []
        for queue, (_, end) in bounds.items():
            place = self._named.get(queue, self._unnamed)
            if isinstance(place, At):
                is_near = 1000 * self._wall_s() >= place.timestamp_ms - CLOCK_SKEW_MS
                if is_near and queue not in self._ends and self._asked_at.get(queue) != end:
                    unclear.append(queue)
        if unclear:
            self._look_up(unclear, bounds)
        unknown = {queue for queue in unclear if not self._is_clear(queue, bounds[queue][1])}
        self.is_unclear = bool(unknown)
        left_out = unknown | (offsets.keys() - self.unfinished(offsets).keys())
        there = {queue: some for queue, some in bounds.items() if queue not in left_out}
        ends = {queue: last for queue in there if (last := self._known_end(queue)) is not None}
        return capped(there, ends)

    def unfinished(self, offsets: Mapping[MessageQueue, int]) -> Offsets:
        """Return the positions in queues of which something is, or may be, left to read."""
        return {
            queue: offset
            for queue, offset in offsets.items()
            if (end := self._known_end(queue)) is None or offset < end
        }

    def forget(self, queues: Iterable[MessageQueue]) -> None:
        """Look for the ends of queues again: they are those of other topics now."""
        for queue in queues:
            self._ends.pop(queue, None)
            self._asked_at.pop(queue, None)

    def tell_once(self, offsets: Mapping[MessageQueue, int], *, is_expected: bool) -> None:
        """Say when nothing is left to read: Spark gives a source no means to end its query.

        Args:
            offsets: where the stream stands.
            is_expected: the trigger ends the query by itself.
        """
        if offsets and not self.unfinished(offsets) and not self._has_told:
            self._has_told = True
            if not is_expected:
                LOG.warning(
                    "every queue has been read up to the end that was asked for; the query runs on "
                    "and reads nothing more: stop it, or use trigger(availableNow=True)"
                )

    def _known_end(self, queue: MessageQueue) -> int | None:
        place = self._named.get(queue, self._unnamed)
        if isinstance(place, At):
            return self._ends.get(queue)
        return None if place == LATEST else place

    def _is_clear(self, queue: MessageQueue, end: int) -> bool:
        return queue in self._ends or self._asked_at.get(queue) == end

    def _look_up(self, queues: list[MessageQueue], bounds: Bounds) -> None:
        """Find out about moments, as far as brokers answer."""

        def ask(client: BulkClient, queue: MessageQueue) -> int:
            place = self._named.get(queue, self._unnamed)
            assert isinstance(place, At)
            return offset_at(
                client, queue, place.timestamp_ms, bounds=bounds[queue], group=self._group
            )

        found, failed = self._topics.look_up(queues, ask)
        for queue, offset in found.items():
            if offset < bounds[queue][1]:
                self._ends[queue] = max(offset, bounds[queue][0])
            else:
                self._asked_at[queue] = bounds[queue][1]
        for name in failed.keys() - self.unanswered.keys():
            LOG.warning("where queues of broker %s end is looked up later: %s", name, failed[name])
        self.unanswered = failed
