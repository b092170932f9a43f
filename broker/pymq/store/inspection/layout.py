"""The files of a store directory, their sizes, and how the store was left.

Sizes are found from the files: all commit-log files of a store have the same size, and so have
all queue files and all index files. A file that does not fit is a finding, and is left out.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pymq.errors import ConfigurationError, OffsetOutOfRange, StoreError
from pymq.store.config import ENTRY_BYTES, StoreConfig
from pymq.store.files import DirectoryEntry, Files, ReadOnlyFiles
from pymq.store.index.index_format import IndexLayout
from pymq.store.inspection.findings import Findings, Kind, Severity
from pymq.store.inspection.index_listing import IndexFileName, list_index_files
from pymq.store.inspection.reading import whole_record
from pymq.store.log.commit_log import STORE_TIME_END, store_time_of
from pymq.store.log.segment import parse_segment_name, segment_name
from pymq.store.queues.consume_queue import ConsumeQueue
from pymq.store.queues.queue_extension import QueueExtension
from pymq.store.queues.queue_table import QueueTable, queue_directories
from pymq.store.recovery.queue_repair import last_record_end
from pymq.store.recovery.unsupported_formats import check_kind
from pymq.store.searches import first_true
from pymq.store.state.checkpoint import CHECKPOINT_NAME, AbortMarker, Checkpoint
from pymq.store.state.clean_stop import CleanStop

#: Directories of RocketMQ whose content is not understood here.
_UNKNOWN_DIRECTORIES = {
    "compaction": "compacted topics",
}


@dataclass(frozen=True, slots=True)
class LogFile:
    """A commit-log file of the store's size."""

    path: Path
    first: int


@dataclass(slots=True)
class StoreLayout:
    """The content of a store directory.

    Attributes:
        config: the settings, with the sizes that were found; light queues are on if there are any.
        files: the operating system.
        in_use: a broker has the store open.
        unclean: there is an abort marker.
        log_files: ascending, adjacent.
        queues: those that have files, with their ends; these are correct if entries are written
            without a gap.
        index_files: oldest first.
        index_layout: None if there is no index, or its layout could not be determined.
        checkpoint, clean_stop: the content of these files.
    """

    config: StoreConfig
    files: ReadOnlyFiles
    in_use: bool
    unclean: bool
    log_files: list[LogFile]
    queues: QueueTable
    index_files: list[IndexFileName]
    index_layout: IndexLayout | None
    checkpoint: Checkpoint
    clean_stop: CleanStop

    @property
    def root(self) -> Path:
        """The store directory."""
        return self.config.root_path

    @property
    def log_first(self) -> int:
        """The lowest physical offset kept."""
        return self.log_files[0].first if self.log_files else 0

    @property
    def log_limit(self) -> int:
        """The end of the last commit-log file."""
        return self.log_files[-1].first + self.config.segment_bytes if self.log_files else 0

    def find_log_file(self, physical_offset: int) -> LogFile | None:
        """Return the file that holds a physical offset; None: there is none."""
        for one in self.log_files:
            if one.first <= physical_offset < one.first + self.config.segment_bytes:
                return one
        return None

    def read_log(self, physical_offset: int, size: int) -> bytes:
        """Return bytes of the log, fewer at the end of a file.

        Raises:
            OffsetOutOfRange: there is no such file.
        """
        one = self.find_log_file(physical_offset)
        if one is None:
            raise OffsetOutOfRange(f"physical offset {physical_offset}: no file holds it")
        fd = self.files.open(one.path)
        try:
            return self.files.pread(fd, size, physical_offset - one.first)
        finally:
            self.files.close(fd)

    def store_time_at(self, physical_offset: int) -> int | None:
        """Return the store time (ms) of the record at an offset; None: there is none."""
        try:
            data = self.read_log(physical_offset, STORE_TIME_END)
        except OffsetOutOfRange:
            return None
        return store_time_of(data) or None

    def first_trusted(self, trusted_ms: int) -> int:
        """Return where ``Recovery`` starts if all up to a store time is on the disk."""
        for one in reversed(self.log_files[1:]):
            record = whole_record(self.read_log, one.first, self.config.record_bytes_max)
            if record is not None and 0 < record.store_timestamp <= trusted_ms:
                return one.first
        return self.log_first

    def close(self) -> None:
        """Close all files."""
        self.queues.files.close()


