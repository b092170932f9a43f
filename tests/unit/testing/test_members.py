"""A broker of an embedded cluster that is stopped while it starts, because another one cannot."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pymq.clock import Clock
from pymq.testing import members


class SlowBroker:
    """Its start ends once it is closed."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._closed = asyncio.Event()
        self.listeners: list[Any] = []
        self.port = 1

    async def start(self) -> None:
        await self._closed.wait()

    async def close(self) -> None:
        self._closed.set()


def test_who_is_stopped_while_it_starts_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be taken for running at the next start, and be missing in its group."""
    (member,) = members.make_members(1, 1, {}, {}, Clock())
    store: Any = SimpleNamespace(config=lambda path: None, clock=Clock())
    monkeypatch.setattr(members, "Broker", SlowBroker)

    async def main() -> None:
        starting = asyncio.create_task(member.start(store, tmp_path))
        await asyncio.sleep(0)
        await member.stop()
        await starting
        assert member.broker is None

    asyncio.run(main())
