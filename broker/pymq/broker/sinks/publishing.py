"""Copies the records of batches that were decided to where consumers read.

All queues of a batch are held back until the last copy is in the log, so that consumers see the
batch as a whole. What a broker that died has left undone the next one does at its start, before it
answers anybody.
"""

import asyncio
import logging
from collections.abc import Collection, Iterator

import numpy as np

from pymq.broker.record_response import RecordResponses
from pymq.broker.sinks.journal import SinkJournal, published
from pymq.broker.state.sinks import Sink, SinkTable
from pymq.errors import CorruptRecord, DurabilityUnknown, OffsetOutOfRange, StoreClosed, StoreError
from pymq.net.tasks import Tasks
from pymq.protocol.record_batch import Longs
from pymq.protocol.sink_bodies import SinkBatch, StagedRun
from pymq.protocol.staged_records import StagedCopies, check_staged
from pymq.store import MessageStore

_log = logging.getLogger(__name__)

#: Pause after copies could not be written.
RETRY_S = 1.0
#: How often to look whether the last copy may be visible.
_LOOK_S = 0.005


class Publishing:
    """Publishes batches, each in a task of its own; a duty."""

    def __init__(
        self,
        store: MessageStore,
        responses: RecordResponses,
        journal: SinkJournal,
        table: SinkTable,
    ) -> None:
        self._store = store
        self._responses = responses
        self._journal = journal
        self._table = table
        self._running: dict[str, asyncio.Task[None]] = {}
        self._said: dict[str, str] = {}
        self._tasks = Tasks("publishing")

    # --- starting

    def load(self) -> None:
        """Finish what was not finished before the last stop; nobody else uses the store yet."""
        for sink in self._table.pending():
            batch = sink.row.last
            _log.info("batch %d of sink %s is copied, as it was decided", batch.batch, batch.sink)
            try:
                for run in self._left(sink):
                    self._journal.put_now(StagedCopies(run, self._view(run)))
                self._journal.write_now(published(batch))
                self._store.durability.flush()  # With SYNC_FLUSH they are visible then.
            except StoreError as error:
                _log.error("batch %d of sink %s: %s", batch.batch, batch.sink, error)

    def start(self) -> None:
        """Try again what could not be finished."""
        for sink in self._table.pending():
            self.begin(sink, is_resumed=True)

    async def close(self) -> None:
        """Stop; the next start goes on. Idempotent."""
        await self._tasks.close()

    # --- one batch

    async def check(self, runs: Collection[StagedRun]) -> None:
        """Check that what was staged is there.

        Raises:
            CorruptRecord, OffsetOutOfRange: it is not.
        """
        for run in runs:
            check_staged(run, await self._wait_view(run))
            await asyncio.sleep(0)

    def begin(self, sink: Sink, *, is_resumed: bool = False) -> None:
        """Publish the last batch of a sink, which is decided."""
        name = sink.row.last.sink
        if name not in self._running:
            work = self._publish(sink, is_resumed=is_resumed)
            self._running[name] = self._tasks.start(f"batch of {name}", work)

    async def wait(self, name: str) -> None:
        """Return once consumers see the last batch of a sink, or will not before a restart."""
        task = self._running.get(name)
        if task is not None:
            await asyncio.wait([task])

    async def _publish(self, sink: Sink, *, is_resumed: bool) -> None:
        decision = sink.pending
        assert decision is not None
        batch = decision.batch
        held = self._store.staging.hold(decision.runs.queues())
        try:
            while True:
                try:
                    await self._copy(self._left(sink) if is_resumed else decision.runs)
                    await self._journal.write(published(batch))
                    return
                except StoreClosed:
                    raise
                except StoreError as error:
                    if self._store.durability.failure is not None:
                        _log.error(
                            "batch %d of sink %s is decided, and will be copied when the broker is "
                            "started again: %s",
                            batch.batch,
                            batch.sink,
                            error,
                        )
                        return
                    self._say(batch, str(error))
                is_resumed = True
                await asyncio.sleep(RETRY_S)
        finally:
            del self._running[batch.sink]
            self._said.pop(batch.sink, None)
            self._store.staging.release(held)

    def _say(self, batch: SinkBatch, reason: str) -> None:
        """Say why a batch cannot be copied now, once for each reason."""
        if self._said.get(batch.sink) != reason:
            self._said[batch.sink] = reason
            _log.error(
                "batch %d of sink %s is decided, and cannot be copied now: %s. Its queues stand "
                "still until it is; it is tried again every %g s",
                batch.batch,
                batch.sink,
                reason,
                RETRY_S,
            )

    async def _copy(self, runs: Collection[StagedRun]) -> None:
        """Write copies; when this returns they may be visible.

        Raises:
            StoreError: one cannot be written now.
        """
        end = 0
        for run in runs:
            view = await self._wait_view(run)
            end = await self._journal.put(StagedCopies(run, view))
        while self._store.dispatch.end < end:
            # After a flush what waits for one becomes visible, and what a full disk did not take.
            try:
                await self._journal.wait_secured(end)
            except DurabilityUnknown as error:
                raise StoreError(str(error)) from error
            await asyncio.sleep(_LOOK_S)

    # --- what is staged, and what is copied

    def _view(self, run: StagedRun) -> memoryview:
        return self._store.staging.view(run.physical_offset, run.size_bytes)

    async def _wait_view(self, run: StagedRun) -> memoryview:
        view = self._view(run)
        await self._responses.wait_in_memory([view], [run.physical_offset])
        return view

    def _left(self, sink: Sink) -> list[StagedRun]:
        """Return what of the runs of a decision is not copied yet; what is gone is left out."""
        decision = sink.pending
        assert decision is not None
        copied = self._store.staging.committed_from(sink.decision_end)
        left: list[StagedRun] = []
        for run in decision.runs:
            try:
                left += _rest(run, self._view(run), copied)
            except (CorruptRecord, OffsetOutOfRange) as error:
                _log.error(
                    "batch %d of sink %s: %d messages for queue %d of topic %s are lost, which "
                    "were there when it was decided: %s",
                    decision.batch.batch,
                    decision.batch.sink,
                    run.count,
                    run.queue_id,
                    run.topic,
                    error,
                )
        return left


def _rest(run: StagedRun, view: memoryview, copied: Longs) -> Iterator[StagedRun]:
    """Yield the rest of a run behind the records of which there are copies, if there is any.

    After a loss of power there may be copies of the first few.
    """
    records = check_staged(run, view)
    places = records.starts + run.physical_offset
    count = int(np.isin(places, copied).sum())
    if count < run.count:
        skipped = int(records.starts[count])
        yield StagedRun(
            topic=run.topic,
            queue_id=run.queue_id,
            physical_offset=run.physical_offset + skipped,
            size_bytes=run.size_bytes - skipped,
            count=run.count - count,
            part=run.part,
        )
