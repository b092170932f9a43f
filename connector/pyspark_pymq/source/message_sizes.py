"""How many messages make this many bytes: estimated, from samples of what is to be read.

Tasks do not report to the driver what they read, and no request of RocketMQ tells the size of a
range. So a few messages are pulled: of the queues with most to read, at the start, in the middle
and at the end of what a batch would take. The other queues are taken to be like these.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

from pymq.protocol.bodies import MessageQueue
from pyspark_pymq.source.limits import share_bytes

#: Queues that are sampled for one batch.
QUEUES_MAX = 8
#: Messages of one sample: what RocketMQ gives at most.
SAMPLE_COUNT = 32
#: What a batch takes depends on the samples, and they on what it takes.
PASSES_MAX = 4
#: How many times as much a pass takes at most as the one before.
GROWTH = 4
#: A batch that is this much smaller than its limit, going by samples of this age, needs none.
SMALL = 8
SAMPLE_AGE_S = 1.0
#: Of a queue whose broker gives no sample, before there is any.
UNKNOWN_BYTES = 4096.0


class MessageSizes:
    """Average sizes of stored messages, of the queues of one query.

    Args:
        sample: returns the average size, in bytes, of some messages from an offset on; None: there
            is no answer.
        monotonic_s: the clock.
    """

    def __init__(
        self,
        sample: Callable[[MessageQueue, int], float | None],
        monotonic_s: Callable[[], float],
    ) -> None:
        self._sample = sample
        self._monotonic_s = monotonic_s
        self._by_queue: dict[MessageQueue, float] = {}
        self._sampled_s = monotonic_s() - SAMPLE_AGE_S

    def fitting(
        self,
        offsets: Mapping[MessageQueue, int],
        waiting: Mapping[MessageQueue, int],
        bytes_max: int,
        *,
        silent: Collection[str] = (),
    ) -> dict[MessageQueue, int]:
        """Return how many messages of each queue make a batch of some bytes.

        Args:
            offsets: where it begins.
            waiting: messages there are.
            bytes_max: all together, as they are stored; one message of each queue comes before.
            silent: brokers that need not be asked.
        """
        sizes = self.averages(waiting)
        bytes_waiting = sum(count * sizes[queue] for queue, count in waiting.items())
        is_new = self._monotonic_s() < self._sampled_s + SAMPLE_AGE_S
        if is_new and SMALL * bytes_waiting <= bytes_max:
            return dict(waiting)
        self._sampled_s = self._monotonic_s()
        taken = share_bytes(waiting, sizes, bytes_max) if self._by_queue else dict(waiting)
        fitting = None
        for _ in range(PASSES_MAX):
            self._take_samples(offsets, taken, silent)
            sizes = self.averages(waiting)
            if sum(count * sizes[queue] for queue, count in taken.items()) > bytes_max:
                if fitting is not None:
                    return fitting
                taken = share_bytes(taken, sizes, bytes_max)
                continue
            # Samples say nothing of what is behind them: what is added is sampled, too.
            fitting = taken
            larger = share_bytes(waiting, sizes, bytes_max)
            taken = {queue: min(count, GROWTH * taken[queue]) for queue, count in larger.items()}
            if sum(taken.values()) <= 1.2 * sum(fitting.values()):
                return fitting
        return fitting or taken

    def learn(self, queue: MessageQueue, size: float) -> None:
        """Record the average size of messages of a queue, as a broker tells it."""
        self._by_queue[queue] = size

    def is_known(self, queue: MessageQueue) -> bool:
        """Say whether there is a size of a queue's own."""
        return queue in self._by_queue

    def _take_samples(
        self,
        offsets: Mapping[MessageQueue, int],
        taken: Mapping[MessageQueue, int],
        known_silent: Collection[str],
    ) -> None:
        """Sample the queues that have most to read."""
        silent = set(known_silent)
        for queue in sorted(taken, key=lambda queue: -taken[queue])[:QUEUES_MAX]:
            found = []
            for offset in _places(offsets[queue], taken[queue]):
                size = None if queue.broker_name in silent else self._sample(queue, offset)
                if size is None:
                    silent.add(queue.broker_name)
                else:
                    found.append(size)
            if found:
                self._by_queue[queue] = sum(found) / len(found)

    def averages(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, float]:
        """Return the size of a message of each queue: its own, its topic's, or anybody's."""
        by_topic: dict[str, list[float]] = {}
        for queue, size in self._by_queue.items():
            by_topic.setdefault(queue.topic, []).append(size)
        topics = {topic: sum(sizes) / len(sizes) for topic, sizes in by_topic.items()}
        usual = sum(topics.values()) / len(topics) if topics else UNKNOWN_BYTES
        of_others = {queue: topics.get(queue.topic, usual) for queue in queues}
        return {queue: self._by_queue.get(queue, size) for queue, size in of_others.items()}


def _places(first: int, count: int) -> list[int]:
    """Return where to take samples of a range: start, middle, end; each message once at most."""
    last = first + max(0, count - SAMPLE_COUNT)
    return sorted({first, (first + last) // 2, last} if count > 3 * SAMPLE_COUNT else {first, last})
