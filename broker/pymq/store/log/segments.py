"""The ordered run of segments that forms the commit log's address space.

They may be in several directories, on several disks. File number i, counted from the start of
the address space, is created in ``writable[i % len(writable)]``: the directories sorted by name,
without those that are read-only or nearly full (if all are nearly full, that does not count). A
directory where the file does not fit is passed over. Existing files are used wherever they are.

A file is reserved whole, and only where there is room for it: a reservation that fails has taken
all the room there was, if only for a moment, and whatever else is on that disk would notice.

Source: RocketMQ MappedFileQueue, MultiPathMappedFileQueue, AllocateMappedFileService.
"""

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from threading import Lock

from pymq.errors import DiskFull, OffsetOutOfRange, StoreError, StoreMismatch
from pymq.store.files import Files
from pymq.store.log.segment import NORMAL_READS, Segment, parse_segment_name, segment_name
from pymq.store.log.warm_up import WarmUp

#: A file of the log that was read has two descriptors, its own and that of its map. All of them
#: together may take an eighth of what the process has: connections (``net.server``) take a half at
#: most, consume queues (``queue_table``) a quarter, and the rest is for whatever comes and goes.
_OPEN_SHARE = 16
_OPEN_LEAST = 4


class Segments:
    """Adjacent segments of one size; the first one may start at any multiple of it.

    When many are open, those that were opened first are closed again, but for those in use. To
    index a segment, or to find it, is to open it; who only asks where it is uses ``at``.

    Belongs to the thread of the store, except ``prepare_next`` and ``unlock_old``, which any thread
    may call. Whoever has to read files in another one is given descriptors (``Segment.fd``, as
    duplicates), paths, or files of its own: ``apart``.
    """

    def __init__(
        self,
        files: Files,
        paths: Sequence[Path],
        segment_bytes: int,
        *,
        read_only: Collection[Path] = (),
        warm_up: WarmUp | None = None,
    ) -> None:
        self._warm_up = warm_up
        self._files = files
        self._read_only = frozenset(read_only)
        self._paths = sorted({*paths, *read_only}, key=str)
        self._all: list[Segment] = []
        #: Those that are open, the one opened first first.
        self._opened: dict[Segment, None] = {}
        self._open_max = max(_OPEN_LEAST, files.open_files_limit() // _OPEN_SHARE)
        #: If more are open, it is worth trying to close some.
        self._tolerated = self._open_max
        #: Returns from where on files may have to be flushed. They stay open: a file that is opened
        #: later may not be told what could not be written.
        self.unflushed_from: Callable[[], int] = lambda: sys.maxsize
        self._empty: list[Path] = []
        self._creating = Lock()
        #: Where the first file of an empty log begins.
        self._empty_first = 0
        self._prepared: Segment | None = None
        self._advice = NORMAL_READS
        self.segment_bytes = segment_bytes
        #: Directories whose disks are nearly full.
        self.full_paths: Collection[Path] = ()
        #: Returns why a directory must not have a new file; None: it may. Called in any thread.
        self.lack_of_room: Callable[[Path], str | None] = lambda path: None
        #: Why the next file could not be created for want of room, last time; None: it could.
        self.no_room: str | None = None

    def load(self) -> None:
        """Find the files that exist; nothing is changed.

        Raises:
            StoreMismatch: a file has another size or name than a segment can have.
        """
        listed = [
            (entry.name, path, entry.size)
            for path in self._paths
            for entry in self._files.list_directory(path)
            if not entry.is_directory
        ]
        listed.sort(key=lambda file: file[0])
        for number, (name, directory, size) in enumerate(listed):
            path = directory / name
            first = parse_segment_name(name)
            if first is None:
                raise StoreMismatch(
                    f"{path}: not a commit-log file (their names are 20 digits); "
                    "move it out of this directory"
                )
            if number and listed[number - 1][0] == name:
                raise StoreMismatch(
                    f"{path}: {listed[number - 1][1]} has a file of this name, too; only one of "
                    "them belongs to this log (storePathCommitLog, readOnlyCommitLogStorePaths): "
                    "move the other away"
                )
            if size == 0 and number == len(listed) - 1:
                self._empty.append(path)  # A crash interrupted its creation.
                continue
            if size != self.segment_bytes:
                raise StoreMismatch(
                    f"{path}: {size} B, expected {self.segment_bytes} B (segment_bytes, "
                    "RocketMQ mappedFileSizeCommitLog): set the size this store was written "
                    "with, or use another store directory"
                )
            if first % self.segment_bytes or (self._all and first != self._all[-1].end):
                expected = self._all[-1].end if self._all else first - first % self.segment_bytes
                raise StoreMismatch(
                    f"{path}: expected {segment_name(expected)} next, commit-log files must "
                    "follow each other without a gap: put the missing file back"
                )
            read_only = directory in self._read_only
            self._all.append(
                Segment(self._files, path, first, self.segment_bytes, read_only=read_only)
            )
        if self._all and self._all[-1].read_only:
            raise StoreMismatch(
                f"{self._all[-1].path}: the log goes on in this file, but its directory is "
                "read-only (readOnlyCommitLogStorePaths): move the file to a directory of "
                "storePathCommitLog"
            )

    def apart(self) -> "Segments":
        """Return the files of now for another thread to read, which opens all it needs itself.

        Few of them stay open at a time. One that is deleted before it was opened is a StoreError.
        """
        own = Segments(self._files, self._paths, self.segment_bytes)
        own._open_max = own._tolerated = _OPEN_LEAST
        own._all = [
            Segment(self._files, one.path, one.first, one.size_bytes, read_only=True)
            for one in self._all
        ]
        return own

    def drop_empty(self) -> None:
        """Remove a last file of length 0: a crash interrupted its creation."""
        while self._empty:
            path = self._empty.pop()
            self._files.remove(path)
            self._files.fsync_directory(path.parent)

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, index: int) -> Segment:
        segment = self._all[index]
        if segment.is_closed:
            self._count_open(segment)
        return segment

    def at(self, index: int) -> Segment:
        """Return a segment only to ask where it is."""
        return self._all[index]

    def __iter__(self) -> Iterator[Segment]:
        """Iterate over the segments, only to ask where they are, as ``at``."""
        return iter(self._all)

    @property
    def prepared(self) -> bool:
        """Whether the next segment is ready."""
        return self._prepared is not None

    def find(self, physical_offset: int) -> Segment:
        """Return the segment that holds an offset.

        Raises:
            OffsetOutOfRange: none does.
        """
        every = self._all
        if every:
            index = (physical_offset - every[0].first) // self.segment_bytes
            if 0 <= index < len(every):
                return self[index]
        kept = f"{every[0].first}..{every[-1].end}" if every else "nothing"
        raise OffsetOutOfRange(f"physical offset {physical_offset}, the log holds {kept}")

    def _count_open(self, segment: Segment) -> None:
        """Record that a segment is about to be opened; close others if there are many."""
        self._opened.pop(segment, None)
        self._opened[segment] = None
        if len(self._opened) > self._tolerated:
            self.close_many()

    def close_many(self) -> None:
        """Close segments, the one opened first first, while more are open than may be."""
        excess = len(self._opened) - self._open_max
        if excess <= 0:
            return
        kept = {next(reversed(self._opened)), *self._all[-2:]}  # The former is just wanted.
        for segment in [one for one in self._opened if one not in kept]:
            if segment.end <= self.unflushed_from() and segment.close_unused():
                del self._opened[segment]
                excess -= 1
                if not excess:
                    break
        # Those in use are not tried again for each one that is opened.
        self._tolerated = len(self._opened) * 5 // 4 if excess else self._open_max

    def _directories_for(self, first: int) -> list[Path]:
        """Return where the file that begins at an offset may be, in the order of trying."""
        writable = [path for path in self._paths if path not in self._read_only]
        roomy = [path for path in writable if path not in self.full_paths] or writable
        turn = first // self.segment_bytes % len(roomy)
        return [*roomy[turn:], *roomy[:turn], *(path for path in writable if path not in roomy)]

    def _create(self, first: int) -> Segment:
        failure: DiskFull | None = None
        for directory in self._directories_for(first):
            reason = self.lack_of_room(directory)
            try:
                if reason is not None:
                    raise DiskFull(reason)
                segment = self._create_in(directory, first)
            except DiskFull as error:
                failure = failure or error
            else:
                self.no_room = None
                return segment
        assert failure is not None
        self.no_room = str(failure)
        raise failure

    def _create_in(self, directory: Path, first: int) -> Segment:
        if self._files.make_directory(directory):
            self._files.fsync_directory(directory.parent)
        path = directory / segment_name(first)
        fd = self._files.create(path, self.segment_bytes, reserve=True)
        segment = Segment(self._files, path, first, self.segment_bytes, fd)
        segment.advise(self._advice)
        try:
            self._files.fsync_directory(directory)
        except StoreError:
            self._files.half_made |= {path}
            segment.remove()  # Otherwise the next try would find it in its place.
            raise
        return segment

    def advise(self, advice: int) -> None:
        """Tell the system how the files will be read, now and later; see ``Segment.advise``."""
        self._advice = advice
        for segment in [*self._all, *filter(None, [self._prepared])]:
            segment.advise(advice)

    def prepare_next(self) -> None:
        """Create the next segment before it is needed; in any thread.

        Raises:
            DiskFull, StoreError: it could not be created, and no file is left.
        """
        with self._creating:
            if self._prepared is None:
                segment = self._create(self._next_first)
                if self._warm_up is not None:
                    self._warm_up.run(self._files, segment)
                self._prepared = segment

    def make_next(self) -> None:
        """Create the next segment now unless it is prepared; a running warm-up is cut short.

        Raises:
            DiskFull, StoreError: as ``prepare_next``.
        """
        if self._warm_up is not None:
            self._warm_up.is_hurried = True
        with self._creating:
            if self._warm_up is not None:
                self._warm_up.is_hurried = False
            if self._prepared is None:
                self._prepared = self._create(self._next_first)

    @property
    def _next_first(self) -> int:
        return self._all[-1].end if self._all else self._empty_first

    def begin_at(self, first: int) -> None:
        """Have the first file of an empty log begin at an offset that a file can begin at."""
        assert not self._all and first % self.segment_bytes == 0
        self._empty_first = first

    def unlock_old(self) -> None:
        """Unlock the memory of all segments but the last one; in any thread."""
        if self._warm_up is not None and self._all:
            self._warm_up.unlock_below(self._all[-1].first)

    def append_next(self) -> Segment:
        """Add the next segment, prepared or created now, and return it.

        Raises:
            DiskFull, StoreError: it could not be created, and no file is left.
        """
        with self._creating:
            first = self._next_first
            segment, self._prepared = self._prepared, None
            if segment is None or segment.first != first:
                if segment is not None:
                    segment.remove()
                segment = self._create(first)
            self._all.append(segment)
        self._count_open(segment)
        return segment

    def drop_prepared(self) -> None:
        """Delete a prepared segment that was not used."""
        with self._creating:
            if self._prepared is not None:
                directory = self._prepared.path.parent
                self._prepared.remove()
                self._prepared = None
                self._files.fsync_directory(directory)

    def flush_names(self) -> None:
        """Make names and sizes of files durable, also of those that an earlier process created.

        Even after a clean stop one may not be: what a creation left behind that failed. That is the
        last one.
        """
        if self._all:
            self._all[-1].flush()
        for path in dict.fromkeys(segment.path.parent for segment in self._all):
            self._files.fsync_directory(path)
            self._files.fsync_directory(path.parent)

    def drop_after(self, count: int) -> None:
        """Keep the first ``count`` segments and delete the others, last first.

        Each deletion is durable before the next one, so that a power loss leaves no gap.
        """
        while len(self._all) > count:
            segment = self._all.pop()
            self._opened.pop(segment, None)
            segment.remove()
            self._files.fsync_directory(segment.path.parent)

    def take_first(self) -> Segment:
        """Take the oldest segment, which must not be the only one, out of the log."""
        assert len(self._all) > 1
        segment = self._all.pop(0)
        self._opened.pop(segment, None)
        return segment

    def close(self) -> None:
        """Close all files; views on them stay valid."""
        for segment in self._all:
            segment.close()
        with self._creating:
            if self._prepared is not None:
                self._prepared.close()
                self._prepared = None
