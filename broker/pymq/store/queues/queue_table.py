"""All consume queues of a store, by (topic, queue id)."""

import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

from pymq.errors import StoreMismatch
from pymq.protocol.multi_dispatch import is_light
from pymq.protocol.names import topic_bytes_max
from pymq.store.files import Files
from pymq.store.log.segment import parse_segment_name, segment_name
from pymq.store.queues.consume_queue import ConsumeQueue
from pymq.store.queues.queue_extension import QueueExtension
from pymq.store.queues.queue_files import QueueFiles
from pymq.store.queues.queue_removal import DeletedFiles, QueueRemoval

_QUEUE_ID_MAX = (1 << 31) - 1
#: The longest name a directory can have.
DIRECTORY_BYTES_MAX = 255
_NUMBER = re.compile("0|[1-9][0-9]{0,9}")

#: Queue files take a quarter of the descriptors that the process has; see ``log.segments``.
_OPEN_SHARE = 4
_OPEN_LEAST = 16

#: A queue: (topic, queue id).
QueueKey: TypeAlias = tuple[str, int]


class QueueTable:
    """Finds, creates and deletes consume queues; the first entry creates the first file."""

    def __init__(
        self,
        files: Files,
        path: Path,
        *,
        file_bytes: int,
        open_max: int,
        extensions: Path,
        extension_file_bytes: int | None,
    ) -> None:
        """Prepare; ``load`` finds the queues that exist.

        Args:
            files: the operating system.
            path: the directory of the queues.
            file_bytes: size of a queue's files.
            open_max: files open at the same time.
            extensions: the directory of the queues' extensions.
            extension_file_bytes: size of their files; None: no units are written, and files
                of any size can be read.
        """
        self._path = path
        self._file_bytes = file_bytes
        self._extensions = extensions
        self._extension_file_bytes = extension_file_bytes
        self._empty: list[Path] = []
        #: In progress; each queue is in one of them at most.
        self._removals: list[QueueRemoval] = []
        self.by_key: dict[QueueKey, ConsumeQueue] = {}
        #: Names of topics without their case -> the one of them that has the directory. Empty where
        #: the file system tells them apart.
        self._spellings: dict[str, str] = {}
        #: How many of them are light queues.
        self.light_count = 0
        limit = max(_OPEN_LEAST, files.open_files_limit() // _OPEN_SHARE)
        self.files = QueueFiles(files, min(open_max, limit))

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self.by_key.values())

    def __len__(self) -> int:
        return len(self.by_key)

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue, or None if there is none."""
        return self.by_key.get((topic, queue_id))

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        """Return the queues of a topic, by id."""
        found = [queue for (name, _), queue in self.by_key.items() if name == topic]
        return sorted(found, key=lambda queue: queue.queue_id)

    @functools.cached_property
    def folds_case(self) -> bool:
        """Whether topics that differ only in case would have the same directory.

        The names beside that of the queues tell; there are some when this matters.
        """
        files, root = self.files.files, self._path.parent
        names = {entry.name for entry in files.list_directory(root)}
        others = {name.swapcase() for name in names} - names
        return any(files.exists(root / name) for name in others)

    def objection(self, topic: str) -> str | None:
        """Return why a topic cannot have queues beside those that exist; None if it can.

        Raises:
            FlushFailed: files of a deleted one cannot be removed.
        """
        known = self._spellings.get(topic.casefold(), topic)
        if known == topic or not self.folds_case:
            return None
        for removal in [one for one in self._removals if one.topic == known]:
            removal.run()
            self.finish_removal(removal)
        is_there = self.files.files.exists(self._path / known) or any(
            name == known for name, _ in self.by_key
        )
        return same_files(topic, known) if is_there else None

    def make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a queue, created if it does not exist.

        Raises:
            StoreMismatch: another topic has its directory.
            FlushFailed: files of an earlier one that was deleted cannot be removed.
        """
        queue = self.by_key.get((topic, queue_id))
        if queue is None:
            objection = self.objection(topic)
            if objection is not None:
                raise StoreMismatch(f"{self._path}: {objection}")
            if self.folds_case:
                self._spellings[topic.casefold()] = topic
            for removal in self._removals:
                if removal.topic == topic:
                    removal.make_room(queue_id)
            path = self._path / topic / str(queue_id)
            queue = ConsumeQueue(self.files, path, topic, queue_id, self._file_bytes)
            self.by_key[topic, queue_id] = queue
            self.light_count += is_light(topic)
        return queue

    def apart(self, topic: str, queue_id: int) -> "QueueTable":
        """Return a table of one queue as it is now, if it exists, for another thread to read.

        That opens all it needs itself: open files belong to the thread of the store.
        """
        own = QueueTable(
            self.files.files,
            self._path,
            file_bytes=self._file_bytes,
            open_max=_OPEN_LEAST,
            extensions=self._extensions,
            extension_file_bytes=None,
        )
        queue = self.find(topic, queue_id)
        if queue is not None:
            copy = own.make(topic, queue_id)
            copy.add_files(queue.bases)
            copy.min_offset, copy.end_offset = queue.min_offset, queue.end_offset
        return own

    def begin(self, topic: str, queue_id: int, offset: int) -> bool:
        """Have a queue without entries begin at an offset; return whether it is one.

        Nothing is written: its first entry creates its first file.
        """
        if illegal_name(topic, queue_id, bytes_max=DIRECTORY_BYTES_MAX) is not None:
            return False
        if self.objection(topic) is not None:
            return False
        queue = self.find(topic, queue_id)
        if queue is not None and queue.next_offset:
            return False
        queue = self.make(topic, queue_id)
        queue.min_offset = queue.end_offset = queue.next_offset = offset
        return True

    def extension_of(self, queue: ConsumeQueue) -> QueueExtension:
        """Return a queue's extension, created if missing; ``extension_file_bytes`` is set."""
        if queue.extension is None:
            assert self._extension_file_bytes is not None
            path = self._extensions / queue.topic / str(queue.queue_id)
            extension = QueueExtension(self.files, path, self._extension_file_bytes)
            extension.begin_after(queue.last_address())
            queue.extension = extension
        return queue.extension

    def remove(self, queue: ConsumeQueue) -> None:
        """Delete a queue and, with the last queue of a topic, the topic's directory."""
        for path in self._take_files(queue):
            self.files.remove(path)
        self.files.remove_directory(queue.path)
        if queue.extension is not None:
            self.files.remove_directory(queue.extension.path)
        self._forget_spelling(queue.topic)

    def _take_files(self, queue: ConsumeQueue) -> list[str]:
        """Take a queue out of the table; return its files."""
        del self.by_key[queue.topic, queue.queue_id]
        self.light_count -= is_light(queue.topic)
        return queue.take_files()

    def _forget_spelling(self, topic: str) -> None:
        """Let another spelling of a topic have its directory, if that is gone."""
        if not self.folds_case or self.files.files.exists(self._path / topic):
            return
        # A light one is the only queue of its name.
        if is_light(topic) or not any(name == topic for name, _ in self.by_key):
            self._spellings.pop(topic.casefold(), None)

    def take_out(self, topic: str, queues: Iterable[ConsumeQueue]) -> QueueRemoval:
        """Take queues of a topic out of the table; return what removes their files.

        Their deletion is recorded: see ``CleanStop``.
        """
        left = {}
        for queue in queues:
            paths = self._take_files(queue)
            for path in paths:
                self.files.forget(path)
            extension = queue.extension
            directories = [queue.path, *([] if extension is None else [extension.path])]
            self.files.dirty_directories.difference_update(directories)
            left[queue.queue_id] = DeletedFiles(self.files.files, paths, directories)
        removal = QueueRemoval(self.files.files, topic, left, self.directories_of(topic))
        self._removals.append(removal)
        return removal

    def directories_of(self, topic: str) -> list[Path]:
        """Return the directories that those of a topic's queues are in."""
        return [self._path / topic, self._extensions / topic]

    @property
    def is_removing(self) -> bool:
        """Whether files of deleted queues are left."""
        return bool(self._removals)

    def finish_removal(self, removal: QueueRemoval) -> None:
        """Record that files are removed; only here goes the topic's directory. Idempotent.

        Raises:
            FlushFailed: some are left.
        """
        if removal not in self._removals:
            return  # finished when something else needed it
        removal.check()
        self._removals.remove(removal)
        removal.finish(self.files.dirty_directories)
        self._forget_spelling(removal.topic)

    def finish_removals(self) -> None:
        """Remove all files of deleted queues that are left.

        Raises:
            FlushFailed: some cannot be removed.
        """
        for removal in list(self._removals):
            removal.run()
            self.finish_removal(removal)

    def load(self) -> None:
        """Find the queues that exist; nothing is changed and no file is opened.

        Raises:
            StoreMismatch: a file has another size or name than a queue file can have.
        """
        listed = self.files.files.list_directory(self._path)
        if listed and self.folds_case:  # also those without queues: the next one would be in it
            self._spellings = {entry.name.casefold(): entry.name for entry in listed}
        for topic, queue_id, directory in queue_directories(self.files.files, self._path):
            bases, _ = self._load_files(
                directory,
                "a consume-queue",
                self._file_bytes,
                "queue_file_bytes, RocketMQ mappedFileSizeConsumeQueue",
            )
            if bases:
                self.make(topic, queue_id).add_files(bases)
        for topic, queue_id, directory in queue_directories(self.files.files, self._extensions):
            bases, file_bytes = self._load_files(
                directory,
                "a consume-queue extension",
                self._extension_file_bytes,
                "queue_extension_file_bytes, RocketMQ mappedFileSizeConsumeQueueExt",
            )
            queue = self.find(topic, queue_id)
            if queue is None and self._extension_file_bytes is not None:
                # Its queue is gone: recovery deletes these files, which would be in the place of
                # new ones.
                queue = self.make(topic, queue_id)
            if bases and queue is not None:
                queue.extension = QueueExtension(self.files, directory, file_bytes, bases)

    def _load_files(
        self, directory: Path, kind: str, file_bytes: int | None, setting: str
    ) -> tuple[list[int], int]:
        """Return the first bytes of a directory's files, and the size of each of them."""
        listed = self.files.files.list_directory(directory)
        bases = []
        for entry in listed:
            if entry.is_directory:
                continue
            path = directory / entry.name
            base = parse_segment_name(entry.name)
            if base is None:
                raise StoreMismatch(
                    f"{path}: not {kind} file (their names are 20 digits); "
                    "move it out of this directory"
                )
            if entry.size == 0:
                self._empty.append(path)  # A crash interrupted its creation.
                continue
            if file_bytes is None:
                file_bytes = entry.size  # Only read: all have the size of the first one.
            if entry.size != file_bytes:
                raise StoreMismatch(
                    f"{path}: {entry.size} B, expected {file_bytes} B ({setting}): set the size "
                    "this store was written with, or use another store directory"
                )
            if base % file_bytes:
                raise StoreMismatch(
                    f"{path}: expected a name that is a multiple of {file_bytes}, "
                    f"such as {segment_name(base - base % file_bytes)}"
                )
            bases.append(base)
        return bases, file_bytes or 0

    def flush_cuts_later(self) -> None:
        """Leave what a dead process may have cut off to the next flush: names, and last files.

        It may have deleted files and zeroed entries in the page cache only. If the power is lost
        later, they would come back, and point to whatever the log has there by then. The zeros
        are written again: a flush of them may have failed.
        """
        files = self.files.files
        for root in (self._path, self._extensions):
            topics = [root / one.name for one in files.list_directory(root) if one.is_directory]
            self.files.dirty_directories.update((root, *topics))
            for _, _, directory in queue_directories(files, root):
                self.files.dirty_directories.add(directory)
        for queue in self:
            queue.write_rest_again()
            if queue.extension is not None:
                queue.extension.write_rest_again()

    def drop_empty_files(self) -> None:
        """Delete queue files of length 0: a crash interrupted their creation."""
        while self._empty:
            path = self._empty.pop()
            self.files.files.remove(path)
            self.files.dirty_directories.add(path.parent)


