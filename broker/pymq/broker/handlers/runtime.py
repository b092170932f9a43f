"""A broker's report about itself: GET_BROKER_RUNTIME_INFO (28).

The names are RocketMQ's, in both spellings where versions differ, and so is the form of each value,
because tools parse them. What this broker does not have (thread pools with limits) is left out,
unless a tool fails without it.

Source: RocketMQ AdminBrokerProcessor.prepareRuntimeInfo, StoreStatsService.getRuntimeInfo.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pymq.broker.cold_reads import ColdReads
from pymq.broker.statistics.broker_statistics import BrokerStatistics
from pymq.broker.statistics.day_totals import DayTotals
from pymq.broker.statistics.request_statistics import RequestStatistics
from pymq.clock import Clock
from pymq.net.dispatcher import Handler, Request
from pymq.protocol.bodies import KVTable
from pymq.protocol.codes import MQ_VERSION, MQ_VERSION_TEXT, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.request_totals import encode_request_totals
from pymq.store import MessageStore, Rates, StatisticsSnapshot

_SECOND_MS, _MINUTE_MS, _HOUR_MS, _DAY_MS = 1000, 60_000, 3_600_000, 86_400_000
_INT_MAX = (1 << 31) - 1


class RuntimeHandlers:
    """Shows the state of the broker and its store.

    Args:
        requests: counts the requests to this broker.
        statistics: counts messages, those of the system's topics apart.
        queues_path: the store's directory of consume queues.
        reports: what features say of themselves.
    """

    def __init__(
        self,
        clock: Clock,
        store: MessageStore,
        cold_reads: ColdReads,
        days: DayTotals,
        requests: RequestStatistics,
        statistics: BrokerStatistics,
        queues_path: Path,
        reports: Sequence[Callable[[], Mapping[str, str]]],
    ) -> None:
        self._clock = clock
        self._store = store
        self._cold_reads = cold_reads
        self._days = days
        self._requests = requests
        self._statistics = statistics
        self._queues_path = queues_path
        self._reports = reports

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {RequestCode.GET_BROKER_RUNTIME_INFO: self.runtime_info}

    async def runtime_info(self, request: Request) -> Command:
        """GET_BROKER_RUNTIME_INFO (28)."""
        found = self._store.statistics.snapshot()
        table = {
            "brokerVersion": str(MQ_VERSION),
            "brokerVersionDesc": MQ_VERSION_TEXT,
            "brokerActive": "true",
            "startAcceptSendRequestTimeStamp": "0",  # from the start on
            **self._timers(),
            **self._times(found),
            **_counts(found),
            **self._totals(),
            **self._log(await self._cold_reads.earliest_time()),
            **self._disks(),
            **{name: text for report in self._reports for name, text in report().items()},
            **encode_request_totals(self._requests),
        }
        return request.response(ResponseCode.SUCCESS, body=KVTable(table=table).encode())

    def _timers(self) -> dict[str, str]:
        timers = self._store.timers
        enqueued, dequeued = (0.0, 0.0) if timers is None else timers.rates()
        return {
            "timerReadBehind": str(0 if timers is None else timers.read_behind_ms // 1000),
            "timerOffsetBehind": str(0 if timers is None else timers.queue_behind),
            "timerCongestNum": str(0 if timers is None else timers.waiting_count),
            "timerEnqueueTps": f"{enqueued:.2f}",
            "timerDequeueTps": f"{dequeued:.2f}",
        }

    def _times(self, found: StatisticsSnapshot) -> dict[str, str]:
        return {
            "bootTimestamp": str(found.started_ms),
            "runtime": run_time_text(self._clock.wall_ms() - found.started_ms),
        }

    def _totals(self) -> dict[str, str]:
        days = self._days
        return {
            "msgPutTotalYesterdayMorning": str(days.put_yesterday),
            "msgPutTotalTodayMorning": str(days.put_today),
            "msgPutTotalTodayNow": str(self._statistics.put_count),
            "msgGetTotalYesterdayMorning": str(days.get_yesterday),
            "msgGetTotalTodayMorning": str(days.get_today),
            "msgGetTotalTodayNow": str(self._statistics.read_count),
        }

    def _log(self, earliest_ms: int | None) -> dict[str, str]:
        store = self._store
        buffers = store.durability.free_buffer_count
        return {
            "commitLogMinOffset": str(store.log_first),
            "commitLogMaxOffset": str(store.log_end),
            "dispatchMaxBuffer": "0",
            "dispatchBehindBytes": str(store.dispatch.behind_bytes),
            "remainHowManyDataToFlush": size_text(store.durability.unflushed_bytes),
            # RocketMQ reports the largest number when it has no pool.
            "remainTransientStoreBufferNumbs": str(_INT_MAX if buffers is None else buffers),
            "earliestMessageTimeStamp": str(-1 if earliest_ms is None else earliest_ms),
        }

    def _disks(self) -> dict[str, str]:
        logs = dict(self._store.retention.disk_usages)
        queues = logs.pop(self._queues_path, None)
        found = {
            f"commitLogDiskRatio_{path}": ratio_text(usage.ratio) for path, usage in logs.items()
        }
        if logs:
            # New files go where there is the most room.
            roomiest = min(logs.values(), key=lambda usage: usage.ratio)
            found["commitLogDiskRatio"] = ratio_text(roomiest.ratio)
            total, free = roomiest.used_bytes + roomiest.available_bytes, roomiest.available_bytes
            found["commitLogDirCapacity"] = f"Total : {size_text(total)}, Free : {size_text(free)}."
        if queues is not None:
            found["consumeQueueDiskRatio"] = ratio_text(queues.ratio)
        return found


def _counts(found: StatisticsSnapshot) -> dict[str, str]:
    transferred = _rates_text(found.get_rates)
    average_bytes = found.put_bytes / found.put_count if found.put_count else 0.0
    return {
        "putMessageTimesTotal": str(found.put_count),
        "putMessageSizeTotal": str(found.put_bytes),
        "putMessageAverageSize": str(average_bytes),
        "putMessageFailedTimes": str(found.put_failed_count),
        "putMessageEntireTimeMax": str(int(found.put_max_s * 1000)),
        "putMessageDistributeTime": " ".join(
            f"{name}:{count}" for name, count in found.put_times.items()
        ),
        "putLatency99": f"{found.put_p99_ms:.2f}",
        "putLatency999": f"{found.put_p999_ms:.2f}",
        "getMessageEntireTimeMax": str(int(found.get_max_s * 1000)),
        # Our own: RocketMQ does not count these.
        "flushTimesTotal": str(found.flush_count),
        "flushEntireTimeMax": str(int(found.flush_max_s * 1000)),
        "flushFailedTimes": str(found.flush_failed_count),
        "putTps": _rates_text(found.put_rates),
        "getFoundTps": _rates_text(found.get_found_rates),
        "getMissTps": _rates_text(found.get_miss_rates),
        "getTotalTps": _rates_text(found.get_found_rates + found.get_miss_rates),
        "getTransferedTps": transferred,  # 4.x
        "getTransferredTps": transferred,  # 5.x
    }


def _rates_text(rates: Rates) -> str:
    spans = (rates.last_10_s, rates.last_60_s, rates.last_600_s)
    return " ".join(str(round(rate, 3)) for rate in spans)


def run_time_text(elapsed_ms: int) -> str:
    """Return how long the broker has been running, as RocketMQ writes it."""
    days, rest = divmod(max(elapsed_ms, 0), _DAY_MS)
    hours, rest = divmod(rest, _HOUR_MS)
    minutes, rest = divmod(rest, _MINUTE_MS)
    seconds = rest // _SECOND_MS
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def ratio_text(ratio: float) -> str:
    """Return how full a disk is, as RocketMQ writes it: whole percents, rounded up."""
    return str(math.ceil(round(ratio * 100, 9)) / 100)


def size_text(size_bytes: int) -> str:
    """Return a size as RocketMQ writes it: ``512 B``, ``1.5 KiB``."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    size, units = size_bytes / 1024, iter("KMGTPE")
    unit = next(units)
    while size >= 1024:
        size, unit = size / 1024, next(units)
    return f"{size:.1f} {unit}iB"
