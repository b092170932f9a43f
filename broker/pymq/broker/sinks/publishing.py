"""Copies the records of batches that were decided to where consumers read.

====================  ==============================================================================
step                  why
====================  ==============================================================================
the decision is on    a copy that outlived its decision would be a part of a batch that nobody has
the disk              published
its queues are taken  one batch at a time has a queue (``queue_claims``)
they are held back    consumers see what is in them already, and nothing new
copies are written    behind each other, as a put of each run; delayed ones where they wait until
                      they are due, counted from here for a delay level
they may be visible   with SYNC_FLUSH they are on the disk
the queues show all   all queues of the batch at once, or none
it is ``published``   a journal record: there is nothing left to do for the batch
====================  ==============================================================================

Every step is repeated until it succeeds, but for a disk that failed for good: then the queues stay
held back until the broker is started again. What a broker that died has left undone the next one
does at its start, before it answers anybody; what it cannot do then stays invisible until it can.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager, suppress

from pymq.broker.arrivals import Listener
from pymq.broker.record_response import RecordResponses
from pymq.broker.sinks.decided_batch import DecidedBatch
from pymq.broker.sinks.journal import SinkJournal, published
from pymq.broker.sinks.queue_claims import QueueClaims
from pymq.broker.sinks.staged_layouts import StagedLayouts
from pymq.broker.state.sinks import Sink, SinkTable
from pymq.errors import DurabilityUnknown, OffsetOutOfRange, StoreClosed, StoreError, refusal
from pymq.net.tasks import Tasks
from pymq.protocol.codes import SinkCode
from pymq.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC
from pymq.protocol.sink_bodies import StagedRun
from pymq.protocol.staged_records import StagedCopies, check_staged, real_topic
from pymq.store import MessageStore

_log = logging.getLogger(__name__)

#: Pause after a step that failed.
RETRY_S = 1.0
#: How often to look whether the last copy may be visible.
_LOOK_S = 0.005
#: Runs that are checked in one turn of the event loop, if they need not be read.
_CHECKED_COUNT = 1000
#: Queues that an error names.
_NAMED_MAX = 16


class Publishing:
    """Publishes batches, each in a task of its own; a duty.

    Args:
        layouts: of what was staged since the start.
        count: counts what becomes visible at a start, when nobody listens to arrivals yet.
        delay_levels_ms: delays of levels 1, 2, ...
    """

    def __init__(
        self,
        store: MessageStore,
        responses: RecordResponses,
        journal: SinkJournal,
        table: SinkTable,
        layouts: StagedLayouts,
        count: Listener,
        *,
        delay_levels_ms: tuple[int, ...],
    ) -> None:
        self._store = store
        self._responses = responses
        self._journal = journal
        self._table = table
        self._layouts = layouts
        self._count = count
        self._delay_levels_ms = delay_levels_ms
        self._claims = QueueClaims()
        #: What the last process has left undone, and ``load`` could not do.
        self._unfinished: list[DecidedBatch] = []
        self._running: dict[str, asyncio.Task[None]] = {}
        #: Why the last batch of a sink will not be published before another start.
        self._failures: dict[str, str] = {}
        self._said: dict[str, str] = {}
        #: Where what is about to be decided begins.
        self._needed: list[int] = []
        self._tasks = Tasks("publishing")
        store.retention.needed_from = self._needed_from

    # --- starting

    def load(self) -> None:
        """Finish what was not finished before the last stop; nobody else uses the store yet.

        Raises:
            StoreError: the log cannot be read.
        """
        batches = [DecidedBatch.of(sink) for sink in self._table.pending()]
        if not batches:
            return
        staging = self._store.staging
        copies = staging.copies_from(min(one.decision_end for one in batches))
        for one in batches:
            one.leave_out(copies, staging)
        # Who has copies had its queues.
        batches.sort(key=lambda one: (one.first_copy is None, one.decision_end))
        for one in batches:
            if one.first_copy is not None:
                self._hold_nowait(one)
        self._store.dispatch.listener = self._count
        try:
            self._unfinished = [one for one in batches if not self._finish_now(one)]
        finally:
            self._store.dispatch.listener = None

    def _hold_nowait(self, one: DecidedBatch) -> bool:
        if one.held is None and self._claims.take_nowait(one.queues):
            # Nobody has seen what lies behind the first copy of a batch that is not complete.
            one.held = self._store.staging.hold(one.queues, since=one.first_copy)
        return one.held is not None

    def _finish_now(self, one: DecidedBatch) -> bool:
        """Publish a batch in this thread; return False if that has to be tried again."""
        batch = one.batch
        _log.info("batch %d of sink %s is copied, as it was decided", batch.batch, batch.sink)
        if not self._hold_nowait(one):
            return False
        assert one.held is not None
        try:
            while one.left:
                copies = self._next_copies(one)
                if copies is not None:
                    one.copied(self._journal.put_now(copies).physical_end)
            self._store.durability.flush()  # With SYNC_FLUSH they may be visible then.
            if self._store.dispatch.end < one.copied_end or not self._show(one):
                raise StoreError("the entries of its queues cannot be written")
            self._journal.write_now(published(one.batch, one.lost_count))
        except StoreError as error:
            self._say(one, str(error))
            return False
        return True

    def start(self) -> None:
        """Try again what could not be finished."""
        unfinished, self._unfinished = self._unfinished, []
        for one in unfinished:
            self._start(one)

    async def close(self) -> None:
        """Stop; the next start goes on. Idempotent."""
        await self._tasks.close()

    # --- one batch

    @contextmanager
    def keeping(self, runs: Collection[StagedRun]) -> Iterator[None]:
        """Keep what was staged from being deleted, until it is decided what becomes of it."""
        first = min((run.physical_offset for run in runs), default=self._store.log_end)
        self._needed.append(first)
        try:
            yield
        finally:
            self._needed.remove(first)

    def _needed_from(self) -> int | None:
        """Return the physical offset from which the log is needed; None: nothing of it is."""
        pending = [
            run.physical_offset
            for sink in self._table.pending()
            if sink.pending is not None
            for run in sink.pending.runs
        ]
        return min((*self._needed, *pending), default=None)

    async def check(self, runs: Collection[StagedRun]) -> set[str]:
        """Check that what was staged is there; return the topics of what is delayed of it.

        What this process has staged is not read again.

        Raises:
            BrokerError: this broker does not deliver what is delayed like that.
            CorruptRecord, OffsetOutOfRange: it is not there.
            DurabilityUnknown: it cannot be read yet, and the disk does not take it.
        """
        store = self._store
        end = max((run.physical_offset + run.size_bytes for run in runs), default=0)
        if store.log_end - store.durability.uncommitted_bytes < end <= store.log_end:
            try:
                await self._journal.wait_secured(end)  # It is in the transient pool.
            except DurabilityUnknown as error:
                raise DurabilityUnknown(
                    f"nothing is published, for what was staged cannot be read yet: {error}"
                ) from error
        topics: set[str | None] = set()
        for number, run in enumerate(runs):
            self._check_served(run)
            if number % _CHECKED_COUNT == _CHECKED_COUNT - 1:
                await asyncio.sleep(0)
            layout = self._layouts.find(run)
            if layout is not None:
                self._view(run)  # It has not expired.
                topics.add(layout.real_topic)
                continue
            topics.add(real_topic(run, check_staged(run, await self._wait_view(run))))
            await asyncio.sleep(0)
        return {topic for topic in topics if topic is not None}

    def _check_served(self, run: StagedRun) -> None:
        """Refuse what waits where nothing is delivered from; it was when it was staged."""
        if run.topic == SCHEDULE_TOPIC and run.queue_id >= len(self._delay_levels_ms):
            reason = (
                f"records wait by delay level {run.queue_id + 1}, and this broker has "
                f"{len(self._delay_levels_ms)} levels now (messageDelayLevel)"
            )
        elif run.topic == TIMER_TOPIC and self._store.timers is None:
            reason = "records wait for a time, and this broker has no timers now (timerWheelEnable)"
        else:
            return
        raise refusal(
            SinkCode.RUNS_LOST, f"{reason}; nothing was published, write the batch again"
        )

    def begin(self, sink: Sink) -> None:
        """Publish the last batch of a sink, which is decided."""
        self._start(DecidedBatch.of(sink))

    def _start(self, one: DecidedBatch) -> None:
        name = one.batch.sink
        assert name not in self._running, "a sink publishes one batch after the other"
        self._running[name] = self._tasks.start(f"batch of {name}", self._publish(one))

    async def wait(self, name: str) -> None:
        """Return once consumers see the last batch of a sink.

        Raises:
            DurabilityUnknown: they will not before the broker is started again.
        """
        task = self._running.get(name)
        if task is not None:
            await asyncio.wait([task])
        sink = self._table.find(name)
        if sink is not None and sink.pending is not None:
            raise DurabilityUnknown(
                self._failures.get(name) or f"{name} is published when the broker is started again"
            )

    async def _publish(self, one: DecidedBatch) -> None:
        try:
            await self._repeat(one, self._secure)
            if one.held is None:
                await self._claims.take(one.queues)
                one.held = self._store.staging.hold(one.queues)
            await self._repeat(one, self._copy)
            await self._repeat(one, self._record)
        except StoreClosed:
            raise
        except Exception as error:
            self._give_up(one, error)
        finally:
            del self._running[one.batch.sink]
            self._said.pop(one.batch.sink, None)

    async def _repeat(
        self, one: DecidedBatch, step: Callable[[DecidedBatch], Awaitable[None]]
    ) -> None:
        """Do a step until it succeeds.

        Raises:
            StoreError: it never will: the disk failed, or the store was closed.
        """
        while True:
            try:
                await step(one)
                return
            except StoreError as error:
                if isinstance(error, StoreClosed) or self._store.durability.failure is not None:
                    raise
                self._say(one, str(error))
            await asyncio.sleep(RETRY_S)

    async def _secure(self, one: DecidedBatch) -> None:
        await self._wait_secured(one.decision_end)

    async def _copy(self, one: DecidedBatch) -> None:
        """Write what is left to be copied, and show all of it."""
        while one.left:
            with suppress(OffsetOutOfRange):  # Then it is lost, as will be said.
                await self._wait_view(one.left[0])
            run = one.left[0]
            copies = self._next_copies(one)
            if copies is not None:
                one.copied(await self._journal.put(copies))
            self._layouts.drop(run)
        while self._store.dispatch.end < one.copied_end:
            # After a flush what waits for one becomes visible, and what a full disk did not take.
            await self._wait_secured(one.copied_end)
            await asyncio.sleep(_LOOK_S)
        if not self._show(one):
            raise StoreError("the entries of its queues cannot be written")

    def _show(self, one: DecidedBatch) -> bool:
        """Show all of a batch, and let others have its queues; return False if that failed."""
        assert one.held is not None
        if not self._store.staging.release(one.held):
            return False
        one.held = ()
        self._claims.give_back(one.queues)
        one.queues = frozenset()
        return True

    async def _record(self, one: DecidedBatch) -> None:
        await self._journal.write(published(one.batch, one.lost_count))

    async def _wait_secured(self, physical_end: int) -> None:
        try:
            await self._journal.wait_secured(physical_end)
        except DurabilityUnknown as error:
            raise StoreError(str(error)) from error

    # --- what goes wrong

    def _say(self, one: DecidedBatch, reason: str) -> None:
        """Say why a batch cannot be published now, once for each reason."""
        batch = one.batch
        if self._said.get(batch.sink) != reason:
            self._said[batch.sink] = reason
            _log.error(
                "batch %d of sink %s is decided, and cannot be published now: %s. Until it is, "
                "consumers see nothing new in its queues (%s). It is tried again every %g s",
                batch.batch,
                batch.sink,
                reason,
                _names(one),
                RETRY_S,
            )

    def _give_up(self, one: DecidedBatch, error: Exception) -> None:
        batch = one.batch
        self._failures[batch.sink] = (
            f"batch {batch.batch} of sink {batch.sink} is decided, and cannot be published before "
            f"the broker is started again: {error}"
        )
        _log.error(
            "%s. Until then consumers see nothing new in its queues (%s), whoever sends it; what "
            "is acknowledged is stored. Replace the disk if it failed, then start the broker again",
            self._failures[batch.sink],
            _names(one),
            exc_info=None if isinstance(error, StoreError) else error,
        )
        if one.held is not None:
            self._claims.keep(
                one.queues,
                f"batch {batch.batch} of sink {batch.sink} has one of its queues, and cannot be "
                "published either",
            )

    # --- what is staged

    def _next_copies(self, one: DecidedBatch) -> StagedCopies | None:
        return one.next_copies(self._view, self._layouts, self._delay_levels_ms)

    def _view(self, run: StagedRun) -> memoryview:
        return self._store.staging.view(run.physical_offset, run.size_bytes)

    async def _wait_view(self, run: StagedRun) -> memoryview:
        view = self._view(run)
        await self._responses.wait_in_memory([view], [run.physical_offset])
        return view


def _names(one: DecidedBatch) -> str:
    names = [f"{topic} {queue_id}" for topic, queue_id in sorted(one.queues)]
    more = [f"{len(names) - _NAMED_MAX} more"] if len(names) > _NAMED_MAX else []
    return ", ".join(names[:_NAMED_MAX] + more) or "none"
