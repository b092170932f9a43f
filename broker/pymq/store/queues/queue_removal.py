"""Removing the files of deleted queues, in any thread, while the store goes on.

The table knows these queues no more, and what is left of them after a crash is removed by the next
start. A topic of that name may be created again at any time: each of its queues begins once the
files of the earlier one are gone.
"""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from pymq.errors import FlushFailed, StoreError
from pymq.store.files import Files


class DeletedFiles:
    """What is left of one deleted queue: files, and the directories that held them."""

    __slots__ = ("_directories", "_files", "_lock", "_paths", "kept")

    def __init__(self, files: Files, paths: Sequence[str], directories: Sequence[Path]) -> None:
        self._files = files
        self._paths = list(reversed(paths))
        self._directories = list(reversed(directories))
        self._lock = threading.Lock()
        #: Directories that hold something else.
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
                if not self._files.remove_directory(directory):
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

    def kept(self) -> list[Path]:
        """Return the directories of queues that hold something else."""
        return [one for queue in self._queues.values() for one in queue.kept]


def _left(error: StoreError) -> FlushFailed:
    return FlushFailed(f"{error}; the next start removes what is left")
