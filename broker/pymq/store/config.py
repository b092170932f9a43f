"""The settings of one message store; fixed for its lifetime, but for those marked as live.

The fields have RocketMQ's keys in the form that ``pymq.settings`` reads; the store itself does not
read configuration files.
"""

import re
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from pymq.errors import ConfigurationError

#: Bytes of one consume-queue entry.
ENTRY_BYTES = 20
#: One unit of a consume queue's extension, and the end mark after it.
EXTENSION_BYTES_LEAST = 24
#: RocketMQ addresses records in a segment by a signed 32-bit number.
SEGMENT_BYTES_LIMIT = (1 << 31) - 1
SEGMENT_BYTES_LEAST = 256
#: What a record may take in addition to its body, as in RocketMQ.
RECORD_EXTRA_BYTES = 64 << 10


#: Bounds of the disk levels in RocketMQ.
_DISK_BOUNDS = (
    ("disk_clean_percent", 10, 95),
    ("disk_force_percent", 30, 85),
    ("disk_full_percent", 35, 90),
)

#: Other precisions of timers become the next smaller one, as in RocketMQ.
_PRECISIONS_MS = (100, 200, 500, 1000)
_SECOND, _MINUTE, _HOUR = 1000, 60_000, 3_600_000
#: "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
DELAY_LEVELS_MS = (
    *(seconds * _SECOND for seconds in (1, 5, 10, 30)),
    *(minutes * _MINUTE for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
    *(hours * _HOUR for hours in (1, 2)),
)


class FlushMode(Enum):
    """When a stored message counts as stored (RocketMQ ``flushDiskType``)."""

    ASYNC = "async"  #: in the page cache: survives the process, not the machine
    SYNC = "sync"  #: on the disk


_LEVEL_UNITS_MS = {"s": _SECOND, "m": _MINUTE, "h": _HOUR, "d": 24 * _HOUR}
_LEVEL = re.compile(r"([0-9]+)([smhd])")


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Return the delays, ms, of a string like ``1s 5s 10s 30s 1m 2h``.

    Raises:
        ValueError: a level is not a number with one of the units s, m, h, d.
    """
    levels = [(level, _LEVEL.fullmatch(level)) for level in text.split()]
    wrong = [level for level, found in levels if found is None]
    if wrong or not levels:
        raise ValueError(f"{' '.join(wrong)!r}: expected levels like '1s 5s 1m 2h'")
    return tuple(int(found[1]) * _LEVEL_UNITS_MS[found[2]] for _, found in levels if found)


def format_delay_levels(levels_ms: tuple[int, ...]) -> str:
    """Return the string that ``parse_delay_levels`` parses."""
    return " ".join(map(_format_level, levels_ms))


def _format_level(level_ms: int) -> str:
    if level_ms % _LEVEL_UNITS_MS["s"]:
        return f"{level_ms / _LEVEL_UNITS_MS['s']:g}s"  # of a test: no configuration file has it
    unit = max(
        (unit for unit, ms in _LEVEL_UNITS_MS.items() if level_ms % ms == 0),
        key=_LEVEL_UNITS_MS.__getitem__,
    )
    return f"{level_ms // _LEVEL_UNITS_MS[unit]}{unit}"


def _parse_flush(text: str) -> FlushMode:
    try:
        return FlushMode(text.lower().removesuffix("_flush"))
    except ValueError as error:
        raise ValueError("expected SYNC_FLUSH or ASYNC_FLUSH") from error


def _parse_paths(text: str) -> tuple[Path, ...]:
    return tuple(Path(part.strip()) for part in text.split(",") if part.strip())


def _format_paths(paths: tuple[Path, ...]) -> str:
    return ",".join(map(str, paths))


def _parse_hours(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(hour) for hour in text.split(";") if hour.strip())
    except ValueError as error:
        raise ValueError("expected hours like 04 or 02;14") from error


def _key(key: str, *aliases: str, **more: Any) -> dict[str, Any]:
    """Return the metadata that lets a configuration file set a field."""
    return {"key": key, "aliases": aliases, **more}


_FLUSH_KEY = _key("flushDiskType", parse=_parse_flush, format=lambda mode: f"{mode.name}_FLUSH")
_LOG_KEY = _key("storePathCommitLog", parse=_parse_paths, format=_format_paths)
_READ_ONLY_KEY = _key("readOnlyCommitLogStorePaths", parse=_parse_paths, format=_format_paths)
_HOURS_KEY = _key(
    "deleteWhen",
    parse=_parse_hours,
    format=lambda hours: ";".join(f"{hour:02d}" for hour in hours),
    live=True,
)
_LEVELS_KEY = _key("messageDelayLevel", parse=parse_delay_levels, format=format_delay_levels)


#: A packed address and its port.
_IPV4_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Settings of one ``MessageStore``, under RocketMQ's keys."""

    root_path: Path = field(metadata=_key("storePathRootDir"))
    #: Directories of the commit log; none: root_path/commitlog. Files are distributed round robin
    #: over those that are neither read-only nor above ``disk_force_percent``.
    commit_log_paths: tuple[Path, ...] = field(default=(), metadata=_LOG_KEY)
    #: Further directories, or some of these, in which no file is created.
    read_only_log_paths: tuple[Path, ...] = field(default=(), metadata=_READ_ONLY_KEY)
    segment_bytes: int = field(
        default=1 << 30, metadata=_key("mappedFileSizeCommitLog", "mapedFileSizeCommitLog")
    )
    #: Rounded up to a whole number of 20-byte entries, as RocketMQ does.
    queue_file_bytes: int = field(
        default=6_000_000,
        metadata=_key("mappedFileSizeConsumeQueue", "mapedFileSizeConsumeQueue"),
    )
    #: Whether the tag code of an entry is in a unit of its own, with store time and bit map.
    #: Stores with such units can be read in any case.
    queue_extension: bool = field(default=False, metadata=_key("enableConsumeQueueExt"))
    queue_extension_file_bytes: int = field(
        default=48 << 20, metadata=_key("mappedFileSizeConsumeQueueExt")
    )
    #: Write every page of the next commit-log file and lock it in memory before it is needed, so
    #: that no append waits for a page.
    warm_segments: bool = field(default=False, metadata=_key("warmMapedFileEnable"))
    #: With SYNC_FLUSH, a flush follows after every this many pages of 4 KiB.
    warm_flush_pages: int = field(default=4096, metadata=_key("flushLeastPagesWhenWarmMapedFile"))
    #: Collect records in memory and write them to the file when ``commit_pages_least`` pages of
    #: 4 KiB are full, or ``commit_interval_ms`` after the last time. A weaker promise: with
    #: ASYNC_FLUSH, acknowledged messages that are not written yet, by default those of up to
    #: 200 ms, are lost when the process is killed; without a pool they would survive. With
    #: SYNC_FLUSH nothing changes: acknowledged messages are on the disk.
    transient_pool: bool = field(default=False, metadata=_key("transientStorePoolEnable"))
    #: Number of buffers, of ``segment_bytes`` each, allocated when they are needed.
    transient_pool_size: int = field(default=5, metadata=_key("transientStorePoolSize"))
    #: Refuse puts (SYSTEM_BUSY) when no buffer is free, instead of writing to the file.
    transient_pool_refuses: bool = field(
        default=False, metadata=_key("fastFailIfNoBufferInStorePool")
    )
    commit_interval_ms: int = field(default=200, metadata=_key("commitIntervalCommitLog"))
    commit_pages_least: int = field(default=4, metadata=_key("commitCommitLogLeastPages"))
    #: Limit of one body; a whole record may be 64 KiB larger.
    message_bytes_max: int = field(default=4 << 20, metadata=_key("maxMessageSize"))
    flush_mode: FlushMode = field(default=FlushMode.ASYNC, metadata=_FLUSH_KEY)
    #: How often the log is flushed without a waiter: what a power loss may cost with ASYNC_FLUSH.
    flush_interval_ms: int = field(default=500, metadata=_key("flushIntervalCommitLog"))
    #: Such a flush waits until this many pages of 4 KiB were written, or until the thorough
    #: interval is over. With RocketMQ's default of 4, the last 16 KiB wait for ten seconds.
    flush_pages_least: int = field(default=0, metadata=_key("flushCommitLogLeastPages"))
    flush_thorough_interval_ms: int = field(
        default=10_000, metadata=_key("flushCommitLogThoroughInterval")
    )
    queue_flush_interval_ms: int = field(
        default=60_000, metadata=_key("flushConsumeQueueThoroughInterval")
    )
    #: Minimum time between two writes of the checkpoint file by log flushes.
    checkpoint_interval_ms: int = 1000  # fixed at 1 s in RocketMQ 5.x
    check_crc_on_recover: bool = field(default=True, metadata=_key("checkCRCOnRecover"))
    #: Whether every new record ends with a checksum of the whole record: 20 B that detect damage
    #: outside the body, too.
    append_record_crc: bool = field(default=False, metadata=_key("enabledAppendPropCRC"))
    #: Whether a record without such a checksum counts as damage in recovery. (An existing one is
    #: verified in any case.) For logs in which every record has one: if older records lack it, the
    #: store does not open. No effect without ``check_crc_on_recover``.
    force_record_crc: bool = field(default=False, metadata=_key("forceVerifyPropCRC"))
    #: Delays of levels 1, 2, ...: the queue entry of a delayed message holds its delivery time,
    #: and recovery computes it again.
    delay_levels_ms: tuple[int, ...] = field(default=DELAY_LEVELS_MS, metadata=_LEVELS_KEY)
    #: Whether messages can wait for a time of their own.
    timer_wheel: bool = field(default=True, metadata=_key("timerWheelEnable"))
    #: Size of a file of the timer log.
    timer_log_file_bytes: int = field(default=100 << 20, metadata=_key("mappedFileSizeTimerLog"))
    #: How exact the times of timer messages are: 100, 200, 500 or 1000 ms.
    timer_precision_ms: int = field(default=1000, metadata=_key("timerPrecisionMs"))
    #: Timer messages that are due later than this many slots from now are put back for another
    #: round before, so that the commit log still holds them when they are due.
    timer_roll_window_slots: int = field(default=172_800, metadata=_key("timerRollWindowSlot"))
    #: Whether messages are listed in the light queues that they name (LMQ); needs both.
    light_queues: bool = field(default=False, metadata=_key("enableLmq"))
    multi_dispatch: bool = field(default=False, metadata=_key("enableMultiDispatch"))
    #: Messages that name further light queues are refused.
    light_queue_count_max: int = field(default=20_000, metadata=_key("maxLmqConsumeQueueNum"))
    #: Whether messages can be found by their keys.
    key_index: bool = field(default=True, metadata=_key("messageIndexEnable"))
    #: Determines, with ``index_item_limit``, the size of index files: 40 + 4 * slots + 20 * limit
    #: bytes, sparse. Neither can change during the life of a store.
    index_slot_count: int = field(default=5_000_000, metadata=_key("maxHashSlotNum"))
    #: One file holds one item less.
    index_item_limit: int = field(default=20_000_000, metadata=_key("maxIndexNum"))
    #: Consume-queue files open at the same time; at most half of the limit of the process.
    queue_files_open_max: int = 1 << 16
    #: How many bytes of torn tails are kept under root_path/recovered. (What is cut off because
    #: the master has other bytes is kept whole, and does not count.)
    recovered_bytes_max: int = field(default=64 << 20, metadata=_key("pymqRecoveredBytesMax"))
    #: How long a commit-log file is kept after its last write, hours.
    reserved_hours: int = field(default=72, metadata=_key("fileReservedTime", live=True))
    #: Hours of the day, local time, in which older files are deleted.
    delete_hours: tuple[int, ...] = field(default=(4,), metadata=_HOURS_KEY)
    clean_interval_ms: int = field(default=10_000, metadata=_key("cleanResourceInterval"))
    #: Pause between two deletions, so that they do not occupy the disk.
    clean_pause_ms: int = field(default=100, metadata=_key("deleteCommitLogFilesInterval"))
    #: Maximum number of commit-log files deleted by one pass.
    clean_batch_max: int = field(default=10, metadata=_key("deleteFileBatchMax"))
    #: How long the blocks of a deleted file are kept while it is still read.
    held_grace_ms: int = field(default=120_000, metadata=_key("destroyMapedFileIntervalForcibly"))
    #: Levels of the disks of log and queues, per cent used. Above the first, files past
    #: ``reserved_hours`` are deleted at any hour; above the second, the oldest files whatever
    #: their age (if ``force_clean``); above the third, writes are refused. Values out of RocketMQ's
    #: bounds (10..95, 30..85, 35..90) become the nearest bound, as there.
    disk_clean_percent: int = field(default=75, metadata=_key("diskMaxUsedSpaceRatio", live=True))
    disk_force_percent: int = field(
        default=85, metadata=_key("diskSpaceCleanForciblyRatio", live=True)
    )
    disk_full_percent: int = field(
        default=90, metadata=_key("diskSpaceWarningLevelRatio", live=True)
    )
    force_clean: bool = field(default=True, metadata=_key("cleanFileForciblyEnable", live=True))
    #: The levels do not apply while this much is free: 93 % of a large disk says little. RocketMQ
    #: has no such setting, and behaves as with 0.
    disk_free_enough_bytes: int = field(default=0, metadata=_key("diskFreeEnoughBytes"))
    #: Pause before the next try after a refused write (disk full).
    retry_after_ms: int = 1000

    def __post_init__(self) -> None:
        _check("segment_bytes", self.segment_bytes, SEGMENT_BYTES_LEAST, SEGMENT_BYTES_LIMIT)
        _check("queue_file_bytes", self.queue_file_bytes, 1, SEGMENT_BYTES_LIMIT - ENTRY_BYTES)
        _check(
            "queue_extension_file_bytes",
            self.queue_extension_file_bytes,
            EXTENSION_BYTES_LEAST,
            SEGMENT_BYTES_LIMIT,
        )
        _check("warm_flush_pages", self.warm_flush_pages, 1, 1 << 30)
        _check("transient_pool_size", self.transient_pool_size, 1, 1 << 16)
        _check("commit_interval_ms", self.commit_interval_ms, 1, 86_400_000)
        _check("commit_pages_least", self.commit_pages_least, 0, 1 << 20)
        _check("message_bytes_max", self.message_bytes_max, 1, SEGMENT_BYTES_LIMIT)
        _check("flush_interval_ms", self.flush_interval_ms, 1, 86_400_000)
        _check("flush_pages_least", self.flush_pages_least, 0, 1 << 20)
        _check("flush_thorough_interval_ms", self.flush_thorough_interval_ms, 1, 86_400_000)
        _check("queue_flush_interval_ms", self.queue_flush_interval_ms, 1, 86_400_000)
        _check("checkpoint_interval_ms", self.checkpoint_interval_ms, 0, 86_400_000)
        _check("timer_log_file_bytes", self.timer_log_file_bytes, 1 << 7, SEGMENT_BYTES_LIMIT)
        _check("timer_roll_window_slots", self.timer_roll_window_slots, 0, 1 << 31)
        _check("index_slot_count", self.index_slot_count, 1, 1 << 28)
        _check("index_item_limit", self.index_item_limit, 2, 1 << 28)
        _check("light_queue_count_max", self.light_queue_count_max, 0, 1 << 31)
        _check("queue_files_open_max", self.queue_files_open_max, 1, 1 << 20)
        _check("recovered_bytes_max", self.recovered_bytes_max, 0, 1 << 40)
        _check("retry_after_ms", self.retry_after_ms, 0, 86_400_000)
        _check("reserved_hours", self.reserved_hours, 0, 1 << 20)
        for hour in self.delete_hours:
            _check("delete_hours", hour, 0, 24)
        _check("clean_interval_ms", self.clean_interval_ms, 1, 86_400_000)
        _check("clean_pause_ms", self.clean_pause_ms, 0, 86_400_000)
        _check("clean_batch_max", self.clean_batch_max, 1, 1 << 20)
        _check("held_grace_ms", self.held_grace_ms, 0, 86_400_000)
        _check("disk_free_enough_bytes", self.disk_free_enough_bytes, 0, 1 << 62)
        for name, least, most in _DISK_BOUNDS:
            percent = getattr(self, name)
            _check(name, percent, -(1 << 31), 1 << 31)
            object.__setattr__(self, name, min(max(percent, least), most))
        if not isinstance(self.flush_mode, FlushMode):
            raise ConfigurationError(
                f"flush_mode={self.flush_mode!r}: expected FlushMode.ASYNC or FlushMode.SYNC"
            )
        finer = [one for one in _PRECISIONS_MS if one <= self.timer_precision_ms]
        object.__setattr__(self, "timer_precision_ms", max(finer, default=_PRECISIONS_MS[0]))
        whole = -(-self.queue_file_bytes // ENTRY_BYTES) * ENTRY_BYTES
        object.__setattr__(self, "queue_file_bytes", whole)
        object.__setattr__(self, "root_path", Path(self.root_path))
        for name in ("commit_log_paths", "read_only_log_paths"):
            paths = tuple(map(Path, getattr(self, name)))
            if len(set(paths)) < len(paths) or any("," in str(path) for path in paths):
                raise ConfigurationError(
                    f"{name}={_format_paths(paths)}: expected directories without commas in "
                    "their names, each once"
                )
            object.__setattr__(self, name, paths)
        if not set(self.log_paths) - set(self.read_only_log_paths):
            raise ConfigurationError(
                f"read_only_log_paths={_format_paths(self.read_only_log_paths)} "
                "(readOnlyCommitLogStorePaths): no directory of the commit log is left to write to"
            )

    @property
    def lists_messages(self) -> bool:
        """Whether light queues list the messages that name them."""
        return self.light_queues and self.multi_dispatch

    @property
    def written_log_paths(self) -> tuple[Path, ...]:
        """The directories of the commit log in which files are created."""
        return tuple(path for path in self.log_paths if path not in self.read_only_log_paths)

    @property
    def log_paths(self) -> tuple[Path, ...]:
        """The directories of the commit log, without further ones that are read-only."""
        return self.commit_log_paths or (self.root_path / "commitlog",)

    @property
    def queues_path(self) -> Path:
        """The directory of the consume queues."""
        return self.root_path / "consumequeue"

    @property
    def index_path(self) -> Path:
        """The directory of the index files."""
        return self.root_path / "index"

    @property
    def queue_extensions_path(self) -> Path:
        """The directory of the consume queues' extensions."""
        return self.root_path / "consumequeue_ext"

    @property
    def record_bytes_max(self) -> int:
        """The largest record that can be stored."""
        return min(self.message_bytes_max + RECORD_EXTRA_BYTES, self.segment_bytes - 8)

    @property
    def together_bytes_max(self) -> int:
        """Bytes of many records that are put as one, at most: they always fit into a segment."""
        return self.segment_bytes // 8

    def takes_plain(self, store_host: bytes) -> bool:
        """Whether a broker with this packed address can put ``PlainRecords`` or ``CopiedRecords``.

        Their hosts are IPv4, and there is no checksum of the whole record.
        """
        return len(store_host) == _IPV4_BYTES and not self.append_record_crc


def _check(name: str, value: int, least: int, most: int) -> None:
    if not isinstance(value, int) or not least <= value <= most:
        raise ConfigurationError(f"{name}={value!r}: expected a number in {least}..{most}")
