"""Statistics of a broker's requests: lines of its run-time info, an extension of pymq.

A line for each request code: ``pymqRequests.10``, with five numbers separated by blanks: all
requests, those that failed, those whose sender disconnected while they were held, seconds from
arrival to response of all of them together, and of the slowest one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pymq.errors import RemoteProtocolError

_PREFIX = "pymqRequests."


@dataclass(slots=True)
class RequestTotals:
    """The completed requests of one code.

    Attributes:
        code: request code.
        count: number of all of them.
        error_count: those that were refused or failed.
        abandoned_count: those whose sender disconnected while they were held.
        total_s, max_s: from arrival to response, of all together and of the slowest one. A held
            pull counts from the end of its waiting.
    """

    code: int
    count: int = 0
    error_count: int = 0
    abandoned_count: int = 0
    total_s: float = 0.0
    max_s: float = 0.0

    @property
    def mean_s(self) -> float | None:
        """Mean time of the answered requests; None if there are none."""
        answered = self.count - self.abandoned_count
        return self.total_s / answered if answered else None


def encode_request_totals(requests: Iterable[RequestTotals]) -> dict[str, str]:
    """Return the lines of the run-time info."""
    return {
        f"{_PREFIX}{one.code}": f"{one.count} {one.error_count} {one.abandoned_count} "
        f"{one.total_s:.6f} {one.max_s:.6f}"
        for one in requests
    }


def decode_request_totals(table: Mapping[str, str]) -> list[RequestTotals]:
    """Return the totals in a run-time info, by code; an empty list if there are none.

    Raises:
        RemoteProtocolError: such a line is malformed.
    """
    found = []
    for key, value in table.items():
        if not key.startswith(_PREFIX):
            continue
        try:
            count, error_count, abandoned_count, total_s, max_s = value.split(" ")
            found.append(
                RequestTotals(
                    int(key[len(_PREFIX) :]),
                    int(count),
                    int(error_count),
                    int(abandoned_count),
                    float(total_s),
                    float(max_s),
                )
            )
        except ValueError as error:
            raise RemoteProtocolError(
                f"run-time info has {key}={value!r:.80}, expected five numbers"
            ) from error
    return sorted(found, key=lambda one: one.code)
