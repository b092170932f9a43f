"""Delayed messages: parked in the queue of their level, stored in their own topic when due.

Each level has a task. It waits until the first message of its queue is due, or until one arrives,
and delivers what is due in batches. A message counts as delivered when the log has taken its copy.
How far each level has come is saved from time to time, but never ahead of the copies: only what is
on the disk itself. So after a crash some messages may be delivered twice, but none is lost.

Source: RocketMQ ScheduleMessageService, HookUtils.transformDelayLevelMessage.
"""

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from pymq.broker.delays.due_messages import DueMessages
from pymq.broker.delays.level import DelayLevel
from pymq.broker.log_writer import Appends, Outcome, WaitFlushed
from pymq.broker.put_answer import is_never_stored
from pymq.broker.state.delay_offsets import DelayOffsets
from pymq.clock import Clock
from pymq.errors import StoreError
from pymq.net.tasks import Tasks
from pymq.protocol.names import SCHEDULE_TOPIC
from pymq.store import Arrival, MessageStore, PutResult, ReadResult

_log = logging.getLogger(__name__)

#: How long to sleep at most before a look at the clock, which may have been set.
LOOK_INTERVAL_S = 1.0
#: The same for a level without messages, where only an arrival can change anything.
EMPTY_INTERVAL_S = 10.0
#: Pauses before a level tries again: doubled after each failure.
RETRY_LEAST_S, RETRY_MOST_S = 0.1, 10.0


