"""Gathering the records of each queue across Arrow batches, so that what is staged is few runs.

Each request that stages records is one run, which the batch's decision has to name. Rows for 64
queues, in Arrow batches of 10,000, would be runs of 150 rows. What is gathered is copied; what
fills a good part of a request by itself is not.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pymq.client.sockets.batch_request import Batch
from pymq.client.sockets.batch_targets import BatchTarget
from pymq.columns.encoding import Encoded
from pymq.errors import ConfigurationError
from pymq.protocol.preencoded_records import pack_sizes
from pymq.protocol.records_body import RecordsBody
from pymq.protocol.sink_decisions import RUNS_MAX

#: What one task gathers of all its queues. If these are many, a run is about so much by their
#: number.
GATHERED_BYTES_MAX = 32 << 20
#: What a request with delayed records may take: the broker rewrites each of these, and answers
#: nobody else meanwhile.
DELAYED_BYTES_MAX = 256 << 10
#: A target, and how its records are delayed.
_Lane: TypeAlias = tuple[BatchTarget, int]


def check_runs(count: int, whose: str) -> None:
    """Refuse more runs than a request to publish them can name.

    Args:
        count: of runs.
        whose: the task or batch that staged them, for the error.

    Raises:
        ConfigurationError: there are too many.
    """
    if count > RUNS_MAX:
        raise ConfigurationError(
            f"{whose}: its rows are staged as {count} runs, expected at most {RUNS_MAX} "
            "(RUNS_MAX). A task makes one or more for each queue it has rows for. Nothing was "
            "published: let fewer tasks write (coalesce), or each to fewer queues (repartition by "
            "queueId or shardingKey), and start it again: the same rows are written again"
        )


class _Gathered:
    """The records of one target that wait for more."""

    __slots__ = ("sizes", "text")

    def __init__(self) -> None:
        self.text = bytearray()
        self.sizes: list[npt.NDArray[np.int64]] = []

    def body(self) -> RecordsBody:
        sizes = np.concatenate(self.sizes)
        return RecordsBody(memoryview(self.text), pack_sizes(sizes), len(sizes))


class Gathering:
    """Makes requests of the records of one task; those of one target keep their order.

    Args:
        send: takes a request.
        request_bytes_max: what one may take, unless it is a single record.
    """

    def __init__(
        self, send: Callable[[BatchTarget, Batch], None], *, request_bytes_max: int
    ) -> None:
        self._send = send
        self._request_bytes_max = request_bytes_max
        self._gathered: dict[_Lane, _Gathered] = {}
        self._gathered_bytes = 0

    def add(
        self, target: BatchTarget, records: Encoded, first: int, end: int, *, delay: int = 0
    ) -> None:
        """Take records ``first..end`` for a target; they are copied, or sent.

        Args:
            target: of all.
            records: encoded.
            first, end: which of them.
            delay: how all of them are delayed; others are not in one request with them.

        Raises:
            PymqError: as ``send``.
        """
        start = records.start[first : end + 1]
        size_bytes = int(start[-1] - start[0])
        lane = target, delay
        bytes_max = self._request_bytes_max
        if delay:
            bytes_max = min(bytes_max, DELAYED_BYTES_MAX)
        gathered = self._gathered.get(lane)
        if gathered is not None and len(gathered.text) + size_bytes > bytes_max:
            self._send_gathered(lane)
        if size_bytes > bytes_max // 2:
            if lane in self._gathered:  # which comes first
                self._send_gathered(lane)
            for body in records.requests(first, end, bytes_max=bytes_max):
                self._send(target, body)
            return
        gathered = self._gathered.setdefault(lane, _Gathered())
        gathered.text += records.text[start[0] : start[-1]].data
        gathered.sizes.append(np.diff(start))
        self._gathered_bytes += size_bytes
        while self._gathered_bytes > GATHERED_BYTES_MAX:
            self._send_gathered(max(self._gathered, key=lambda one: len(self._gathered[one].text)))

    def flush(self) -> None:
        """Send what is left."""
        for lane in list(self._gathered):
            self._send_gathered(lane)

    def _send_gathered(self, lane: _Lane) -> None:
        gathered = self._gathered.pop(lane)
        self._gathered_bytes -= len(gathered.text)
        self._send(lane[0], gathered.body())
