"""Which messages make a batch of some bytes: exactly where brokers tell, estimated elsewhere.

A pymq broker adds up what its queues' entries say (``pymq.protocol.range_bodies``), so it tells how
far a range goes within a number of bytes. Queues of other brokers, and of those that give no answer
now, are estimated (``message_sizes``): they never fail a batch.

How bytes are shared is the same for all: in proportion to what waits, by the sizes that messages
of a queue had so far, and each queue gets one message at least. What a queue leaves over goes to
those that have more, in some more questions. Where brokers tell, a batch is never larger than its
limit, unless it is one message of each queue.
"""

from collections.abc import Callable, Collection, Mapping

from pymq.client.sockets.fitting_ranges import FittingAnswer
from pymq.errors import ConnectionFailed, RequestNotSupported, RequestTimeout
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.range_bodies import Fitting
from pyspark_pymq.source.limits import Counts
from pyspark_pymq.source.message_sizes import MessageSizes

#: First queue offset, end, and the bytes there may be, of each queue -> what fits.
Ask = Callable[[Mapping[MessageQueue, tuple[int, int, int]]], FittingAnswer]

#: Questions for one batch about what is left over, and how much of the limit may stay so.
PASSES_MAX = 8
LEFT_OVER = 0.05
#: No more of them after this: a batch that is smaller than it could be beats one that is late.
PATIENCE_S = 1.0
#: A broker that does not know the request is asked again after this: it may be another one then.
ASK_AGAIN_S = 60.0


