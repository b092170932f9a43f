"""What slaves are told of offsets, and when commits are acknowledged."""

import asyncio
import math
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from pymq.broker.ha import offset_followers
from pymq.broker.ha.offset_followers import OffsetFollowers
from pymq.broker.log_writer import Outcome
from pymq.broker.state import offset_moves
from pymq.broker.state.offsets import OffsetTable
from pymq.clock import Clock
from pymq.protocol.offset_changes import OffsetChanges

GROUPS, TOPICS, QUEUES = ("g", "h", "i"), ("T", "U"), range(3)


#: How long commits, and questions that are answered, may wait: longer than any test.
AMPLE_S = 60.0


class Bed:
    """A master of a group with a controller; ``in_sync`` must have what is acknowledged."""

    def __init__(self, timeout_s: float) -> None:
        self.offsets = OffsetTable()
        self.followers = OffsetFollowers(self.offsets, Clock(), timeout_s=timeout_s)
        self.in_sync: set[int] | None = set()
        self.followers.awaited = lambda: self.in_sync
        self.outcomes: list[Outcome] = []

    def commit(self, offset: int, queue_id: int = 0) -> None:
        self.offsets.commit("g", "T", queue_id, offset)
        self.followers.wait(lambda outcome, reason: self.outcomes.append(outcome))

    async def ask(
        self, broker_id: int, position: str, wait_s: float = 0.0
    ) -> tuple[str, OffsetChanges | None]:
        return await self.followers.wait_changes(broker_id, position, wait_s)


def run(check: Callable[[Bed], Coroutine[Any, Any, None]], *, timeout_s: float = AMPLE_S) -> None:
    async def main() -> None:
        bed = Bed(timeout_s)
        bed.followers.start()
        try:
            await check(bed)
        finally:
            await bed.followers.close()

    asyncio.run(main())


def test_a_follower_is_told_what_it_lacks_whatever_happens(seed: int) -> None:
    """Against the whole table: the follower's is the same after every answer."""
    chance = random.Random(seed)
    table, follower = OffsetTable(), OffsetTable()
    position = ""
    for _ in range(3000):
        group, topic = chance.choice(GROUPS), chance.choice(TOPICS)
        queue_id, offset = chance.choice(QUEUES), chance.randrange(5)
        match chance.randrange(12):
            case 0 | 1 | 2 | 3:
                table.commit(group, topic, queue_id, offset)
            case 4:
                table.reset(group, topic, queue_id, offset)
            case 5:
                table.take_reset(group, topic, queue_id)
            case 6:
                table.clone(group, chance.choice(GROUPS), topic)
            case 7 if chance.random() < 0.2:
                table.delete_topic(topic)
            case 8 if chance.random() < 0.2:
                table.delete_group(group)
            case 9 if chance.random() < 0.2:
                table.delete_queue(topic, queue_id)
            case _:
                number = table.moves.number_of(position)
                changes = OffsetChanges.decode(table.changes(number).encode())
                position = table.moves.position
                follower.take_changes(changes)
                assert _whole(follower) == _whole(table)


def _whole(table: OffsetTable) -> object:
    body = table.body()
    return {key: queues for key, queues in body.offsets.items() if queues}, body.resets or {}


def test_only_what_has_changed_is_told() -> None:
    table = OffsetTable()
    for number in range(1000):
        table.commit(f"g{number}", "T", 0, 1)
    position = table.moves.position
    table.commit("g7", "T", 0, 2)
    table.commit("g9", "T", 1, 3)
    table.commit("g8", "T", 0, 1)  # it was there
    changes = table.changes(table.moves.number_of(position))
    assert changes.offsets == {"T@g7": {0: 2}, "T@g9": {0: 1, 1: 3}}


def test_a_position_of_another_process_is_unknown() -> None:
    table, other = OffsetTable(), OffsetTable()
    for one in (table, other):
        one.commit("g", "T", 0, 1)
    assert table.moves.number_of(table.moves.position) == 1
    for position in (other.moves.position, "", "x", table.moves.position + "0", "é.²"):
        assert table.moves.number_of(position) is None


