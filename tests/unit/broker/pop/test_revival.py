"""What is due, when something else happens to it than that it is revived."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.broker.pop.test_checkpoint import checkpoint
from tests.unit.store.stores import FakeClock

from pymq.broker.pop.checkpoint import Checkpoint
from pymq.broker.pop.checkpoint_table import CheckpointTable
from pymq.broker.pop.revival import AWAIT_GROUP_MS, Revival
from pymq.broker.state.offsets import OffsetTable


class Nothing:
    """Queues whose messages cannot be read any more, though there are some from ``first`` on."""

    def __init__(
        self, on_read: Callable[[int], None] = lambda at: None, *, first: int = 0
    ) -> None:
        self._on_read = on_read
        self._first = first

    def has(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        return queue_offset >= self._first

    async def read(self, topic: str, queue_id: int, at: int, count: int) -> Any:
        self._on_read(at)

        class Read:
            records: list[Any] = []
            next_queue_offset = at

        return Read()


class Ended:
    """A journal that notes which checkpoints end."""

    def __init__(self, table: CheckpointTable) -> None:
        self._table = table
        self.acknowledged: list[Checkpoint] = []
        self.dropped: list[Checkpoint] = []

    def drop(self, one: Checkpoint) -> None:
        self.dropped.append(one)
        self._table.remove(one)

    def acknowledge(self, one: Checkpoint, bits: int, told: Any) -> None:
        self.acknowledged.append(one)


def revival(
    table: CheckpointTable, clock: FakeClock, reading: Any, journal: Any, offsets: Any = None
) -> Revival:
    known: Any = {"TopicA", "%RETRY%g_TopicA", "%RETRY%unknown_TopicA", "g"}
    return Revival(
        reading, journal, table, known, known, offsets, clock,
        retry_v2=False, creates_topics=False, host=b"",
    )  # fmt: skip


def test_an_acknowledgement_that_comes_while_it_is_read_may_still_fail() -> None:
    """Else nobody would look at the message again, until a restart."""

    async def test() -> None:
        clock = FakeClock()
        table = CheckpointTable(8)
        one = checkpoint(pop_time=clock.wall_ms() - 60000, differences=(0,))
        table.add(one)

        def on_read(at: int) -> None:
            one.acknowledging = one.all_bits  # the record of the acknowledgement is written

        journal = None  # nothing is written: that would be a second delivery
        assert await revival(table, clock, Nothing(on_read), journal).step() == 1
        one.acknowledging = 0  # it could not be written
        assert table.take_due(clock.wall_ms(), 10) == []
        assert table.take_due(clock.wall_ms() + 1000, 10) == [one]

    asyncio.run(test())


def test_an_error_that_nobody_expects_keeps_nothing_else_from_being_due(
    unawaited: list[str],
) -> None:
    """Else what was taken together with it would not be looked at again, also of other groups."""

    async def test() -> None:
        clock = FakeClock()
        table = CheckpointTable(8)
        bad, good = (
            checkpoint(pop_time=clock.wall_ms() - 70000 + n, start_offset=n, differences=(0,))
            for n in range(2)
        )
        table.add(bad)
        table.add(good)

        def on_read(at: int) -> None:
            if at == bad.start_offset:
                raise UnicodeDecodeError("utf-8", b"\xb6", 0, 1, "as an example")

        journal = Ended(table)
        assert await revival(table, clock, Nothing(on_read), journal).step() == 2
        assert journal.acknowledged == [good]
        assert table.take_due(clock.wall_ms() + 9_000, 10) == []
        assert table.take_due(clock.wall_ms() + 10_000, 10) == [bad]
        (logged,) = unawaited
        assert "as an example" in logged and "Traceback" in logged
        unawaited.clear()

    asyncio.run(test())


@pytest.mark.parametrize(
    ("offset", "first", "waits"), [(13, 12, True), (13, 18, False), (None, 12, False)]
)
def test_messages_of_an_unknown_group_wait_for_it(
    offset: int | None, first: int, waits: bool
) -> None:
    """While there are any, unless its offsets were deleted with it."""

    async def test() -> None:
        clock = FakeClock()
        table = CheckpointTable(8)
        one = checkpoint(pop_time=clock.wall_ms() - 60000, group="unknown")
        table.add(one)
        offsets = OffsetTable(clock)
        if offset is not None:
            offsets.commit("unknown", "TopicA", one.queue_id, offset)
        journal = Ended(table)
        assert await revival(table, clock, Nothing(first=first), journal, offsets).step() == 1
        assert journal.dropped == ([] if waits else [one])
        assert table.take_due(clock.wall_ms(), 10) == []
        assert table.take_due(clock.wall_ms() + AWAIT_GROUP_MS, 10) == [one] * waits

    asyncio.run(test())


@pytest.mark.parametrize("group", ["g", "unknown"])
def test_messages_of_a_deleted_group_are_looked_for_only_if_it_is_there_again(group: str) -> None:
    """Else they are given up, for good: a restart must not have them wait for the group."""

    async def test() -> None:
        clock = FakeClock()
        table = CheckpointTable(8)
        one = checkpoint(pop_time=clock.wall_ms() - 60000, group=group, is_orphan=True)
        table.add(one)
        offsets = OffsetTable(clock)
        offsets.commit(group, "TopicA", one.queue_id, 13)
        looked_at: list[int] = []
        journal = Ended(table)
        reading = Nothing(looked_at.append)
        assert await revival(table, clock, reading, journal, offsets).step() == 1
        assert bool(looked_at) == (group == "g")
        assert (journal.acknowledged, journal.dropped) == ([one], [])

    asyncio.run(test())
