"""Counts requests by code: how many, how many failed, and how long they took.

Source: RocketMQ RemotingMetricsManager (rocketmq_rpc_latency), by request and response code.
"""

from collections.abc import Iterator

from pymq.protocol.codes import ResponseCode
from pymq.protocol.request_totals import RequestTotals

#: Responses that only say that there is nothing, or nothing here.
_NOT_ERRORS = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
        ResponseCode.QUERY_NOT_FOUND,
    }
)
#: Codes counted separately: requests with random codes must not fill the memory.
CODE_COUNT_MAX = 512
OTHER_CODES = -1


class RequestStatistics:
    """Counts and times requests; the observer of a dispatcher.

    Beyond CODE_COUNT_MAX codes all others are counted as OTHER_CODES.
    """

    def __init__(self) -> None:
        self._by_code: dict[int, RequestTotals] = {}

    def finished(
        self, code: int, response_code: int | None, elapsed_s: float, count: int = 1
    ) -> None:
        """Record requests; see ``Observer``."""
        totals = self._by_code.get(code)
        if totals is None:
            if len(self._by_code) >= CODE_COUNT_MAX:
                code = OTHER_CODES
            totals = self._by_code.setdefault(code, RequestTotals(code))
        totals.count += count
        if response_code:
            if response_code not in _NOT_ERRORS:
                totals.error_count += count
        elif response_code is None:
            totals.abandoned_count += count
            return
        totals.total_s += elapsed_s * count
        if elapsed_s > totals.max_s:
            totals.max_s = elapsed_s

    def __iter__(self) -> Iterator[RequestTotals]:
        """Yield the totals of every code received, by code."""
        return iter(sorted(self._by_code.values(), key=lambda totals: totals.code))
