"""How many timer messages wait for each topic.

Source: RocketMQ TimerMetrics (where deletions leave counts below zero).
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
        #: How many messages of deleted topics still wait: they are in no count. Since our start.
        self._forgotten: dict[str, int] = {}
        self._version = DataVersion()
        self.is_changed = False

    def add(self, topic: str, count: int) -> None:
        """Count messages that begin to wait; a negative number ceases to."""
        if count < 0 and topic in self._forgotten:
            left = self._forgotten.pop(topic) + count
            if left > 0:
                self._forgotten[topic] = left
            count = min(left, 0)
        before = self._counts.get(topic)
        if before is None and count <= 0:
            return  # They began to wait for a topic that was deleted.
        total = count if before is None else before.count + count
        now_ms = self._clock.wall_ms()
        self._counts[topic] = TimerMetric(count=total, timestamp_ms=now_ms)
        self._changed(now_ms)

    def forget(self, topic: str) -> None:
        """Forget a topic that is being deleted; its messages wait on, and are counted no more."""
        before = self._counts.pop(topic, None)
        if before is not None:
            if before.count > 0:
                self._forgotten[topic] = self._forgotten.get(topic, 0) + before.count
            self._changed(self._clock.wall_ms())

    def _changed(self, now_ms: int) -> None:
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
