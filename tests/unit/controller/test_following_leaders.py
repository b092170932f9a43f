"""Two controllers of one store, which lead in turns: what one has heard while the other one led."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from pymq.controller.config import ControllerConfig
from pymq.controller.failover import Failover
from pymq.controller.groups import GroupState, LastTerm, Member
from pymq.controller.liveness import Liveness
from pymq.controller.registry import Registry
from pymq.controller.reports import Report
from pymq.controller.stores.interface import Stored
from pymq.protocol.controller import SyncStateSet

CONFIG = ControllerConfig(notify_brokers=False)


def group(address: str, epoch: int) -> GroupState:
    """Return a group in which broker 1, at an address, is the master."""
    return GroupState(
        cluster="c",
        name="b",
        members={1: Member(address=address)},
        next_id=2,
        master=1,
        master_epoch=epoch,
        in_sync=SyncStateSet(frozenset({1}), epoch),
    )


class Shared:
    """A store that one controller may use at a time."""

    def __init__(self) -> None:
        self.leader = 0
        self.stored = Stored(group("h:1", 1), 1)

    def put(self, state: GroupState) -> None:
        self.stored = Stored(state, self.stored.revision + 1)


class View:
    """The store of one controller."""

    def __init__(self, shared: Shared, number: int) -> None:
        self._shared, self._number = shared, number

    @property
    def is_leader(self) -> bool:
        return self._shared.leader == self._number

    async def read(self, name: str) -> Stored:
        assert self.is_leader
        return self._shared.stored

    async def read_all(self) -> dict[str, Stored]:
        assert self.is_leader
        return {"b": self._shared.stored}

    async def replace(self, name: str, revision: int, state: GroupState) -> bool:
        assert self.is_leader and revision == self._shared.stored.revision
        self._shared.put(state)
        return True


class PlayedController:
    """What a controller makes of heartbeats, and does with the group."""

    def __init__(self, shared: Shared, number: int) -> None:
        store: Any = View(shared, number)
        notices: Any = None
        self.now_s = 100.0
        self.liveness = Liveness(limit_s=2.0, unheard_s=0.0, now_s=self.now_s)
        self.registry = Registry(store, self.liveness.follow)
        self.failover = Failover(
            CONFIG, self.registry, self.liveness, notices, lambda: self.now_s
        )

    def hear(self, address: str, epoch: int) -> None:
        self.now_s += 0.1
        self.failover.heard(
            "b",
            1,
            connection=address,
            silence_s=60.0,
            report=Report(epoch=epoch, max_offset=100, address=address),
        )


@pytest.fixture
def play() -> Callable[..., None]:
    def play(test: Callable[..., Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            shared = Shared()
            controllers = [PlayedController(shared, number) for number in (0, 1)]
            try:
                await test(shared, *controllers)
            finally:
                for one in controllers:
                    await one.failover.close()

        asyncio.run(main())

    return play


def test_a_master_stays_that_got_its_id_while_another_controller_led(
    play: Callable[..., None],
) -> None:
    """The one before goes on beating, and was heard first here."""

    async def test(shared: Shared, _: PlayedController, second: PlayedController) -> None:
        second.hear("h:1", 1)
        shared.put(group("h:2", 3))
        second.hear("h:2", 3)
        second.hear("h:1", 1)
        shared.leader = 1
        for _number in range(3):
            await second.failover.scan()
            second.hear("h:1", 1)
        state = shared.stored.state
        assert state is not None and (state.master, state.master_epoch) == (1, 3)
        assert second.liveness.alive("b")[1].address == "h:2"

    play(test)


def test_a_master_stays_that_had_lost_its_id_when_this_controller_led_before(
    play: Callable[..., None],
) -> None:
    async def test(shared: Shared, first: PlayedController, _: PlayedController) -> None:
        first.hear("h:1", 1)
        shared.put(group("h:2", 3))
        await first.registry.read("b")
        for address, epoch in (("h:1", 1), ("h:2", 3), ("h:1", 1)):
            first.hear(address, epoch)
        assert first.liveness.alive("b")[1].address == "h:2"
        shared.leader = 1
        await first.failover.scan()
        first.failover.connection_ended("h:2")
        shared.put(group("h:1", 5))
        first.hear("h:1", 5)
        shared.leader = 0
        for _number in range(3):
            await first.failover.scan()
            first.hear("h:1", 5)
        state = shared.stored.state
        assert state is not None and (state.master, state.master_epoch) == (1, 5)

    play(test)


def test_a_slave_counts_that_got_its_id_while_another_controller_led(
    play: Callable[..., None],
) -> None:
    """Though no master is missing."""

    async def test(shared: Shared, _: PlayedController, second: PlayedController) -> None:
        second.hear("h:1", 1)
        second.hear("h:2", 1)
        led = group("h:2", 3)
        shared.put(
            GroupState(
                cluster="c",
                name="b",
                members={**led.members, 2: Member(address="h:9")},
                next_id=3,
                master=2,
                master_epoch=3,
                in_sync=SyncStateSet(frozenset({2}), 3),
                last_terms={2: LastTerm(epoch=3, address="h:9")},
            )
        )
        second.failover.heard(
            "b",
            2,
            connection="h:9",
            silence_s=60.0,
            report=Report(epoch=3, max_offset=100, address="h:9"),
        )
        shared.leader = 1
        await second.failover.scan()
        alive = second.liveness.alive("b")
        assert {key: one.address for key, one in alive.items()} == {1: "h:2", 2: "h:9"}

    play(test)
