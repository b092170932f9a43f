"""The small files next to the data: checkpoint, abort marker, lock.

``checkpoint`` has 4096 bytes, signed big-endian 64-bit numbers and zeros::

    offset  field
    0       everything stored up to this time (ms) is on the disk in the commit log
    8       ... in the consume queues
    16      ... in the index files
    24      flushed offset of the master (5.x); kept as found
    32      confirmed physical offset (5.1.4 and later); here the flushed one
    40      as 8, whatever the index files hold
    48      everything below this physical offset is on the disk in the consume queues
    56      ... in the index files
    64      seal: 1 << 32, plus the CRC-32 of what is before; 0 as long as that at 48 is 0

RocketMQ does not know those from 40 on, and leaves them alone.

After an unclean stop, recovery starts at the last segment whose first record is older than the
smaller of the first two numbers, less three seconds. Both this store and RocketMQ do that, so the
numbers must never promise more than is on the disk. RocketMQ adds to queues and index from there:
so the number at 8 is never later than that at 16, and this store uses the one at 40 instead.

Times fail after a clock was ahead: all later records have the time of the one that was stored
then, and all of them would be read. So of segments that begin with the very time at 0, this store
takes the last one that begins below the smaller of the offsets at 32 and 48. That is what the seal
is for: if it does not fit, RocketMQ has written the file since, perhaps to another log, and the
numbers from 32 on say nothing any more.

``abort`` exists while the store is open, whatever is in it; ``lock`` holds the word "lock" under a
record lock.

Source: RocketMQ StoreCheckpoint, DefaultMessageStore.
"""

import struct
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from threading import Lock

from pymq.errors import DiskFull, StoreError, StoreLocked
from pymq.store.files import Files

