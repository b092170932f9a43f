"""Which half messages are open, and what a restart has to read again."""

import random

import pytest

from pymq.broker.state.transactions import OpenTransactions
from pymq.protocol.transaction_records import Identity

ID = Identity(b"KEY", 17, b"\0" * 8)
OTHER = Identity(b"OTHER", 17, b"\0" * 8)


def test_what_is_not_closed_is_open() -> None:
    table = OpenTransactions(3, 0)
    assert [table.is_open(offset) for offset in (2, 3, 4, 1000)] == [False, True, True, True]
    table.close(4, 0)
    assert not table.is_open(4)
    assert (table.half_cursor, table.op_cursor) == (3, 0)
    table.close(3, 1)
    assert (table.half_cursor, table.op_cursor) == (5, 2)


def test_an_op_is_read_again_as_long_as_it_closes_an_offset_that_is() -> None:
    table = OpenTransactions()
    table.close(2, 0)
    table.close(0, 1)
    assert (table.half_cursor, table.op_cursor) == (1, 0)
    table.restore([1, 5], 2)  # RocketMQ's ops close several
    assert (table.half_cursor, table.op_cursor) == (3, 2)
    table.restore([], 3)
    table.restore([3, 4], None)
    assert (table.half_cursor, table.op_cursor) == (6, 4)


def test_a_copy_stands_for_all_older_ones() -> None:
    table = OpenTransactions()
    table.supersede(0, 7, 0)
    table.supersede(7, 9, 1)
    assert [table.current(offset, ID) for offset in (0, 7, 9)] == [9, 9, 9]
    table.close(9, 2)
    assert [table.current(offset, ID) for offset in (0, 7, 9)] == [None] * 3


def test_a_copy_that_was_found_is_recognized_by_its_identity() -> None:
    table = OpenTransactions(5, 0)
    table.find_copy(6, ID)
    assert table.current(1, ID) == 6
    assert table.current(1, OTHER) is None
    assert table.current(1, None) is None
    table.supersede(6, 8, 0)
    assert table.current(1, ID) == 8
    assert table.current(6, None) == 8
    table.close(8, 1)
    assert table.current(1, ID) is None


def test_the_end_of_one_of_two_with_the_same_identity_leaves_the_other() -> None:
    table = OpenTransactions(5, 0)
    table.find_copy(6, ID)
    table.find_copy(7, ID)
    table.close(6, 0)
    assert table.current(1, ID) == 7


def test_open_runs() -> None:
    table = OpenTransactions(2, 0)
    assert list(table.open_runs(2)) == []
    table.restore([3, 4, 7], 0)
    assert list(table.open_runs(9)) == [(2, 3), (5, 7), (8, 9)]
    table.restore([8], 1)
    assert list(table.open_runs(9)) == [(2, 3), (5, 7)]


@pytest.mark.parametrize("count", [1, 2, 3, 64])
def test_open_runs_of_a_bounded_length(count: int) -> None:
    table = OpenTransactions(2, 0)
    table.restore([3, 4, 9, 11], 0)
    for end in range(2, 14):
        found = list(table.open_runs(end, count_max=count))
        assert all(first < last <= first + count for first, last in found)
        opened = [one for first, last in table.open_runs(end) for one in range(first, last)]
        assert [one for first, last in found for one in range(first, last)] == opened
        assert len(found) == sum(
            -(-(last - first) // count) for first, last in table.open_runs(end)
        )


def test_a_bounded_run_looks_no_further() -> None:
    """A round of checks takes one after the other, of very many open transactions."""

    class Closed(set[int]):
        looks = 0

        def __contains__(self, offset: object) -> bool:
            self.looks += 1
            return super().__contains__(offset)

    table, end, offset, runs = OpenTransactions(), 100_000, 0, 0
    table._closed = closed = Closed()
    while offset < end:
        first, offset = next(table.open_runs(end, offset, count_max=64))
        assert first == 64 * runs
        runs += 1
    assert runs == -(-end // 64)
    assert closed.looks <= end + runs


@pytest.mark.parametrize("round_", range(20))
def test_random_ends_and_copies(seed: int, round_: int) -> None:
    """Against lists; and what a restart restores from the cursors on is the same."""
    dice = random.Random(seed + round_)
    table = OpenTransactions()
    chains: list[list[int]] = []  # the offsets of each transaction, the open one last
    ended: list[list[int]] = []
    ops: list[int] = []
    end = 0
    for _ in range(200):
        action = dice.random()
        if action < 0.4 or not chains:
            chains.append([end])
            end += 1
        elif action < 0.6:
            chain = dice.choice(chains)
            table.supersede(chain[-1], end, len(ops))
            ops.append(chain[-1])
            chain.append(end)
            end += 1
        else:
            chain = chains.pop(dice.randrange(len(chains)))
            table.close(chain[-1], len(ops))
            ops.append(chain[-1])
            ended.append(chain)
        for chain in chains:
            assert {table.current(offset, None) for offset in chain} == {chain[-1]}
        for chain in ended:
            assert {table.current(offset, None) for offset in chain} == {None}
        again = OpenTransactions(table.half_cursor, table.op_cursor)
        for op_offset in range(table.op_cursor, len(ops)):
            again.restore([ops[op_offset]], op_offset)
        assert list(again.open_runs(end)) == list(table.open_runs(end))
        assert (again.half_cursor, again.op_cursor) == (table.half_cursor, table.op_cursor)
    opened = [offset for first, last in table.open_runs(end) for offset in range(first, last)]
    assert opened == sorted(chain[-1] for chain in chains)
    assert table.half_cursor == (opened[0] if opened else end)
