"""The JSON body of GET_TIMER_METRICS (61), which is also the file ``timermetrics``.

Source: RocketMQ TimerMetrics.TimerMetricsSerializeWrapper.
"""

from dataclasses import dataclass

from pymq.protocol.bodies import DataVersion
from pymq.protocol.headers.codec import wire
from pymq.protocol.json_object import JsonObject


@dataclass(slots=True, kw_only=True)
class TimerMetric(JsonObject):
    """How many messages wait for one topic, and when that changed last, ms."""

    count: int = 0
    timestamp_ms: int = wire("timeStamp", default=0)


@dataclass(slots=True, kw_only=True)
class TimerMetricsTable(JsonObject):
    """How many messages wait for each topic."""

    counts: dict[str, TimerMetric] = wire("timingCount", default_factory=dict)
    version: DataVersion = wire("dataVersion", default_factory=DataVersion)
