"""What a slave saves of its master's tables."""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.unit.store.stores import FakeClock

from pymq.broker.replication_feature import _FollowedTables
from pymq.broker.state_saving import StateSaving
from pymq.protocol.bodies import DelayOffsetTable


class Holder:
    """Has the attributes that it is given."""

    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)


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
            site: Any = Holder(clock=FakeClock())
            tables: Any = None
            core: Any = Holder(saving=saving)
            followed = _FollowedTables(site, tables, core)
            followed.take_delays(DelayOffsetTable(offsets={3: 50}))
            await asyncio.wait_for(is_waiting.wait(), 60)
            assert not os.listdir(tmp_path)
            may_go_on.set()
            async with asyncio.timeout(60):
                while "delayOffset.json" not in os.listdir(tmp_path):
                    await asyncio.sleep(0.005)
            await saving.close()

    asyncio.run(test())
