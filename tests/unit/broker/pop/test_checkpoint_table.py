"""Open checkpoints: what is due, and from where the journal is needed."""

from tests.unit.broker.pop.test_checkpoint import checkpoint

from pymq.broker.pop.checkpoint_table import CheckpointTable


def test_what_is_due_is_taken_once() -> None:
    table = CheckpointTable(8)
    ones = [checkpoint(pop_time=n, invisible_ms=100) for n in range(3)]
    for one in ones:
        table.add(one)
    assert table.take_due(99, 10) == []
    assert table.take_due(101, 10) == ones[:2]
    assert table.take_due(101, 10) == []
    table.postpone(ones[0], 500)
    table.remove(ones[2])
    assert table.take_due(499, 10) == []
    assert table.take_due(500, 10) == [ones[0]]
    assert len(table) == 2


def test_nothing_is_due_later_because_the_clock_is_set_back() -> None:
    table = CheckpointTable(8)
    hidden, failed, taken = (
        checkpoint(pop_time=10_000 + n, invisible_ms=100 * (n + 1)) for n in range(3)
    )
    table.add(failed)
    assert table.take_due(10_201, 10) == [failed]
    table.add(taken)
    assert table.take_due(10_302, 10) == [taken]
    table.add(hidden)
    table.postpone(failed, 70_000)
    assert table.take_due(5000, 10) == []
    later = checkpoint(pop_time=5000, invisible_ms=100, start_offset=20)
    table.add(later)
    assert table.take_due(5099, 10) == []
    assert table.take_due(5100, 10) == [hidden, later]
    assert table.take_due(5200, 10) == [failed]
    table.postpone(failed, 6000)
    assert table.take_due(5999, 10) == []
    assert table.take_due(6000, 10) == [failed]
    assert hidden.key[4] == 10_000  # handles stay as they are


def test_the_first_place_moves_on() -> None:
    table = CheckpointTable(8)
    ones = [checkpoint(start_offset=n) for n in range(4)]
    for place, one in enumerate(ones):
        table.add(one)
        table.place(one, place)
    assert table.first_place(3) == 0
    table.remove(ones[0])
    table.remove(ones[2])
    assert table.first_place(3) == 1
    table.place(ones[1], 9)
    assert (table.first_place(3), table.count_in(3)) == (3, 2)
    assert table.oldest(3, 1) == [ones[3]]
    table.place(ones[0], 10)  # closed already
    table.remove(ones[1])
    table.remove(ones[3])
    assert table.first_place(3) is None


def test_a_checkpoint_replaces_one_of_the_same_key() -> None:
    table = CheckpointTable(8)
    table.add(checkpoint(acknowledged=1))
    table.add(checkpoint(acknowledged=4))
    found = table.find(checkpoint().key)
    assert found is not None
    assert found.acknowledged == 5
    assert len(table) == 1
    assert table.take_due(1 << 60, 10) == [found]


def test_deadlines_do_not_pile_up() -> None:
    table = CheckpointTable(8)
    for n in range(5000):
        one = checkpoint(start_offset=n)
        table.add(one)
        table.remove(one)
    assert len(table._by_due) <= 1001
