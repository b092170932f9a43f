"""Queues for batches: turns, order, and brokers that are kept away from."""

import random
from operator import itemgetter

import pytest

from pymq.client.sockets import batch_targets
from pymq.client.sockets.batch_targets import AVOID_S, BatchTarget, QueueChooser, fitting
from pymq.errors import LocalProtocolError, RouteNotFound
from pymq.protocol.bodies import MessageQueue

ANY = BatchTarget("T")
A = [MessageQueue("T", "broker-a", number) for number in range(3)]
B = [MessageQueue("T", "broker-b", number) for number in range(3)]


def test_which_queues_fit() -> None:
    both = A + B
    assert fitting(ANY, both[::-1], set()) == both
    assert fitting(BatchTarget("T", 2), both, set()) == [A[2]]
    assert fitting(BatchTarget("T", 2), B, set(both)) == [B[2]]  # the first that is there
    assert fitting(BatchTarget.of(B[1]), both, set()) == [B[1]]


def test_a_queue_that_is_away_is_not_one_that_never_was() -> None:
    for target, text in (
        (BatchTarget("T", 3), "no queue 3; there are broker-b/0"),
        (BatchTarget("T", 3, "broker-b"), "no queue broker-b/3"),
    ):
        with pytest.raises(LocalProtocolError, match=text):
            fitting(target, B, {*A, *B})
    for target in (BatchTarget.of(A[0]), BatchTarget("T", 7, "broker-c")):
        with pytest.raises(RouteNotFound, match=r"has no route.*broker-b/0.*is its broker running"):
            fitting(target, B, {*A, *B})
    with pytest.raises(RouteNotFound, match="is its broker running, and .* permission W"):
        fitting(BatchTarget("T", 0, "broker-a"), B, set(A))
    with pytest.raises(RouteNotFound) as caught:  # where a sink is, for any of its queues
        fitting(BatchTarget("T", broker_name="broker-a"), B, set())
    assert "no queue of broker-a can be written, there are broker-b/0" in str(caught.value)
    assert "broker is away" in str(caught.value) and "permission W" in str(caught.value)
    assert "None" not in str(caught.value)
    with pytest.raises(RouteNotFound):  # only the broker that is away has that many
        fitting(BatchTarget("T", 2), B[:2], {*A, *B})


def test_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_targets, "TURN_BYTES", 100)
    chooser = QueueChooser(first_turn=7, depth=3)
    found = []
    for number in range(8):
        queue = chooser.choose(ANY, number, A + B, 0.0)
        chooser.sent(queue, number, 60)
        chooser.ended(queue)
        found.append(queue)
    assert found == [A[1], A[1], A[2], A[2], B[0], B[0], B[1], B[1]]


def test_one_at_a_time_for_each_queue_of_a_broker_that_mixes_them_up() -> None:
    chooser = QueueChooser(depth=3)
    for number, queue in enumerate(A):
        assert chooser.choose(ANY, number, A, 0.0) == queue
        assert chooser.has_room(queue, number)
        chooser.sent(queue, number, 1)
    assert not any(chooser.has_room(queue, 3) for queue in A)
    chooser.ended(A[1])
    assert chooser.choose(ANY, 3, A, 0.0) == A[1]
    # One that keeps them in order gets several; but nothing behind what was sent later.
    chooser.broker("broker-a").depth = 3
    assert chooser.has_room(A[0], 4)
    assert not chooser.has_room(A[2], 1)


def test_a_broker_that_failed_is_kept_away_from() -> None:
    chooser = QueueChooser()
    assert chooser.choose(ANY, 0, A + B, 0.0) == A[0]
    chooser.broker("broker-a").failed(10.0)
    assert chooser.choose(ANY, 0, A + B, 10.0, last=A[0]) == B[0]
    assert chooser.choose(BatchTarget("T", 0), 0, [A[0]], 10.0) == A[0]  # there is no other
    assert chooser.choose(ANY, 0, A + B, 10.1 + AVOID_S) == A[0]
    # All failed: the one that may be tried first.
    chooser.broker("broker-b").failed(10.01)
    assert chooser.choose(ANY, 0, B + A, 10.02).broker_name == "broker-a"
    chooser.broker("broker-a").succeeded()
    assert chooser.choose(ANY, 0, B + A, 10.02).broker_name == "broker-a"


def test_pauses_double_up_to_a_second() -> None:
    health = QueueChooser().broker("broker-a")
    pauses = []
    for _ in range(7):
        health.failed(100.0)
        pauses.append(round(health.retry_at_s - 100.0, 3))
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


@pytest.mark.parametrize("depth", [1, 3])
def test_no_queue_gets_anything_behind_something_later(seed: int, depth: int) -> None:
    """Three in flight, brokers fail at random: each queue's batches are in order all the same.

    As in the pipeline, what failed goes alone.
    """
    rng = random.Random(seed)
    chooser = QueueChooser(depth=3)
    got: dict[MessageQueue, list[int]] = {}
    unsent: list[tuple[int, MessageQueue | None]] = [(number, None) for number in range(400)]
    in_flight: list[tuple[int, MessageQueue]] = []
    failed: set[int] = set()
    now_s = 0.0
    while unsent or in_flight:
        now_s += rng.choice([0.01, 5.0])
        for name in ("broker-a", "broker-b"):
            chooser.broker(name).depth = depth
        goes_alone = unsent and failed & {unsent[0][0], *(number for number, _ in in_flight)}
        if unsent and len(in_flight) < (1 if goes_alone else 3):
            number, last = unsent[0]
            queue = chooser.choose(ANY, number, A + B, now_s, last=last)
            if chooser.has_room(queue, number):
                unsent.pop(0)
                chooser.sent(queue, number, rng.randrange(8 << 20))
                got.setdefault(queue, []).append(number)
                in_flight.append((number, queue))
                continue
        number, queue = in_flight.pop(0)
        chooser.ended(queue)
        if rng.random() < 0.8:
            chooser.broker(queue.broker_name).succeeded()
            failed.discard(number)
            continue
        # A connection broke: what went that way comes back, in its order.
        chooser.broker(queue.broker_name).failed(now_s)
        lost = [(number, queue)]
        for other in [one for one in in_flight if one[1].broker_name == queue.broker_name]:
            in_flight.remove(other)
            chooser.ended(other[1])
            lost.append(other)
        failed |= {number for number, _ in lost}
        unsent = sorted([*lost, *unsent], key=itemgetter(0))
    for numbers in got.values():
        first = list(dict.fromkeys(numbers))
        assert first == sorted(first)
    assert {number for numbers in got.values() for number in numbers} == set(range(400))
