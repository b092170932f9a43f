"""What may be deleted, and how full a disk may be: pure decisions.

===========  =====================  =========================================================
disk used    level                  what follows
===========  =====================  =========================================================
to 75 %      ``PLENTY``             files past ``reserved_hours`` deleted in ``delete_hours``
above 75 %   ``CLEAN``              they are deleted at any hour
above 85 %   ``FORCE``              the oldest are, whatever their age (``force_clean``)
above 90 %   ``FULL``               and writes are refused; reads and dispatch go on
===========  =====================  =========================================================

The higher level of the disks of commit log and consume queues counts. If the log has several
directories, the one with the most room counts, of those where another file fits.

Files of the log are reserved whole, so a disk may never reach 85 % and yet be too full for the
next one: below ``FULL``, for otherwise it could not be written. While the next file does not fit
anywhere, the level is ``FORCE`` at least. RocketMQ's files take room as they are written.

Source: RocketMQ DefaultMessageStore.CleanCommitLogService.
"""

from collections.abc import Collection
from datetime import datetime
from enum import IntEnum

from pymq.store.config import StoreConfig
from pymq.store.files import DiskUsage

_HOUR_MS = 3_600_000


class DiskLevel(IntEnum):
    """How full a disk is; see above."""

    PLENTY = 0
    CLEAN = 1
    FORCE = 2
    FULL = 3


def level_of(usage: DiskUsage, config: StoreConfig) -> DiskLevel:
    """Return the level of one disk."""
    if 0 < config.disk_free_enough_bytes <= usage.available_bytes:
        return DiskLevel.PLENTY
    percent = usage.ratio * 100
    if percent > config.disk_full_percent:
        return DiskLevel.FULL
    if percent > config.disk_force_percent:
        return DiskLevel.FORCE
    return DiskLevel.CLEAN if percent > config.disk_clean_percent else DiskLevel.PLENTY


def fits_next(usage: DiskUsage, config: StoreConfig) -> bool:
    """Return whether another file of the log fits on a disk, and can be written then."""
    size = config.segment_bytes
    after = DiskUsage(usage.used_bytes + size, usage.available_bytes - size)
    return level_of(after, config) < DiskLevel.FULL


def is_hour_of(now_ms: int, hours: Collection[int]) -> bool:
    """Return whether a time is in one of these hours of the day, local time."""
    return datetime.fromtimestamp(now_ms / 1000).hour in hours


def may_delete(
    last_write_ms: int | None,
    config: StoreConfig,
    *,
    now_ms: int,
    level: DiskLevel,
    is_requested: bool,
) -> bool:
    """Return whether the oldest segment may be deleted.

    Args:
        last_write_ms: when it was last written; None if unknown.
        config: the rules.
        now_ms: the time.
        level: of the disks.
        is_requested: an administrator wants old files to be deleted now.
    """
    if level >= DiskLevel.FORCE and config.force_clean:
        return True
    if last_write_ms is None or now_ms - last_write_ms < config.reserved_hours * _HOUR_MS:
        return False
    return is_requested or level > DiskLevel.PLENTY or is_hour_of(now_ms, config.delete_hours)