class BatchBytes:
    """Chooses messages for the batches of one query.

    Args:
        ask: asks brokers, once.
        sizes: estimates, and learns from what brokers tell.
        monotonic_s: the clock.
    """

    def __init__(self, ask: Ask, sizes: MessageSizes, monotonic_s: Callable[[], float]) -> None:
        self._ask = ask
        self._sizes = sizes
        self._monotonic_s = monotonic_s
        #: Brokers that do not know the request, and when to ask them again.
        self._estimated_until_s: dict[str, float] = {}
        #: Brokers that have not answered at all about this batch.
        self._silent: set[str] = set()

    def fitting(
        self, offsets: Counts, waiting: Counts, bytes_max: int
    ) -> dict[MessageQueue, int]:
        """Return how many messages of each queue make a batch; as ``MessageSizes.fitting``."""
        until_s = self._monotonic_s() + PATIENCE_S
        self._silent = set()
        ends = {queue: offsets[queue] + count for queue, count in waiting.items()}
        taken = self._first(offsets, waiting, bytes_max)
        rest = {queue: count for queue, count in waiting.items() if queue not in taken}
        weights = self._weights(waiting)
        exact_max = bytes_max
        if rest:
            exact_max = bytes_max * _sum(weights, taken) // max(_sum(weights, waiting), 1)
        if _bytes(taken) > exact_max:
            taken = self._ones(taken, offsets)
        taken = self._extended(taken, offsets, ends, exact_max, until_s)
        found = {queue: one.end - offsets[queue] for queue, one in taken.items()}
        if rest:
            left = max(bytes_max - _bytes(taken), 1)
            found |= self._sizes.fitting(offsets, rest, left, silent=self._silent)
        return found

    def _first(
        self, offsets: Counts, waiting: Counts, bytes_max: int
    ) -> dict[MessageQueue, Fitting]:
        """Return what each queue gets at first, of brokers that tell."""
        now_s = self._monotonic_s()
        asked = {
            queue: count
            for queue, count in waiting.items()
            if self._estimated_until_s.get(queue.broker_name, now_s) <= now_s
        }
        is_known = all(map(self._sizes.is_known, asked))
        shares = _shares(self._weights(waiting), bytes_max)
        taken = self._round({q: (offsets[q], asked[q], shares[q]) for q in asked})
        is_cut = any(one.end < offsets[queue] + asked[queue] for queue, one in taken.items())
        if is_cut and not is_known:
            # The shares were a guess, which would favor queues of small messages.
            self._learn(taken, offsets)
            shares = _shares(self._weights(waiting), bytes_max)
            taken |= self._round({q: (offsets[q], asked[q], shares[q]) for q in taken})
        self._learn(taken, offsets)
        return taken

    def _ones(
        self, taken: Mapping[MessageQueue, Fitting], offsets: Counts
    ) -> dict[MessageQueue, Fitting]:
        """Return the first message of each queue."""
        found = self._round({queue: (offsets[queue], 1, 0) for queue in taken})
        return {
            # A broker that has fallen silent meanwhile: not more than it said of several.
            queue: found.get(queue, Fitting(offsets[queue] + 1, one.size_bytes))
            for queue, one in taken.items()
        }

    def _extended(
        self,
        taken: dict[MessageQueue, Fitting],
        offsets: Counts,
        ends: Counts,
        bytes_max: int,
        until_s: float,
    ) -> dict[MessageQueue, Fitting]:
        """Return what was taken, and more of it within a number of bytes."""
        too_large: dict[MessageQueue, int] = {}  # sizes of messages that did not fit
        for _ in range(PASSES_MAX):
            left = bytes_max - _bytes(taken)
            waiting = {
                queue: ends[queue] - one.end
                for queue, one in taken.items()
                if one.end < ends[queue] and too_large.get(queue, 0) <= left
            }
            if left <= LEFT_OVER * bytes_max or self._monotonic_s() > until_s:
                break
            shares = _shares(self._weights(waiting), left)
            found = self._round({q: (taken[q].end, waiting[q], shares[q]) for q in waiting})
            more = _within(found, shares, left)
            if not more:
                break
            too_large |= {q: 0 if q in more else one.size_bytes for q, one in found.items()}
            taken |= {
                queue: Fitting(one.end, taken[queue].size_bytes + one.size_bytes)
                for queue, one in more.items()
            }
            self._learn({queue: taken[queue] for queue in more}, offsets)
        return taken

    def _round(
        self, wanted: Mapping[MessageQueue, tuple[int, int, int]]
    ) -> dict[MessageQueue, Fitting]:
        """Ask once.

        Args:
            wanted: first queue offset, count of messages, and bytes, of each queue.

        Returns:
            What fits, at least one message; not of queues about which there is no such answer.
        """
        ranges = {
            queue: (first, first + count, bytes_max)
            for queue, (first, count, bytes_max) in wanted.items()
            if queue.broker_name not in self._silent
        }
        if not ranges:
            return {}
        answer = self._ask(ranges)
        now_s = self._monotonic_s()
        for name, error in answer.failed.items():
            if isinstance(error, RequestNotSupported):
                self._estimated_until_s[name] = now_s + ASK_AGAIN_S
            elif isinstance(error, (ConnectionFailed, RequestTimeout)):
                self._silent.add(name)
        # A queue that has nothing there is another one by now: reading it tells what became of it.
        return {
            queue: one
            for queue, one in answer.found.items()
            if ranges[queue][0] < one.end <= ranges[queue][1]
        }

    def _learn(self, taken: Mapping[MessageQueue, Fitting], offsets: Counts) -> None:
        for queue, one in taken.items():
            if one.size_bytes:
                self._sizes.learn(queue, one.size_bytes / (one.end - offsets[queue]))

    def _weights(self, waiting: Counts) -> dict[MessageQueue, int]:
        """Return roughly how many bytes wait."""
        averages = self._sizes.averages(waiting)
        return {queue: max(1, int(count * averages[queue])) for queue, count in waiting.items()}


def _shares(weights: Counts, bytes_max: int) -> dict[MessageQueue, int]:
    """Return the bytes that each may have; all together ``bytes_max`` at most."""
    total = max(sum(weights.values()), 1)
    return {queue: bytes_max * weight // total for queue, weight in weights.items()}


def _within(
    found: Mapping[MessageQueue, Fitting], shares: Counts, left: int
) -> dict[MessageQueue, Fitting]:
    """Return what there is room for: a queue's first message is told of in any case."""
    within = {queue: one for queue, one in found.items() if one.size_bytes <= shares[queue]}
    if not within:
        # Single messages that are larger than their shares; first of those with most to come.
        for queue in sorted(found, key=lambda queue: -shares[queue]):
            if found[queue].size_bytes <= left:
                within[queue] = found[queue]
                left -= found[queue].size_bytes
    return within


def _sum(weights: Counts, queues: Collection[MessageQueue]) -> int:
    return sum(weights[queue] for queue in queues)


def _bytes(taken: Mapping[MessageQueue, Fitting]) -> int:
    return sum(one.size_bytes for one in taken.values())
