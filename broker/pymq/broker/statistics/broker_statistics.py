"""What was put, read and sent back, by topic, queue and group: what VIEW_BROKER_STATS_DATA shows.

Puts are counted as they become visible, a run of messages of one queue at a time: what a sink
publishes when all of it is seen, also at a start, and what it stages not at all. Reads are counted
one response at a time; what that means for topics and the broker is worked out when a sample is
taken.

What RocketMQ has names for but counts only with hooks that nobody ships (``COMMERCIAL_...``) or not
at all (``GROUP_GET_FROM_DISK_...``) has no counters: asking for one is answered as it answers then.

Source: RocketMQ BrokerStatsManager, Stats.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from pymq.broker.statistics.windows import DAY, HOUR, MINUTE, WINDOWS, Counters, WindowTotals
from pymq.protocol.multi_dispatch import is_light
from pymq.protocol.names import LMQ_PREFIX, is_system_topic
from pymq.store import Arrival
from pymq.store.config import ENTRY_BYTES
from pymq.store.queues.consume_queue import ENTRY, ENTRY_STRUCT

QUEUE_PUT_NUMS: Final = "QUEUE_PUT_NUMS"
QUEUE_PUT_SIZE: Final = "QUEUE_PUT_SIZE"
TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE: Final = "TOPIC_PUT_SIZE"
BROKER_PUT_NUMS: Final = "BROKER_PUT_NUMS"
GROUP_GET_NUMS: Final = "GROUP_GET_NUMS"
GROUP_GET_SIZE: Final = "GROUP_GET_SIZE"
GROUP_GET_LATENCY: Final = "GROUP_GET_LATENCY"
BROKER_GET_NUMS: Final = "BROKER_GET_NUMS"
SEND_BACK_NUMS: Final = "SNDBCK_PUT_NUMS"
#: Messages that were sent back once too often.
DEAD_LETTER_TIMES: Final = "SNDBCK2DLQ_TIMES"
GROUP_ACK_NUMS: Final = "GROUP_ACK_NUMS"
GROUP_CHECKPOINT_NUMS: Final = "GROUP_CK_NUMS"
BROKER_ACK_NUMS: Final = "BROKER_ACK_NUMS"
BROKER_CHECKPOINT_NUMS: Final = "BROKER_CK_NUMS"
_WITHOUT_SYSTEM: Final = "_WITHOUT_SYSTEM_TOPIC"

_NAMES = (
    *(QUEUE_PUT_NUMS, QUEUE_PUT_SIZE, TOPIC_PUT_NUMS, TOPIC_PUT_SIZE),
    *(GROUP_GET_NUMS, GROUP_GET_SIZE, GROUP_GET_LATENCY, SEND_BACK_NUMS),
    *(BROKER_PUT_NUMS, BROKER_PUT_NUMS + _WITHOUT_SYSTEM),
    *(BROKER_GET_NUMS, BROKER_GET_NUMS + _WITHOUT_SYSTEM),
    *(GROUP_ACK_NUMS, GROUP_CHECKPOINT_NUMS, BROKER_ACK_NUMS, BROKER_CHECKPOINT_NUMS),
    DEAD_LETTER_TIMES,
)
#: Parts of the keys of dead letters; who sends back does not say whose account it is.
_NO_OWNER: Final = "null"
_BURIED: Final = "SEND_BACK_TO_DLQ"
#: Runs of one queue whose sizes are added up later: this many at most.
_RUNS_MAX = 1024


@dataclass(slots=True)
class _QueuePuts:
    """What became visible in one queue since the last sample."""

    topic: str
    key: str
    is_system: bool
    count: int = 0
    #: Runs of consume-queue entries, which say how long the records are.
    runs: list[bytes] = field(default_factory=list)
    size_bytes: int = 0


@dataclass(slots=True)
class _QueueReads:
    """What a group read of one queue since the last sample."""

    topic: str
    group_key: str
    key: str
    is_system: bool
    count: int = 0
    size_bytes: int = 0
    times: int = 0
    latency_ms: int = 0


class BrokerStatistics:
    """Counts for as long as a broker runs.

    Args:
        cluster: name of the cluster, the key of what concerns the broker as a whole.
        now_ms: the time, by a clock that never goes back.
    """

    def __init__(self, cluster: str, now_ms: int) -> None:
        self._cluster = cluster
        self._tables = {name: Counters() for name in _NAMES}
        self._puts: dict[tuple[str, int], _QueuePuts] = {}
        self._reads: dict[tuple[str, str, int], _QueueReads] = {}
        self._changed_puts: list[_QueuePuts] = []
        self._changed_reads: list[_QueueReads] = []
        # RocketMQ takes a first sample at once, of no counters.
        self._due_ms = {window: now_ms + window[0] for window in WINDOWS}

    # --- counting

    def take(self, arrivals: list[Arrival]) -> None:
        """Count what has become visible; a listener of ``Arrivals``."""
        known = self._puts
        for arrival in arrivals:
            puts = known.get((arrival.topic, arrival.queue_id))
            if puts is None:
                if is_light(arrival.topic):
                    continue  # The same messages again, listed in a light queue.
                puts = self._new_puts(arrival.topic, arrival.queue_id)
            if not puts.count:
                self._changed_puts.append(puts)
            puts.count += arrival.queue_end - arrival.queue_first
            puts.runs.append(arrival.entries)
            if len(puts.runs) >= _RUNS_MAX:
                _add_sizes(puts)

    def _new_puts(self, topic: str, queue_id: int) -> _QueuePuts:
        puts = _QueuePuts(topic, f"{topic}@{queue_id}", is_system_topic(topic))
        self._puts[topic, queue_id] = puts
        return puts

    def read(
        self,
        group: str,
        topic: str,
        queue_id: int,
        *,
        count: int,
        size_bytes: int,
        latency_ms: int,
    ) -> None:
        """Count messages handed to a consumer.

        Args:
            latency_ms: how long it took to get them from the disk.
        """
        if is_light(topic):  # there are many; RocketMQ counts them as one, too
            topic, group = LMQ_PREFIX, LMQ_PREFIX if is_light(group) else group
        reads = self._reads.get((topic, group, queue_id))
        if reads is None:
            reads = self._reads[topic, group, queue_id] = _QueueReads(
                topic, f"{topic}@{group}", f"{queue_id}@{topic}@{group}", is_system_topic(topic)
            )
        if not reads.times:
            self._changed_reads.append(reads)
        reads.count += count
        reads.size_bytes += size_bytes
        reads.times += 1
        reads.latency_ms += latency_ms

    def sent_back(self, group: str, topic: str) -> None:
        """Count a message of a topic that a group failed at."""
        self._tables[SEND_BACK_NUMS].add(f"{topic}@{group}", 1)

    def buried(self, group: str, topic: str) -> None:
        """Count a message that became a dead letter."""
        self._tables[DEAD_LETTER_TIMES].add(f"{_NO_OWNER}@{topic}@{group}@{_BURIED}", 1)

    def acknowledged(self, group: str, topic: str, count: int = 1) -> None:
        """Count messages that a group popped and that need not come back."""
        self._tables[GROUP_ACK_NUMS].add(f"{topic}@{group}", count)
        self._tables[BROKER_ACK_NUMS].add(self._cluster, count, 0)

    def popped(self, group: str, topic: str, count: int = 1) -> None:
        """Count checkpoints: runs of messages that a group popped from a queue."""
        for _ in range(count):
            self._tables[GROUP_CHECKPOINT_NUMS].add(f"{topic}@{group}", 1)
        self._tables[BROKER_CHECKPOINT_NUMS].add(self._cluster, count, 0)

    # --- samples

    def step(self, now_ms: int) -> int:
        """Take the samples that are due; return how many windows that was."""
        self._fold()  # each time: at once it would take the loop's time for all queues
        due = [window for window in WINDOWS if now_ms >= self._due_ms[window]]
        for window in due:
            self._due_ms[window] = now_ms + window[0]
            for table in self._tables.values():
                table.sample(window, now_ms)
        return len(due)

    def _fold(self) -> None:
        """Add what was counted since the last time to the counters."""
        self._fold_puts()
        self._fold_reads()

    def _fold_puts(self) -> None:
        tables = self._tables
        queue_counts, queue_sizes = tables[QUEUE_PUT_NUMS].add, tables[QUEUE_PUT_SIZE].add
        topic_counts, topic_sizes = tables[TOPIC_PUT_NUMS].add, tables[TOPIC_PUT_SIZE].add
        changed, self._changed_puts = self._changed_puts, []
        all_count = own_count = 0
        for puts in changed:
            _add_sizes(puts)
            count, size_bytes = puts.count, puts.size_bytes
            puts.count = puts.size_bytes = 0
            queue_counts(puts.key, count, count)
            queue_sizes(puts.key, size_bytes, count)
            topic_counts(puts.topic, count, count)
            topic_sizes(puts.topic, size_bytes, count)
            all_count += count
            own_count += 0 if puts.is_system else count
        if changed:
            self._add_to_broker(BROKER_PUT_NUMS, all_count, own_count)

    def _fold_reads(self) -> None:
        tables = self._tables
        counts, sizes = tables[GROUP_GET_NUMS].add, tables[GROUP_GET_SIZE].add
        latencies = tables[GROUP_GET_LATENCY].add
        changed, self._changed_reads = self._changed_reads, []
        all_count = own_count = 0
        for reads in changed:
            counts(reads.group_key, reads.count, reads.times)
            sizes(reads.group_key, reads.size_bytes, reads.times)
            latencies(reads.key, reads.latency_ms, reads.times)
            all_count += reads.count
            own_count += 0 if reads.is_system else reads.count
            reads.count = reads.size_bytes = reads.times = reads.latency_ms = 0
        if changed:
            self._add_to_broker(BROKER_GET_NUMS, all_count, own_count)

    def _add_to_broker(self, name: str, all_count: int, own_count: int) -> None:
        """Count messages; RocketMQ does not count how often."""
        self._tables[name].add(self._cluster, all_count, 0)
        if own_count:
            self._tables[name + _WITHOUT_SYSTEM].add(self._cluster, own_count, 0)

    # --- answers

    def find(self, name: str, key: str) -> tuple[WindowTotals, WindowTotals, WindowTotals] | None:
        """Return what a counter came to in the last minute, hour and day.

        Returns:
            None if there is no such counter: nothing was counted under this key.
        """
        table = self._tables.get(name)
        if table is None:
            return None
        if key not in table.places:
            self._fold()
        windows = [table.window(key, window) for window in (MINUTE, HOUR, DAY)]
        minute, hour, day = windows
        if minute is None or hour is None or day is None:
            return None
        return minute, hour, day

    def put_per_s(self, topic: str) -> float:
        """Return how many messages a topic got per second, in the last minute."""
        found = self._tables[TOPIC_PUT_NUMS].window(topic, MINUTE)
        return 0.0 if found is None else found.per_s

    def read_per_s(self, group: str, topic: str) -> float:
        """Return how many messages of a topic a group read per second, in the last minute."""
        found = self._tables[GROUP_GET_NUMS].window(f"{topic}@{group}", MINUTE)
        return 0.0 if found is None else found.per_s

    @property
    def put_count(self) -> int:
        """Messages put since the start, those of the system's topics excluded."""
        self._fold()
        return self._tables[BROKER_PUT_NUMS + _WITHOUT_SYSTEM].value(self._cluster)

    @property
    def read_count(self) -> int:
        """Messages read since the start, those of the system's topics excluded."""
        self._fold()
        return self._tables[BROKER_GET_NUMS + _WITHOUT_SYSTEM].value(self._cluster)

    # --- forgetting

    def forget_topic(self, topic: str) -> None:
        """Remove what was counted of a topic that was deleted."""
        self._fold()
        self._puts = {key: puts for key, puts in self._puts.items() if key[0] != topic}
        self._reads = {key: reads for key, reads in self._reads.items() if key[0] != topic}
        for name in (TOPIC_PUT_NUMS, TOPIC_PUT_SIZE):
            self._tables[name].remove(topic.__eq__)
        head, inner = f"{topic}@", f"@{topic}@"
        for name in (QUEUE_PUT_NUMS, QUEUE_PUT_SIZE, GROUP_GET_NUMS, GROUP_GET_SIZE):
            self._tables[name].remove(lambda key: key.startswith(head))
        for name in (SEND_BACK_NUMS, GROUP_ACK_NUMS, GROUP_CHECKPOINT_NUMS):
            self._tables[name].remove(lambda key: key.startswith(head))
        for name in (GROUP_GET_LATENCY, DEAD_LETTER_TIMES):
            self._tables[name].remove(lambda key: inner in key)

    def forget_group(self, group: str) -> None:
        """Remove what was counted of a group that was deleted."""
        self._fold()
        self._reads = {key: reads for key, reads in self._reads.items() if key[1] != group}
        tail = f"@{group}"
        for name in (GROUP_GET_NUMS, GROUP_GET_SIZE, SEND_BACK_NUMS, GROUP_GET_LATENCY):
            self._tables[name].remove(lambda key: key.endswith(tail))
        for name in (GROUP_ACK_NUMS, GROUP_CHECKPOINT_NUMS):
            self._tables[name].remove(lambda key: key.endswith(tail))
        last = f"@{group}@{_BURIED}"
        self._tables[DEAD_LETTER_TIMES].remove(lambda key: key.endswith(last))


def _add_sizes(puts: _QueuePuts) -> None:
    runs = puts.runs
    if len(runs) == 1 and len(runs[0]) == ENTRY_BYTES:  # numpy takes longer to begin
        puts.size_bytes += ENTRY_STRUCT.unpack(runs[0])[1]
    elif runs:
        entries = np.frombuffer(b"".join(runs), ENTRY)
        puts.size_bytes += int(entries["size"].sum())
    runs.clear()
