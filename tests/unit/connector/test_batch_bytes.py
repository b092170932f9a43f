"""How much of each queue a batch of some bytes takes: brokers that tell, and others."""

import random
from collections.abc import Mapping

import pytest
from tests.unit.connector.reading import B0, Q0, Q1, Time

from pymq.client.sockets.fitting_ranges import FittingAnswer
from pymq.errors import ConnectionFailed, PymqError, RequestNotSupported, SystemBusy
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.range_bodies import Fitting
from pyspark_pymq.source import batch_bytes
from pyspark_pymq.source.batch_bytes import BatchBytes
from pyspark_pymq.source.message_sizes import SAMPLE_COUNT, MessageSizes


class Brokers:
    """Messages of some sizes, and how much of them batches take.

    Attributes:
        sizes: of the messages of each queue.
        failing: why brokers do not tell; those that have no connection give no samples either.
        entries_max: how many messages one answer tells of.
        rounds: what was asked.
    """

    def __init__(self, clock: Time, sizes: Mapping[MessageQueue, list[int]]) -> None:
        self.sizes = sizes
        self.failing: dict[str, PymqError] = {}
        self.entries_max = 1 << 30
        self.rounds: list[dict[MessageQueue, tuple[int, int, int]]] = []
        self.samples: list[tuple[MessageQueue, int]] = []
        self.clock = clock
        self.bytes = BatchBytes(self.ask, MessageSizes(self.sample, clock), clock)

    def ask(self, wanted: Mapping[MessageQueue, tuple[int, int, int]]) -> FittingAnswer:
        self.rounds.append(dict(wanted))
        answer = FittingAnswer()
        for queue, (first, end, bytes_max) in wanted.items():
            if queue.broker_name in self.failing:
                answer.failed[queue.broker_name] = self.failing[queue.broker_name]
                continue
            at, total = first, 0
            for size in self.sizes[queue][first : min(end, first + self.entries_max)]:
                if at > first and total + size > bytes_max:
                    break
                at, total = at + 1, total + size
            answer.found[queue] = Fitting(at, total)
        return answer

    def sample(self, queue: MessageQueue, offset: int) -> float | None:
        self.samples.append((queue, offset))
        if isinstance(self.failing.get(queue.broker_name), ConnectionFailed):
            return None
        some = self.sizes[queue][offset : offset + SAMPLE_COUNT]
        return sum(some) / len(some)

    def take(self, offsets: Mapping[MessageQueue, int], most: int) -> dict[MessageQueue, int]:
        """Take a batch; return the bytes of each queue."""
        self.rounds.clear()
        self.samples.clear()
        counts = {queue: len(self.sizes[queue]) - at for queue, at in offsets.items()}
        waiting = {queue: count for queue, count in counts.items() if count > 0}
        taken = self.bytes.fitting(offsets, waiting, most)
        assert taken.keys() == waiting.keys()
        assert all(1 <= taken[queue] <= count for queue, count in waiting.items())
        self.taken = taken
        return {q: sum(self.sizes[q][offsets[q] : offsets[q] + taken[q]]) for q in taken}


def queues(count: int, brokers: int = 1) -> list[MessageQueue]:
    return [MessageQueue("T", f"broker-{number % brokers}", number) for number in range(count)]


def random_sizes(source: random.Random) -> list[int]:
    """Small ones, then large ones, or some of each."""
    sizes: list[int] = []
    for _ in range(source.randrange(1, 4)):
        low, high = source.choice([(91, 92), (91, 500), (5000, 9000), (91, 1 << 22)])
        sizes += [source.randrange(low, high) for _ in range(source.randrange(1, 400))]
    return sizes


def test_no_batch_is_larger_than_its_limit(clock: Time, seed: int) -> None:
    """Unless it is one message of each queue; and all is read, in batches worth their name."""
    source = random.Random(seed)
    for _ in range(40):
        names = queues(source.randrange(1, 12), source.randrange(1, 4))
        one = Brokers(clock, {queue: random_sizes(source) for queue in names})
        one.entries_max = source.choice([1 << 30, 100])
        most = source.choice([1, 1000, 1 << 16, 1 << 22, 1 << 26])
        largest = max(map(max, one.sizes.values()))
        offsets, read, batches = dict.fromkeys(names, 0), 0, 0
        while any(offsets[queue] < len(one.sizes[queue]) for queue in names):
            found = one.take(offsets, most)
            total = sum(found.values())
            assert total <= most or set(one.taken.values()) == {1}, (seed, found, most)
            assert len(one.rounds) <= 3 + batch_bytes.PASSES_MAX
            read += total
            batches += 1
            for queue, count in one.taken.items():
                offsets[queue] += count
        assert read == sum(map(sum, one.sizes.values()))
        if one.entries_max > 100 and largest * 4 * len(names) <= most:
            assert batches <= 2 + read / most * 1.5
        assert not one.samples


def test_bytes_are_shared_in_proportion_to_what_waits(clock: Time) -> None:
    one = Brokers(clock, {Q0: [100] * 1000, Q1: [10_000] * 1000, B0: [1000] * 10})
    found = one.take({Q0: 0, Q1: 0, B0: 0}, 1_000_000)
    # A tenth of each, as of the first batch on, when nothing is known of the sizes.
    assert found[Q0] == pytest.approx(10_000, rel=0.1)
    assert found[Q1] == pytest.approx(980_000, rel=0.1)
    assert found[B0] == 1000
    assert sum(found.values()) <= 1_000_000


