"""How much a batch takes: pure decisions, and estimates of sizes."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.connector.reading import B0, Q0, Q1, Time

from pymq.protocol.bodies import MessageQueue
from pyspark_pymq.source import message_sizes
from pyspark_pymq.source.limits import TriggerDelay, capped, share_bytes
from pyspark_pymq.source.message_sizes import MessageSizes


def test_a_delay_counts_from_the_last_batch(clock: Time) -> None:
    delay = TriggerDelay(100, 60.0, clock)
    assert delay.holds_back(99) and not delay.holds_back(100)
    clock.now_s += 59
    assert delay.holds_back(99)
    clock.now_s += 1
    assert delay.holds_back(0)  # nothing is no batch, however late
    assert not delay.holds_back(1)
    assert delay.holds_back(1)
    clock.now_s += 60
    assert not delay.holds_back(99)
    unlimited = TriggerDelay(None, 60.0, clock)
    assert not unlimited.holds_back(0)


@pytest.mark.parametrize(
    ("waiting", "sizes", "most", "taken"),
    [
        ({"a": 10, "b": 10}, {"a": 100, "b": 900}, 10_000, {"a": 10, "b": 10}),
        ({"a": 10, "b": 10}, {"a": 100, "b": 900}, 5_000, {"a": 5, "b": 5}),
        ({"a": 1, "b": 1000}, {"a": 1, "b": 1}, 100, {"a": 1, "b": 99}),
        ({"a": 5}, {"a": 1000}, 10, {"a": 1}),
        ({}, {}, 1, {}),
    ],
)
def test_bytes_are_shared(
    waiting: dict[str, int], sizes: dict[str, int], most: int, taken: dict[str, int]
) -> None:
    assert share_bytes(waiting, sizes, most) == taken


@given(
    st.dictionaries(st.integers(0, 9), st.tuples(st.integers(1, 10**7), st.integers(1, 10**6))),
    st.integers(1, 10**9),
)
def test_shares_of_bytes_are_bounded(queues: dict[int, tuple[int, int]], most: int) -> None:
    waiting = {item: count for item, (count, _) in queues.items()}
    sizes = {item: float(size) for item, (_, size) in queues.items()}
    taken = share_bytes(waiting, sizes, most)
    assert all(1 <= taken[item] <= waiting[item] for item in waiting)
    beyond = sum(sizes[item] for item, count in taken.items() if count == 1)
    assert sum(taken[item] * sizes[item] for item in taken) <= most + beyond


def test_ends_cap_what_is_there() -> None:
    assert capped({Q0: (0, 9), Q1: (0, 9)}, {Q0: 4, B0: 1}) == {Q0: (0, 4), Q1: (0, 9)}


class Log:
    """Messages whose size depends on the queue and the offset."""

    def __init__(self, *steps: tuple[int, int]) -> None:
        self.steps = steps  # from offset on: size
        self.samples: list[tuple[MessageQueue, int]] = []
        self.silent: set[str] = set()

    def size(self, offset: int) -> int:
        return next(size for first, size in reversed(self.steps) if offset >= first)

    def sample(self, queue: MessageQueue, offset: int) -> float | None:
        self.samples.append((queue, offset))
        if queue.broker_name in self.silent:
            return None
        some = range(offset, offset + message_sizes.SAMPLE_COUNT)
        return sum(map(self.size, some)) / len(some)

    def bytes_of(self, first: int, count: int) -> int:
        marks = [*(max(at, first) for at, _ in self.steps if at < first + count), first + count]
        return sum((end - start) * self.size(start) for start, end in pairwise(marks))


def test_messages_of_one_size(clock: Time) -> None:
    log = Log((0, 500))
    sizes = MessageSizes(log.sample, clock)
    assert sizes.fitting({Q0: 0, Q1: 7}, {Q0: 3000, Q1: 1000}, 1_000_000) == {Q0: 1500, Q1: 500}


def test_sizes_that_change(clock: Time, seed: int) -> None:
    """A backlog of small messages, then large ones, or the reverse: no batch is far too large."""
    source = random.Random(seed)
    for _ in range(200):
        steps = [(0, source.randrange(100, 20_000))]
        steps.append((source.randrange(80_000), source.randrange(100, 20_000)))
        log = Log(*steps)
        sizes = MessageSizes(log.sample, clock)
        offset, end, batches = 0, 80_000, 0
        while offset < end:
            clock.now_s += message_sizes.SAMPLE_AGE_S
            count = sizes.fitting({Q0: offset}, {Q0: end - offset}, 10_000_000)[Q0]
            # One of three samples has the other size, and it is that of half the messages.
            assert log.bytes_of(offset, count) <= 16_000_000, (steps, offset, count)
            offset += count
            batches += 1
        assert batches <= 10 + 4 * log.bytes_of(0, end) / 10_000_000
        assert len(log.samples) <= 3 * message_sizes.PASSES_MAX * batches


def test_small_batches_are_not_sampled_again_and_again(clock: Time) -> None:
    log = Log((0, 1000))
    sizes = MessageSizes(log.sample, clock)
    for number in range(100):
        clock.now_s += 0.1
        assert sizes.fitting({Q0: number}, {Q0: 1}, 1_000_000) == {Q0: 1}
    assert 9 <= len(log.samples) <= 11
    before = len(log.samples)
    assert sizes.fitting({Q0: 100}, {Q0: 5000}, 1_000_000) == {Q0: 1000}
    assert len(log.samples) > before


def test_of_many_queues_some_are_sampled(clock: Time) -> None:
    log = Log((0, 1000))
    sizes = MessageSizes(log.sample, clock)
    queues = [MessageQueue("orders", "broker-a", number) for number in range(100)]
    waiting = {queue: 100 + queue.queue_id for queue in queues}
    taken = sizes.fitting(dict.fromkeys(queues, 0), waiting, 1_000_000)
    assert 800 < sum(taken.values()) <= 1000
    assert len({queue for queue, _ in log.samples}) <= 3 * message_sizes.QUEUES_MAX


def test_a_silent_broker_is_asked_once(clock: Time) -> None:
    log = Log((0, 1000))
    log.silent.add("broker-a")
    sizes = MessageSizes(log.sample, clock)
    taken = sizes.fitting({Q0: 0, Q1: 0, B0: 0}, {Q0: 500, Q1: 500, B0: 400}, 700_000)
    assert taken == {Q0: 250, Q1: 250, B0: 200}  # they are taken to be like the other's
    passes = len([queue for queue, _ in log.samples if queue.broker_name == "broker-a"])
    assert passes <= message_sizes.PASSES_MAX
    log.silent.add("broker-b")
    fresh = MessageSizes(log.sample, clock)
    assert fresh.fitting({Q0: 0}, {Q0: 500}, 40_960) == {Q0: 10}  # nothing is known