def read_layout(config: StoreConfig, files: ReadOnlyFiles, findings: Findings) -> StoreLayout:
    """Return the content of a store directory; nothing is changed.

    Args:
        config: where it is, and what the files do not say.
        files: the operating system.
        findings: what does not fit is added there.

    Raises:
        StoreError: it cannot be read, is not a store, or is one in an unsupported format.
    """
    root = config.root_path
    if not any(files.exists(path) for path in (*config.log_paths, config.queues_path)):
        raise StoreError(
            f"{root}: no store is there: expected a directory {config.log_paths[0].name} in it; "
            "give the storePathRootDir of a broker"
        )
    check_kind(files, config)
    in_use = files.is_locked(root)
    unclean = AbortMarker(files, root).present()
    checkpoint = Checkpoint(files, root / CHECKPOINT_NAME)
    clean_stop = CleanStop(files, root)
    checkpoint.load()
    clean_stop.load()
    severity = Severity.NOTE if in_use else Severity.DAMAGE
    config = _with_log_size(config, files)
    log_files = _log_files(config, files, findings, severity)
    config = _with_queue_size(config, files)
    queues = _queues(config, files, findings, severity)
    index_files, index_layout = list_index_files(config, files, findings, severity)
    if index_layout is not None:
        config = replace(
            config,
            index_slot_count=index_layout.slot_count,
            index_item_limit=index_layout.item_limit,
        )
    if queues.light_count or clean_stop.has_light_queues:
        config = replace(config, light_queues=True, multi_dispatch=True)
    for name, what in _UNKNOWN_DIRECTORIES.items():
        if files.list_directory(root / name):
            findings.add(Kind.NOT_LOOKED_AT, Severity.NOTE, root / name, None, what)
    return StoreLayout(
        config,
        files,
        in_use,
        unclean,
        log_files,
        queues,
        index_files,
        index_layout,
        checkpoint,
        clean_stop,
    )


def _usual(sizes: Iterable[int]) -> int | None:
    counted = Counter(size for size in sizes if size)
    return counted.most_common(1)[0][0] if counted else None


def _resized(config: StoreConfig, path: Path, **sizes: Any) -> StoreConfig:
    try:
        return replace(config, **sizes)
    except ConfigurationError as error:
        raise StoreError(f"{path}: no store has files of this size: {error}") from error


# -- the log ----------------------------------------------------------------------------------


def _listed_log(config: StoreConfig, files: Files) -> list[tuple[str, Path, int]]:
    """Return (name, path, size) of everything in the directories of the log, by name."""
    listed = [
        (entry.name, path / entry.name, entry.size)
        for path in sorted({*config.log_paths, *config.read_only_log_paths}, key=str)
        for entry in files.list_directory(path)
        if not entry.is_directory
    ]
    return sorted(listed, key=lambda one: one[0])


def _with_log_size(config: StoreConfig, files: Files) -> StoreConfig:
    size = _usual(
        size for name, _, size in _listed_log(config, files) if parse_segment_name(name) is not None
    )
    return config if size is None else _resized(config, config.log_paths[0], segment_bytes=size)


