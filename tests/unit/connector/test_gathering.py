"""Gathering records across Arrow batches: few requests, none too large, each queue in its order."""

from collections import defaultdict

import numpy as np
import pytest

from pymq.client.sockets.batch_request import Batch
from pymq.client.sockets.batch_targets import BatchTarget
from pymq.columns.encoding import Encoded
from pymq.errors import ConfigurationError
from pymq.protocol.preencoded_records import unpack_sizes
from pymq.protocol.records_body import RecordsBody
from pymq.protocol.sink_decisions import RUNS_MAX
from pyspark_pymq.sink import gathering
from pyspark_pymq.sink.gathering import Gathering, check_runs

RECORD_BYTES = 100


class Requests:
    """What was sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[BatchTarget, RecordsBody]] = []

    def __call__(self, target: BatchTarget, batch: Batch) -> None:
        assert isinstance(batch, RecordsBody)
        self.sent.append((target, batch))

    def numbers(self) -> dict[BatchTarget, list[int]]:
        """Return the numbers of the records of each target, as they were sent."""
        found: dict[BatchTarget, list[int]] = defaultdict(list)
        for target, batch in self.sent:
            sizes = unpack_sizes(batch.sizes)
            assert len(sizes) == batch.record_count and sizes.sum() == len(batch.body)
            at = 0
            for size in sizes:
                found[target].append(int(bytes(batch.body[at : at + size])))
                at += size
        return found


def queue(number: int) -> BatchTarget:
    return BatchTarget("T", number, "broker-a")


def records(first: int, end: int, size: int = RECORD_BYTES) -> Encoded:
    text = b"".join(b"%0*d" % (size, number) for number in range(first, end))
    start = np.arange(end - first + 1, dtype=np.int64) * size
    return Encoded(np.frombuffer(text, np.uint8), start, are_records=True)


@pytest.mark.parametrize("limit", [1 << 20, 3 << 20])
def test_runs_are_few_however_many_arrow_batches_there_are(
    monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(gathering, "GATHERED_BYTES_MAX", 1 << 20)
    requests = Requests()
    gathered = Gathering(requests, request_bytes_max=limit)
    expected: dict[BatchTarget, list[int]] = defaultdict(list)
    for batch in range(200):
        encoded = records(640 * batch, 640 * (batch + 1))
        for number in range(64):
            gathered.add(queue(number), encoded, 10 * number, 10 * (number + 1))
            first = 640 * batch + 10 * number
            expected[queue(number)] += range(first, first + 10)
    gathered.flush()
    assert requests.numbers() == expected
    # 12.8 MB, a run has at least what is kept by the number of queues; but for the last of each.
    assert len(requests.sent) <= 200 * 640 * RECORD_BYTES // ((1 << 20) // 64) + 64


def test_what_fills_a_request_is_not_copied_and_overtakes_nothing() -> None:
    requests = Requests()
    gathered = Gathering(requests, request_bytes_max=1000)
    small, large = records(0, 3), records(3, 30)
    gathered.add(queue(0), small, 0, 3)
    gathered.add(queue(0), large, 0, 27)
    gathered.add(queue(0), records(30, 33), 0, 3)
    gathered.add(queue(0), records(33, 37), 0, 4)
    gathered.add(queue(0), records(37, 41), 0, 4)
    gathered.flush()
    gathered.flush()
    assert requests.numbers() == {queue(0): list(range(41))}
    assert [batch.record_count for _, batch in requests.sent] == [3, 10, 10, 7, 7, 4]
    body = requests.sent[1][1].body
    assert np.shares_memory(np.frombuffer(body, np.uint8), large.text)


def test_a_record_that_is_larger_than_a_request() -> None:
    requests = Requests()
    gathered = Gathering(requests, request_bytes_max=1000)
    gathered.add(queue(0), records(0, 1), 0, 1)
    gathered.add(queue(0), records(1, 2, size=1500), 0, 1)
    assert [len(batch.body) for _, batch in requests.sent] == [100, 1500]


def test_more_runs_than_a_batch_can_have() -> None:
    check_runs(RUNS_MAX, "batch 7")
    with pytest.raises(ConfigurationError, match=r"batch 7: .*300001 runs.*\(RUNS_MAX\).*coalesce"):
        check_runs(RUNS_MAX + 1, "batch 7")
