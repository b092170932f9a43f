"""A store with delayed messages and what delivers them: no broker, and a clock to set."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.unit.store.stores import (
    BORN,
    HOST,
    FakeClock,
    QuickFiles,
    config,
    open_store,
    read_all,
)

from pymq.broker.delays.due_messages import DueMessages
from pymq.broker.delays.parking import park_delayed
from pymq.broker.delays.schedule import Schedule
from pymq.broker.log_writer import LogWriter, Put
from pymq.broker.state.delay_offsets import DelayOffsets
from pymq.errors import StoreError
from pymq.protocol import fastjson
from pymq.protocol.copied_records import CopiedRecords
from pymq.protocol.message import parse_properties
from pymq.protocol.record import NewRecord, Record
from pymq.store import Files, PutResult, PutStatus

LEVELS_MS = (1000, 5000, 10_000)


class Delays:
    """One run of a broker, as far as delayed messages are concerned.

    Args:
        joins: whether messages that are due are copied together where that is possible.

    Attributes:
        saved: the text of ``delayOffset.json``; None: there is no file.
        refuses: what the log refuses, although it takes others of the same append.
        flush_failure: why the log cannot be flushed, if it cannot.
    """

    def __init__(
        self,
        root: Path,
        clock: FakeClock,
        *,
        levels_ms: Sequence[int] = LEVELS_MS,
        saved: str | None = None,
        files: Files | None = None,
        joins: bool = True,
        **settings: Any,
    ) -> None:
        self.clock = clock
        self.levels_ms = levels_ms
        self.store = open_store(
            root, clock, files or QuickFiles(), delay_levels_ms=tuple(levels_ms), **settings
        )
        self.saved = saved
        self.refuses: Callable[[NewRecord | CopiedRecords], bool] = lambda record: False
        self.flush_failure: str | None = None
        self.offsets = DelayOffsets(clock)
        if saved is not None:
            self.offsets.restore(fastjson.parse(saved))
        self.writer = LogWriter(self.put, None)
        self.schedule = Schedule(
            self.store,
            DueMessages(config(root, **settings), HOST if joins else bytes(20)),
            self.writer,
            clock,
            self.offsets,
            levels_ms=levels_ms,
            wait_in_memory=self._in_memory,
            wait_entries=self._entries,
            wait_flushed=self._flush,
            save_soon=self._save,
            save_interval_s=10.0,
        )
        self.schedule.begin()

    async def _in_memory(self, buffers: object, starts: object) -> None:
        pass

    async def _entries(self, topic: str, queue_id: int, queue_offset: int) -> None:
        pass

    def _flush(self, physical_end: int, done: Callable[[str | None], None]) -> None:
        if self.flush_failure is None:
            self.store.durability.flush()
        done(self.flush_failure)

    def _save(self) -> None:
        self.saved = self.offsets.to_text()

    def put(self, puts: Sequence[Put]) -> list[PutResult]:
        refused = [isinstance(put, NewRecord | CopiedRecords) and self.refuses(put) for put in puts]
        results = iter(
            self.store.put([put for put, no in zip(puts, refused, strict=True) if not no], HOST)
        )
        return [
            PutResult(PutStatus.BUSY, remark="refused by the test") if no else next(results)
            for no in refused
        ]

    def park(
        self, body: bytes, level: int | str, topic: str = "T", queue_id: int = 0, more: str = ""
    ) -> PutResult:
        """Store a delayed message the way a send does."""
        text = f"DELAY\x01{level}\x02{more}"
        sent = NewRecord(topic, queue_id, body, text.encode(), BORN, 1, 7, 0, 2)
        parked = park_delayed(len(self.levels_ms), sent, parse_properties(text))
        (result,) = self.store.put([parked], HOST)
        assert result.status is PutStatus.OK, result
        return result

    async def settle(self) -> int:
        """Deliver everything that is due; return how many messages that were.

        Raises:
            StoreError: of a level that could not; the others did what they could.
        """
        count, failure = 0, None
        for level in self.schedule.levels:
            try:
                while moved := await self.schedule.step(level):
                    count += moved
            except StoreError as error:
                failure = error
        if failure is not None:
            raise failure
        return count

    def deliver(self, after_ms: int = 0) -> int:
        """Deliver what is due some time later."""
        self.clock.now_ms += after_ms
        return asyncio.run(self.settle())

    def save(self) -> None:
        asyncio.run(self.schedule.save())

    def records(self, topic: str = "T", queue_id: int = 0, first: int = 0) -> list[Record]:
        return read_all(self.store, topic, queue_id, first=first)

    def bodies(self, topic: str = "T", queue_id: int = 0) -> list[bytes]:
        return [record.body for record in self.records(topic, queue_id)]

    def cursors(self) -> dict[int, int]:
        return {level.number: level.cursor for level in self.schedule.levels}

    def saved_cursors(self) -> dict[int, int]:
        if self.saved is None:
            return {}
        table: dict[int, int] = {}
        value: Any = fastjson.parse(self.saved)
        for level, offset in value["offsetTable"].items():
            table[int(level)] = offset
        return table