def _log_files(
    config: StoreConfig, files: Files, findings: Findings, severity: Severity
) -> list[LogFile]:
    found: list[LogFile] = []
    size = config.segment_bytes
    listed = _listed_log(config, files)
    for name, path, file_bytes in listed:
        first = parse_segment_name(name)
        if first is None:
            findings.add(Kind.LOG_FILE, severity, path, None, "another name", "a name of 20 digits")
        elif found and first == found[-1].first:
            findings.add(
                Kind.LOG_FILE, severity, path, None, "a second file of this name", "only one"
            )
        elif file_bytes == 0 and path == listed[-1][1]:
            findings.add(
                Kind.LOG_FILE, Severity.REPAIR, path, None, "0 B: its creation was interrupted"
            )
        elif file_bytes != size or first % size:
            findings.add(
                Kind.LOG_FILE,
                severity,
                path,
                None,
                f"{file_bytes} B",
                f"{size} B like the others, and a name that is a multiple of it",
            )
        else:
            if found and first != found[-1].first + size:
                findings.add(
                    Kind.LOG_FILE,
                    severity,
                    path.with_name(segment_name(found[-1].first + size)),
                    None,
                    f"missing, {name} comes next",
                    count=max(1, (first - found[-1].first) // size - 1),
                )
            found.append(LogFile(path, first))
    return found


# -- queues -----------------------------------------------------------------------------------


def _with_queue_size(config: StoreConfig, files: Files) -> StoreConfig:
    sizes: Counter[int] = Counter()
    for _, _, directory in queue_directories(files, config.queues_path):
        sizes.update(
            one.size
            for one in files.list_directory(directory)
            if not one.is_directory and one.size % ENTRY_BYTES == 0
        )
    size = _usual(sizes.elements())
    return config if size is None else _resized(config, config.queues_path, queue_file_bytes=size)


def _queues(
    config: StoreConfig, files: Files, findings: Findings, severity: Severity
) -> QueueTable:
    table = QueueTable(
        files,
        config.queues_path,
        file_bytes=config.queue_file_bytes,
        open_max=config.queue_files_open_max,
        extensions=config.queue_extensions_path,
        extension_file_bytes=None,
    )
    for topic, queue_id, directory in queue_directories(files, config.queues_path):
        bases = _queue_files(
            directory, files.list_directory(directory), config.queue_file_bytes, findings, severity
        )
        if bases:
            queue = table.make(topic, queue_id)
            queue.add_files(bases)
            queue.end_offset = _written_end(queue)
            queue.physical_end = last_record_end(queue)
    for topic, queue_id, directory in queue_directories(files, config.queue_extensions_path):
        listed = files.list_directory(directory)
        size = _usual(one.size for one in listed if not one.is_directory)
        known = table.find(topic, queue_id)
        if size is None or known is None:
            continue
        bases = _queue_files(directory, listed, size, findings, severity)
        known.extension = QueueExtension(table.files, directory, size, bases)
    return table


def _queue_files(
    directory: Path,
    listed: list[DirectoryEntry],
    file_bytes: int,
    findings: Findings,
    severity: Severity,
) -> list[int]:
    """Return the offsets of the first bytes of a queue's files that fit."""
    bases: list[int] = []
    for entry in listed:
        if entry.is_directory:
            continue
        path, base = directory / entry.name, parse_segment_name(entry.name)
        if entry.size == 0 and base is not None:
            findings.add(
                Kind.QUEUE_FILE, Severity.REPAIR, path, None, "0 B: its creation was interrupted"
            )
        elif base is None or base % file_bytes or entry.size != file_bytes:
            findings.add(
                Kind.QUEUE_FILE,
                severity,
                path,
                None,
                f"{entry.size} B",
                f"{file_bytes} B like the others, and a name of 20 digits that is a multiple",
            )
        elif bases and base != bases[-1] + file_bytes:
            findings.add(
                Kind.QUEUE_FILE,
                Severity.REPAIR,  # Every start rebuilds such a queue.
                directory / segment_name(bases[-1] + file_bytes),
                None,
                f"missing, {entry.name} comes next",
            )
            bases.append(base)
        else:
            bases.append(base)
    return bases


def _written_end(queue: ConsumeQueue) -> int:
    """Return the end of the entries of a queue by bisecting its last file.

    Correct if entries are written without a gap.
    """
    per_file = queue.file_bytes // ENTRY_BYTES
    for base in reversed(queue.bases):
        low = base // ENTRY_BYTES
        end = first_true(low, low + per_file, lambda at: queue.entry(at)[1] == 0)
        if end > low:
            return end
    return queue.bases[0] // ENTRY_BYTES if queue.bases else 0