def test_what_a_queue_leaves_over_goes_to_others(clock: Time) -> None:
    """It has large messages first, and so seems to have much more than it has."""
    one = Brokers(clock, {Q0: [100_000] * 5 + [100] * 5000, Q1: [1000] * 10_000})
    offsets = {Q0: 0, Q1: 0}
    found = one.take(offsets, 5_000_000)
    assert 4_750_000 <= sum(found.values()) <= 5_000_000


def test_what_does_not_fit_keeps_nothing_from_others(clock: Time) -> None:
    one = Brokers(clock, {Q0: [100, *[4_000_000] * 50], Q1: [100] * 9000})
    one.take({Q0: 1, Q1: 0}, 1)  # The sizes are known.
    found = one.take({Q0: 0, Q1: 0}, 1_000_000)
    assert 850_000 <= sum(found.values()) <= 1_000_000


def test_a_stream_that_is_up_to_date_asks_once(clock: Time) -> None:
    one = Brokers(clock, {Q0: [500] * 10, B0: [500] * 10})
    for offset in range(10):
        assert one.take({Q0: offset, B0: 9}, 100_000)[Q0] == 500 * (10 - offset)
        assert [set(asked) for asked in one.rounds] == [{Q0, B0}]


def test_one_message_of_each(clock: Time) -> None:
    one = Brokers(clock, {Q0: [5000, 1], Q1: [10, 10, 10], B0: [10] * 100})
    assert one.take({Q0: 0, Q1: 0, B0: 0}, 4000) == {Q0: 5000, Q1: 10, B0: 10}
    # The first messages fit together; what is left is for the small ones.
    found = one.take({Q0: 0, Q1: 0, B0: 0}, 6000)
    assert found[Q0] >= 5000 and 5700 <= sum(found.values()) <= 6000


def test_brokers_of_rocketmq_are_sampled(clock: Time) -> None:
    one = Brokers(clock, {Q0: [1000] * 1000, B0: [1000] * 1000})
    one.failing["broker-b"] = RequestNotSupported("no", code=3)
    found = one.take({Q0: 0, B0: 0}, 1_000_000)
    assert found == {Q0: 500_000, B0: 500_000}
    assert {queue for queue, _ in one.samples} == {B0}
    # Whoever does not know the request is not asked again, for a while.
    clock.now_s += batch_bytes.ASK_AGAIN_S - 1
    one.take({Q0: 0, B0: 0}, 1_000_000)
    assert all(B0 not in asked for asked in one.rounds) and one.samples
    clock.now_s += 1
    del one.failing["broker-b"]
    assert sum(one.take({Q0: 0, B0: 0}, 1_000_000).values()) == 1_000_000
    assert not one.samples


@pytest.mark.parametrize("answered", [0, 1, 2])
def test_a_broker_that_goes_away_is_estimated(clock: Time, answered: int) -> None:
    """Whenever it does, while others tell; and it is not waited for once more."""
    one = Brokers(clock, {Q0: [9000] * 100, B0: [9000, *[100] * 1000]})
    one.take({Q0: 99, B0: 1000}, 1)  # The sizes are known.
    ask = one.ask

    def asked(wanted: Mapping[MessageQueue, tuple[int, int, int]]) -> FittingAnswer:
        if len(one.rounds) >= answered:
            one.failing["broker-b"] = ConnectionFailed("away")
        return ask(wanted)

    one.bytes._ask = asked
    found = one.take({Q0: 0, B0: 0}, 30_000)
    assert found[Q0] <= 30_000 and found[B0] >= 9000
    assert sum(B0 in wanted for wanted in one.rounds) <= answered + 1
    assert not one.samples


def test_a_broker_that_is_busy_is_sampled(clock: Time) -> None:
    one = Brokers(clock, {Q0: [1000] * 1000})
    one.failing["broker-a"] = SystemBusy("busy", code=2)
    assert one.take({Q0: 0}, 100_000) == {Q0: 100_000}
    assert one.samples and len(one.rounds) == 1
    one.failing.clear()
    assert one.take({Q0: 0}, 100_000) == {Q0: 100_000} and not one.samples


def test_a_queue_that_has_nothing_there_is_read_all_the_same(clock: Time) -> None:
    """Its topic was created again meanwhile; the tasks find out."""
    one = Brokers(clock, {Q0: [1000] * 1000})
    one.bytes._ask = lambda wanted: FittingAnswer({Q0: Fitting(wanted[Q0][0], 0)})
    assert one.take({Q0: 500}, 100_000) == {Q0: 100_000}


def test_slow_brokers_are_not_asked_again_and_again(clock: Time) -> None:
    one = Brokers(clock, {Q0: [1000] * 100_000})
    one.entries_max = 10
    assert one.take({Q0: 0}, 1 << 30) == {Q0: 10_000 * (1 + batch_bytes.PASSES_MAX)}
    ask = one.ask

    def slow(wanted: Mapping[MessageQueue, tuple[int, int, int]]) -> FittingAnswer:
        clock.now_s += 0.6
        return ask(wanted)

    one.bytes._ask = slow
    assert one.take({Q0: 0}, 1 << 30) == {Q0: 20_000}