def queue_directories(files: Files, path: Path) -> list[tuple[str, int, Path]]:
    """Return (topic, queue id, directory) of the queues below a directory, sorted by name.

    Source: RocketMQ ignores directories whose names are not numbers.
    """
    return [
        (topic.name, int(queue_id.name), path / topic.name / queue_id.name)
        for topic in files.list_directory(path)
        if topic.is_directory
        for queue_id in files.list_directory(path / topic.name)
        if queue_id.is_directory
        and _NUMBER.fullmatch(queue_id.name)
        and int(queue_id.name) <= _QUEUE_ID_MAX
    ]


def same_files(topic: str, other: str) -> str:
    """Return why a topic cannot be stored beside another one, from which only its case differs."""
    return (
        f"topic {topic!r} cannot be stored beside topic {other!r}: this broker's file system does "
        "not tell upper from lower case, and both would have the same files. Choose another name, "
        "or give the broker a store (storePathRootDir) on a file system that tells them apart"
    )


def illegal_name(topic: str, queue_id: int, *, bytes_max: int | None = None) -> str | None:
    """Return why a queue cannot exist; None if it can.

    Topic names become directory names, and must not lead out of the store.

    Args:
        topic: of the queue.
        queue_id: of the queue.
        bytes_max: how long the topic may be; None: as long as one with such a name.
    """
    if not topic or topic in (".", "..") or "/" in topic or "\0" in topic:
        return f"topic {topic[:64]!r} cannot be stored: it would not be a directory name"
    try:
        size = len(topic.encode())
    except UnicodeEncodeError:
        return f"topic {topic[:64]!r} cannot be stored: not encodable as UTF-8"
    most = topic_bytes_max(topic) if bytes_max is None else bytes_max
    if size > most:
        return f"topic of {size} B, expected 1..{most}"
    if not 0 <= queue_id <= _QUEUE_ID_MAX:
        return f"queue id {queue_id}, expected 0..{_QUEUE_ID_MAX}"
    return None
