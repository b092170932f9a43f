"""The plan of an exact range against brokers that answer as they like."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymq.client.operations import PullResult, PullStatus
from pymq.client.ranges import (
    COUNT_MAX,
    PASS_BYTES_MIN,
    WINDOW_COUNT,
    Joiner,
    PullChunk,
    RangePlan,
    Span,
    first_offset,
    records_before,
)
from pymq.errors import CorruptRecord, OffsetOutOfRange
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.record import (
    NewRecord,
    decode_records,
    encode_record,
    pack_host,
    record_size,
    topic_field,
)

QUEUE = MessageQueue("T", "broker-a", 0)
HOST = pack_host("127.0.0.1", 10911)


def record(offset: int) -> bytes:
    new = NewRecord("T", 0, b"x" * (offset % 7), b"", HOST, 1)
    return b"".join(
        encode_record(
            new,
            topic_field(b"T"),
            size=record_size(len(new.body), 2, 0, 2 * len(HOST)),
            queue_offset=offset,
            physical_offset=offset * 1000,
            store_timestamp=2,
            store_host=HOST,
        )
    )


class FakeBroker:
    """A queue ``first..end`` that answers pulls within limits that may change any time."""

    def __init__(
        self, first: int, end: int, limits: list[int], *, modulus: int = 1, scan_max: int = 10**9
    ) -> None:
        self.first, self.end = first, end
        self._limits = limits
        self._modulus = modulus  # of the offsets that match the filter
        self._scan_max = scan_max
        self.pulls: list[tuple[int, int]] = []

    def pull(self, offset: int, count: int) -> PullResult:
        limit = self._limits[len(self.pulls) % len(self._limits)]
        self.pulls.append((offset, count))
        if not self.first <= offset < self.end:
            status = PullStatus.NO_NEW if offset == self.end else PullStatus.OFFSET_ILLEGAL
            near = min(max(offset, self.first), self.end)
            return PullResult(status, near, self.first, self.end, b"")
        found: list[int] = []
        position = offset
        while position < min(self.end, offset + self._scan_max):
            if position % self._modulus == 0:
                if len(found) == min(count, limit):
                    break
                found.append(position)
            position += 1
        status = PullStatus.FOUND if found else PullStatus.NO_MATCH
        body = b"".join(map(record, found))
        return PullResult(status, position, self.first, self.end, body)


def run(plan: RangePlan, broker: FakeBroker, losses: random.Random | None = None) -> list[int]:
    """Carry a plan out; return the offsets that came. With ``losses`` answers get lost."""
    offsets = []
    position = plan.cursor
    opaque = 0
    for _ in range(10_000):
        for span in plan.unsent():
            opaque += 1
            span.opaque = opaque
        assert len(plan.spans) <= WINDOW_COUNT + 1
        covered = plan.cursor
        for span in plan.spans:
            assert span.offset == covered
            covered += span.count
        assert covered <= plan.end or plan.is_done
        if plan.is_done:
            return offsets
        if losses is not None and losses.random() < 0.1:
            plan.restart()
            continue
        span = plan.spans[0]
        chunk = plan.accept(broker.pull(span.offset, span.count))
        assert chunk.first == position
        position = chunk.next_offset
        offsets += [one.queue_offset for one in decode_records(chunk.buffer)]
    raise AssertionError("the plan does not end")


@given(
    first=st.integers(0, 50),
    length=st.integers(0, 400),
    limits=st.lists(st.integers(1, 32), min_size=1, max_size=5),
    seed=st.integers(0, 1 << 30),
)
def test_a_broker_with_small_answers_is_read_exactly(
    first: int, length: int, limits: list[int], seed: int
) -> None:
    broker = FakeBroker(0, first + length + 20, limits)
    plan = RangePlan(QUEUE, first, first + length, is_filtered=False)
    assert run(plan, broker, random.Random(seed)) == list(range(first, first + length))


@given(
    first=st.integers(0, 50),
    length=st.integers(0, 400),
    limits=st.lists(st.integers(1, 500), min_size=1, max_size=5),
    modulus=st.integers(1, 100),
    scan_max=st.integers(1, 900),
)
def test_a_filtered_range_is_read_exactly(
    first: int, length: int, limits: list[int], modulus: int, scan_max: int
) -> None:
    broker = FakeBroker(0, first + length + 150, limits, modulus=modulus, scan_max=scan_max)
    plan = RangePlan(QUEUE, first, first + length, is_filtered=True)
    expected = [offset for offset in range(first, first + length) if offset % modulus == 0]
    assert run(plan, broker) == expected


@given(
    first=st.integers(0, 50),
    length=st.integers(0, 400),
    limits=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    modulus=st.integers(1, 100),
    scan_max=st.integers(1, 900),
    seed=st.integers(0, 1 << 30),
)
def test_gaps_are_passed_over_when_asked_for(
    first: int, length: int, limits: list[int], modulus: int, scan_max: int, seed: int
) -> None:
    broker = FakeBroker(0, first + length + 150, limits, modulus=modulus, scan_max=scan_max)
    plan = RangePlan(QUEUE, first, first + length, is_filtered=False, passes_gaps=True)
    expected = [offset for offset in range(first, first + length) if offset % modulus == 0]
    assert run(plan, broker, random.Random(seed)) == expected


def test_large_answers_mean_one_pull_at_a_time() -> None:
    broker = FakeBroker(0, 1_000, [400])
    assert run(RangePlan(QUEUE, 0, 1_000, is_filtered=False), broker) == list(range(1_000))
    assert broker.pulls == [(0, 1_000), (400, 600), (800, 200)]


def test_small_answers_mean_many_pulls_at_predicted_offsets() -> None:
    plan = RangePlan(QUEUE, 0, 1_000, is_filtered=False)
    broker = FakeBroker(0, 1_000, [32])
    (span,) = plan.unsent()
    assert (span.offset, span.count) == (0, 1_000)
    span.opaque = 1
    plan.accept(broker.pull(0, 1_000))
    assert [(span.offset, span.count) for span in plan.unsent()] == [
        (32 * number, 32) for number in range(1, WINDOW_COUNT + 1)
    ]


def test_a_short_answer_is_repaired_and_learnt_from() -> None:
    plan = RangePlan(QUEUE, 0, 1_000, is_filtered=False)
    broker = FakeBroker(0, 1_000, [32, 8, 32])
    for span in plan.unsent():
        span.opaque = 1
    plan.accept(broker.pull(0, 1_000))
    for span in plan.unsent():
        span.opaque = 1
    plan.accept(broker.pull(32, 32))  # brings 8
    new = list(plan.unsent())
    assert [(span.offset, span.count) for span in new] == [(40, 24)]
    plan.accept(broker.pull(40, 24))
    for span in plan.unsent():
        assert span.count == 8
        break


def test_nothing_is_asked_for_an_empty_range() -> None:
    for first, end in ((5, 5), (7, 3)):
        plan = RangePlan(QUEUE, first, end, is_filtered=False)
        assert plan.is_done and list(plan.unsent()) == []


def test_a_pull_asks_for_what_its_field_can_hold() -> None:
    (span,) = RangePlan(QUEUE, 0, 1 << 40, is_filtered=False).unsent()
    assert span.count == COUNT_MAX


@pytest.mark.parametrize("is_filtered", [False, True])
@pytest.mark.parametrize("passes_gaps", [False, True])
@pytest.mark.parametrize(("first", "end"), [(3, 10), (20, 41), (40, 50), (60, 70)])
def test_a_range_that_is_not_there(
    first: int, end: int, is_filtered: bool, passes_gaps: bool
) -> None:
    broker = FakeBroker(5, 40, [1_000])
    plan = RangePlan(QUEUE, first, end, is_filtered=is_filtered, passes_gaps=passes_gaps)
    with pytest.raises(OffsetOutOfRange, match="holds 5 up to 40"):
        run(plan, broker)


def test_a_negative_offset_is_refused() -> None:
    with pytest.raises(OffsetOutOfRange, match="-1"):
        RangePlan(QUEUE, -1, 4, is_filtered=False)


def test_a_gap_is_no_silence() -> None:
    plan = RangePlan(QUEUE, 0, 10, is_filtered=False)
    assert len(list(plan.unsent())) == 1
    with pytest.raises(OffsetOutOfRange, match="first message there has offset 4"):
        plan.accept(PullResult(PullStatus.FOUND, 6, 0, 10, record(4) + record(5)))
    with pytest.raises(OffsetOutOfRange):
        plan.accept(PullResult(PullStatus.NO_MATCH, 6, 0, 10, b""))


def test_records_behind_the_end_are_cut_off() -> None:
    body = memoryview(b"".join(map(record, range(3, 9))))
    assert [one.queue_offset for one in decode_records(records_before(body, 6))] == [3, 4, 5]
    assert records_before(body, 9) == body
    assert records_before(body, 0) == b""
    for broken in (body[:-1], memoryview(bytes(100))):
        with pytest.raises(CorruptRecord):
            records_before(broken, 100)
    assert first_offset(body) == 3
    with pytest.raises(CorruptRecord):
        first_offset(b"short")


def test_small_chunks_are_joined_and_large_ones_pass() -> None:
    joiner = Joiner()

    def chunk(first: int, end: int, size: int) -> PullChunk:
        return PullChunk(memoryview(bytes(size)), first, end)

    assert joiner.add(chunk(0, 2, 0)) == []
    large = chunk(2, 3, PASS_BYTES_MIN)
    (passed,) = joiner.add(large)
    assert passed.buffer is large.buffer and (passed.first, passed.next_offset) == (0, 3)
    assert joiner.add(chunk(3, 4, 10)) == [] == joiner.add(chunk(4, 9, 10))
    (joined,) = joiner.flush()
    assert (len(joined.buffer), joined.first, joined.next_offset) == (20, 3, 9)
    assert joiner.flush() == []
    ready = [
        part for number in range(20) for part in joiner.add(chunk(number, number + 1, 100_000))
    ]
    ready += joiner.flush()
    assert sum(len(part.buffer) for part in ready) == 2_000_000
    assert [ready[0].first, ready[-1].next_offset] == [0, 20]
    assert all(a.next_offset == b.first for a, b in zip(ready, ready[1:], strict=False))


def test_spans_are_told_apart_by_identity() -> None:
    assert Span(1, 2) != Span(1, 2)
