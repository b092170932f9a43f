"""The files of a broker whose disk can be full, in the time of its cluster."""

import errno
import os
from pathlib import Path

from pymq.clock import Clock
from pymq.errors import DiskFull
from pymq.store.files import DiskUsage, Files


class ClusterFiles(Files):
    """The operating system, until its disk is full.

    Args:
        clock: of the cluster.

    Attributes:
        is_full: whether nothing can be written any more.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self.is_full = False

    def create_empty(self, path: Path) -> int:
        """Create a file, unless the disk is full."""
        self._check_room("create", path)
        return super().create_empty(path)

    def open_emptied(self, path: Path) -> int:
        """Open a file without its content, unless the disk is full."""
        self._check_room("create", path)
        return super().open_emptied(path)

    def make_directory(self, path: Path, mode: int = 0o777) -> bool:
        """Create a directory, unless the disk is full."""
        if not path.exists():
            self._check_room("create", path)
        return super().make_directory(path, mode)

    def reserve(self, fd: int, size_bytes: int) -> None:
        """Reserve blocks, unless the disk is full."""
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().reserve(fd, size_bytes)

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> None:
        """Write, unless the disk is full."""
        if self.is_full:
            self._check_room(f"write at {position}", Path(f"/proc/self/fd/{fd}").resolve())
        super().pwrite(fd, data, position)

    def disk_usage(self, path: Path) -> DiskUsage:
        """Return how full the disk is."""
        usage = super().disk_usage(path)
        if self.is_full:
            usage = DiskUsage(usage.used_bytes + usage.available_bytes, 0)
        return usage

    def modified_ms(self, path: Path) -> int:
        """Return when a file was last written, in the time of the cluster."""
        return self._clock.at(super().modified_ms(path))

    def _check_room(self, doing: str, path: Path) -> None:
        if self.is_full:
            raise DiskFull(
                f"{path}: {doing}: no space left on the device, because of disk_full() in a test; "
                "end that"
            )
