"""The first message since a moment, of brokers that answer differently."""

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.connector.fake import STORE_TIMESTAMP, STORE_TIMESTAMP_AT, record
from tests.unit.connector.reading import Q0

from pymq.client.operations import PullResult, PullStatus
from pymq.protocol.bodies import MessageQueue
from pyspark_pymq.source.lookups import offset_at

Answer = Callable[[Sequence[int], int], int]


def rocketmq_5_1_4(times: Sequence[int], timestamp_ms: int) -> int:
    """As pymq: the first one, or the end."""
    return bisect.bisect_left(times, timestamp_ms)


def rocketmq_4_9(times: Sequence[int], timestamp_ms: int) -> int:
    """And 5.0 and 5.1.0: any exact hit, or the nearer neighbour; what is alone is the nearest."""
    low, high = 0, len(times) - 1
    left = right = -1
    while low <= high:
        middle = (low + high) // 2
        if times[middle] == timestamp_ms:
            return middle
        if times[middle] > timestamp_ms:
            right, high = middle, middle - 1
        else:
            left, low = middle, middle + 1
    if left < 0 or right < 0:
        return max(left, right)
    return right if timestamp_ms - times[left] > times[right] - timestamp_ms else left


@dataclass
class Broker:
    """One queue whose first messages have expired, and that may lack some others."""

    answer: Answer
    times: Sequence[int]
    first: int = 0
    blank: frozenset[int] = frozenset()  # offsets
    pulls: int = 0

    @property
    def bounds(self) -> tuple[int, int]:
        return self.first, self.first + len(self.times)

    def offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        return self.first + self.answer(self.times, timestamp_ms)

    def pull(
        self, queue: MessageQueue, offset: int, *, count_max: int, bytes_max: int, group: str
    ) -> PullResult:
        self.pulls += 1
        first, end = self.bounds
        some = b""
        if first <= offset < end:
            there = [place for place in range(offset, end) if place not in self.blank]
            for place in there[:count_max]:
                item = bytearray(record(b"x", queue_offset=place))
                time = self.times[place - first]
                STORE_TIMESTAMP.pack_into(item, STORE_TIMESTAMP_AT, time)
                some += item
        status = PullStatus.FOUND if some else PullStatus.NO_NEW
        return PullResult(status, offset, first, end, some)

    def ask(self, timestamp_ms: int, bounds: tuple[int, int] | None = None) -> int:
        return offset_at(
            self,  # type: ignore[arg-type]
            Q0,
            timestamp_ms,
            bounds=bounds or self.bounds,
            group="G",
        )


@given(
    st.sampled_from([rocketmq_4_9, rocketmq_5_1_4]),
    st.lists(st.integers(0, 12), max_size=40).map(sorted),
    st.integers(0, 3),
    st.integers(-1, 14),
)
def test_the_first_one_whatever_the_broker_names(
    answer: Answer, times: list[int], first: int, timestamp_ms: int
) -> None:
    broker = Broker(answer, times, first)
    assert broker.ask(timestamp_ms) == first + bisect.bisect_left(times, timestamp_ms)
    if answer is rocketmq_5_1_4:
        assert broker.pulls <= 1


def test_many_messages_of_one_moment_take_few_pulls() -> None:
    broker = Broker(rocketmq_4_9, [1] * 1000 + [2] * 50_000 + [3] * 1000)
    assert broker.ask(2) == 1000
    assert broker.pulls < 40


def test_messages_that_came_or_went_since_the_bounds_were_asked_for() -> None:
    for answer in (rocketmq_4_9, rocketmq_5_1_4):
        broker = Broker(answer, [1, 2, 3, 4, 4, 5], first=10)
        for timestamp_ms, expected in ((1, 10), (3, 12), (4, 13), (5, 15)):
            assert broker.ask(timestamp_ms, (7, 13)) == expected
        assert broker.ask(6, (7, 13)) >= 13


@pytest.mark.parametrize("answer", [rocketmq_4_9, rocketmq_5_1_4])
def test_places_without_a_message_are_as_the_next_one(answer: Answer) -> None:
    broker = Broker(answer, [1, 2, 2, 2, 3], blank=frozenset({1, 2}))
    assert broker.ask(1) == 0
    assert broker.ask(2) in (1, 2, 3)
    assert broker.ask(3) == 4


def test_an_empty_queue_is_not_pulled() -> None:
    broker = Broker(rocketmq_5_1_4, [], first=7)
    assert broker.ask(1) == 7 and not broker.pulls
