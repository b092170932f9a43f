"""Changes of a group, one at a time, and what is read meanwhile."""

import asyncio
from typing import Any

from pymq.controller.groups import GroupState, Outcome
from pymq.controller.registry import Registry
from pymq.controller.stores.interface import Stored

OLD = GroupState(cluster="c", name="b", next_id=1)
NEW = GroupState(cluster="c", name="b", next_id=2)


class SlowStore:
    """Keeps one group; a change waits until ``go_on`` is set."""

    is_leader = True

    def __init__(self) -> None:
        self.stored = Stored(OLD, 1)
        self.go_on = asyncio.Event()

    async def read(self, name: str) -> Stored:
        return self.stored

    async def replace(self, name: str, revision: int, state: GroupState | None) -> bool:
        await self.go_on.wait()
        self.stored = Stored(state, revision + 1)
        return True


def test_what_is_read_is_not_overtaken_by_a_change_that_was_begun_before() -> None:
    async def main() -> None:
        store = SlowStore()
        as_any: Any = store
        registry = Registry(as_any, lambda state: None)
        async with asyncio.TaskGroup() as tasks:
            change = tasks.create_task(registry.change("b", lambda state: Outcome(NEW)))
            await asyncio.sleep(0)
            read = tasks.create_task(registry.read("b"))
            other = tasks.create_task(registry.read("another"))
            for _ in range(10):
                await asyncio.sleep(0)
            assert other.done() and not read.done()
            store.go_on.set()
        assert change.result().state == NEW
        assert read.result() == NEW

    asyncio.run(main())


def test_what_is_in_the_store_is_told_before_anything_is_decided() -> None:
    """Another process may have changed it."""

    async def main() -> None:
        store = SlowStore()
        store.go_on.set()
        as_any: Any = store
        seen: list[GroupState | str] = []

        def decide(state: GroupState | None) -> Outcome:
            seen.append("decided")
            return Outcome(NEW)

        registry = Registry(as_any, seen.append)
        await registry.change("b", decide)
        assert seen == [OLD, "decided", NEW]
        seen.clear()
        assert await registry.read("b") == NEW
        assert seen == [NEW]

    asyncio.run(main())