def test_who_was_told_long_ago_is_told_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has changed once is not kept for ever: topics and groups come and go."""
    monkeypatch.setattr(offset_moves, "KEYS_MAX", 10)
    table = OffsetTable()
    table.commit("first", "T", 0, 1)
    long_ago = table.moves.position
    table.commit("second", "T", 0, 1)
    position = table.moves.position
    for number in range(10):
        table.commit(f"g{number}", "T", 0, 1)
        table.commit("g0", "T", 0, number)
    assert len(table.moves._last) == 10
    assert table.moves.number_of(long_ago) is None
    known = table.moves.number_of(position)
    assert {*table.changes(known).offsets} == {f"T@g{number}" for number in range(10)}
    assert table.moves.since(table.moves.number) == []


def test_a_commit_waits_for_all_who_are_in_sync_and_ask() -> None:
    async def check(bed: Bed) -> None:
        bed.in_sync = {2, 3, 4}  # 4 is one of RocketMQ's
        two, _ = await bed.ask(2, "")
        three, _ = await bed.ask(3, "")
        await bed.ask(2, two)
        await bed.ask(3, three)
        bed.commit(5)
        assert bed.outcomes == []
        two, changes = await bed.ask(2, two, AMPLE_S)
        assert changes is not None and changes.offsets == {"T@g": {0: 5}}
        assert bed.outcomes == []  # told is not kept
        asking = asyncio.ensure_future(bed.ask(2, two, AMPLE_S))
        await asyncio.sleep(0)
        assert bed.outcomes == []  # the other one has not said anything
        three, _ = await bed.ask(3, three, AMPLE_S)
        await bed.ask(3, three)
        assert bed.outcomes == [Outcome.STORED]
        asking.cancel()

    run(check)


def test_a_commit_that_a_member_does_not_confirm_is_not_acknowledged() -> None:
    async def check(bed: Bed) -> None:
        bed.in_sync = {2}
        await bed.ask(2, "")
        bed.commit(5)
        while not bed.outcomes:
            await asyncio.sleep(0.01)
        assert bed.outcomes == [Outcome.SLAVE_TIMEOUT]

    run(check, timeout_s=0.3)


def test_a_commit_does_not_wait_for_who_leaves_the_set() -> None:
    async def check(bed: Bed) -> None:
        bed.in_sync = {2}
        await bed.ask(2, "")
        bed.commit(5)
        assert bed.outcomes == []
        bed.in_sync = set()
        bed.followers.look()
        assert bed.outcomes == [Outcome.STORED]

    run(check)


def test_who_lacks_what_was_acknowledged_cannot_join() -> None:
    async def check(bed: Bed) -> None:
        position, _ = await bed.ask(2, "")
        await bed.ask(2, position)
        assert bed.followers.has_promised(2)
        bed.commit(5)  # nobody is in sync
        assert bed.outcomes == [Outcome.STORED]
        assert not bed.followers.has_promised(2)
        position, _ = await bed.ask(2, position)
        await bed.ask(2, position)
        assert bed.followers.has_promised(2)
        # It connects again: whether it is the same process, its next question says.
        bed.followers.connected(2, asks=False)
        assert not bed.followers.has_promised(2)
        await bed.ask(2, position)
        assert bed.followers.has_promised(2)

    run(check)


def test_a_slave_that_never_asks_may_join_after_a_while(monkeypatch: Any) -> None:
    monkeypatch.setattr(offset_followers, "GRACE_S", AMPLE_S)

    async def check(bed: Bed) -> None:
        bed.followers.connected(2, asks=False)
        assert not bed.followers.has_promised(2)
        monkeypatch.setattr(offset_followers, "GRACE_S", 0.05)
        await asyncio.sleep(0.1)
        assert bed.followers.has_promised(2)

    run(check)


def test_one_of_pymqs_that_has_not_asked_yet_does_not_join(monkeypatch: Any) -> None:
    monkeypatch.setattr(offset_followers, "GRACE_S", 0.0)

    async def check(bed: Bed) -> None:
        bed.followers.connected(2, asks=True)
        await asyncio.sleep(0.01)
        assert not bed.followers.has_promised(2)
        assert not math.isfinite(bed.followers.complete_s(2))
        position, _ = await bed.ask(2, "")
        await bed.ask(2, position)
        assert bed.followers.has_promised(2)

    run(check)


def test_without_a_controller_those_are_waited_for_who_ask(monkeypatch: Any) -> None:
    monkeypatch.setattr(offset_followers, "AWAY_S", AMPLE_S)

    async def check(bed: Bed) -> None:
        bed.in_sync = None
        bed.commit(4)
        assert bed.outcomes == [Outcome.STORED]  # nobody
        position, _ = await bed.ask(1, "")
        bed.commit(5)
        assert len(bed.outcomes) == 1
        monkeypatch.setattr(offset_followers, "AWAY_S", 0.1)
        await asyncio.sleep(0.15)
        bed.followers.look()  # it is away
        assert bed.outcomes == [Outcome.STORED] * 2

    run(check)


def test_a_kept_question_is_answered_at_once_and_changes_go_together() -> None:
    async def check(bed: Bed) -> None:
        position, _ = await bed.ask(2, "")
        asking = asyncio.ensure_future(bed.ask(2, position, AMPLE_S))
        await asyncio.sleep(0.1)
        for offset in range(20):
            bed.offsets.commit("g", "T", offset % 3, offset)
        position, changes = await asking
        assert changes is not None and changes.offsets == {"T@g": {0: 18, 1: 19, 2: 17}}
        assert await bed.ask(2, position, 0.01) == (position, None)

    run(check)
