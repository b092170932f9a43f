"""Counters by name and key, and what they came to in the last minute, hour and day.

A counter has a value (messages, bytes, ms) and a number of times it was added to. It is sampled
every 10 s, 10 min and 1 h; a window is the difference between the newest and the oldest sample
that is kept: 7, 7 and 25 of them. The first sample of a counter counts as if it had been 0 one
interval before. So a window lags behind by up to one interval, as tools of RocketMQ expect.

A sample is a copy of all values of a name: taking one costs the same few microseconds per thousand
counters whatever has changed, and counting costs two additions.

Source: RocketMQ StatsItem, StatsItemSet.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

#: Interval in ms, samples kept.
MINUTE, HOUR, DAY = (10_000, 7), (600_000, 7), (3_600_000, 25)
WINDOWS = (MINUTE, HOUR, DAY)


@dataclass(frozen=True, slots=True)
class WindowTotals:
    """What a counter came to in a window.

    Attributes:
        total: how much was added.
        per_s: that per second.
        average: that per time it was added to.
    """

    total: int = 0
    per_s: float = 0.0
    average: float = 0.0


@dataclass(slots=True)
class _Sample:
    """All counters at one time; those made later have higher places."""

    at_ms: int
    values: list[int]
    times: list[int]


@dataclass(slots=True)
class Counters:
    """The counters of one name, by key; see ``add`` for what counts one event.

    Attributes:
        places: where each key's counter is in the two lists.
        values, times: of each counter. Hot paths add to them directly.
    """

    places: dict[str, int] = field(default_factory=dict)
    values: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    _samples: dict[tuple[int, int], deque[_Sample]] = field(
        default_factory=lambda: {window: deque(maxlen=window[1]) for window in WINDOWS}
    )

    def place(self, key: str) -> int:
        """Return where a key's counter is; it is made with the first call."""
        found = self.places.get(key)
        if found is None:
            found = self.places[key] = len(self.values)
            self.values.append(0)
            self.times.append(0)
        return found

    def add(self, key: str, value: int, times: int = 1) -> None:
        """Count something."""
        place = self.places.get(key)
        if place is None:
            place = self.place(key)
        self.values[place] += value
        self.times[place] += times

    def value(self, key: str) -> int:
        """Return a counter's value since it was made; 0 if there is none."""
        place = self.places.get(key)
        return 0 if place is None else self.values[place]

    def sample(self, window: tuple[int, int], now_ms: int) -> None:
        """Take a sample for one of ``WINDOWS``."""
        if len(self.values) > 2 * len(self.places):
            self._compact()
        self._samples[window].append(_Sample(now_ms, self.values.copy(), self.times.copy()))

    def window(self, key: str, window: tuple[int, int]) -> WindowTotals | None:
        """Return what a counter came to in one of ``WINDOWS``; None: there is no such counter."""
        place = self.places.get(key)
        if place is None:
            return None
        interval_ms, count_max = window
        with_it = [sample for sample in self._samples[window] if place < len(sample.values)]
        if not with_it:
            return WindowTotals()
        first, last = with_it[0], with_it[-1]
        begin_ms, value, times = first.at_ms, first.values[place], first.times[place]
        if len(with_it) < count_max:  # it was made in this window, out of nothing
            begin_ms, value, times = first.at_ms - interval_ms, 0, 0
        total, elapsed_ms = last.values[place] - value, last.at_ms - begin_ms
        more_times = last.times[place] - times
        return WindowTotals(
            total=total,
            per_s=total * 1000 / elapsed_ms if elapsed_ms > 0 else 0.0,
            average=total / more_times if more_times > 0 else 0.0,
        )

    def remove(self, is_gone: Callable[[str], bool]) -> None:
        """Remove counters by key. They go out of the samples when most counters there are gone.

        At once, each deleted topic would cost a look at every counter in every sample.
        """
        self.places = {key: place for key, place in self.places.items() if not is_gone(key)}

    def _compact(self) -> None:
        """Remove from the lists what has no key any more."""
        order = list(self.places.values())  # ascending: new ones are added behind all others
        self.places = {key: place for place, key in enumerate(self.places)}
        # The lists stay the same objects: others add to them.
        self.values[:], self.times[:] = _chosen(self.values, order), _chosen(self.times, order)
        for samples in self._samples.values():
            for sample in samples:
                sample.values, sample.times = (
                    _chosen(sample.values, order),
                    _chosen(sample.times, order),
                )


def _chosen(values: list[int], order: list[int]) -> list[int]:
    return [*map(values.__getitem__, order[: bisect_left(order, len(values))])]
