"""Who is told what in a group with a controller: all members have it, and they are enough."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.unit.store.stores import FakeClock

from pymq.broker.ha.group_progress import GroupProgress
from pymq.broker.ha.progress import ReplicaRules
from pymq.broker.ha.sync_states import Position, SyncStates
from pymq.broker.log_writer import Outcome
from pymq.protocol.controller import SyncStateSet
from pymq.store import PutResult, PutStatus

STORED, LATE, NONE = Outcome.STORED, Outcome.SLAVE_TIMEOUT, Outcome.NO_SLAVE


class Bed:
    """Progress of master 1, and what waiters were told, in order."""

    def __init__(self, *members: int, **changes: Any) -> None:
        self.clock = FakeClock()
        of = SyncStateSet(frozenset(members), 1)
        self.states = SyncStates(1, 0, of, 0.0, lag_max_s=2.0)
        rules = {"wanted": 2, "least": 1, "is_automatic": False, "gap_max": 0, "timeout_s": 3.0}
        self.progress = GroupProgress(ReplicaRules(**(rules | changes)), self.clock, self.states)
        self.told: list[tuple[int, Outcome]] = []

    def wait(self, end: int) -> None:
        def done(outcome: Outcome, reason: str | None) -> None:
            assert (reason is None) is (outcome is STORED)
            self.told.append((end, outcome))

        self.progress.wait(end, done)

    def update(self, log_end: int, **ends: int) -> None:
        positions = {int(name[1:]): Position(end, 0.0) for name, end in ends.items()}
        self.states.update(positions, log_end)
        self.progress.update()


def run(check: Callable[[Bed], Coroutine[Any, Any, None]], *members: int, **rules: Any) -> None:
    async def main() -> None:
        bed = Bed(*members, **rules)
        bed.progress.start()
        await check(bed)
        await bed.progress.close()
        await bed.progress.close()

    asyncio.run(main())


def test_all_members_must_have_a_message() -> None:
    async def check(bed: Bed) -> None:
        bed.wait(100)
        bed.wait(200)
        bed.update(200, s2=200, s3=99)
        assert bed.told == []
        bed.update(200, s2=200, s3=150)
        assert bed.told == [(100, STORED)]
        bed.wait(150)  # there already
        assert bed.told[1:] == [(150, STORED)]

    run(check, 1, 2, 3)


def test_a_set_of_one_is_too_small() -> None:
    async def check(bed: Bed) -> None:
        bed.update(100)
        bed.wait(100)
        assert bed.told == [(100, NONE)]

    run(check, 1)


@pytest.mark.parametrize("rules", [{"wanted": 1}, {"is_automatic": True}], ids=str)
def test_a_set_of_one_may_be_allowed(rules: dict[str, Any]) -> None:
    async def check(bed: Bed) -> None:
        bed.update(100)
        bed.wait(100)
        assert bed.told == [(100, STORED)]

    run(check, 1, **rules)


def test_who_waits_is_told_that_the_set_has_become_too_small() -> None:
    async def check(bed: Bed) -> None:
        bed.wait(100)
        bed.states.changed(SyncStateSet(frozenset({1}), 2))
        bed.update(100)
        assert bed.told == [(100, NONE)]

    run(check, 1, 2)


def test_three_may_be_wanted() -> None:
    async def check(bed: Bed) -> None:
        bed.wait(100)
        bed.update(100, s2=100)
        assert bed.told == [(100, NONE)]

    run(check, 1, 2, wanted=3)


def test_nobody_waits_for_ever() -> None:
    async def check(bed: Bed) -> None:
        bed.wait(100)
        bed.clock.now_ms += 3_000
        bed.progress._waiters._ring()
        assert bed.told == [(100, LATE)]
        bed.wait(200)
        await bed.progress.close()
        assert bed.told[1:] == [(200, LATE)]

    run(check, 1, 2)


def test_messages_are_refused_while_the_set_is_smaller_than_the_minimum() -> None:
    async def check(bed: Bed) -> None:
        stored = PutResult(PutStatus.OK)
        append = bed.progress.guarded(lambda puts: [stored for _ in puts])
        puts: Any = [None, None]
        refused = append(puts)
        assert [one.status for one in refused] == [PutStatus.NOT_REPLICATED] * 2
        assert all("minInSyncReplicas" in (one.remark or "") for one in refused)
        bed.states.changed(SyncStateSet(frozenset({1, 2}), 2))
        assert append(puts) == [stored, stored]

    run(check, 1, least=2)
