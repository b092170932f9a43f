"""Removing the files of deleted queues, in any thread, while the store goes on.

The table knows these queues no more, and what is left of them after a crash is removed by the next
start. A topic of that name may be created again at any time: each of its queues begins once the
files of the earlier one are gone.
"""

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pymq.errors import FlushFailed, StoreError
from pymq.store.files import Files
from pymq.store.queues.queue_files import QueueFiles

_log = logging.getLogger(__name__)


class DeletedFiles:
    """What is left of one deleted queue: files, and the directories that held them."""

    __slots__ = ("_directories", "_files", "_lock", "_paths", "kept")

    def __init__(self, files: Files, paths: Sequence[str], directories: Sequence[Path]) -> None:
        self._files = files
        self._paths = list(reversed(paths))
        self._directories = list(reversed(directories))
        self._lock = threading.Lock()
        #: Directories that hold something else, or cannot be removed.
        self.kept: list[Path] = []

    def remove(self) -> None:
        """Remove all that is left, or wait for the thread that does it.

        Raises:
            StoreError: some of it is left; another call goes on there.
        """
        with self._lock:
            while self._paths:
                self._files.remove(Path(self._paths[-1]))
                self._paths.pop()
            while self._directories:
                directory = self._directories[-1]
                if not _try_remove(self._files, directory):
                    self.kept.append(directory)
                self._directories.pop()


class QueueRemoval:
    """Removes queues of one topic. ``run`` in any thread, then ``Retention.finish_delete``.

    Args:
        files: the operating system.
        topic: of the queues.
        queues: what is left of them, by queue id.
        directories: of the topic.
    """

    def __init__(
        self,
        files: Files,
        topic: str,
        queues: Mapping[int, DeletedFiles],
        directories: Sequence[Path],
    ) -> None:
        self._files = files
        self._queues = queues
        self._error: StoreError | None = None
        self.topic = topic
        self.directories = directories

    def __len__(self) -> int:
        return len(self._queues)

    def run(self) -> None:
        """Remove all files, for good. Never raises: ``check`` does."""
        self._error = None
        for queue in self._queues.values():
            try:
                queue.remove()
            except StoreError as error:
                self._error = error
        for directory in self.directories:
            self._flush(directory)

    def _flush(self, directory: Path) -> None:
        try:
            self._files.fsync_directory(directory)
        except StoreError as error:
            if self._files.exists(directory):
                self._error = error

    def make_room(self, queue_id: int) -> None:
        """Remove what is in the place of a new queue.

        Raises:
            FlushFailed: it is still there.
        """
        queue = self._queues.get(queue_id)
        if queue is None:
            return
        try:
            queue.remove()
        except StoreError as error:
            raise _left(error) from error

    def check(self) -> None:
        """Raise FlushFailed if files are left, in the place of those of new messages."""
        if self._error is not None:
            raise _left(self._error) from self._error

    def finish(self, dirty: set[Path]) -> None:
        """Remove the topic's directories; keep up to date which are to be flushed."""
        dirty.update(one for queue in self._queues.values() for one in queue.kept)
        for directory in self.directories:
            dirty.discard(directory)
            gone = _try_remove(self._files, directory)
            dirty.add(directory.parent if gone else directory)


def _left(error: StoreError) -> FlushFailed:
    return FlushFailed(f"{error}; the next start removes what is left")


def _try_remove(files: Files, directory: Path) -> bool:
    """Remove a directory if it is empty and the system lets us; return whether it is gone.

    One that stays is in nobody's way: a new queue may have its files there.
    """
    try:
        return files.remove_directory(directory)
    except StoreError as error:
        _log.warning("%s: this empty directory is left to the next start", error)
        return False


def remove_left(files: QueueFiles, directories: Iterable[Path]) -> None:
    """Remove directories of deleted topics, and of their queues, that are empty but still there.

    A crash, or a system that refused it, may have left them.
    """
    for topic in directories:
        for entry in files.files.list_directory(topic):
            if not (entry.is_directory and entry.name.isdigit()):
                continue
            if _try_remove(files.files, topic / entry.name):
                files.dirty_directories.discard(topic / entry.name)
                files.dirty_directories.add(topic)
        if _try_remove(files.files, topic):
            files.dirty_directories.discard(topic)
            files.dirty_directories.add(topic.parent)