CHECKPOINT_NAME = "checkpoint"
CHECKPOINT_BYTES = 4096
#: How much earlier than the checkpoint recovery starts, ms; RocketMQ's number.
SLACK_MS = 3000
_LOCK = "lock"
_WORD = b"lock"
_VALUES = struct.Struct(">8q")
_SEAL = struct.Struct(">q")
#: What there was before the offsets at 48 and 56, and the seal.
_OLD_BYTES = 48


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
        self.queues_end = 0
        self.index_end = 0

    def load(self) -> None:
        """Read the file; every number is 0 if it is missing or damaged."""
        data = self._files.read_file(self._path) or b""
        if len(data) < _OLD_BYTES:
            return
        data = data.ljust(_VALUES.size + _SEAL.size, b"\0")
        values = [max(0, value) for value in _VALUES.unpack_from(data)]
        self.log_timestamp, self.queues_timestamp, self.index_timestamp = values[:3]
        self.master_flushed, self.confirmed, self.queues_complete = values[3:6]
        (seal,) = _SEAL.unpack_from(data, _VALUES.size)
        if seal == _seal(data[: _VALUES.size]):
            self.queues_end, self.index_end = values[6:]
        elif seal:  # RocketMQ has written the file since this store did, or it is damaged.
            self.confirmed = self.queues_complete = 0

    @property
    def trusted_ms(self) -> int:
        """Log and queues are complete on the disk up to this store time."""
        queues = max(self.queues_timestamp, self.queues_complete)
        return max(0, min(self.log_timestamp, queues) - SLACK_MS)

    @property
    def flushed_end(self) -> int:
        """The log is on the disk up to this physical offset, as far as is known.

        0 if RocketMQ wrote the file last, whose offset means something else. It leaves the number
        at 40 alone, and, unless a clock was ahead, moves that at 8 beyond it.
        """
        return 0 if self.queues_timestamp > self.queues_complete else self.confirmed

    @property
    def is_foreign(self) -> bool:
        """Whether RocketMQ wrote the file last, as far as is known (or it is damaged)."""
        return self.log_timestamp > 0 and not self.flushed_end

    @property
    def complete_end(self) -> int:
        """Log and queues are complete on the disk up to this physical offset, or further."""
        return min(self.flushed_end, self.queues_end)

    @property
    def index_trusted_ms(self) -> int:
        """Log, queues and key index are complete on the disk up to this store time."""
        return min(self.trusted_ms, max(0, self.index_timestamp - SLACK_MS))

    def covers(self, first: int, store_timestamp: int) -> bool:
        """Return whether everything before a segment is complete on the disk in log and queues.

        Args:
            first: physical offset of its first record.
            store_timestamp: of that record.
        """
        return store_timestamp <= self.trusted_ms or self._covers(
            first, store_timestamp, self.complete_end
        )

    def index_covers(self, first: int, store_timestamp: int) -> bool:
        """Return whether everything before a segment is in the key index, too; see ``covers``."""
        return store_timestamp <= self.index_trusted_ms or self._covers(
            first, store_timestamp, min(self.complete_end, self.index_end)
        )

    def _covers(self, first: int, store_timestamp: int, end: int) -> bool:
        return first < end and store_timestamp == self.log_timestamp

    def record_queues(
        self, queues_ms: int, index_ms: int | None, *, queues_end: int, index_end: int | None
    ) -> None:
        """Record up to which store time queues and index are on the disk.

        RocketMQ recovers both from the time of the queues, so that is never later than the time of
        the index.

        Args:
            queues_ms: of the queues.
            index_ms: of the key index; None without an index.
            queues_end, index_end: the same as physical offsets.
        """
        self.queues_end = queues_end
        if index_end is not None:
            self.index_end = index_end
        self.queues_complete = queues_ms
        if index_ms is None:
            self.queues_timestamp = queues_ms
        else:
            self.queues_timestamp = min(queues_ms, index_ms)
            self.index_timestamp = index_ms

    def save(self) -> None:
        """Write the file in place and flush it; all of it is in one disk sector.

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
                self.queues_end,
                self.index_end,
            )
            data += _SEAL.pack(_seal(data) if self.queues_end else 0)
            fd = self._files.open(self._path, create=True)
            try:
                self._files.pwrite(fd, data.ljust(CHECKPOINT_BYTES, b"\0"), 0)
                self._files.fsync(fd)
            finally:
                self._files.close(fd)


def _seal(data: bytes) -> int:
    """Return the seal of the numbers before it; never 0, which is the absence of one."""
    return 1 << 32 | zlib.crc32(data)


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
        """Create it, durably; on a full disk an empty one, which says as much.

        A store that cannot be written can still be read and cleaned, which may make room.
        """
        fd = self._files.open_emptied(self._path)
        try:
            with suppress(DiskFull):
                self._files.pwrite(fd, str(self._files.process_id()).encode(), 0)
            self._files.fsync(fd)
        finally:
            self._files.close(fd)
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
    """Keeps other processes, and other stores of this process, out of directories.

    Those of the log are locked, too: another store, with a root of its own, may have been given
    the same ones, and both would write to the same places of the same files.

    Taken before the directories are read, and without leaving a trace in one that may not be a
    store: ``mark`` creates the file that keeps RocketMQ out.
    """

    def __init__(self, files: Files, root: Path, logs: Iterable[Path] = ()) -> None:
        """Take the lock.

        Args:
            files: the operating system.
            root: the directory of the store.
            logs: directories of the log that are written to; ``mark`` creates those missing.

        Raises:
            StoreLocked: it is taken.
        """
        self._files = files
        self._path = root / _LOCK
        self._missing: list[Path] = []
        self._fd: int | None = None
        #: What is locked: descriptors, and the paths that they were opened by.
        self._held = {files.lock_directory(root): root}
        try:
            if files.exists(self._path):
                self._lock_file()
            for path in logs:
                if files.exists(path):
                    self._lock_log(path)
                else:
                    self._missing.append(path)
        except StoreError:
            self.release()
            raise

    def _lock_file(self) -> int:
        self._fd = self._files.lock_file(self._path)
        self._held[self._fd] = self._path
        return self._fd

    def _lock_log(self, path: Path) -> None:
        try:
            self._held[self._files.lock_directory(path)] = path
        except StoreLocked as error:
            raise StoreLocked(
                f"{path}: another broker has this directory of the commit log open; stop it, or "
                "give this one another storePathCommitLog"
            ) from error

    def mark(self) -> None:
        """Lock the file and all directories of the log, too, created if missing.

        Raises:
            StoreLocked: another process has just created and locked one.
        """
        fd = self._lock_file() if self._fd is None else self._fd
        if self._files.pread(fd, len(_WORD), 0) != _WORD:
            self._files.pwrite(fd, _WORD, 0)
        while self._missing:
            path = self._missing.pop()
            if self._files.make_directory(path):
                self._files.fsync_directory(path.parent)
            self._lock_log(path)

    def lost(self) -> Path | None:
        """Return what has been removed or replaced since it was locked; None: nothing.

        In any thread, before ``release``. What cannot be looked at does not count.
        """
        for fd, path in self._held.items():
            with suppress(StoreError):
                if not self._files.is_at(fd, path):
                    return path
        return None

    def release(self) -> None:
        """Release it. Idempotent."""
        while self._held:
            self._files.close(self._held.popitem()[0])
