"""ROOT/queues.json: where log, queues and index ended at a clean stop, and deleted topics.

::

    {"pymqCrc32": "12345678", "version": 1, "logEnd": 1234, "storeTimestamp": 1700000000000,
     "queues": {"TopicTest": {"0": 10, "1": 9}}, "deleted": {"Gone": 800},
     "index": {"end": 1234, "endTimestamp": 1700000000000, "lastOffset": 1000, "lastKeys": 2}}

``queues`` holds the end offset of every queue at the last clean stop. With it the next start need
not read the log, and distinguishes a missing queue from one that never existed.
``index`` says how far the key index was, which message was the last one with a key, and how many
keys it has: another broker may have added to the index since, and files may be lost.
``deleted`` holds the end of the log when a topic was deleted: records below it get no queue entry
again, so that a crash does not bring the messages of a deleted topic back.

``pymqCrc32`` is the checksum of a sealed file (``pymq.store.state.sealed_file``). If the file is
damaged, the previous one, ``queues.json.bak``, is used: it says less, but nothing wrong. If the
file is missing the backup is ignored, so that users can remove what is recorded.

A greater ``version`` was written by a later pymq, which may have changed more than this file: it
is refused. A missing one is 1.

RocketMQ does not have this file, and ignores it. Without it, recovery reads more of the log.
"""

import json
import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pymq.errors import FlushFailed, StoreError, StoreMismatch
from pymq.protocol.multi_dispatch import is_light
from pymq.store.files import Files
from pymq.store.index.key_index import IndexPosition
from pymq.store.log.commit_log import CommitLog
from pymq.store.queues.queue_table import QueueKey
from pymq.store.state.sealed_file import replace_file, seal, unseal

_log = logging.getLogger(__name__)
NAME = "queues.json"
VERSION = 1
_INDEX = ("end", "endTimestamp", "lastOffset", "lastKeys")


