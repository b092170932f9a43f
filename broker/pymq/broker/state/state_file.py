"""The files of the tables: one small JSON file each, replaced as a whole."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from pathlib import Path

from pymq.errors import StoreError
from pymq.protocol import fastjson
from pymq.store.state.sealed_file import SealedFile

_log = logging.getLogger(__name__)


class StateFile:
    """The file of one table: read once at start, written after changes.

    Args:
        path: such as ``config/topics.json``.
        to_text: returns what to write.
        restore: takes over what was read; if that is invalid, raises a PymqError and changes
            nothing.
        executor: does the disk work.
        flushed: waits until all that is in the log is on the disk, or raises a StoreError. Given
            for tables that count messages, such as committed offsets: those that a power loss
            takes must not be counted in a file that survives it, or their successors would be
            left out.
        unsaved: texts of files that the run before could not save, by name, instead of what those
            files say; here is put what this run cannot save.

    Attributes:
        name: of the file.
        is_changed: whether it is out of date and nobody writes it.
    """

    def __init__(
        self,
        path: Path,
        *,
        to_text: Callable[[], str],
        restore: Callable[[object], None],
        executor: Executor,
        flushed: Callable[[], Awaitable[object]] | None = None,
        unsaved: dict[str, str] | None = None,
    ) -> None:
        self.name = path.name
        self._table = SealedFile(path)
        self._to_text = to_text
        self._restore = restore
        self._executor = executor
        self._flushed = flushed
        self._unsaved = {} if unsaved is None else unsaved
        self.is_changed = False
        self._saving = asyncio.Lock()

    def load(self) -> None:
        """Read the file, or its backup, which the next save makes the file again.

        If both are missing, the table stays as it is. What the run before could not save is newer
        than both.

        Raises:
            StoreError: neither the file nor its backup can be read.
        """
        text = self._unsaved.get(self.name)  # it stays there until it is saved
        if text is not None:
            self._take(text)
            self.is_changed = True
            return
        self._table.load(self._take)
        self.is_changed = self._table.used_backup

    def _take(self, text: str) -> None:
        self._restore(fastjson.parse(text, depth_max=fastjson.FILE_DEPTH_MAX))

    def changed(self) -> None:
        """Record that the file is out of date."""
        self.is_changed = True

    async def save(self) -> None:
        """Write the file if the table has changed; return once it is on the disk.

        Raises:
            StoreError: it could not be written, or what it counts is not on the disk; the file is
                as before, and the next save tries again.
            LocalProtocolError: the same, because the table has no text.
        """
        async with self._saving:
            if not self.is_changed:
                return
            text = self._to_text()
            self.is_changed = False  # not before: it may raise, and nothing would be saved
            if self._flushed is not None:
                try:
                    await self._flushed()
                except (asyncio.CancelledError, StoreError):
                    self.is_changed = True
                    raise
            writing = asyncio.get_running_loop().run_in_executor(
                self._executor, self._table.save, text
            )
            try:
                await asyncio.shield(writing)
            except asyncio.CancelledError:
                # The thread goes on, and nobody else may write the file until it is done.
                await asyncio.wait([writing])
                raise
            finally:
                if not writing.done() or writing.cancelled() or writing.exception() is not None:
                    self.is_changed = True
            self._unsaved.pop(self.name, None)

    def keep_unsaved(self) -> None:
        """Have the next run know what is not on the disk: this one ends.

        Raises:
            LocalProtocolError: the table has no text.
        """
        if self.is_changed:
            self._unsaved[self.name] = self._to_text()
