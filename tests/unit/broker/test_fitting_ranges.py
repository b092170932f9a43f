"""How far ranges of queues go within a number of bytes: against a model that goes one by one."""

import asyncio
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.unit.store.stores import TOPIC, FakeClock, open_store, put_ok, record_of_size

from pymq.broker import fitting_ranges
from pymq.broker.fitting_ranges import FittingLookup, fitting_count
from pymq.protocol.range_bodies import Fitting, QueueRange
from pymq.store.queues.consume_queue import BLANK_ENTRY


class Queues:
    """Stands for a store and for what brings its entries into memory.

    Args:
        sizes: of the records of each queue; 0: there is none.
        first: the queue offset of the first one that is kept.
    """

    def __init__(self, sizes: dict[int, list[int]], first: int = 0) -> None:
        self.sizes = {key: np.array(some, np.int64) for key, some in sizes.items()}
        self.first = first
        self.waited: list[tuple[int, int, int]] = []
        self.entries = SimpleNamespace(record_sizes=self._record_sizes)

    def queue_bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        if queue_id not in self.sizes:
            return 0, 0
        return self.first, len(self.sizes[queue_id])

    async def wait_entries(self, topic: str, queue_id: int, first: int, count: int) -> None:
        self.waited.append((queue_id, first, count))
        await asyncio.sleep(0)

    def _record_sizes(self, topic: str, queue_id: int, first: int, count_max: int) -> Any:
        assert self.waited[-1] == (queue_id, first, count_max)
        if not self.first <= first < len(self.sizes[queue_id]):
            return np.empty(0, np.int64)
        return self.sizes[queue_id][first : first + count_max]

    def find(self, *ranges: QueueRange) -> list[Fitting]:
        store: Any = self
        return asyncio.run(FittingLookup(store, store).find(ranges))


def naive(sizes: list[int], first: int, wanted: QueueRange) -> Fitting:
    at, total = wanted.first, 0
    while at < min(wanted.end, len(sizes)):
        size = sizes[at] if at >= first else 0
        if total and total + size > wanted.bytes_max:
            break
        total += size
        at += 1
        if total > wanted.bytes_max:
            break
    return Fitting(at, total)


@pytest.mark.parametrize("entries_a_turn", [1, 3, 64, fitting_ranges.ENTRIES_A_TURN])
def test_as_if_messages_were_added_up(
    entries_a_turn: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting_ranges, "ENTRIES_A_TURN", entries_a_turn)
    source = random.Random(seed)
    for _ in range(300):
        largest = source.choice([200, 5000, 4 << 20])
        sizes = {
            queue_id: [
                source.choice([0, source.randrange(91, largest)])
                if source.random() < 0.2
                else source.randrange(91, largest)
                for _ in range(source.randrange(300))
            ]
            for queue_id in range(source.randrange(1, 5))
        }
        queues = Queues(sizes, first := source.choice([0, 0, 5, 200]))
        ranges = []
        for queue_id, some in sizes.items():
            start = source.randrange(len(some) + 3)
            end = start + source.randrange(len(some) + 3)
            most = source.choice([0, 1, largest, source.randrange(300 * largest)])
            ranges.append(QueueRange("T", queue_id, start, end, most))
        for one, found in zip(ranges, queues.find(*ranges), strict=True):
            some, wanted = sizes[one.queue_id], naive(sizes[one.queue_id], first, one)
            assert found.size_bytes == wanted.size_bytes, (one, some)
            # Entries without records behind what fits may be in it or not.
            low, high = sorted((found.end, wanted.end))
            assert not any(some[max(low, first) : high]), (one, some)
            assert one.first <= found.end <= one.end
            assert found.end > one.first or wanted.end == one.first


