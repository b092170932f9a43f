"""Keeps the tables that outlive the broker on the disk: topics, groups, consumer offsets.

An administrator's change is on the disk, and known to the name servers, before it is acknowledged.
Committed offsets are saved every few seconds, as in RocketMQ.

Source: RocketMQ ConfigManager, ConsumerOffsetManager.
"""

import logging
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, TypeAlias

from pymq.broker.state.groups import GroupTable
from pymq.broker.state.offsets import OffsetTable
from pymq.broker.state.state_file import StateFile
from pymq.broker.state.topics import TopicTable
from pymq.errors import StoreError
from pymq.net.dispatcher import Request
from pymq.net.tasks import Tasks
from pymq.protocol.codes import ResponseCode
from pymq.protocol.command import Command

_log = logging.getLogger(__name__)

#: Waits until a change is on the disk and announced, then returns the response that confirms it.
AnswerSaved: TypeAlias = Callable[[Request], Coroutine[Any, Any, Command]]


class StateSaving:
    """Loads the tables and keeps their files up to date.

    Args:
        directory: of the files.
        topics, groups, offsets: the tables.
        executor: does the disk work.
        offset_interval_s: how often committed offsets are saved.
        announced: waits until the name servers know the topics.
    """

    def __init__(
        self,
        directory: Path,
        topics: TopicTable,
        groups: GroupTable,
        offsets: OffsetTable,
        executor: Executor,
        *,
        offset_interval_s: float,
        announced: Callable[[], Awaitable[object]],
    ) -> None:
        self._offsets = offsets
        self._offset_interval_s = offset_interval_s
        self._announced = announced
        self._topic_file, self._group_file, self._offset_file = self._files = [
            StateFile(
                directory / name,
                to_text=table.to_text,
                restore=table.restore,
                executor=executor,
            )
            for name, table in (
                ("topics.json", topics),
                ("subscriptionGroup.json", groups),
                ("consumerOffset.json", offsets),
            )
        ]
        self._tasks = Tasks("state files")

    def load(self) -> None:
        """Read the files into their tables.

        Raises:
            StoreError: a file and its backup cannot be read.
        """
        for file in self._files:
            file.load()

    def start(self) -> None:
        """Begin to save committed offsets."""
        self._tasks.repeat("consumer offsets", self._save_offsets, self._offset_interval_s)

    def topics_changed(self) -> None:
        """Save the topics soon."""
        self._save_soon(self._topic_file)

    def groups_changed(self) -> None:
        """Save the groups soon."""
        self._save_soon(self._group_file)

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
        """Save what changed.

        Raises:
            StoreError: a file could not be written; the next change tries again.
        """
        if self._offsets.is_changed:
            self._offsets.is_changed = False
            self._offset_file.changed()
        for file in self._files:
            await file.save()

    def _save_soon(self, file: StateFile) -> None:
        file.changed()
        self._tasks.start("save", self._save(file))

    async def _save_offsets(self) -> None:
        if self._offsets.is_changed:
            self._offsets.is_changed = False
            self._offset_file.changed()
        await self._save(self._offset_file)

    async def _save(self, file: StateFile) -> None:
        try:
            await file.save()
        except StoreError as error:
            _log.error("settings could not be written: %s; the next change tries again", error)

    async def close(self) -> None:
        """Save everything; idempotent.

        Raises:
            StoreError: a file could not be written.
        """
        await self._tasks.close()
        await self.save()
