"""A batch that is decided: which of its records are to be copied, and which are lost."""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pymq.broker.sinks.staged_layouts import StagedLayouts
from pymq.broker.state.sinks import Sink
from pymq.errors import CorruptRecord, OffsetOutOfRange
from pymq.protocol.sink_bodies import SinkBatch, StagedRun
from pymq.protocol.staged_records import StagedCopies, check_staged
from pymq.store import HeldQueues, QueueKey, Staging
from pymq.store.staging import Copies

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class DecidedBatch:
    """What is left to do for the last batch of a sink.

    Attributes:
        batch: which.
        decision_end: physical offset behind the decision.
        queues: where the copies go.
        left: what is not copied yet, in order.
        copied_end: physical offset behind the last copy; 0: there is none.
        first_copy: physical offset of the first copy that an earlier process has made.
        lost_count: records that were staged when the batch was decided, and are not any more.
        held: the queues, once they are held back.
    """

    batch: SinkBatch
    decision_end: int
    queues: frozenset[QueueKey]
    left: deque[StagedRun]
    copied_end: int = 0
    first_copy: int | None = None
    lost_count: int = 0
    held: HeldQueues | None = None

    @classmethod
    def of(cls, sink: Sink) -> "DecidedBatch":
        """Return the pending batch of a sink, nothing of which is copied."""
        decision = sink.pending
        assert decision is not None
        return cls(
            decision.batch,
            sink.decision_end,
            frozenset(decision.runs.queues()),
            deque(decision.runs),
        )

    def leave_out(self, copies: Copies, staging: Staging) -> None:
        """Leave out what an earlier process has copied.

        Args:
            copies: those in the log behind the decision.
            staging: of the store.
        """
        for run in list(self.left):
            self.left.popleft()
            first, end = np.searchsorted(
                copies.staged, (run.physical_offset, run.physical_offset + run.size_bytes)
            ).tolist()
            if first < end:
                place = int(copies.places[first:end].min())
                self.first_copy = min(place, self.first_copy or place)
            if end - first == run.count:
                continue
            if first < end:
                try:
                    run = _rest(run, end - first, staging)
                except (CorruptRecord, OffsetOutOfRange) as error:
                    self._lose(run, run.count - (end - first), error)
                    continue
            self.left.append(run)
        if not self.left:
            self.queues = frozenset()  # It is seen as a whole, perhaps below the next batch.

    def next_copies(
        self,
        view: Callable[[StagedRun], memoryview],
        layouts: StagedLayouts,
        delay_levels_ms: tuple[int, ...],
    ) -> StagedCopies | None:
        """Return copies of the first run that is left; None if it is lost, and was left out.

        Args:
            view: returns what lies in the log at the place of a run.
            layouts: of what was staged since the start.
            delay_levels_ms: delays of levels 1, 2, ...
        """
        run = self.left[0]
        try:
            return StagedCopies(
                run, view(run), layouts.find(run), delay_levels_ms=delay_levels_ms
            )
        except (CorruptRecord, OffsetOutOfRange) as error:
            self.left.popleft()
            self._lose(run, run.count, error)
            return None

    def copied(self, physical_end: int) -> None:
        """Record that the first run that was left is in the log, up to a physical offset."""
        self.left.popleft()
        self.copied_end = physical_end

    def _lose(self, run: StagedRun, count: int, error: Exception) -> None:
        self.lost_count += count
        _log.error(
            "batch %d of sink %s: %d records for queue %d of topic %s are lost, which were there "
            "when it was decided: %s. It is published without them",
            self.batch.batch,
            self.batch.sink,
            count,
            run.queue_id,
            run.topic,
            error,
        )


def _rest(run: StagedRun, count: int, staging: Staging) -> StagedRun:
    """Return a run without its first records.

    They are what a loss of power may leave of the copies of a run: these are one write.

    Raises:
        CorruptRecord, OffsetOutOfRange: the run is not there.
    """
    records = check_staged(run, staging.view(run.physical_offset, run.size_bytes))
    skipped = int(records.starts[count])
    return StagedRun(
        topic=run.topic,
        queue_id=run.queue_id,
        physical_offset=run.physical_offset + skipped,
        size_bytes=run.size_bytes - skipped,
        count=run.count - count,
        part=run.part,
    )
