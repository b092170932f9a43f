"""ROOT/queues.json: what a clean stop left, and which topics were deleted when.

::

    {"pymqCrc32": "12345678", "version": 1, "logEnd": 1234, "storeTimestamp": 1700000000000,
     "queues": {"TopicTest": {"0": 10, "1": 9}}, "deleted": {"Gone": 800},
     "index": {"end": 1234, "endTimestamp": 1700000000000, "lastOffset": 1000}}

``queues`` holds the end offset of every queue at the last clean stop. It lets the next open
start without reading the log, and tells a queue that is missing from one that never was.
``index`` says how far the key index was, and which message was the last with a key: somebody
else may have added to it since.
``deleted`` holds the end of the log when a topic was deleted: records below it are not indexed
again, so that a crash does not bring a deleted topic's messages back.

``pymqCrc32`` is the checksum of all sealed files (``pymq.store.state.sealed_file``). In place of a
damaged file the one before, ``queues.json.bak``, counts: it knows less, nothing wrong. Without the
file nothing is known, whatever the backup says: so it can be taken away.

A greater ``version`` is that of a later pymq, which may have changed more than this file: it is
refused. Without one it is 1.

The file is ours. RocketMQ ignores it; without it recovery reads more and knows less.
"""

import json
import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from pymq.errors import FlushFailed, StoreError, StoreMismatch
from pymq.store.files import Files
from pymq.store.log.commit_log import CommitLog
from pymq.store.state.sealed_file import replace_file, seal, unseal

_log = logging.getLogger(__name__)
NAME = "queues.json"
VERSION = 1
_INDEX = ("end", "endTimestamp", "lastOffset")


class IndexNote(NamedTuple):
    """How far the key index was.

    Attributes:
        end: physical offset up to which the log was indexed.
        end_ms: store time of the last message below it.
        last_physical: physical offset of the last message with a key; -1 without one.
    """

    end: int
    end_ms: int
    last_physical: int


class CleanStop:
    """The content of the file. ``ends`` is older than the queues, never newer."""

    def __init__(self, files: Files, root: Path) -> None:
        self._files = files
        self._path = root / NAME
        self._backup = root / (NAME + ".bak")
        # What stands in the file; None if that is no good backup.
        self._saved: bytes | None = None
        #: End of the log at the last clean stop; -1 when there was none.
        self.log_end = -1
        self.store_timestamp = 0
        self.ends: dict[tuple[str, int], int] = {}
        self.deleted: dict[str, int] = {}
        self.index: IndexNote | None = None

    def load(self) -> None:
        """Read the file, or the one before if it is damaged; a missing one knows nothing.

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
        """Take over what a file says; return whether it is whole."""
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
            noted = content.get("index")
            index = None if noted is None else IndexNote(*(int(noted[key]) for key in _INDEX))
        except (ValueError, TypeError, KeyError, AttributeError):
            return False
        self.log_end, self.store_timestamp = log_end, store_timestamp
        self.ends, self.deleted, self.index = ends, deleted, index
        return True

    def save_clean_stop(
        self, log: CommitLog, ends: dict[tuple[str, int], int], index: "IndexNote | None"
    ) -> None:
        """Note where log, queues and index end, all of it being on the disk.

        Raises:
            DiskFull, FlushFailed, StoreError: the previous file is still there.
        """
        self.log_end, self.store_timestamp, self.ends = log.end, log.store_timestamp, ends
        self.trim(log.first)
        self.index = index
        self._save()

    def forget_ends(self) -> None:
        """Know no ends of queues and index any more, only that of the log and what was deleted.

        Raises:
            DiskFull, FlushFailed, StoreError: the previous file is still there.
        """
        self.ends, self.index = {}, None
        self._save()

    def adopt(self, other: "CleanStop") -> None:
        """Take over what another one knows.

        Raises:
            DiskFull, FlushFailed, StoreError: the previous file is still there.
        """
        self.log_end, self.store_timestamp = other.log_end, other.store_timestamp
        self.ends, self.deleted, self.index = dict(other.ends), dict(other.deleted), other.index
        self._save()

    def trim(self, log_first: int) -> None:
        """Forget deletions of which the log holds no record any more; the next save tells."""
        self.deleted = {topic: end for topic, end in self.deleted.items() if end > log_first}

    def delete(self, topic: str, log_end: int) -> None:
        """Note that a topic's records below ``log_end`` are to be forgotten.

        Raises:
            DiskFull, StoreError: the previous file is still there, and nothing is noted.
            FlushFailed: either may be there.
        """
        before = self.deleted, self.ends
        self.deleted = self.deleted | {topic: log_end}
        self.ends = {key: end for key, end in self.ends.items() if key[0] != topic}
        try:
            self._save()
        except FlushFailed:
            raise
        except StoreError:
            self.deleted, self.ends = before  # Or a later save would note it all the same.
            raise

    def forget(self, queues: Collection[tuple[str, int]]) -> None:
        """Do not expect queues any more that hold nothing and are about to be deleted.

        Raises:
            DiskFull, FlushFailed, StoreError: the previous file is still there.
        """
        self.ends = {key: end for key, end in self.ends.items() if key not in queues}
        self._save()

    def cut(self, log_end: int) -> None:
        """Note that the log was cut: what is written there now is not what was deleted.

        Raises:
            DiskFull, FlushFailed, StoreError: the previous file is still there.
        """
        if any(end > log_end for end in self.deleted.values()):
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
        self._saved = data
