"""ROOT/config/timercheck: how far timers were when they were last flushed.

4096 bytes, signed big-endian 64-bit numbers and zeros::

    offset  field
    0       read time, ms: every message of an earlier slot was put back and is on the disk
    8       every unit of the timer log before this position is on the disk
    16      every message of the timer queue before this offset is in the timer log, or was put back
    24      as 16, at the broker that puts messages back (the master)
    32      state version      the data version: of this file at the broker that puts back;
    40      timestamp, ms      its slaves follow the largest
    48      counter
    64      "pymqTime"         only here: RocketMQ leaves them as they are
    72      CRC-32 of the 56 bytes (4 bytes)
    76      digest of the wheel that was flushed with them (4 bytes)
    80      every unit of a message of the timer queue from the offset at 16 on is at this
            position of the timer log, or after it

The 56 bytes are the body of the answer to GET_TIMER_CHECK_POINT, too. If the digest is there and
fits them, the wheel in the file is the one that was flushed with them, and the timer log was
flushed up to the same unit.

Source: RocketMQ TimerCheckpoint.
"""

import struct
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Self

from pymq.protocol.hashes import crc32
from pymq.store.files import Files

CHECKPOINT_BYTES = 4096
_VALUES = struct.Struct(">7q")
_EXTENSION_AT, _EXTENSION = 64, struct.Struct(">8sIIq")
_MARK = b"pymqTime"


@dataclass(frozen=True, slots=True)
class TimerCheckpoint:
    """The numbers of the file, in its order.

    Attributes:
        wheel_digest: None: it is not known, nor what follows.
        units_from: position of the first unit of a message from ``queue_offset`` on.
    """

    read_ms: int = 0
    log_flushed: int = 0
    queue_offset: int = 0
    master_queue_offset: int = 0
    state_version: int = 0
    version_ms: int = 0
    version_counter: int = 0
    wheel_digest: int | None = None
    units_from: int = 0

    @classmethod
    def decode(cls, data: bytes) -> Self | None:
        """Return the numbers; None if they are cut off."""
        return cls(*_VALUES.unpack_from(data)) if len(data) >= _VALUES.size else None

    def encode(self) -> bytes:
        """Return the 56 bytes."""
        return _VALUES.pack(*astuple(self)[:-2])

    @classmethod
    def load(cls, files: Files, path: Path) -> Self | None:
        """Read the file; None if it is missing, cut off, or was never written to."""
        data = files.read_file(path) or b""
        found = cls.decode(data) if any(data[: _VALUES.size]) else None
        if found is not None and len(data) >= _EXTENSION_AT + _EXTENSION.size:
            mark, crc, digest, units_from = _EXTENSION.unpack_from(data, _EXTENSION_AT)
            if mark == _MARK and crc == crc32(data[: _VALUES.size]):
                return replace(found, wheel_digest=digest, units_from=units_from)
        return found

    def save(self, files: Files, path: Path) -> None:
        """Write the file in place and flush it; all numbers are in one disk sector.

        Raises:
            DiskFull, FlushFailed, StoreError: the file may be outdated, but not wrong.
        """
        data = self.encode()
        if self.wheel_digest is not None:
            extension = _EXTENSION.pack(_MARK, crc32(data), self.wheel_digest, self.units_from)
            data = data.ljust(_EXTENSION_AT, b"\0") + extension
        is_new = not files.exists(path)
        if is_new:
            files.make_directory(path.parent)
        fd = files.open(path, create=True)
        try:
            files.pwrite(fd, data.ljust(CHECKPOINT_BYTES, b"\0"), 0)
            files.fsync(fd)
        finally:
            files.close(fd)
        if is_new:
            files.fsync_directory(path.parent)
            files.fsync_directory(path.parent.parent)
