"""How full the disks of a store are, and whether writes are refused; levels: ``policy``."""

import logging
from collections.abc import Mapping
from pathlib import Path

from pymq.errors import StoreError
from pymq.store.config import StoreConfig
from pymq.store.files import DiskUsage, Files
from pymq.store.retention.policy import DiskLevel, fits_next, level_of

_log = logging.getLogger(__name__)

Usages = Mapping[Path, DiskUsage]


class DiskWatch:
    """Checks how full the disks are, and logs changes of the level."""

    def __init__(self, config: StoreConfig, files: Files) -> None:
        self._config = config
        self._files = files
        self._log_paths = config.log_paths
        self._logged = ""
        self.level = DiskLevel.PLENTY
        #: How full the disks were at the last check.
        self.usages: Usages = {}
        #: Why writes are refused; None: they are not.
        self.refusal: str | None = None
        #: Directories of the log that get no new files while there is another one.
        self.full_log_paths: frozenset[Path] = frozenset()

    def look(self) -> Usages:
        """Return how full the disks are; in any thread. Failures are logged once and left out."""
        found, errors = {}, []
        for path in (*self._log_paths, self._config.queues_path):
            try:
                found[path] = self._files.disk_usage(path)
            except StoreError as error:
                errors.append(str(error))
        before, self._logged = self._logged, "; ".join(errors)
        if self._logged not in ("", before):
            _log.warning("how full the disk is cannot be seen: %s", self._logged)
        return found

    def record(self, usages: Usages) -> None:
        """Adopt what ``look`` returned."""
        self.usages = usages
        logs = [path for path in self._log_paths if path in usages]
        self.full_log_paths = frozenset(
            path for path in logs if level_of(usages[path], self._config) >= DiskLevel.FORCE
        )
        fitting = [path for path in logs if fits_next(usages[path], self._config)]
        roomiest = min(fitting or logs, key=lambda path: usages[path].ratio, default=None)
        counted = [path for path in (roomiest, self._config.queues_path) if path in usages]
        levels = {path: level_of(usages[path], self._config) for path in counted if path}
        path = max(levels, key=levels.__getitem__, default=self._config.root_path)
        level = levels.get(path, DiskLevel.PLENTY)
        if level is self.level:
            return
        text = self._text(path, usages[path]) if path in usages else f"{path}: not seen"
        _log.log(
            logging.WARNING if level > max(self.level, DiskLevel.CLEAN) else logging.INFO,
            "disk level %s (before: %s): %s",
            level.name,
            self.level.name,
            text,
        )
        self.level = level
        self.refusal = None
        if level is DiskLevel.FULL:
            self.refusal = (
                f"{text}; writes are refused above {self._config.disk_full_percent} % "
                "(diskSpaceWarningLevelRatio): free some space there, or set diskFreeEnoughBytes "
                "if what is left is enough"
            )

    def lack_of_room(self, path: Path) -> str | None:
        """Return why a directory must not have the next file of the log; None: it may.

        In any thread. A disk that cannot be looked at is left to the attempt.
        """
        try:
            usage = self._files.disk_usage(path)
        except StoreError:
            return None
        if fits_next(usage, self._config):
            return None
        # Without what is left: that changes all the time, and this is logged whenever it changes.
        return (
            f"{path}: no space left on the device for the next file of the log "
            f"(mappedFileSizeCommitLog={self._config.segment_bytes}) below "
            f"{self._config.disk_full_percent} % (diskSpaceWarningLevelRatio); "
            "free some space there"
        )

    def _text(self, path: Path, usage: DiskUsage) -> str:
        left = usage.available_bytes >> 20
        return f"{path}: its disk is {usage.ratio:.1%} full, {left} MiB are left"
