"""A ``Files`` whose disk crashes, fails or loses power at a chosen moment.

Every call that changes something, or flushes it, is an *operation*; operations are counted from 1
and are single system calls. ``Fault`` says what happens at which of them::

    FaultyFiles(Fault(at=7))                           the process dies before the 7th operation
    FaultyFiles(Fault(at=7, keep=Keep.SECTORS))        ... in the middle of it, if it is a write
    FaultyFiles(Fault(at=7, code=errno.EIO))           the 7th fails, and nothing happens
    FaultyFiles(Fault(at=7, code=errno.ENOSPC, count=50))   ... and so do the next 49
    FaultyFiles(disk=Disk(root))                       unflushed changes are tracked: see lost_power

The files are real, so maps and holes are real too. What a dead process had written stays;
``abandon`` releases its descriptors and locks, as the system does.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TypeVar

from pymq.errors import DiskFull, FlushFailed, StoreError
from pymq.store.files import DirectoryEntry, DiskUsage, Files, _failure
from pymq.testing.lost_power import PAGE_BYTES, SECTOR_BYTES, Disk, FileNode

_Result = TypeVar("_Result")


class Crashed(BaseException):
    """The process is dead, and nothing that it asks for happens.

    Not an ``Exception``, so that nothing takes it for an error, handles it and continues.
    """


class Keep(Enum):
    """How much of the faulty operation is done."""

    NOTHING = "nothing of it"
    BYTES = "the first few bytes of a write, nothing of other operations"
    SECTORS = "the first few sectors of 512 B of a write, nothing of other operations"
    PAGES = "the first few pages of 4 KiB of a write, nothing of other operations"
    ALL = "all of it"


_UNIT = {Keep.BYTES: 1, Keep.SECTORS: SECTOR_BYTES, Keep.PAGES: PAGE_BYTES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens at operation ``at``.

    Attributes:
        at: number of the operation, the first is 1.
        code: the ``errno`` it fails with; None: the process dies.
        keep: how much of it is done.
        count: this many operations in a row fail.
    """

    at: int
    code: int | None = None
    keep: Keep = Keep.NOTHING
    count: int = 1


