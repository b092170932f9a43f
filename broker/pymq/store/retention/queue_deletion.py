"""Deleting consume queues: those of deleted topics, and those whose messages have all expired."""

import itertools
import operator
from collections.abc import Callable, Collection, Iterator, Mapping

from pymq.errors import FlushFailed, StoreError
from pymq.store.log.commit_log import CommitLog
from pymq.store.queues.consume_queue import ConsumeQueue
from pymq.store.queues.queue_removal import QueueRemoval
from pymq.store.queues.queue_table import QueueKey, QueueTable
from pymq.store.retention.deleted_segments import DeletedSegments
from pymq.store.state.clean_stop import CleanStop
from pymq.store.write_gate import WriteGate


class QueueDeletion:
    """Deletes queues of a store, in its thread; their files may be removed in another one.

    Args:
        log, queues: of the store.
        clean_stop: records which queues are deleted.
        deleted_segments: says whether files of the log are being deleted.
        reach: says where the last record of a queue ends in the log, visible or not.
        gate: refuses calls of a closed store, and writes after a deletion that failed half way.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        clean_stop: CleanStop,
        deleted_segments: DeletedSegments,
        *,
        reach: Callable[[ConsumeQueue], int],
        gate: WriteGate,
    ) -> None:
        self._log = log
        self._queues = queues
        self._clean_stop = clean_stop
        self._deleted_segments = deleted_segments
        self._reach = reach
        self._gate = gate

    def recorded(self) -> Mapping[str, int]:
        """Return where the log ended when topics were deleted, as far as the next start knows it.

        Whoever keeps something about a topic in a file can tell by it whether that is of the topic
        that was deleted: if the file does not say that it knows of this deletion, or a later one.
        """
        return self._clean_stop.recorded

    def begin_delete(self, topic: str, *, before: int | None = None) -> QueueRemoval | None:
        """Delete the consume queues of a topic; records stay in the log.

        Offsets start from 0 if the topic is created again, which may be at once, also after a
        crash.

        Args:
            topic: its name.
            before: physical offset; queues with messages behind it stay, and what they list is of
                another topic of that name. None: none stays.

        Returns:
            A job that removes their files, which takes long if there are many: to be run and
            finished. None: there was no queue.

        Raises:
            DiskFull, StoreError: the deletion could not be recorded; nothing was deleted.
            FlushFailed: it may have been recorded. Final: the next start does the rest, and until
                then the store accepts no writes.
        """
        removals = self.begin_delete_topics([topic], before=before)
        return removals[0] if removals else None

    def begin_delete_topics(
        self, topics: Collection[str], *, before: int | None = None
    ) -> list[QueueRemoval]:
        """Delete the consume queues of several topics: of all of them, or of none.

        Args, Returns, Raises: see ``begin_delete``.
        """
        self._gate.check_open()
        end = self._log.end if before is None else before
        found: dict[str, list[ConsumeQueue]] = {}
        for queue in self._queues:
            if queue.topic in topics and self._reach(queue) <= end:
                found.setdefault(queue.topic, []).append(queue)
        if not found:
            return []
        try:
            self._clean_stop.delete(found, end)
        except FlushFailed as error:
            self._gate.record_error(error)
            raise
        by_id = operator.attrgetter("queue_id")
        return [
            self._queues.take_out(topic, sorted(queues, key=by_id))
            for topic, queues in sorted(found.items())
        ]

    def finish_delete(self, removal: QueueRemoval) -> None:
        """Record that the files of deleted queues are gone.

        Raises:
            FlushFailed: some could not be removed. Final: the next start does it, and until then
                the store accepts no writes.
        """
        try:
            self._queues.finish_removal(removal)
        except FlushFailed as error:
            self._gate.record_error(error)
            raise

    def delete_queues(self, topic: str, *, before: int | None = None) -> int:
        """Delete the consume queues of a topic, in this thread; return how many.

        Args, Raises: see ``begin_delete`` and ``finish_delete``.
        """
        removal = self.begin_delete(topic, before=before)
        if removal is None:
            return 0
        removal.run()
        self.finish_delete(removal)
        return len(removal)

    def delete_expired_queues(
        self, may_go: Callable[[str, int], bool], *, count_max: int
    ) -> list[QueueKey]:
        """Delete consume queues that hold no messages any more; return which.

        Their offsets start from 0 again: ``may_go`` has to protect queues that are still in use.

        Args:
            may_go: (topic, queue id) -> whether the queue may be deleted.
            count_max: how many at most; call again until none is returned.

        Raises:
            DiskFull, StoreError: the deletion could not be recorded; nothing was deleted.
            FlushFailed: some files could not be removed. Final: until the next start, which has
                these queues again, the store accepts no writes.

        Source: RocketMQ cleanExpiredConsumerQueue.
        """
        self._gate.check_open()
        queues = list(itertools.islice(self._expired_queues(may_go), count_max))
        found = [(queue.topic, queue.queue_id) for queue in queues]
        if found:
            self._clean_stop.forget(set(found))
        try:
            for queue in queues:
                self._queues.remove(queue)
            if found:
                # Now, not with the next flush: if a power loss brought old files back in front of
                # the entries of new messages, these would be hidden.
                self._queues.files.flush_names()
        except StoreError as error:
            # Files are left in the place of those of new messages.
            failed = FlushFailed(f"{error}; the next start takes up what is left")
            self._gate.record_error(failed)
            raise failed from error
        return found

    def _expired_queues(self, may_go: Callable[[str, int], bool]) -> Iterator[ConsumeQueue]:
        """Yield queues that once held messages and hold none any more, if they may be deleted."""
        if not self._deleted_segments.deleted:
            return  # After a crash now, segments would be back, and need their entries.
        first = self._log.first
        for queue in list(self._queues):
            end = queue.end_offset
            if (
                0 < end == queue.next_offset
                and queue.physical_end <= first
                and may_go(queue.topic, queue.queue_id)
            ):
                yield queue