def test_what_fits() -> None:
    def count(sizes: list[int], bytes_max: int, *, is_begun: bool = False) -> int:
        return fitting_count(np.array(sizes, np.int64), bytes_max, is_begun=is_begun)

    assert count([100, 200, 300], 600) == 3
    assert count([100, 200, 300], 599) == 2
    assert count([100, 200], 0) == count([0, 100, 200], 0) - 1 == 1
    assert count([100, 200], 99, is_begun=True) == 0
    assert count([0, 0], 0) == 2 and count([], 5) == 0
    assert count([1 << 40, 1 << 40], 1 << 41) == 2


def test_what_is_not_there() -> None:
    queues = Queues({0: [100] * 10}, first=4)
    assert queues.find(QueueRange("T", 1, 0, 9, 99)) == [Fitting(0, 0)]  # no such queue
    assert queues.find(QueueRange("T", 0, 10, 12, 99)) == [Fitting(10, 0)]  # behind its end
    assert queues.find(QueueRange("T", 0, 50, 60, 99)) == [Fitting(50, 0)]
    assert queues.find(QueueRange("T", 0, 1, 3, 99)) == [Fitting(3, 0)]  # expired
    assert queues.find(QueueRange("T", 0, 1, 9, 0)) == [Fitting(5, 100)]
    assert queues.find() == []


def test_a_request_looks_at_some_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting_ranges, "ENTRIES_MAX", 1000)
    queues = Queues({0: [100] * 5000, 1: [100] * 5000})
    wanted = QueueRange("T", 0, 0, 5000, 1 << 40)
    assert queues.find(wanted) == [Fitting(1000, 100_000)]
    assert queues.find(wanted._replace(first=4500)) == [Fitting(5000, 50_000)]
    both = queues.find(wanted, wanted._replace(queue_id=1))
    assert both == [Fitting(500, 50_000)] * 2


def test_entries_are_looked_at_some_at_a_time() -> None:
    queues = Queues({0: [100] * 1_000_000})
    wanted = QueueRange("T", 0, 0, 1_000_000, 1 << 40)
    assert queues.find(wanted) == [Fitting(1_000_000, 100_000_000)]
    assert max(count for _, _, count in queues.waited) == fitting_ranges.ENTRIES_A_TURN
    queues.waited.clear()
    queues.find(wanted._replace(bytes_max=1000))
    assert sum(count for _, _, count in queues.waited) < 100  # no more than may fit


def test_a_queue_that_is_trimmed_meanwhile() -> None:
    queues = Queues({0: [100] * 100_000})
    record_sizes = queues.entries.record_sizes

    def trimming(*place: Any) -> Any:
        found = record_sizes(*place)
        queues.first = 90_000
        return found

    queues.entries.record_sizes = trimming
    (found,) = queues.find(QueueRange("T", 0, 0, 100_000, 1 << 40))
    assert found == Fitting(fitting_ranges.ENTRIES_A_TURN, 100 * fitting_ranges.ENTRIES_A_TURN)


def test_sizes_of_stored_records(tmp_path: Path) -> None:
    store = open_store(tmp_path, FakeClock())
    chance = random.Random(1)
    sizes = [chance.randrange(200, 900) for _ in range(50)]
    put_ok(store, *(record_of_size(size) for size in sizes))
    entries = store.entries
    assert entries.record_sizes(TOPIC, 0, 0, 100).tolist() == sizes
    assert entries.record_sizes(TOPIC, 0, 7, 3).tolist() == sizes[7:10]
    for place in ((TOPIC, 1, 0), (TOPIC, 0, 50), ("none", 0, 0), (TOPIC, 0, -1)):
        assert entries.record_sizes(*place, 9).tolist() == []
    queue = store._queues.by_key[TOPIC, 0]
    queue.put_entries(3, BLANK_ENTRY)
    assert entries.record_sizes(TOPIC, 0, 2, 3).tolist() == [sizes[2], 0, sizes[4]]
    queue.min_offset = 10
    assert entries.record_sizes(TOPIC, 0, 9, 5).tolist() == []
    store.close()
