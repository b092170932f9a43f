"""What a master shows and asks for while slaves come and go."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from pymq.broker.ha.caught_up import CaughtUp
from pymq.broker.ha.controllers import NoController
from pymq.broker.ha.in_sync import InSync
from pymq.broker.ha.set_change import SetRefused
from pymq.broker.ha.sync_states import SyncStates
from pymq.errors import PymqError, RequestTimeout
from pymq.protocol.controller import SyncStateSet
from pymq.protocol.epoch_replication import Handshake


class FakeSlave:
    """A slave's connection."""

    def __init__(self, broker_id: int, end: int, now_s: float) -> None:
        self.handshake = Handshake(broker_id)
        self.confirmed_end = end
        self.is_proven = True
        self.caught_up = CaughtUp()
        self.caught_up.at_s = now_s


class Bed:
    """Master 1 of term 4; ``found`` is what the controller says to the next request."""

    def __init__(self) -> None:
        self.now_s = asyncio.get_running_loop().time()
        self.readable_end = 0
        self.limit: int | None = -1
        self.asked: list[tuple[set[int], int, int]] = []
        self.found: SyncStateSet | PymqError | None = None
        #: Brokers that the controller refuses, whatever ``found`` is.
        self.refused: set[int] = set()
        of = SyncStateSet(frozenset({1}), 7)
        self.states = SyncStates(1, 0, of, self.now_s, lag_max_s=60.0)
        me: Any = self
        self.in_sync = InSync(self.states, me, me, None, term=4, interval_s=60.0)
        self.slaves: list[Any] = []
        self.in_sync.slaves = lambda: self.slaves

    def slave(self, end: int, broker_id: int = 2) -> None:
        self.slaves = [FakeSlave(broker_id, end, self.now_s)]

    def show_up_to(self, end: int | None) -> None:
        self.limit = end

    async def alter(self, ids: frozenset[int], epoch: int, *, term: int) -> SyncStateSet | None:
        self.asked.append((set(ids), epoch, term))
        if isinstance(self.found, PymqError):
            raise self.found
        if self.refused:
            return None if ids & self.refused else SyncStateSet(ids, epoch + 1)
        return self.found


class FakeOffsets:
    """Who has the offsets: slave 2 does or does not."""

    def __init__(self, now_s: float) -> None:
        self.at_s = now_s
        self.is_complete = False
        self.connections: list[int] = []
        self.looks = 0

    def connected(self, broker_id: int, *, asks: bool) -> None:
        assert asks
        self.connections.append(broker_id)

    def complete_s(self, broker_id: int) -> float:
        return self.at_s

    def has_promised(self, broker_id: int) -> bool:
        return self.is_complete

    def look(self) -> None:
        self.looks += 1


