"""Every decision about offsets is a pure function; here are its tables and properties."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymq.errors import ConfigurationError, OffsetOutOfRange
from pymq.protocol.bodies import MessageQueue
from pyspark_pymq.offsets import (
    EARLIEST,
    LATEST,
    Bound,
    Position,
    QueueRange,
    losses,
    position_from_json,
    position_to_json,
    refuse_losses,
    resolve,
    within,
)
from pyspark_pymq.source.limits import Takes, bounded, end_of_batch, share
from pyspark_pymq.source.planning import TASK_ROWS_MAX, TASK_ROWS_MIN, plan, ranges


def queue(number: int, topic: str = "orders", broker: str = "broker-a") -> MessageQueue:
    return MessageQueue(topic, broker, number)


Q0, Q1, Q2 = queue(0), queue(1), queue(2)


def at_most(count: int) -> Takes:
    return lambda _, waiting: share(waiting, count)


# ------------------------------------------------------------------------------------- JSON


def test_json_is_canonical() -> None:
    offsets = {queue(10): 3, queue(2): 1, queue(0, "a"): 7, queue(1, broker="b"): 9}
    turned = dict(reversed(offsets.items()))
    wanted = (
        '{"%": {"v": 1}, "a": {"broker-a": {"0": 7}}, '
        '"orders": {"b": {"1": 9}, "broker-a": {"2": 1, "10": 3}}}'
    )
    for given_offsets in (offsets, turned):
        assert json.dumps(position_to_json(Position(given_offsets))) == wanted


queues = st.builds(
    MessageQueue, st.sampled_from(["a", "%RETRY%g", "b"]), st.sampled_from("xy"), st.integers(0, 20)
)


@given(
    st.dictionaries(queues, st.integers(0, 1 << 60)),
    st.booleans(),
    st.none() | st.integers(0, 1 << 60),
    st.dictionaries(st.tuples(st.text(), st.text()), st.text()),
)
def test_json_round_trip(
    offsets: dict[MessageQueue, int],
    initial: bool,
    since_ms: int | None,
    ids: dict[tuple[str, str], str],
) -> None:
    position = Position(offsets, initial, since_ms, topic_ids=ids)
    assert position_from_json(json.loads(json.dumps(position_to_json(position)))) == position


@pytest.mark.parametrize(
    "value",
    [
        7,
        [],
        {"t": 1},
        {"t": {"b": []}},
        {"t": {"b": {"-1": 1}}},
        {"t": {"b": {"1": "x"}}},
        {"%": {"since": "1"}},
        {"%": {"ids": "1"}},
        {"%": {"ids": {"t": {"b": 7}}}},
    ],
)
def test_json_that_is_none(value: object) -> None:
    with pytest.raises(ConfigurationError, match="expected"):
        position_from_json(value)


def test_json_of_the_first_version_had_no_time() -> None:
    value = {"%": {"v": 1}, "orders": {"broker-a": {"0": 7}}}
    assert position_from_json(value) == Position({queue(0): 7}, initial=False, since_ms=None)
    assert position_to_json(position_from_json(value)) == value


def test_json_of_a_later_version() -> None:
    with pytest.raises(ConfigurationError, match="version 2, expected 1"):
        position_from_json({"%": {"v": 2}})


# ---------------------------------------------------------------------------- starts and ends


def test_resolve() -> None:
    bounds = {Q0: (3, 10), Q1: (0, 5), Q2: (1, 1)}
    assert resolve(Bound(EARLIEST), bounds) == {Q0: 3, Q1: 0, Q2: 1}
    assert resolve(Bound(LATEST), bounds) == {Q0: 10, Q1: 5, Q2: 1}
    chosen = Bound(EARLIEST, ((Q0, 7), (Q1, LATEST)))
    assert resolve(chosen, bounds) == {Q0: 7, Q1: 5, Q2: 1}
    with pytest.raises(ConfigurationError, match="orders/broker-a/9; there are orders/broker-a/0"):
        resolve(Bound(EARLIEST, ((queue(9), 1),)), bounds)


def test_the_first_batch_is_empty_and_fixes_the_start() -> None:
    """What arrives between asking twice for "latest" is not lost."""
    initial = Position({Q0: 10}, initial=True)
    end = end_of_batch(initial, {Q0: (0, 12)})
    assert end == Position({Q0: 10})
    assert position_to_json(end) != position_to_json(initial)  # so Spark journals it
    later = Position({Q0: 12}, initial=True)  # asked for again, after a crash
    assert ranges(later, end) == ranges(initial, end) == []
    following = end_of_batch(end, {Q0: (0, 12)})
    assert ranges(end, following) == [QueueRange(Q0, 10, 12)]


def test_what_is_not_an_offset_stays_as_it_is() -> None:
    start = Position({Q0: 5}, initial=True, since_ms=17)
    end = end_of_batch(start, {Q0: (0, 6)})
    assert end == Position({Q0: 5}, since_ms=17)
    assert end_of_batch(end, {Q0: (0, 6)}) == Position({Q0: 6}, since_ms=17)


def test_a_new_queue_may_begin_in_its_middle() -> None:
    start = Position({Q0: 6})
    bounds = {Q0: (0, 6), Q1: (2, 9), Q2: (0, 3)}
    assert end_of_batch(start, bounds, discovered={Q1: 7}) == Position({Q0: 6, Q1: 7})


def test_a_new_queue_is_journaled_before_it_is_read() -> None:
    start = Position({Q0: 5})
    bounds = {Q0: (0, 6), Q1: (2, 9)}
    end = end_of_batch(start, bounds)
    assert end == Position({Q0: 6, Q1: 2})
    assert ranges(start, end) == [QueueRange(Q0, 5, 6)]
    assert ranges(end, end_of_batch(end, bounds)) == [QueueRange(Q1, 2, 9)]


def test_a_queue_without_a_route_keeps_its_place() -> None:
    assert end_of_batch(Position({Q0: 5, Q1: 7}), {Q0: (0, 6)}) == Position({Q0: 6, Q1: 7})


def test_nothing_new_ends_where_it_starts() -> None:
    start = Position({Q0: 5, Q1: 0})
    assert end_of_batch(start, {Q0: (1, 5), Q1: (0, 0)}, takes=at_most(3)) == start


def test_messages_that_are_gone_do_not_count_against_the_cap() -> None:
    start = Position({Q0: 0})
    end = end_of_batch(start, {Q0: (1_000_000, 1_000_100)}, takes=at_most(10))
    assert end == Position({Q0: 1_000_010})


@pytest.mark.parametrize(
    ("backlog", "most", "shares"),
    [
        ({"a": 10, "b": 30}, None, {"a": 10, "b": 30}),
        ({"a": 10, "b": 30}, 40, {"a": 10, "b": 30}),
        ({"a": 10, "b": 30}, 20, {"a": 5, "b": 15}),
        ({"a": 1, "b": 1_000}, 10, {"a": 1, "b": 9}),
        ({"a": 5, "b": 5, "c": 5}, 1, {"a": 1, "b": 1, "c": 1}),
        ({}, 1, {}),
    ],
)
def test_share(backlog: dict[str, int], most: int | None, shares: dict[str, int]) -> None:
    assert share(backlog, most) == shares


@given(st.dictionaries(st.integers(), st.integers(1, 10**7), max_size=9), st.integers(1, 10**6))
def test_shares_are_bounded_and_everybody_moves(backlog: dict[int, int], most: int) -> None:
    shares = share(backlog, most)
    assert shares.keys() == backlog.keys()
    assert all(1 <= shares[item] <= backlog[item] for item in backlog)
    assert sum(shares.values()) <= max(most + len(backlog), 0)


def test_capped_batches_reach_the_end(seed: int) -> None:
    """AvailableNow: any cap, with queues appearing, ends exactly at the target."""
    source = random.Random(seed)
    for _ in range(50):
        target = {queue(n): source.randrange(200) for n in range(source.randrange(1, 6))}
        live = {q: (0, end + source.randrange(50)) for q, end in target.items()}
        live[queue(99)] = (0, 10)  # appeared later: none of this run's business
        position = Position({q: source.randrange(end + 1) for q, end in list(target.items())[:2]})
        read: dict[MessageQueue, int] = dict.fromkeys(target, 0)
        begun = dict(position.offsets)
        for _step in range(500):
            end = end_of_batch(position, bounded(live, target), takes=at_most(7))
            if end == position:
                break
            for part in ranges(position, end):
                read[part.queue] += len(part)
            position = end
        assert position.offsets == target
        assert read == {q: target[q] - begun.get(q, 0) for q in target}


# ------------------------------------------------------------------------------------ losses


def test_losses() -> None:
    offsets = {Q0: 5, Q1: 5, Q2: 5, queue(3): 5}
    found = losses(offsets, {Q0: (0, 5), Q1: (6, 9), Q2: (0, 4)})
    assert set(found) == {Q1, Q2}
    assert "messages 5..5 are gone, the first kept is 6" in found[Q1]
    assert "ends at 4" in found[Q2] and "queue 2 of orders on broker-a" in found[Q2]
    with pytest.raises(OffsetOutOfRange, match="failOnDataLoss"):
        refuse_losses(found, otherwise="use another checkpoint")
    refuse_losses({}, otherwise="")


def test_an_accepted_loss_goes_on_where_there_is_something() -> None:
    bounds = {Q0: (6, 9), Q1: (0, 4)}
    start = Position({Q0: 5, Q1: 8})
    end = end_of_batch(Position(within(start.offsets, bounds)), bounds)
    assert end == Position({Q0: 9, Q1: 4})
    assert ranges(start, end) == [QueueRange(Q0, 5, 9)]
    later = end_of_batch(end, {Q0: (6, 9), Q1: (0, 6)})
    assert ranges(end, later) == [QueueRange(Q1, 4, 6)]


# ---------------------------------------------------------------------------------- planning


def sizes(tasks: list[list[QueueRange]]) -> list[int]:
    return [sum(map(len, task)) for task in tasks]


def test_small_queues_share_a_task() -> None:
    wanted = [QueueRange(queue(n), 100, 110) for n in range(16)]
    assert plan(wanted) == [wanted]


def test_a_large_queue_is_cut() -> None:
    wanted = [QueueRange(Q0, 0, 3 * TASK_ROWS_MAX + 1)]
    assert sizes(plan(wanted)) == [750_000, 750_000, 750_000, 750_001]


def test_queues_worth_it_have_a_task_each() -> None:
    wanted = [QueueRange(queue(n), 0, TASK_ROWS_MIN) for n in range(4)]
    assert plan(wanted) == [[part] for part in wanted]


@pytest.mark.parametrize(
    ("least", "most", "count"), [(1, None, 1), (3, None, 3), (500, None, 10), (3, 2, 2), (1, 1, 1)]
)
def test_bounds_on_tasks(least: int, most: int | None, count: int) -> None:
    wanted = [QueueRange(Q0, 0, 4), QueueRange(Q1, 7, 13)]
    assert len(plan(wanted, tasks_min=least, tasks_max=most)) == count


def test_nothing_to_read_makes_no_task() -> None:
    assert plan([]) == []
    assert plan([QueueRange(Q0, 5, 5)], tasks_min=4) == []


@given(
    st.lists(st.integers(0, 2 * TASK_ROWS_MAX), max_size=12),
    st.integers(1, 20),
    st.none() | st.integers(1, 20),
)
def test_every_row_is_in_one_task(lengths: list[int], least: int, most: int | None) -> None:
    wanted = [QueueRange(queue(n), 1000 * n, 1000 * n + size) for n, size in enumerate(lengths)]
    tasks = plan(wanted, tasks_min=least, tasks_max=most)
    assert all(map(len, tasks)) and all(len(part) for task in tasks for part in task)
    if tasks:
        assert max(sizes(tasks)) - min(sizes(tasks)) <= 1
        assert most is None or len(tasks) <= most
    joined: list[QueueRange] = []
    for part in (part for task in tasks for part in task):
        if joined and joined[-1].queue == part.queue:
            assert joined[-1].end == part.first
            joined[-1] = QueueRange(part.queue, joined[-1].first, part.end)
        else:
            joined.append(part)
    assert joined == [part for part in wanted if len(part)]
