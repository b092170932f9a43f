"""The small files beside the data: checkpoint, abort marker, lock.

``checkpoint`` has 4096 bytes, signed big-endian 64-bit numbers and zeros::

    offset  field
    0       everything stored up to this time (ms) is synced in the commit log
    8       ... in the consume queues
    16      ... in the index files
    24      flushed offset of the master (5.x); kept as found
    32      confirmed physical offset (5.1.4 and later); ours is the flushed one
    40      as 8, whatever the index files hold; ours alone

After an unclean stop recovery starts at the last segment whose first record is older than the
smaller of the first two, less three seconds. Both this store and RocketMQ do that, so the
numbers must never promise more than was synced. RocketMQ adds to queues and index from there; so
8 is never later than 16, and 40 is what this store goes by.

``abort`` exists while the store is open; ``lock`` holds the word "lock" under a record lock.

Source: RocketMQ StoreCheckpoint, DefaultMessageStore.
"""

import struct
from pathlib import Path
from threading import Lock

from pymq.errors import StoreError
from pymq.store.files import Files

CHECKPOINT_NAME = "checkpoint"
CHECKPOINT_BYTES = 4096
#: How much earlier than the checkpoint recovery starts, ms; RocketMQ's number.
SLACK_MS = 3000
_LOCK = "lock"
_WORD = b"lock"
_VALUES = struct.Struct(">6q")


class Checkpoint:
    """The checkpoint's numbers; ``save`` may be called from any thread."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path
        self._saving = Lock()
        self.log_timestamp = 0
        self.queues_timestamp = 0
        self.index_timestamp = 0
        self.master_flushed = 0
        self.confirmed = 0
        self.queues_complete = 0

    def load(self) -> None:
        """Read the file; without one, or with a damaged one, every number is 0."""
        data = self._files.read_file(self._path) or b""
        if len(data) < _VALUES.size:
            return
        values = [max(0, value) for value in _VALUES.unpack_from(data)]
        self.log_timestamp, self.queues_timestamp, self.index_timestamp = values[:3]
        self.master_flushed, self.confirmed, self.queues_complete = values[3:]

    @property
    def trusted_ms(self) -> int:
        """Log and queues are complete on the disk up to this store time."""
        queues = max(self.queues_timestamp, self.queues_complete)
        return max(0, min(self.log_timestamp, queues) - SLACK_MS)

    @property
    def index_trusted_ms(self) -> int:
        """Log, queues and key index are complete on the disk up to this store time."""
        return min(self.trusted_ms, max(0, self.index_timestamp - SLACK_MS))

    def note_queues(self, queues_ms: int, index_ms: int | None) -> None:
        """Note up to which store time queues and index are on the disk.

        Where RocketMQ recovers, it begins by the queues' time to add to both. So that is never
        later than the index's.

        Args:
            queues_ms: of the queues.
            index_ms: of the key index; None if none is kept.
        """
        self.queues_complete = queues_ms
        if index_ms is None:
            self.queues_timestamp = queues_ms
        else:
            self.queues_timestamp = min(queues_ms, index_ms)
            self.index_timestamp = index_ms

    def save(self) -> None:
        """Write the file in place and sync it; all of it lies in one disk sector.

        Raises:
            DiskFull, FlushFailed, StoreError: the file may be old, never wrong.
        """
        with self._saving:
            data = _VALUES.pack(
                self.log_timestamp,
                self.queues_timestamp,
                self.index_timestamp,
                self.master_flushed,
                self.confirmed,
                self.queues_complete,
            )
            fd = self._files.open(self._path, create=True)
            try:
                self._files.pwrite(fd, data.ljust(CHECKPOINT_BYTES, b"\0"), 0)
                self._files.sync_data(fd)
            finally:
                self._files.close(fd)


class AbortMarker:
    """ROOT/abort: present means the last stop was not a clean one."""

    def __init__(self, files: Files, root: Path) -> None:
        self._files = files
        self._root = root
        self._path = root / "abort"

    def present(self) -> bool:
        """Tell whether the last stop was unclean."""
        return self._files.exists(self._path)

    def put(self) -> None:
        """Write it, durably."""
        self._files.write_file(self._path, str(self._files.process_id()).encode())
        self._files.sync_directory(self._root)

    def remove(self) -> None:
        """Remove it: only when everything is dispatched and synced."""
        self._files.remove(self._path)
        self._files.sync_directory(self._root)


def make_root(files: Files, root: Path) -> None:
    """Make a store's directory, durably; nothing happens to one that was opened before.

    Raises:
        DiskFull, FlushFailed, StoreError: it could not be made.
    """
    if files.exists(root / _LOCK):
        return
    missing = [path for path in root.parents if not files.exists(path)]
    files.make_directory(root, 0o700)
    for path in (root, *missing):
        # Also when it was there: who made it may have died before this.
        files.sync_directory(path.parent)


class DirectoryLock:
    """Keeps a second process, and a second store of this process, out of a directory.

    Taken before the directory is looked at, and without a trace in one that may be no store:
    ``mark`` makes the file that keeps RocketMQ out, where there is none.
    """

    def __init__(self, files: Files, root: Path) -> None:
        """Take the lock.

        Raises:
            StoreLocked: somebody has it.
        """
        self._files = files
        self._path = root / _LOCK
        self._held = [files.lock_directory(root)]
        try:
            if files.exists(self._path):
                self._held.append(files.lock_file(self._path))
        except StoreError:
            self.release()
            raise

    def mark(self) -> None:
        """Lock the file, too, made if missing.

        Raises:
            StoreLocked: somebody else has just made and locked it.
        """
        if len(self._held) == 1:
            self._held.append(self._files.lock_file(self._path))
        if self._files.pread(self._held[1], len(_WORD), 0) != _WORD:
            self._files.pwrite(self._held[1], _WORD, 0)

    def release(self) -> None:
        """Let it go; twice is harmless."""
        while self._held:
            self._files.close(self._held.pop())
