"""How much one store has put and read, how fast, and how long it took.

Counting is on the hot path: a few additions for each call of ``put`` or ``read``, whatever its
size. Everything derived (rates, shares, percentiles) is computed by ``snapshot``.

The time of a put is that of the whole call: placing, writing, and with asynchronous flush making
visible. The flush that SYNC_FLUSH waits for is not included. Puts of one call all count with the
time of the call: that is how long their senders waited.

What exactly-once sinks stage counts with its time, like any put. Its records are messages when they
are copied to where consumers read, and are counted as such then.

Source: RocketMQ StoreStatsService.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

from pymq.store.put_result import PutResult

#: Upper bounds, ms, of the classes of put times; one more class is above the last bound.
_LIMITS_MS = (
    *(
        digit * 10.0**decade
        for decade in range(-2, 4)
        for digit in (1, 1.5, 2, 3, 4, 5, 7)
    ),
    10_000.0,
)  # fmt: skip
_LIMITS_S = tuple(limit / 1000 for limit in _LIMITS_MS)

#: RocketMQ's names for ranges of put times, and the end of each, ms. It counts whole ms: what it
#: calls <=0ms took less than one.
_RANGES = {
    "[<=0ms]": 1,
    "[0~10ms]": 10,
    "[10~50ms]": 50,
    "[50~100ms]": 100,
    "[100~200ms]": 200,
    "[200~500ms]": 500,
    "[500ms~1s]": 1000,
    "[1~2s]": 2000,
    "[2~3s]": 3000,
    "[3~4s]": 4000,
    "[4~5s]": 5000,
    "[5~10s]": 10_000,
}
_ABOVE = "[10s~]"
_RANGE_ENDS = [_LIMITS_MS.index(end_ms) + 1 for end_ms in _RANGES.values()]

#: Samples kept, one per second, in addition to the one that a rate ends with.
SAMPLES_KEPT = 600
#: Percentiles cover the last one to two of these spans.
_SPAN_S = 60.0

_count_of = attrgetter("count")


@dataclass(frozen=True, slots=True)
class Rates:
    """Per second, over the last 10, 60 and 600 s, or since the first sample."""

    last_10_s: float = 0.0
    last_60_s: float = 0.0
    last_600_s: float = 0.0

    def __add__(self, other: "Rates") -> "Rates":
        return Rates(
            self.last_10_s + other.last_10_s,
            self.last_60_s + other.last_60_s,
            self.last_600_s + other.last_600_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsSnapshot:
    """The statistics of a store at one moment; counts are since it was opened.

    Attributes:
        started_ms: when it was opened, ms since 1970.
        put_count, put_bytes: messages stored, and the bytes their records take; none that are only
            staged.
        put_failed_count: puts refused; a batch is one.
        put_max_s: the longest put.
        put_times: puts by RocketMQ's ranges of put times, in order.
        put_p99_ms, put_p999_ms: times that 99 % and 99.9 % of the puts of the last one to two
            minutes stayed below; 0 without puts.
        flush_count, flush_max_s: flushes of the log, and the longest one.
        flush_failed_count: failures of the disk after which the store refused all writes.
        get_found_count, get_miss_count: reads that returned messages, and that returned none.
        get_count, get_bytes: messages read, and the bytes of their records.
        get_max_s: the longest read, without later disk reads.
        put_rates: messages stored; get_found_rates, get_miss_rates: reads; get_rates: messages
            read.
    """

    started_ms: int
    put_count: int
    put_bytes: int
    put_failed_count: int
    put_max_s: float
    put_times: dict[str, int]
    put_p99_ms: float
    put_p999_ms: float
    flush_count: int
    flush_max_s: float
    flush_failed_count: int
    get_found_count: int
    get_miss_count: int
    get_count: int
    get_bytes: int
    get_max_s: float
    put_rates: Rates
    get_found_rates: Rates
    get_miss_rates: Rates
    get_rates: Rates


@dataclass(frozen=True, slots=True)
class _Sample:
    at_s: float
    put: int = 0
    found: int = 0
    miss: int = 0
    got: int = 0


class StoreStatistics:
    """Counts for one store, on the thread that owns it.

    It has no clock: its owner calls ``sample`` once a second.

    Args:
        wall_ms: when the store was opened, ms since 1970.
        monotonic_s: the same moment on the clock that ``sample`` is given.

    Attributes:
        put_count: messages stored.
        get_count: messages read.
    """

    def __init__(self, *, wall_ms: int, monotonic_s: float) -> None:
        self._started_ms = wall_ms
        self.put_count = self._put_bytes = self._put_failed_count = 0
        self.get_count = self._get_bytes = self._found_count = self._miss_count = 0
        self._flush_count = self._flush_failed_count = 0
        self._put_max_s = self._get_max_s = self._flush_max_s = 0.0
        self._put_times = [0] * (len(_LIMITS_S) + 1)
        # Copies of the put times at the last two marks, a span apart.
        self._marks = deque([(monotonic_s, self._put_times.copy())], maxlen=2)
        self._samples = deque([_Sample(monotonic_s)], maxlen=SAMPLES_KEPT + 1)

    def count_put(
        self,
        results: Sequence[PutResult],
        put_bytes: int,
        elapsed_s: float,
        *,
        staged_count: int = 0,
    ) -> None:
        """Add one call of ``put``.

        Args:
            results: of all puts of the call.
            put_bytes: the size of all messages it stored.
            elapsed_s: how long it took.
            staged_count: records of these results that are no messages yet.
        """
        counts = list(map(_count_of, results))
        self.put_count += sum(counts) - staged_count
        self._put_bytes += put_bytes
        self._put_failed_count += counts.count(0)
        self._put_times[bisect_right(_LIMITS_S, elapsed_s)] += len(counts)
        if elapsed_s > self._put_max_s:
            self._put_max_s = elapsed_s

    def count_flush(self, elapsed_s: float) -> None:
        """Add one flush of the log."""
        self._flush_count += 1
        if elapsed_s > self._flush_max_s:
            self._flush_max_s = elapsed_s

    def count_flush_failure(self) -> None:
        """Add a failure of the disk that is final."""
        self._flush_failed_count += 1

    def count_get(self, count: int, get_bytes: int, elapsed_s: float) -> None:
        """Add one read that returned ``count`` messages of ``get_bytes`` together."""
        if count:
            self._found_count += 1
            self.get_count += count
            self._get_bytes += get_bytes
        else:
            self._miss_count += 1
        if elapsed_s > self._get_max_s:
            self._get_max_s = elapsed_s

    def sample(self, now_s: float) -> None:
        """Record the counts of this second; ``now_s`` is monotonic."""
        self._samples.append(
            _Sample(
                now_s, self.put_count, self._found_count, self._miss_count, self.get_count
            )
        )
        if now_s - self._marks[-1][0] >= _SPAN_S:
            self._marks.append((now_s, self._put_times.copy()))

    def snapshot(self) -> StatisticsSnapshot:
        """Return the current statistics; rates end with the last sample."""
        edges = [0, *_RANGE_ENDS, len(self._put_times)]
        sums = (sum(self._put_times[first:end]) for first, end in pairwise(edges))
        recent = [
            now - then for now, then in zip(self._put_times, self._marks[0][1], strict=True)
        ]
        put_rates, found_rates, miss_rates, get_rates = self._rates()
        return StatisticsSnapshot(
            started_ms=self._started_ms,
            put_count=self.put_count,
            put_bytes=self._put_bytes,
            put_failed_count=self._put_failed_count,
            put_max_s=self._put_max_s,
            put_times=dict(zip((*_RANGES, _ABOVE), sums, strict=True)),
            put_p99_ms=_percentile(recent, 0.99, self._put_max_s * 1000),
            put_p999_ms=_percentile(recent, 0.999, self._put_max_s * 1000),
            flush_count=self._flush_count,
            flush_max_s=self._flush_max_s,
            flush_failed_count=self._flush_failed_count,
            get_found_count=self._found_count,
            get_miss_count=self._miss_count,
            get_count=self.get_count,
            get_bytes=self._get_bytes,
            get_max_s=self._get_max_s,
            put_rates=put_rates,
            get_found_rates=found_rates,
            get_miss_rates=miss_rates,
            get_rates=get_rates,
        )

    def _rates(self) -> list[Rates]:
        last = self._samples[-1]
        begins = [self._sample_before(last.at_s - seconds) for seconds in (10, 60, 600)]
        return [
            Rates(
                *(
                    (getattr(last, name) - getattr(begin, name)) / (last.at_s - begin.at_s)
                    if begin.at_s < last.at_s
                    else 0.0
                    for begin in begins
                )
            )
            for name in ("put", "found", "miss", "got")
        ]

    def _sample_before(self, moment_s: float) -> _Sample:
        """Return the last sample not after a moment, or else the first one."""
        for sample in reversed(self._samples):
            if sample.at_s <= moment_s:
                return sample
        return self._samples[0]


def _percentile(counts: Sequence[int], share: float, max_ms: float) -> float:
    """Return the time, ms, that a share of the puts stayed below, interpolated.

    Args:
        counts: puts in each class of put times.
        share: in 0..1.
        max_ms: the longest put time, an upper bound of the estimate.
    """
    rank = sum(counts) * share
    limits = (0.0, *_LIMITS_MS, max(max_ms, _LIMITS_MS[-1]))
    for count, (low, high) in zip(counts, pairwise(limits), strict=True):
        if count and rank <= count:
            return min(low + (high - low) * rank / count, max_ms)
        rank -= count
    return 0.0