def run(check: Callable[[Bed], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await check(Bed())

    asyncio.run(main())


def test_alone_everything_is_shown() -> None:
    async def check(bed: Bed) -> None:
        bed.readable_end = 100
        await bed.in_sync.look()
        assert (bed.limit, bed.asked) == (None, [])

    run(check)


def test_what_is_written_while_a_slave_is_about_to_join_is_not_shown_without_it() -> None:
    async def check(bed: Bed) -> None:
        bed.readable_end = 100
        bed.slave(90)
        await bed.in_sync.look()
        assert bed.asked == []  # it lacks what was shown
        assert bed.limit == 100
        bed.readable_end = 110
        bed.slave(105)
        bed.in_sync.update()
        assert bed.limit == 105

    run(check)


def test_a_set_is_asked_for_and_taken() -> None:
    async def check(bed: Bed) -> None:
        bed.readable_end = 100
        bed.slave(100)
        bed.found = SyncStateSet(frozenset({1, 2}), 8)
        await bed.in_sync.look()
        assert bed.asked == [({1, 2}, 7, 4)]
        assert bed.in_sync.members == bed.found
        assert bed.limit == 100

    run(check)


@pytest.mark.parametrize(
    ("found", "is_awaited"),
    [
        (None, False),
        (SetRefused("fenced"), False),
        (NoController("nobody"), False),
        (RequestTimeout("late"), True),
    ],
    ids=["refused", "refused like any other", "not asked", "unknown"],
)
def test_who_is_asked_for_is_waited_for_until_it_is_known(
    found: PymqError | None, is_awaited: bool
) -> None:
    async def check(bed: Bed) -> None:
        bed.readable_end = 100
        bed.slave(100)
        bed.found = found
        await bed.in_sync.look()
        bed.slaves = []
        bed.found = None
        for _ in range(2):  # a refusal says nothing of an earlier request
            await bed.in_sync.look()
            assert bed.states.awaited == ({2} if is_awaited else set())
        bed.in_sync.told(SyncStateSet(frozenset({1}), 7))
        assert bed.states.awaited == ({2} if is_awaited else set())
        bed.in_sync.told(SyncStateSet(frozenset({1}), 8))
        assert bed.states.awaited == set()

    run(check)


def test_who_is_gone_leaves_although_the_controller_refuses_another_one() -> None:
    """It does not know that one any more, say: 2 was cleaned. 3 is dead."""

    async def check(bed: Bed) -> None:
        bed.in_sync.told(SyncStateSet(frozenset({1, 3}), 8))
        bed.readable_end = 100
        bed.slave(100)
        bed.refused = {2}
        await bed.in_sync.look()
        assert [ids for ids, *_ in bed.asked] == [{1, 2}, {1}]
        assert bed.in_sync.members.broker_ids == {1}
        await bed.in_sync.look()
        assert [ids for ids, *_ in bed.asked[2:]] == [{1, 2}]

    run(check)


def test_a_slave_joins_although_the_controller_refuses_another_one() -> None:
    async def check(bed: Bed) -> None:
        bed.readable_end = 100
        bed.slaves = [FakeSlave(one, 100, bed.now_s) for one in (2, 3)]
        bed.refused = {2}
        await bed.in_sync.look()
        assert [ids for ids, *_ in bed.asked] == [{1, 2, 3}, {1, 2}, {1, 3}]
        assert bed.in_sync.members == SyncStateSet(frozenset({1, 3}), 8)

    run(check)


def test_no_other_set_is_asked_for_where_any_would_be_refused() -> None:
    """The controllers know a later master, say."""

    async def check(bed: Bed) -> None:
        bed.in_sync.told(SyncStateSet(frozenset({1, 3, 4}), 8))
        bed.readable_end = 100
        bed.slave(100)
        bed.found = SetRefused("current master epoch is {5}")
        await bed.in_sync.look()
        assert [ids for ids, *_ in bed.asked] == [{1, 2}]

    run(check)


def test_who_is_not_asked_for_any_more_is_not_waited_for() -> None:
    async def check(bed: Bed) -> None:
        bed.readable_end = 100
        bed.slaves = [FakeSlave(one, 100, bed.now_s) for one in (2, 3)]
        bed.refused = {1, 2, 3}
        await bed.in_sync.look()
        bed.slaves = []
        await bed.in_sync.look()
        assert bed.states.awaited == set()

    run(check)


def test_nothing_else_is_asked_for_when_the_set_was_changed_meanwhile() -> None:
    async def check(bed: Bed) -> None:
        bed.readable_end = 100
        bed.slaves = [FakeSlave(one, 100, bed.now_s) for one in (2, 3)]
        real = bed.alter

        async def alter(ids: frozenset[int], epoch: int, *, term: int) -> SyncStateSet | None:
            bed.in_sync.told(SyncStateSet(frozenset({1, 2}), 8))
            return await real(ids, epoch, term=term)

        steering: Any = bed
        steering.alter = alter
        await bed.in_sync.look()
        assert [(ids, epoch) for ids, epoch, _ in bed.asked] == [({1, 2, 3}, 7)]

    run(check)


def test_a_slave_that_lacks_acknowledged_offsets_does_not_join() -> None:
    async def check(bed: Bed) -> None:
        offsets: Any = FakeOffsets(bed.now_s)
        bed.in_sync.offsets = offsets
        bed.readable_end = 100
        bed.slave(100)
        await bed.in_sync.look()
        assert bed.asked == []
        assert bed.in_sync.awaited == {2}  # what is acknowledged from now on, it has
        offsets.is_complete = True
        await bed.in_sync.look()
        assert [ids for ids, *_ in bed.asked] == [{1, 2}]
        assert offsets.connections == [2]  # one connection, however often it is looked at
        bed.slave(100)
        await bed.in_sync.look()
        assert offsets.connections == [2, 2]
        assert offsets.looks > 0

    run(check)


def test_a_slave_that_has_not_had_the_offsets_for_long_does_not_join() -> None:
    async def check(bed: Bed) -> None:
        offsets: Any = FakeOffsets(bed.now_s - 1000)
        offsets.is_complete = True
        bed.in_sync.offsets = offsets
        bed.readable_end = 100
        bed.slave(100)
        await bed.in_sync.look()
        assert (bed.asked, bed.in_sync.awaited) == ([], frozenset())

    run(check)
