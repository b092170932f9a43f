"""Notices of changed groups: every member hears of the last change, and nobody of each one."""

import asyncio
from collections.abc import Awaitable, Callable

from tests.unit.net.connections import FakeConnection

from pymq.broker.change_notices import MEMBER_S, TURN_COUNT, ChangeNotices
from pymq.net.server import ServerConnection
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
from pymq.protocol.framing import FrameDecoder


class Groups:
    """Members by group."""

    def __init__(self, **sizes: int) -> None:
        self.members = {name: [FakeConnection() for _ in range(n)] for name, n in sizes.items()}

    def of(self, group: str) -> list[ServerConnection]:
        return [member.as_connection() for member in self.members.get(group, ())]

    def heard(self, group: str) -> list[int]:
        return [len(member.frames) for member in self.members[group]]


def run(check: Callable[[ChangeNotices], Awaitable[None]], groups: Groups) -> None:
    async def main() -> None:
        notices = ChangeNotices(groups.of)
        notices.start()
        try:
            await asyncio.wait_for(check(notices), 60)
        finally:
            await notices.close()
            await notices.close()

    asyncio.run(main())


async def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


def decoded(frame: bytes) -> Command:
    (command,) = FrameDecoder().feed(frame)
    return command


def test_the_members_of_a_group_are_told_at_once() -> None:
    groups = Groups(g=2, other=1)

    async def check(notices: ChangeNotices) -> None:
        notices.changed("g")
        await asyncio.sleep(0)
        assert groups.heard("g") == [1, 1] and groups.heard("other") == [0]
        notice = decoded(groups.members["g"][0].frames[0])
        assert notice.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED and notice.is_one_way
        assert notice.fields == {"consumerGroup": "g"}

    run(check, groups)


def test_changes_that_come_together_are_two_notices_and_the_second_is_after_the_last() -> None:
    groups = Groups(g=50)

    async def check(notices: ChangeNotices) -> None:
        for _ in range(1000):
            notices.changed("g")
        await asyncio.sleep(0)
        assert groups.heard("g") == [1] * 50
        newcomer = FakeConnection()
        groups.members["g"].append(newcomer)
        notices.changed("g")
        await wait_until(lambda: bool(newcomer.frames))
        await asyncio.sleep(3 * 50 * MEMBER_S)
        assert groups.heard("g") == [2] * 50 + [1]

    run(check, groups)


def test_a_change_after_the_rest_is_told_at_once_again() -> None:
    groups = Groups(g=1)

    async def check(notices: ChangeNotices) -> None:
        for count in range(1, 4):
            notices.changed("g")
            await asyncio.sleep(0.05)
            assert groups.heard("g") == [count]

    run(check, groups)


def test_others_have_their_turns_between_the_notices_of_a_large_group() -> None:
    groups = Groups(g=10 * TURN_COUNT)

    async def check(notices: ChangeNotices) -> None:
        notices.changed("g")
        turns = 0
        while not all(groups.heard("g")):
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 10

    run(check, groups)


def test_many_groups_at_once_are_all_told() -> None:
    groups = Groups(**{f"g{n}": 3 for n in range(500)})

    async def check(notices: ChangeNotices) -> None:
        for _ in range(3):
            for group in groups.members:
                notices.changed(group)
        await wait_until(lambda: all(min(groups.heard(group)) >= 2 for group in groups.members))
        assert all(groups.heard(group) == [2, 2, 2] for group in groups.members)

    run(check, groups)


def test_a_group_that_is_gone_and_notices_that_are_closed() -> None:
    groups = Groups(g=1)

    async def check(notices: ChangeNotices) -> None:
        notices.changed("gone")
        notices.changed("g")
        notices.changed("g")
        await notices.close()
        notices.changed("g")
        await asyncio.sleep(0.05)
        assert groups.heard("g") == [0]

    run(check, groups)
