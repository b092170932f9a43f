"""Segments that have left the log: deleted at once, given back when nobody reads them any more.

Reads hand out views on a segment's map, and a view may be held for as long as a slow consumer
takes to receive it. Deleting the file does not disturb it: name and log are rid of the segment,
its pages and disk blocks stay until the last view goes. Who holds one beyond the grace period
keeps the memory, but the blocks are freed under him: he reads zeros from then on.

RocketMQ counts references instead, keeps the file while there are any, and after the grace
period unmaps it under its readers.

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
        #: Deleted, but read: until when their blocks are left alone; None: they are gone.
        self._held: dict[Segment, float | None] = {}
        self._reported = ""

    def add(self, segment: Segment) -> None:
        """Take a segment that has left the log; ``step`` does the rest. Oldest first."""
        self._leaving.append(segment)

    @property
    def deleted(self) -> bool:
        """Whether every segment taken is gone from its directory."""
        return not self._leaving

    @property
    def held_count(self) -> int:
        """Deleted segments that somebody still reads."""
        return len(self._held)

    def step(self, now_s: float) -> int:
        """Delete and give back what can be; return how many segments got further.

        What cannot be deleted is reported once and tried again by the next step. Nothing behind
        it is deleted meanwhile: after a crash the files must follow each other.
        """
        done = 0
        while self._leaving:
            segment = self._leaving[0]
            try:
                self._files.remove(segment.path)
                self._files.sync_directory(segment.path.parent)
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
                "asked for?); its disk space was freed all the same, and who holds it reads zeros",
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
        """Let everything go; views handed out stay valid. What is not deleted yet stays."""
        for segment in (*self._leaving, *self._held):
            segment.close()
        self._leaving.clear()
        self._held.clear()
