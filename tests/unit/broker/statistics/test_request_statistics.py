"""Requests by code: how many, how many failed, how long they took; and how that travels."""

import pytest

from pymq.broker.statistics.request_statistics import CODE_COUNT_MAX, OTHER_CODES, RequestStatistics
from pymq.errors import RemoteProtocolError
from pymq.protocol.codes import ResponseCode
from pymq.protocol.request_totals import (
    RequestTotals,
    decode_request_totals,
    encode_request_totals,
)


def test_what_counts_as_an_error() -> None:
    statistics = RequestStatistics()
    for code, response_code, elapsed_s in (
        (10, ResponseCode.SUCCESS, 0.25),
        (10, ResponseCode.MESSAGE_ILLEGAL, 0.5),
        (10, ResponseCode.FLUSH_DISK_TIMEOUT, 5.0),
        (11, ResponseCode.PULL_NOT_FOUND, 1.0),
        (11, None, 99.0),
    ):
        statistics.finished(code, response_code, elapsed_s)
    sends, pulls = statistics
    assert sends == RequestTotals(10, 3, 2, 0, 5.75, 5.0)
    assert pulls == RequestTotals(11, 2, 0, 1, 1.0, 1.0)
    assert pulls.mean_s == 1.0 and RequestTotals(1).mean_s is None
    assert decode_request_totals({"x": "y"} | encode_request_totals(statistics)) == [sends, pulls]


def test_numbers_at_random_fill_no_memory() -> None:
    statistics = RequestStatistics()
    for code in range(CODE_COUNT_MAX + 100):
        statistics.finished(code, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, 0.0)
    totals = {one.code: one.count for one in statistics}
    assert len(totals) == CODE_COUNT_MAX + 1 and totals[OTHER_CODES] == 100


@pytest.mark.parametrize("value", ["", "1 2 3", "1 2 3 4 x", "a b c d e"])
def test_lines_that_cannot_be_read(value: str) -> None:
    with pytest.raises(RemoteProtocolError, match="expected five numbers"):
        decode_request_totals({"pymqRequests.10": value})