class Schedule:
    """Delivers delayed messages.

    Args:
        store: where they wait.
        due_messages: says what is stored of them.
        log_writer: stores that.
        offsets: how far each level had come, and gets how far it comes.
        levels_ms: the delays of levels 1, 2, ...
        wait_in_memory: returns when records, given as in ``ReadResult``, can be looked at
            without waiting for the disk.
        wait_entries: does the same for entries of a queue: topic, queue id, queue offset.
        wait_flushed: calls back when the log is flushed up to a physical offset.
        save_soon: to be called when ``offsets`` have changed.
        save_interval_s: how often they are.
    """

    def __init__(
        self,
        store: MessageStore,
        due_messages: DueMessages,
        log_writer: Appends,
        clock: Clock,
        offsets: DelayOffsets,
        *,
        levels_ms: Sequence[int],
        wait_in_memory: Callable[[Sequence[memoryview], Sequence[int]], Coroutine[Any, Any, None]],
        wait_entries: Callable[[str, int, int], Coroutine[Any, Any, None]],
        wait_flushed: WaitFlushed,
        save_soon: Callable[[], None],
        save_interval_s: float,
    ) -> None:
        self._store = store
        self._due_messages = due_messages
        self._log_writer = log_writer
        self._clock = clock
        self._offsets = offsets
        self._wait_in_memory = wait_in_memory
        self._wait_entries = wait_entries
        self._wait_flushed = wait_flushed
        self._save_soon = save_soon
        self._save_interval_s = save_interval_s
        self.levels = [
            DelayLevel(store, number, delay_ms) for number, delay_ms in enumerate(levels_ms, 1)
        ]
        self._woken = [asyncio.Event() for _ in self.levels]
        #: Levels deliver in turn, so that the batches of all do not make one long turn.
        self._delivering = asyncio.Lock()
        self._tasks = Tasks("schedule")

    # --- waiting

    def start(self) -> None:
        """Go on where the offsets say."""
        self.begin()
        for level, woken in zip(self.levels, self._woken, strict=True):
            self._tasks.start(f"level {level.number}", self._serve(level, woken))
        self._tasks.repeat("save", self.save, self._save_interval_s)

    def begin(self) -> None:
        """Place the levels where the offsets say, without starting to deliver.

        Raises:
            StoreError: a queue cannot be read.
        """
        now_ms = self._clock.wall_ms()
        for level in self.levels:
            ahead = self._offsets.ahead.get(level.number, ())
            level.begin_at(self._offsets.find(level.number), now_ms, ahead)
        if self._offsets.record(self.cursors(), self.ahead()):  # one was beyond its queue's end
            self._save_soon()
        self._report_unknown_levels()

    def _report_unknown_levels(self) -> None:
        for topic, queue_id in self._store.queues():
            number = queue_id + 1
            if topic != SCHEDULE_TOPIC or number <= len(self.levels):
                continue
            first, end = self._store.queue_bounds(topic, queue_id)
            waiting = end - max(first, self._offsets.find(number) or 0)
            if waiting > 0:
                _log.error(
                    "%d delayed messages wait in level %d, but messageDelayLevel has %d levels; "
                    "they are delivered when it has that level again",
                    waiting,
                    number,
                    len(self.levels),
                )

    def take(self, arrivals: Sequence[Arrival]) -> None:
        """Look at what has arrived: the first message of a level ends the wait of its task."""
        for one in arrivals:
            if one.topic != SCHEDULE_TOPIC or one.queue_id >= len(self.levels):
                continue
            level = self.levels[one.queue_id]
            level.arrived(one.queue_end, int(one.tag_codes[-1]), self._clock.wall_ms())
            if level.head_ms is None:
                self._woken[one.queue_id].set()

    async def look_again(self) -> None:
        """Have every level look at the time."""
        for woken in self._woken:
            woken.set()

    async def _serve(self, level: DelayLevel, woken: asyncio.Event) -> None:
        retry_s, said = RETRY_LEAST_S, ""
        while True:
            try:
                count = await self.step(level)
            except StoreError as error:
                if said != str(error):
                    said = str(error)
                    _log.error(
                        "delay level %d: %s; its messages wait, trying again", level.number, error
                    )
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, RETRY_MOST_S)
                continue
            except Exception:
                _log.exception(
                    "delay level %d failed; trying again in %g s", level.number, RETRY_MOST_S
                )
                await asyncio.sleep(RETRY_MOST_S)
                continue
            if said:
                _log.warning("delay level %d: delivering again", level.number)
            retry_s, said = RETRY_LEAST_S, ""
            if not count:
                await self._wait_due(level, woken)

    async def _wait_due(self, level: DelayLevel, woken: asyncio.Event) -> None:
        """Wait until a level has something to do: its first message is due, or one arrives."""
        loop = asyncio.get_running_loop()
        woken.clear()
        while not woken.is_set() and not level.is_due(self._clock.wall_ms()):
            timer = loop.call_later(self._wait_s(level), woken.set)
            await woken.wait()
            timer.cancel()
            if level.head_ms is not None:
                woken.clear()

    def _wait_s(self, level: DelayLevel) -> float:
        if level.head_ms is None:
            return EMPTY_INTERVAL_S
        return min(max(level.head_ms - self._clock.wall_ms(), 0) / 1000, LOOK_INTERVAL_S)

    # --- delivering

    async def step(self, level: DelayLevel) -> int:
        """Deliver messages of a level that are due, at most one batch; return how many.

        Raises:
            StoreError: some cannot be read or stored; the others are delivered.
        """
        await self._wait_entries(SCHEDULE_TOPIC, level.number - 1, level.cursor)
        count = level.look(self._clock.wall_ms())
        if not count:
            return 0
        result = level.read(count)
        await self._wait_in_memory(result.buffers, result.starts)
        result.check()
        async with self._delivering:
            before = level.cursor
            await self._deliver(level, result)
        if level.cursor == before and not result.count:
            raise StoreError(
                f"no message can be read at {before} in its queue ({result.status.value})"
            )
        return level.cursor - before

    async def _deliver(self, level: DelayLevel, result: ReadResult) -> None:
        level.skip_missing(result)
        delivery = _Delivery(level, asyncio.get_running_loop().create_future())
        delivery.pending = 1  # ours: some may be stored before the last one is handed over
        for one in self._due_messages.of(result, level.number, one_by_one=level.has_gaps):
            if one.copy is None:
                level.delivered(one.offsets)
                continue
            if level.has_gaps and level.is_delivered(one.offsets[0]):
                continue
            delivery.pending += 1
            done = functools.partial(delivery.done, one.offsets)
            self._log_writer.append(one.copy, done, wait=False)
        delivery.pending -= 1
        if delivery.pending:
            await delivery.finished
        if delivery.failure is not None:
            raise StoreError(f"a delayed message is not stored: {delivery.failure}")

    def report(self) -> dict[str, str]:
        """Return how far each used level has come, and the end of its queue."""
        return {
            f"scheduleMessageOffset_{level.number}": f"{level.cursor},{level.end}"
            for level in self.levels
            if level.end
        }

    # --- saving

    async def save(self) -> None:
        """Have the offsets saved, once the copies of what was delivered are on the disk."""
        offsets, ahead, known = self.cursors(), self.ahead(), self._offsets
        if ahead == known.ahead and all(
            known.find(number) == offset for number, offset in offsets.items()
        ):
            return
        flushed: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

        def done(reason: str | None) -> None:
            if not flushed.done():
                flushed.set_result(reason)

        self._wait_flushed(self._store.log_end, done)
        reason = await flushed
        if reason is not None:
            _log.error(
                "delayOffset.json is not saved: %s; after a crash, what has been delivered since "
                "the last time is delivered again",
                reason,
            )
        elif self._offsets.record(offsets, ahead):
            self._save_soon()

    def cursors(self) -> dict[int, int]:
        """Return the offset of the next message to deliver of each used level."""
        return {
            level.number: level.cursor
            for level in self.levels
            if level.end or self._offsets.find(level.number) is not None
        }

    def ahead(self) -> dict[int, list[int]]:
        """Return which messages behind those offsets have been delivered, by level, if any."""
        return {level.number: level.ahead for level in self.levels if level.has_gaps}

    async def close(self) -> None:
        """Stop delivering, and save; idempotent."""
        await self._tasks.close()
        await self.save()


class _Delivery:
    """The messages of a batch that are being stored: how many are left, and what failed."""

    def __init__(self, level: DelayLevel, finished: "asyncio.Future[None]") -> None:
        self._level = level
        self.finished = finished
        self.pending = 0
        self.failure: str | None = None

    def done(self, offsets: Sequence[int], result: PutResult, outcome: Outcome) -> None:
        """Take the outcome for the messages at some offsets."""
        if outcome is Outcome.STORED:
            self._level.delivered(offsets)
        elif len(offsets) == 1 and is_never_stored(result, outcome):
            _log.error(
                "delay level %d: message %d can never be stored and is dropped: %s",
                self._level.number,
                offsets[0],
                result.remark,
            )
            self._level.delivered(offsets)
        else:
            self.failure = result.remark or outcome.value
        self.pending -= 1
        if not self.pending and not self.finished.done():
            self.finished.set_result(None)
