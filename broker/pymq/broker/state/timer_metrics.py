"""How many timer messages wait for each topic.

Source: RocketMQ TimerMetrics.
"""

from pymq.clock import Clock
from pymq.protocol import fastjson
from pymq.protocol.bodies import DataVersion
from pymq.protocol.timer_metrics_body import TimerMetric, TimerMetricsTable


class TimerMetrics:
    """Topic -> number of its messages that wait, less those that cancel one.

    Attributes:
        is_changed: see ``BusyTable``.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counts: dict[str, TimerMetric] = {}
        self._version = DataVersion()
        self.is_changed = False

    def add(self, topic: str, count: int) -> None:
        """Count messages that begin to wait; a negative number ceases to."""
        now_ms = self._clock.wall_ms()
        before = self._counts.get(topic)
        total = count if before is None else before.count + count
        self._counts[topic] = TimerMetric(count=total, timestamp_ms=now_ms)
        self._version = self._version.next(now_ms)
        self.is_changed = True

    def body(self) -> TimerMetricsTable:
        """Return the table as sent to slaves and tools."""
        return TimerMetricsTable(counts=self._counts, version=self._version)

    def to_text(self) -> str:
        """Return the text of ``timermetrics``."""
        return fastjson.dump_pretty(self.body().to_json())

    def restore(self, value: object) -> None:
        """Take over the contents of ``timermetrics``."""
        table = TimerMetricsTable.from_json(value)
        self._counts = dict(table.counts)
        self._version = table.version
