"""Segments taken out of the log: deleted at once, unmapped when they are no longer read.

Reads return views on a segment's map, and a view lives as long as a slow consumer takes to
receive it. Deleting the file does not affect it: pages and disk blocks stay until the last view
is released. When the grace period is over, the blocks are freed all the same: a view that is
still in use keeps its memory, and reads zeros from then on.

RocketMQ counts references instead, keeps the file while there are any, and after the grace
period unmaps it although it is read.

Source: RocketMQ ReferenceResource, MappedFile.destroy, destroyMapedFileIntervalForcibly.
"""

import logging
from collections import deque

from pymq.errors import StoreError
from pymq.store.files import Files
from pymq.store.log.segment import Segment

_log = logging.getLogger(__name__)


class DeletedSegments:
    """``add`` belongs to the thread of the store; ``step`` to one thread at a time, any one."""

    def __init__(self, files: Files, grace_s: float) -> None:
        self._files = files
        self._grace_s = grace_s
        self._leaving: deque[Segment] = deque()
        #: Deleted, but read: when their blocks are to be freed; None: they have been.
        self._held: dict[Segment, float | None] = {}
        self._reported = ""

    def add(self, segment: Segment) -> None:
        """Add a segment that was taken out of the log, oldest first; ``step`` deletes it."""
        self._leaving.append(segment)

    @property
    def deleted(self) -> bool:
        """Whether the files of all added segments are deleted."""
        return not self._leaving

    @property
    def held_count(self) -> int:
        """Deleted segments that are still read."""
        return len(self._held)

    @property
    def frees_later(self) -> bool:
        """Whether the space of segments comes yet: they are to be deleted, or read for a while."""
        return bool(self._leaving) or any(one is not None for one in self._held.values())

    def step(self, now_s: float) -> int:
        """Delete and unmap what is possible; return how many segments were deleted or unmapped.

        A file that cannot be deleted is logged once, and the next step tries again. Later files
        stay until then: after a crash, the files must follow each other without a gap.
        """
        done = 0
        while self._leaving:
            segment = self._leaving[0]
            try:
                self._files.remove(segment.path)
                self._files.fsync_directory(segment.path.parent)
            except StoreError as error:
                self._report(error)
                break
            self._reported = ""
            if not segment.release():
                self._held[segment] = now_s + self._grace_s
            self._leaving.popleft()
            done += 1
        return done + sum(self._try_release(segment, now_s) for segment in list(self._held))

    def _report(self, error: StoreError) -> None:
        if str(error) != self._reported:
            self._reported = str(error)
            _log.error("an old commit-log file stays until this succeeds: %s", error)

    def _try_release(self, segment: Segment, now_s: float) -> bool:
        if segment.release():
            del self._held[segment]
            return True
        deadline = self._held[segment]
        if deadline is None or now_s < deadline:
            return False
        self._held[segment] = None
        if segment.give_back_blocks():
            _log.warning(
                "%s: deleted %g s ago and still read (a consumer that does not receive what it "
                "asked for?); its disk space was freed all the same, and the rest reads as zeros",
                segment.path,
                self._grace_s,
            )
            return True
        _log.warning(
            "%s: deleted %g s ago and still read; this system cannot free its disk space before "
            "the last reader lets go",
            segment.path,
            self._grace_s,
        )
        return False

    def close(self) -> None:
        """Close everything; views stay valid. Files that are not deleted yet stay."""
        for segment in (*self._leaving, *self._held):
            segment.close()
        self._leaving.clear()
        self._held.clear()
