"""Counters of the broker: VIEW_BROKER_STATS_DATA (315).

Source: RocketMQ AdminBrokerProcessor.viewBrokerStatsData.
"""

from collections.abc import Mapping

from pymq.broker.statistics.broker_statistics import BrokerStatistics
from pymq.broker.statistics.windows import WindowTotals
from pymq.errors import refusal
from pymq.net.dispatcher import Handler, Request
from pymq.protocol.admin_bodies import BrokerStats, WindowStats
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.administration import BrokerStatsRequest


class StatisticsHandlers:
    """Shows what was counted."""

    def __init__(self, statistics: BrokerStatistics) -> None:
        self._statistics = statistics

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {RequestCode.VIEW_BROKER_STATS_DATA: self.view}

    def view(self, request: Request) -> Command:
        """VIEW_BROKER_STATS_DATA (315)."""
        header = BrokerStatsRequest.from_fields(request.fields)
        found = self._statistics.find(header.name, header.key)
        if found is None:
            raise refusal(
                ResponseCode.SYSTEM_ERROR, f"The stats <{header.name}> <{header.key}> not exist"
            )
        minute, hour, day = map(_stats, found)
        body = BrokerStats(minute=minute, hour=hour, day=day)
        return request.response(ResponseCode.SUCCESS, body=body.encode())


def _stats(totals: WindowTotals) -> WindowStats:
    return WindowStats(total=totals.total, per_s=totals.per_s, average=totals.average)
