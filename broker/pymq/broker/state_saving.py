"""Keeps the tables that outlive the broker on the disk, each in a file of its own.

An administrator's change is on the disk, and known to the name servers, before it is acknowledged.
What changes all the time, such as committed offsets, is saved every few seconds, as in RocketMQ.

Source: RocketMQ ConfigManager, ConsumerOffsetManager.
"""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from pymq.broker.state.state_file import StateFile
from pymq.errors import PymqError, StoreError
from pymq.net.dispatcher import Request
from pymq.net.said_once import SaidOnce
from pymq.net.tasks import Tasks
from pymq.protocol.codes import ResponseCode
from pymq.protocol.command import Command

_log = logging.getLogger(__name__)

#: Pause before a file that could not be saved is written again, unless its table changes before.
RETRY_S = 10.0

#: Waits until a change is on the disk and announced, then returns the response that confirms it.
AnswerSaved: TypeAlias = Callable[[Request], Coroutine[Any, Any, Command]]


class Table(Protocol):
    """A table with a file."""

    def to_text(self) -> str:
        """Return the text of the file."""

    def restore(self, value: object) -> None:
        """Take over the parsed contents of the file; see ``StateFile``."""


class BusyTable(Table, Protocol):
    """A table that changes too often to be saved after each change.

    Attributes:
        is_changed: set by the table after a change, reset when it is saved.
    """

    is_changed: bool


class StateSaving:
    """Loads tables and keeps their files up to date.

    Args:
        directory: of the files.
        executor: does the disk work.
        announced: waits until the name servers know the topics.
        flushed: waits until all that is in the log is on the disk, or raises a StoreError.
        unsaved: what could not be saved, from one run to the next; see ``StateFile``.
    """

    def __init__(
        self,
        directory: Path,
        executor: Executor,
        *,
        announced: Callable[[], Awaitable[object]],
        flushed: Callable[[], Awaitable[object]],
        unsaved: dict[str, str] | None = None,
    ) -> None:
        self._directory = directory
        self._executor = executor
        self._announced = announced
        self._flushed = flushed
        self._unsaved = unsaved
        self._files: list[StateFile] = []
        self._shared: list[StateFile] = []
        self._busy: list[tuple[BusyTable, StateFile, float]] = []
        self._said = SaidOnce(_log)
        self._tasks = Tasks("state files")

    def add(self, name: str, table: Table) -> Callable[[], None]:
        """Keep a table in a file that is saved soon after each change.

        Args:
            name: of the file, such as ``topics.json``.
            table: what is in it.

        Returns:
            To be called after each change.
        """
        return functools.partial(self._save_soon, self._add_file(name, table))

    def add_periodic(
        self, name: str, table: BusyTable, *, interval_s: float, is_shared: bool = False
    ) -> Callable[[], None]:
        """Keep a table in a file that is saved at intervals, if it has changed, and at the end.

        What it says of messages in the log is on the disk no sooner than they are.

        Args:
            name: of the file.
            table: what is in it.
            interval_s: from one save to the next.
            is_shared: whether others use the table already when it is loaded.

        Returns:
            To be called after a change that is to be saved sooner.
        """
        file = self._add_file(name, table, self._flushed)
        if is_shared:
            self._shared.append(file)
        self._busy.append((table, file, interval_s))
        return functools.partial(self._save_soon, file)

    def _add_file(
        self, name: str, table: Table, flushed: Callable[[], Awaitable[object]] | None = None
    ) -> StateFile:
        file = StateFile(
            self._directory / name,
            to_text=table.to_text,
            restore=table.restore,
            executor=self._executor,
            flushed=flushed,
            unsaved=self._unsaved,
        )
        self._files.append(file)
        return file

    def load(self) -> None:
        """Read the files into their tables, apart from shared ones; may run in a thread.

        Raises:
            StoreError: a file and its backup cannot be read.
        """
        for file in self._files:
            if file not in self._shared:
                file.load()

    def load_shared(self) -> None:
        """Read the files of shared tables, on the event loop.

        Raises:
            StoreError: as for ``load``.
        """
        for file in self._shared:
            file.load()

    def start(self) -> None:
        """Begin to save at intervals, and to try again what could not be saved."""
        busy = [file for _, file, _ in self._busy]
        # Each of those alone, as it may wait for the log.
        for files in [[one for one in self._files if one not in busy], *([one] for one in busy)]:
            self._tasks.repeat("save", functools.partial(self._save_late, files), RETRY_S)
        for table, file, interval_s in self._busy:
            save = functools.partial(self._save_changed, table, file, interval_s)
            self._tasks.repeat("save", save, interval_s)

    async def answer_saved(self, request: Request) -> Command:
        """Save an administrative change that was made in memory; return the response to it.

        Raises:
            StoreError: it is not on the disk.
        """
        try:
            await self.save()
        except StoreError as error:
            raise StoreError(f"not saved: {error}") from error
        await self._announced()
        return request.response(ResponseCode.SUCCESS)

    async def save(self) -> None:
        """Save what changed; all of it at once, since many files wait for the same log.

        Raises:
            StoreError: a file could not be written; the others are. It is tried again.
        """
        self._mark_changed()
        saves = [file.save() for file in self._files]
        for result in await asyncio.gather(*saves, return_exceptions=True):
            if result is not None:
                raise result

    def _mark_changed(self) -> None:
        for table, file, _ in self._busy:
            _mark_if_changed(table, file)

    def _save_soon(self, file: StateFile) -> None:
        file.changed()
        self._tasks.start("save", self._save(file, RETRY_S))

    async def _save_late(self, files: Sequence[StateFile]) -> None:
        await asyncio.gather(*(self._save(file, RETRY_S) for file in files if file.is_changed))

    async def _save_changed(self, table: BusyTable, file: StateFile, interval_s: float) -> None:
        _mark_if_changed(table, file)
        await self._save(file, min(interval_s, RETRY_S))

    async def _save(self, file: StateFile, retry_s: float) -> None:
        try:
            await file.save()
        except StoreError as error:
            text = "%s is not saved: %s; trying again every %g s"
            self._said.warn(file.name, text, file.name, error, retry_s)
        else:
            self._said.over(file.name, "%s is saved again", file.name)

    async def close(self) -> None:
        """Save everything; idempotent.

        Raises:
            StoreError: a file could not be written; the next run knows what it should say.
        """
        await self._tasks.close()
        try:
            await self.save()
        finally:
            self._keep_unsaved()

    def _keep_unsaved(self) -> None:
        self._mark_changed()
        for file in self._files:
            try:
                file.keep_unsaved()
            except PymqError as error:
                _log.error("%s: what is not saved is lost: %s", file.name, error)


def _mark_if_changed(table: BusyTable, file: StateFile) -> None:
    if table.is_changed:
        table.is_changed = False
        file.changed()
