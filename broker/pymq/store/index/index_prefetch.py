"""Reading what the next step of indexing needs, in a thread, if it may have to come from the disk.

That is so after a start: the newest index file has 20 MB of slots, and the log that was not indexed
yet may be long.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

from pymq.errors import StoreError
from pymq.store.files import Files
from pymq.store.index.index_file import IndexFile, Slots

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class IndexPrefetchJob:
    """``run`` in any thread, then ``Indexer.finish_prefetch``.

    Attributes:
        files: the operating system.
        log_part: path of a segment, size and position of a part of it; None: it is in memory.
        file: an index file without its slots in memory; None: there is none.
        slots: of that file.
    """

    files: Files
    log_part: tuple[Path, int, int] | None
    file: IndexFile | None
    slots: Slots | None = None

    def run(self) -> None:
        """Read. Whoever needs it meets errors again, and reports them."""
        try:
            if self.log_part is not None:
                self.files.read_part(*self.log_part)
            if self.file is not None:
                self.slots = self.file.read_slots()
        except StoreError as error:
            _log.debug("not prefetched: %s", error)