class CleanStop:
    """The content of the file. ``ends`` may be older than the queues, never newer."""

    def __init__(self, files: Files, root: Path) -> None:
        self._files = files
        self._path = root / NAME
        self._backup = root / (NAME + ".bak")
        # Content of the file; None if it is missing or damaged.
        self._saved: bytes | None = None
        #: End of the log at the last clean stop; -1: there was no clean stop.
        self.log_end = -1
        self.store_timestamp = 0
        self.ends: dict[QueueKey, int] = {}
        self.deleted: dict[str, int] = {}
        #: ``deleted`` as it is certain to be in the file.
        self.recorded: Mapping[str, int] = {}
        self.index: IndexPosition | None = None

    @property
    def has_light_queues(self) -> bool:
        """Whether there were light queues."""
        return any(is_light(topic) for topic, _ in self.ends)

    def load(self) -> None:
        """Read the file, or the backup of a damaged one; nothing is known if it is missing.

        Raises:
            StoreMismatch: a later version wrote it.
        """
        data = self._files.read_file(self._path)
        if data is None:
            return
        if self._parse(data):
            self._saved = data
            return
        before = self._files.read_file(self._backup)
        if before is not None and self._parse(before):
            _log.warning("%s is damaged; %s is used instead", self._path, self._backup.name)
        else:
            _log.warning("%s is damaged; the log is read instead", self._path)

    def _parse(self, data: bytes) -> bool:
        """Adopt the content of a file; return whether it is valid."""
        try:
            content = json.loads(unseal(data))
            version = int(content.get("version", 1))
            if version > VERSION:
                raise StoreMismatch(
                    f"{self._path}: store of version {version}, expected at most {VERSION}: a "
                    "later pymq wrote it. Open it with that one, or use another store directory"
                )
            ends = {
                (str(topic), int(queue_id)): int(end)
                for topic, queues in content["queues"].items()
                for queue_id, end in queues.items()
            }
            deleted = {str(topic): int(end) for topic, end in content["deleted"].items()}
            log_end, store_timestamp = int(content["logEnd"]), int(content["storeTimestamp"])
            index = None
            if (fields := content.get("index")) is not None:
                fields = {"lastKeys": -1} | fields
                index = IndexPosition(*(int(fields[key]) for key in _INDEX))
        except (ValueError, TypeError, KeyError, AttributeError):
            return False
        self.log_end, self.store_timestamp = log_end, store_timestamp
        self.ends, self.deleted, self.index = ends, deleted, index
        self.recorded = deleted
        return True

    def save_clean_stop(
        self, log: CommitLog, ends: dict[QueueKey, int], index: IndexPosition | None
    ) -> None:
        """Record where log, queues and index end; all of it is on the disk.

        Raises:
            DiskFull, FlushFailed, StoreError: the previous file is still there.
        """
        self.log_end, self.store_timestamp, self.ends = log.end, log.store_timestamp, ends
        self.trim(log.first)
        self.index = index
        self._save()

    def forget_ends(self) -> None:
        """Forget the ends of queues and index; the end of the log and deletions stay.

        Raises:
            DiskFull, FlushFailed, StoreError: the previous file is still there.
        """
        self.ends, self.index = {}, None
        self._save()

    def adopt(self, other: "CleanStop") -> None:
        """Adopt the content of another one.

        Raises:
            DiskFull, FlushFailed, StoreError: the previous file is still there.
        """
        self.log_end, self.store_timestamp = other.log_end, other.store_timestamp
        self.ends, self.deleted, self.index = dict(other.ends), dict(other.deleted), other.index
        self._save()

    def trim(self, log_first: int) -> None:
        """Forget deletions whose records have all expired; the next save writes that."""
        self.deleted = {topic: end for topic, end in self.deleted.items() if end > log_first}

    def delete(self, topics: Collection[str], log_end: int) -> None:
        """Record that the records of topics below ``log_end`` are deleted: of all, or of none.

        Raises:
            DiskFull, StoreError: the previous file is still there, and nothing is recorded.
            FlushFailed: the previous or the new file is there.
        """
        before = self.deleted, self.ends
        self.deleted = self.deleted | dict.fromkeys(topics, log_end)
        self.ends = {key: end for key, end in self.ends.items() if key[0] not in topics}
        try:
            self._save()
        except FlushFailed:
            raise
        except StoreError:
            self.deleted, self.ends = before  # Otherwise a later save would record it all the same.
            raise

    def forget(self, queues: Collection[QueueKey]) -> None:
        """Forget the ends of empty queues that are about to be deleted.

        Raises:
            DiskFull, FlushFailed, StoreError: the previous file is still there.
        """
        self.ends = {key: end for key, end in self.ends.items() if key not in queues}
        self._save()

    def cut(self, log_end: int) -> None:
        """Record that the log was cut: what is written after that place is not deleted.

        Raises:
            DiskFull, FlushFailed, StoreError: the previous file is still there.
        """
        if any(end > log_end for end in self.deleted.values()):
            self.deleted = {topic: min(end, log_end) for topic, end in self.deleted.items()}
            self._save()

    def cut_stop(self, log_end: int) -> None:
        """Record that the log was cut since the last clean stop, which says nothing any more.

        Raises:
            DiskFull, FlushFailed, StoreError: the previous file is still there.
        """
        self.log_end = min(self.log_end, log_end)
        self.ends, self.index = {}, None
        self.deleted = {topic: min(end, log_end) for topic, end in self.deleted.items()}
        self._save()

    def _save(self) -> None:
        queues: dict[str, dict[str, int]] = {}
        for (topic, queue_id), end in self.ends.items():
            queues.setdefault(topic, {})[str(queue_id)] = end
        content: dict[str, Any] = {
            "version": VERSION,
            "logEnd": self.log_end,
            "storeTimestamp": self.store_timestamp,
            "queues": queues,
            "deleted": self.deleted,
        }
        if self.index is not None:
            content["index"] = dict(zip(_INDEX, self.index, strict=True))
        data = seal(json.dumps(content).encode())
        if self._saved is not None and self._saved != data:
            self._files.write_file(self._backup, self._saved)
        replace_file(self._files, self._path, data)
        self._saved, self.recorded = data, self.deleted
