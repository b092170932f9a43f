"""What a slave saves of its master's tables."""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.unit.store.stores import FakeClock

from pymq.broker.replication_feature import _FollowedTables
from pymq.broker.state_saving import StateSaving
from pymq.protocol.bodies import DelayOffsetTable


def followed_tables(saving: StateSaving, *, save_interval_ms: int) -> _FollowedTables:
    config = SimpleNamespace(delay_flush_interval_ms=save_interval_ms)
    site: Any = SimpleNamespace(clock=FakeClock(), config=config)
    tables: Any = None
    core: Any = SimpleNamespace(saving=saving)
    return _FollowedTables(site, tables, core)


def test_deliveries_are_saved_when_the_copies_are_on_the_disk(tmp_path: Path) -> None:
    """Else a power loss would take messages that were on the disk for hours."""

    async def test() -> None:
        is_waiting, may_go_on = asyncio.Event(), asyncio.Event()

        async def flushed() -> None:
            is_waiting.set()
            await may_go_on.wait()

        async def nothing() -> None:
            pass

        with ThreadPoolExecutor(1) as executor:
            saving = StateSaving(tmp_path, executor, announced=nothing, flushed=flushed)
            followed = followed_tables(saving, save_interval_ms=10)
            saving.start()
            followed.take_delays(DelayOffsetTable(offsets={3: 50}))
            await asyncio.wait_for(is_waiting.wait(), 60)
            assert not os.listdir(tmp_path)
            may_go_on.set()
            async with asyncio.timeout(60):
                while "delayOffset.json" not in os.listdir(tmp_path):
                    await asyncio.sleep(0.005)
            await saving.close()

    asyncio.run(test())


def test_what_is_told_of_deliveries_all_the_time_is_saved_at_intervals(tmp_path: Path) -> None:
    """The log is flushed before; with ASYNC_FLUSH that is not to be done all the time."""

    async def test() -> None:
        flushes: list[int] = []

        async def flushed() -> None:
            flushes.append(1)

        async def nothing() -> None:
            pass

        with ThreadPoolExecutor(1) as executor:
            saving = StateSaving(tmp_path, executor, announced=nothing, flushed=flushed)
            followed = followed_tables(saving, save_interval_ms=3_600_000)
            saving.start()
            for offset in range(10):
                followed.take_delays(DelayOffsetTable(offsets={3: offset}))
                for _ in range(5):
                    await asyncio.sleep(0)
            assert not flushes
            await saving.close()  # what is told last is kept
            assert len(flushes) == 1
            assert '"3":9' in (tmp_path / "delayOffset.json").read_text()

    asyncio.run(test())
