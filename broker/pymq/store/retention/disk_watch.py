"""How full the disks of a store are, and what follows from it; the levels are in ``retention``."""

import logging
from collections.abc import Mapping
from pathlib import Path

from pymq.errors import StoreError
from pymq.store.config import StoreConfig
from pymq.store.files import DiskUsage, Files
from pymq.store.retention.policy import DiskLevel, level_of

_log = logging.getLogger(__name__)

Usages = Mapping[Path, DiskUsage]


class DiskWatch:
    """Knows how full the disks are and says so when that changes."""

    def __init__(self, config: StoreConfig, files: Files) -> None:
        self._config = config
        self._files = files
        self._log_paths = config.log_paths
        self._noted = ""
        self.level = DiskLevel.PLENTY
        #: How full they were when they were last looked at.
        self.usages: Usages = {}
        #: Why writes are refused; None while they are not.
        self.refusal: str | None = None
        #: Directories of the log where no new file should be made if there is another.
        self.full_log_paths: frozenset[Path] = frozenset()

    def look(self) -> Usages:
        """Return how full the disks are; in any thread. What cannot be seen is left out."""
        found = {}
        for path in (*self._log_paths, self._config.queues_path):
            try:
                found[path] = self._files.disk_usage(path)
            except StoreError as error:
                if str(error) != self._noted:
                    self._noted = str(error)
                    _log.warning("how full the disk is cannot be seen: %s", error)
        return found

    def note(self, usages: Usages) -> None:
        """Take over what ``look`` returned."""
        self.usages = usages
        logs = [path for path in self._log_paths if path in usages]
        self.full_log_paths = frozenset(
            path for path in logs if level_of(usages[path], self._config) >= DiskLevel.FORCE
        )
        roomiest = min(logs, key=lambda path: usages[path].ratio, default=None)
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

    def _text(self, path: Path, usage: DiskUsage) -> str:
        left = usage.available_bytes >> 20
        return f"{path}: its disk is {usage.ratio:.1%} full, {left} MiB are left"