class FaultyFiles(Files):
    """Counts operations and has a fault at one of them.

    Attributes:
        operations: (method, path) of every operation that has begun.
        crashed: whether the process is dead. Then everything but ``close`` and ``unmap`` raises
            ``Crashed``.
    """

    def __init__(self, fault: Fault | None = None, *, disk: Disk | None = None) -> None:
        self.operations: list[tuple[str, Path]] = []
        self.crashed = False
        self._fault = fault
        self._disk = disk
        self._paths: dict[int, Path] = {}  # of the descriptors that are open
        self._nodes: dict[int, FileNode] = {}

    @property
    def fault_met(self) -> bool:
        """Whether the fault's operation has begun."""
        return self._fault is not None and len(self.operations) >= self._fault.at

    def mend(self) -> None:
        """Have no more faults: the disk was replaced, or there is space again."""
        self._fault = None

    def abandon(self) -> None:
        """Close what the dead process had open."""
        self.crashed = True
        while self._paths:
            self.close(next(iter(self._paths)))

    # -- the fault ----------------------------------------------------------------------------

    def _check_alive(self) -> None:
        if self.crashed:
            raise Crashed("the process died earlier")

    def _operate(
        self,
        name: str,
        path: Path,
        do: Callable[[], _Result],
        *,
        partly: Callable[[int], None] | None = None,
        kind: type[StoreError] = StoreError,
        full: type[StoreError] = DiskFull,
    ) -> _Result:
        """Do an operation, unless it is the faulty one.

        Args:
            name, path: of the method, and of the file or directory.
            do: all of it.
            partly: the start of a write that ends at a multiple of this many bytes.
            kind: class of the error, unless the disk is full.
            full: class of the error for a full disk.
        """
        self._check_alive()
        self.operations.append((name, path))
        fault, number = self._fault, len(self.operations)
        if fault is None or not fault.at <= number < fault.at + fault.count:
            return do()
        if fault.keep is Keep.ALL:
            do()
        elif fault.keep is not Keep.NOTHING and partly is not None:
            partly(_UNIT[fault.keep])
        if fault.code is None:
            self.crashed = True
            raise Crashed(f"operation {number}: {name} of {path}")
        error = OSError(fault.code, os.strerror(fault.code))
        raise _failure(error, f"{name}, operation {number}", path, kind, full=full) from error

    def _opened(self, fd: int, path: Path) -> int:
        self._paths[fd] = path
        if self._disk is not None and self._disk.holds(path):
            self._nodes[fd] = self._disk.opened(path)
        return fd

    def _record(self, fd: int, change: int | tuple[int, bytes]) -> None:
        node = self._nodes.get(fd)
        if node is not None:
            node.pending.append(change)

    # -- data files ---------------------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False) -> int:
        if create and not path.exists():
            make = super().open
            return self._operate("open", path, lambda: self._opened(make(path, create=True), path))
        self._check_alive()
        return self._opened(super().open(path), path)

    def open_for_reading(self, path: Path) -> int:
        self._check_alive()
        return self._opened(super().open_for_reading(path), path)

    def create_empty(self, path: Path) -> int:
        create_empty = super().create_empty
        return self._operate(
            "create_empty", path, lambda: self._opened(create_empty(path), path)
        )

    def open_emptied(self, path: Path) -> int:
        open_emptied = super().open_emptied

        def do() -> int:
            fd = self._opened(open_emptied(path), path)
            self._record(fd, 0)
            return fd

        return self._operate("open_emptied", path, do)

    def resize(self, fd: int, size_bytes: int) -> None:
        resize = super().resize

        def do() -> None:
            resize(fd, size_bytes)
            self._record(fd, size_bytes)

        self._operate("resize", self._paths[fd], do)

    def reserve(self, fd: int, size_bytes: int) -> None:
        reserve = super().reserve

        def do() -> None:
            reserve(fd, size_bytes)
            self._record(fd, max(size_bytes, os.fstat(fd).st_size))

        self._operate("reserve", self._paths[fd], do)

    def close(self, fd: int) -> None:
        is_ours = self._paths.pop(fd, None) is not None
        self._nodes.pop(fd, None)
        if is_ours or not self.crashed:  # What was abandoned is somebody else's number by now.
            super().close(fd)

    def duplicate(self, fd: int) -> int:
        self._check_alive()
        duplicate = super().duplicate(fd)
        self._paths[duplicate] = self._paths[fd]
        if fd in self._nodes:
            self._nodes[duplicate] = self._nodes[fd]
        return duplicate

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> None:
        pwrite = super().pwrite

        def write(part: bytes | memoryview) -> None:
            if len(part):
                pwrite(fd, part, position)
                self._record(fd, (position, bytes(part)))

        def partly(unit: int) -> None:
            # The end differs from write to write, but is the same in every run.
            stop = position + random.Random(len(self.operations)).randrange(len(data))
            write(data[: max(0, stop - stop % unit - position)])

        code = None if self._fault is None else self._fault.code
        self._operate(
            "pwrite",
            self._paths[fd],
            lambda: write(data),
            partly=partly,
            kind=FlushFailed if code == errno.EIO else StoreError,
        )

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self._check_alive()
        return super().pread(fd, size, position)

    def is_cached(self, fd: int, size: int, position: int) -> bool:
        self._check_alive()
        return super().is_cached(fd, size, position)

    def touch(self, path: Path, size: int, position: int) -> None:
        self._check_alive()
        super().touch(path, size, position)

    def map_for_reading(self, fd: int, size_bytes: int) -> memoryview:
        self._check_alive()
        return super().map_for_reading(fd, size_bytes)

    def modified_ms(self, path: Path) -> int:
        self._check_alive()
        return super().modified_ms(path)

    def is_at(self, fd: int, path: Path) -> bool:
        self._check_alive()
        return super().is_at(fd, path)

    def disk_usage(self, path: Path) -> DiskUsage:
        self._check_alive()
        return super().disk_usage(path)

    def unmap(self, view: memoryview) -> memoryview | None:
        return super().unmap(view)

    def map_memory(self, size_bytes: int) -> memoryview:
        self._check_alive()
        return super().map_memory(size_bytes)

    def lock_in_memory(self, view: memoryview, *, when_used: bool = False) -> bool:
        self._check_alive()
        return super().lock_in_memory(view, when_used=when_used)

    def is_resident(self, view: memoryview, first: int, end: int) -> bool:
        self._check_alive()
        return super().is_resident(view, first, end)

    def unlock_from_memory(self, view: memoryview) -> None:
        self._check_alive()
        super().unlock_from_memory(view)

    def give_back_blocks(self, fd: int, size_bytes: int) -> bool:
        self._check_alive()
        return super().give_back_blocks(fd, size_bytes)  # of a file without a name

    def data_ranges(self, fd: int, first: int, end: int) -> list[tuple[int, int]]:
        self._check_alive()
        return super().data_ranges(fd, first, end)

    # -- durability ---------------------------------------------------------------------------

    def fsync(self, fd: int) -> None:
        fsync, node = super().fsync, self._nodes.get(fd, FileNode())

        def do() -> None:
            fsync(fd)
            node.make_durable()

        try:
            self._operate("fsync", self._paths[fd], do, kind=FlushFailed, full=FlushFailed)
        except FlushFailed:
            node.lose_writes()
            raise

    def start_writeback(self) -> None:
        # It promises nothing, and would slow down everything else on the machine.
        self._check_alive()

    def fsync_directory(self, path: Path) -> None:
        fsync_directory = super().fsync_directory

        def do() -> None:
            fsync_directory(path)
            if self._disk is not None and self._disk.holds(path):
                self._disk.flushed_directory(path)

        self._operate("fsync_directory", path, do, kind=FlushFailed, full=FlushFailed)

    # -- directories and names ----------------------------------------------------------------

    def make_directory(self, path: Path, mode: int = 0o777) -> bool:
        self._check_alive()
        if path.is_dir():
            return False
        self.make_directory(path.parent)
        make_directory = super().make_directory

        def do() -> bool:
            made = make_directory(path, mode)
            if self._disk is not None and self._disk.holds(path):
                self._disk.made_directory(path)
            return made

        return self._operate("make_directory", path, do)

    def list_directory(self, path: Path) -> list[DirectoryEntry]:
        self._check_alive()
        return super().list_directory(path)

    def exists(self, path: Path) -> bool:
        self._check_alive()
        return super().exists(path)

    def rename(self, source: Path, target: Path) -> None:
        rename = super().rename

        def do() -> None:
            rename(source, target)
            if self._disk is not None and self._disk.holds(source):
                self._disk.renamed(source, target)

        self._operate("rename", source, do)

    def remove(self, path: Path) -> None:
        remove = super().remove

        def do() -> None:
            was_there = path.exists()
            remove(path)
            if was_there and self._disk is not None and self._disk.holds(path):
                self._disk.removed(path)

        self._operate("remove", path, do)

    def remove_directory(self, path: Path) -> bool:
        remove_directory = super().remove_directory

        def do() -> bool:
            gone = remove_directory(path)
            if gone and self._disk is not None and self._disk.holds(path):
                self._disk.removed(path)
            return gone

        return self._operate("remove_directory", path, do)

    # -- small whole files, locks and limits --------------------------------------------------

    def read_file(self, path: Path) -> bytes | None:
        self._check_alive()
        return super().read_file(path)

    def lock_directory(self, path: Path) -> int:
        self._check_alive()
        fd = super().lock_directory(path)
        self._paths[fd] = path
        return fd

    def lock_file(self, path: Path) -> int:
        self._check_alive()
        return super().lock_file(path)

    def open_files_limit(self) -> int:
        self._check_alive()
        return super().open_files_limit()

    def process_id(self) -> int:
        self._check_alive()
        return super().process_id()
