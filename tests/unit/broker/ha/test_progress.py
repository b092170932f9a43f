"""How many slaves have a message, and who is told what."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.unit.store.stores import FakeClock

from pymq.broker.ha.progress import ReplicaProgress, ReplicaRules, secured
from pymq.broker.log_writer import Outcome
from pymq.store import PutResult, PutStatus

RULES = ReplicaRules(wanted=2, least=1, is_automatic=False, gap_max=1_000, timeout_s=3.0)
STORED, LATE, NONE = Outcome.STORED, Outcome.SLAVE_TIMEOUT, Outcome.NO_SLAVE


class Bed:
    """Progress with a clock that stands still, and what waiters were told, in order."""

    def __init__(self, **changes: Any) -> None:
        values = {name: getattr(RULES, name) for name in RULES.__slots__}
        self.clock = FakeClock()
        self.end = 0
        self.progress = ReplicaProgress(
            ReplicaRules(**(values | changes)), self.clock, lambda: self.end
        )
        self.told: list[tuple[int, Outcome]] = []

    def wait(self, physical_end: int) -> None:
        self.end = max(self.end, physical_end)

        def done(outcome: Outcome, reason: str | None) -> None:
            assert (reason is None) is (outcome is STORED)
            self.told.append((physical_end, outcome))

        self.progress.wait(physical_end, done)


def run(check: Callable[[Bed], Coroutine[Any, Any, None]], **rules: Any) -> None:
    async def main() -> None:
        bed = Bed(**rules)
        bed.progress.start()
        try:
            await check(bed)
        finally:
            await bed.progress.close()

    asyncio.run(main())


def test_a_message_is_replicated_when_the_fastest_slave_has_it() -> None:
    async def check(bed: Bed) -> None:
        bed.progress.update([0, 0])
        bed.wait(100)
        bed.wait(200)
        bed.progress.update([99, 50])
        assert bed.told == []
        bed.progress.update([50, 150])
        assert bed.told == [(100, STORED)]
        bed.progress.update([200, 200])
        assert bed.told == [(100, STORED), (200, STORED)]
        bed.wait(200)  # there already
        assert bed.told[2:] == [(200, STORED)]

    run(check)


def test_as_many_as_are_wanted_must_have_it() -> None:
    async def check(bed: Bed) -> None:
        bed.progress.update([0, 0, 0])
        bed.wait(100)
        bed.progress.update([100, 0, 40])
        assert bed.told == []
        bed.progress.update([100, 0, 100])
        assert bed.told == [(100, STORED)]

    run(check, wanted=3)


@pytest.mark.parametrize("ends", [[], [0]])
def test_nobody_waits_for_slaves_that_are_away_or_far_behind(ends: list[int]) -> None:
    async def check(bed: Bed) -> None:
        bed.end = 5_000
        bed.progress.update(ends)
        bed.wait(5_100)
        assert bed.told == [(5_100, NONE)]

    run(check)


def test_a_slave_that_does_not_confirm_is_late() -> None:
    async def check(bed: Bed) -> None:
        bed.progress.update([0])
        bed.wait(100)
        await asyncio.sleep(0.15)
        assert bed.told == []
        bed.clock.now_ms += 3_000
        bed.wait(200)
        async with asyncio.timeout(60):
            while not bed.told:
                await asyncio.sleep(0.001)
        assert bed.told == [(100, LATE)]
        bed.progress.update([200])
        assert bed.told == [(100, LATE), (200, STORED)]

    # The alarm's loop has another clock: it rings after real time.
    run(check, timeout_s=0.1)


def test_a_slave_that_leaves_confirms_nothing_and_one_that_comes_back_does() -> None:
    async def check(bed: Bed) -> None:
        bed.progress.update([50])
        bed.wait(100)
        bed.progress.update([])
        assert bed.told == []
        bed.progress.update([100])
        assert bed.told == [(100, STORED)]

    run(check)


def test_automatically_as_many_as_follow_are_enough() -> None:
    async def check(bed: Bed) -> None:
        bed.wait(100)
        assert bed.told == [(100, STORED)]
        bed.progress.update([100])
        bed.wait(200)
        assert bed.told == [(100, STORED)]
        bed.progress.update([200])
        assert bed.told[1:] == [(200, STORED)]

    run(check, wanted=3, is_automatic=True)


def test_who_waits_for_fewer_slaves_does_not_wait_for_those_before() -> None:
    async def check(bed: Bed) -> None:
        bed.progress.update([0, 0])
        bed.wait(100)
        bed.progress.update([0])
        bed.wait(200)
        bed.progress.update([200])
        assert bed.told == [(200, STORED)]
        bed.progress.update([200, 100])
        assert bed.told == [(200, STORED), (100, STORED)]

    run(check, wanted=3, is_automatic=True)


def test_messages_are_refused_below_the_minimum() -> None:
    async def check(bed: Bed) -> None:
        append = bed.progress.guarded(lambda puts: [PutResult(PutStatus.OK) for _ in puts])
        (refused,) = append([object()])  # type: ignore[list-item]
        assert refused.status is PutStatus.NOT_REPLICATED
        assert "minInSyncReplicas" in str(refused.remark)
        bed.progress.update([0])
        (taken,) = append([object()])  # type: ignore[list-item]
        assert taken.status is PutStatus.OK

    run(check, least=2)


def test_what_is_secured_is_on_the_disk_and_at_slaves() -> None:
    async def check(bed: Bed) -> None:
        flushing: list[Callable[[str | None], None]] = []
        told: list[str | None] = []
        wait = secured(lambda end, done: flushing.append(done), bed.progress)
        bed.progress.update([0])
        for _ in range(2):
            wait(100, told.append)
        assert told == []
        flushing[0]("broken")
        assert told == ["broken"]
        flushing[1](None)
        assert told == ["broken"]
        bed.progress.update([100])
        assert told == ["broken", None]
        bed.progress.update([])
        wait(100, told.append)
        flushing[2](None)
        assert "0 slaves follow closely" in str(told[2])

    run(check)


def test_who_waits_at_the_end_is_told() -> None:
    told: list[tuple[int, Outcome]] = []

    async def check(bed: Bed) -> None:
        nonlocal told
        told = bed.told
        bed.progress.update([0])
        bed.wait(100)

    run(check)
    assert told == [(100, LATE)]
