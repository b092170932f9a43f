"""The small files next to the data: checkpoint, abort marker, lock.

``checkpoint`` has 4096 bytes, signed big-endian 64-bit numbers and zeros::

    offset  field
    0       everything stored up to this time (ms) is on the disk in the commit log
    8       ... in the consume queues
    16      ... in the index files
    24      flushed offset of the master (5.x); kept as found
    32      confirmed physical offset (5.1.4 and later); here the flushed one
    40      as 8, whatever the index files hold; not in RocketMQ

After an unclean stop, recovery starts at the last segment whose first record is older than the
smaller of the first two numbers, less three seconds. Both this store and RocketMQ do that, so the
numbers must never promise more than is on the disk. RocketMQ adds to queues and index from there:
so the number at 8 is never later than that at 16, and this store uses the one at 40 instead.

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
    """The numbers of the checkpoint; ``save`` may be called from any thread."""

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
        """Read the file; every number is 0 if it is missing or damaged."""
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
    def flushed_end(self) -> int:
        """The log is on the disk up to this physical offset, as far as is known.

        0 if RocketMQ wrote the file last, whose offset means something else. It leaves the number
        at 40 alone, and moves that at 8 beyond it.
        """
        return self.confirmed if self.queues_timestamp <= self.queues_complete else 0

    @property
    def index_trusted_ms(self) -> int:
        """Log, queues and key index are complete on the disk up to this store time."""
        return min(self.trusted_ms, max(0, self.index_timestamp - SLACK_MS))

    def record_queues(self, queues_ms: int, index_ms: int | None) -> None:
        """Record up to which store time queues and index are on the disk.

        RocketMQ recovers both from the time of the queues, so that is never later than the time of
        the index.

        Args:
            queues_ms: of the queues.
            index_ms: of the key index; None without an index.
        """
        self.queues_complete = queues_ms
        if index_ms is None:
            self.queues_timestamp = queues_ms
        else:
            self.queues_timestamp = min(queues_ms, index_ms)
            self.index_timestamp = index_ms

    def save(self) -> None:
        """Write the file in place and flush it; all numbers are in one disk sector.

        Raises:
            DiskFull, FlushFailed, StoreError: the file may be outdated, but not wrong.
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
                self._files.fsync(fd)
            finally:
                self._files.close(fd)


class AbortMarker:
    """ROOT/abort: exists while the store is open, and after an unclean stop."""

    def __init__(self, files: Files, root: Path) -> None:
        self._files = files
        self._root = root
        self._path = root / "abort"

    def present(self) -> bool:
        """Return whether the last stop was unclean."""
        return self._files.exists(self._path)

    def put(self) -> None:
        """Create it, durably."""
        self._files.write_file(self._path, str(self._files.process_id()).encode())
        self._files.fsync_directory(self._root)

    def remove(self) -> None:
        """Remove it; everything has to be dispatched and on the disk."""
        self._files.remove(self._path)
        self._files.fsync_directory(self._root)


def make_root(files: Files, root: Path) -> None:
    """Create a store's directory, durably; nothing happens if it was opened before.

    Raises:
        DiskFull, FlushFailed, StoreError: it could not be created.
    """
    if files.exists(root / _LOCK):
        return
    missing = [path for path in root.parents if not files.exists(path)]
    files.make_directory(root, 0o700)
    for path in (root, *missing):
        # Also if it existed: the process that created it may have died before this.
        files.fsync_directory(path.parent)


class DirectoryLock:
    """Keeps other processes, and a second store of this process, out of a directory.

    Taken before the directory is read, and without leaving a trace in one that may not be a
    store: ``mark`` creates the file that keeps RocketMQ out.
    """

    def __init__(self, files: Files, root: Path) -> None:
        """Take the lock.

        Raises:
            StoreLocked: it is taken.
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
        """Lock the file, too, created if missing.

        Raises:
            StoreLocked: another process has just created and locked it.
        """
        if len(self._held) == 1:
            self._held.append(self._files.lock_file(self._path))
        if self._files.pread(self._held[1], len(_WORD), 0) != _WORD:
            self._files.pwrite(self._held[1], _WORD, 0)

    def release(self) -> None:
        """Release it. Idempotent."""
        while self._held:
            self._files.close(self._held.pop())
