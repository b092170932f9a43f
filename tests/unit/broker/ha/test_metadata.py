"""What a slave asks its master for, without a master."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.unit.store.stores import FakeClock

from pymq.broker.ha.metadata import MetadataSync
from pymq.errors import DiskFull
from pymq.protocol.bodies import KVTable
from pymq.protocol.codes import ResponseCode
from pymq.protocol.command import Command


class Gone:
    """Topics to delete, of which one cannot be: the disk is full."""

    def take_topics(self, body: bytes) -> None:
        pass

    def delete(self, log_end: int) -> None:
        raise DiskFull("no space left")


def test_offsets_are_asked_for_again_when_only_some_topics_are_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def ask(master: str, code: int, name: str) -> Command:
        table = KVTable(table={"commitLogMaxOffset": "7"})
        return Command(ResponseCode.SUCCESS, None, table.encode())

    async def flushed() -> None:
        pass

    async def test() -> None:
        asked_again: list[bool] = []
        gone: Any = Gone()
        with ThreadPoolExecutor(1) as executor:
            sync = MetadataSync(
                *([], lambda: 7, flushed, gone, executor),
                version=lambda: "",
                on_deleted=lambda: asked_again.append(True),
                clock=FakeClock(),
                broker_id=1,
                interval_s=3600.0,
            )
            monkeypatch.setattr(sync, "_ask", ask)
            sync.follow("m:1")
            with pytest.raises(DiskFull):
                await sync._follow("m:1")
            assert asked_again
            await sync.close()

    asyncio.run(test())
