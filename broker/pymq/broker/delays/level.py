"""The queue of one delay level in the schedule topic: what is due, and what has been delivered.

An entry of that queue says when its message is due: the store works that out when the message is
parked. So the order of the queue is the order of delivery, as long as neither the clock nor the
settings change, and only the first entries have to be looked at.

That time is by the log's clock, which never goes back. While the broker's clock is behind it,
because it was set back or this broker has taken over from another one, an entry says a time that is
too late. But whatever is in the queue now is due at the latest when the delay of the level has
passed from now on: where an entry says more, that is remembered instead. So no message is delivered
before its delay has passed, and none waits for longer than that once somebody has seen it; after a
restart its delay begins again. (RocketMQ delivers at once what is further away than the delay. Its
messages are parked by the broker's clock; here all those of hours would be delivered at once.)

The cursor is the first message that is not delivered. When the log refuses one message and takes
later ones, these are remembered, and are not delivered a second time.

Source: RocketMQ ScheduleMessageService.DeliverDelayedMessageTimerTask.
"""

import logging
from collections import deque
from collections.abc import Collection, Sequence

import numpy as np

from pymq.protocol.names import SCHEDULE_TOPIC
from pymq.protocol.record_batch import Longs
from pymq.store import MessageStore, ReadResult, ReadStatus

_log = logging.getLogger(__name__)

#: Messages delivered at once at most, and their bytes: some milliseconds of work, in which nobody
#: else is served.
BATCH_COUNT, BATCH_BYTES = 512, 1 << 20
#: How much later than after its delay a message may be delivered when the clock was set back, ms.
_LATE_MS = 1000


class DelayLevel:
    """What waits in the queue of one level.

    Attributes:
        number: from 1.
        cursor: queue offset of the first message that is not delivered.
        head_ms: when the message at the cursor is due, as ``look`` found it; None: there was none.

    Args:
        delay_ms: the delay of the level.
    """

    def __init__(self, store: MessageStore, number: int, delay_ms: int) -> None:
        self._store = store
        self.number = number
        self._queue_id = number - 1
        self._delay_ms = delay_ms
        self.cursor = 0
        self.head_ms: int | None = None
        self._ahead: set[int] = set()
        #: (end, time): messages below this queue offset are due then at the latest; both ascend.
        self._latest: deque[tuple[int, int]] = deque()

    def begin_at(self, cursor: int | None, now_ms: int, ahead: Collection[int] = ()) -> None:
        """Go on where an earlier run stopped; None: it left no cursor.

        Args:
            cursor: the first message that it had not delivered.
            now_ms: the time.
            ahead: those behind it that it had.

        Raises:
            StoreError: the queue cannot be read.
        """
        first, end = self._store.queue_bounds(SCHEDULE_TOPIC, self._queue_id)
        self._latest.clear()  # a slave's log may have been cut since
        self.cursor = first if cursor is None else cursor
        if cursor is None and self.look(now_ms):
            _log.warning(
                "delay level %d: delayOffset.json does not say which of the %d messages in its "
                "queue have been delivered; all are delivered, some perhaps once more",
                self.number,
                end - first,
            )
        if self.cursor > end:
            reason = "the store has lost messages"
            if not end:
                reason = "they had all expired before this store was copied from its master's"
            _log.log(
                logging.ERROR if end else logging.WARNING,
                "delay level %d: delayOffset.json says %d, its queue ends at %d; going on there. "
                "The file belongs to another store, or %s",
                self.number,
                self.cursor,
                end,
                reason,
            )
            self.cursor = end
        self._ahead = {offset for offset in ahead if self.cursor <= offset < end}
        self._skip_delivered()

    @property
    def end(self) -> int:
        """The end of its queue; 0 if it never had a message."""
        return self._store.queue_bounds(SCHEDULE_TOPIC, self._queue_id)[1]

    def is_due(self, now_ms: int) -> bool:
        """Return whether to look: the message at the cursor is due, or the clock was set back."""
        head_ms = self.head_ms
        return head_ms is not None and (head_ms <= now_ms or head_ms > self._latest_ms(now_ms))

    def _latest_ms(self, now_ms: int) -> int:
        """Return when all that is in the queue now is due at the latest."""
        return -(-(now_ms + self._delay_ms) // _LATE_MS) * _LATE_MS

    def arrived(self, end: int, due_ms: int, now_ms: int) -> None:
        """Record that messages have arrived.

        Args:
            end: of the queue with them.
            due_ms: when the last one is due, as its entry says.
            now_ms: the time.
        """
        if due_ms > self._latest_ms(now_ms):
            self._limit(end, now_ms)

    def _limit(self, end: int, now_ms: int) -> None:
        latest_ms = self._latest_ms(now_ms)
        latest = self._latest
        while latest and latest[-1][1] >= latest_ms:
            latest.pop()
        latest.append((end, latest_ms))
        while len(latest) > 1 and latest[1][1] <= now_ms:
            latest.popleft()  # at a slave, say, where nobody delivers

    def look(self, now_ms: int) -> int:
        """Return how many messages from the cursor on are due, at most ``BATCH_COUNT``.

        Raises:
            StoreError: the queue cannot be read.
        """
        self._correct()
        codes, known = self._store.entries.tag_codes(
            SCHEDULE_TOPIC, self._queue_id, self.cursor, BATCH_COUNT
        )
        self.head_ms = None
        if not len(codes):
            return 0
        for row in np.flatnonzero(~known).tolist():
            codes[row] = self._due_by_store_time(self.cursor + row)
        self._hasten(codes)
        if (codes > self._latest_ms(now_ms)).any():
            self._limit(self.end, now_ms)
            self._hasten(codes)
        self.head_ms = int(codes[0])
        is_due = codes <= now_ms
        return len(codes) if is_due.all() else int(is_due.argmin())

    def _hasten(self, codes: Longs) -> None:
        """Apply what is known of when messages from the cursor on are due at the latest."""
        while self._latest and self._latest[0][0] <= self.cursor:
            self._latest.popleft()
        row = 0
        for end, latest_ms in self._latest:
            if row >= len(codes):
                break
            rows = codes[row : end - self.cursor]
            np.minimum(rows, latest_ms, out=rows)
            row = end - self.cursor

    def _due_by_store_time(self, offset: int) -> int:
        """Return when a message is due whose entry does not say so any more."""
        time_ms = self._store.message_time(SCHEDULE_TOPIC, self._queue_id, offset) or 0
        return time_ms + self._delay_ms

    def _correct(self) -> None:
        """Move the cursor to the first message that the store still has."""
        first, _ = self._store.queue_bounds(SCHEDULE_TOPIC, self._queue_id)
        if self.cursor < first:
            _log.error(
                "delay level %d: messages %d..%d were deleted before they were delivered, with the "
                "commit log that held them. It has to be kept for longer than messages are delayed "
                "(fileReservedTime), on a larger disk",
                self.number,
                self.cursor,
                first - 1,
            )
            self.cursor = first
            self._ahead = {offset for offset in self._ahead if offset >= first}

    def read(self, count: int) -> ReadResult:
        """Return the next messages, at most ``count`` and some of them delivered already.

        Raises:
            StoreError: they cannot be read.
        """
        return self._store.read(
            SCHEDULE_TOPIC,
            self._queue_id,
            self.cursor,
            count_max=count,
            bytes_max=BATCH_BYTES,
        )

    def skip_missing(self, result: ReadResult) -> None:
        """Count messages as delivered that a read passed over, because the log has lost them.

        Args:
            result: of ``read``.
        """
        if result.status not in (ReadStatus.FOUND, ReadStatus.MESSAGE_WAS_REMOVING):
            return
        if result.count == result.next_queue_offset - self.cursor:
            return  # as nearly always
        passed = set(range(self.cursor, result.next_queue_offset))
        missing = sorted(passed.difference(result.queue_offsets(), self._ahead))
        if missing:
            _log.error(
                "delay level %d: %d messages at %d..%d cannot be delivered: the commit log no "
                "longer holds them",
                self.number,
                len(missing),
                missing[0],
                missing[-1],
            )
            self.delivered(missing)

    @property
    def has_gaps(self) -> bool:
        """Whether messages behind the cursor have been delivered."""
        return bool(self._ahead)

    @property
    def ahead(self) -> list[int]:
        """Those messages, ascending."""
        return sorted(self._ahead)

    def is_delivered(self, offset: int) -> bool:
        """Return whether a message at or after the cursor has been delivered."""
        return offset in self._ahead

    def delivered(self, offsets: Sequence[int]) -> None:
        """Record that messages need no more attention.

        Args:
            offsets: of these messages, ascending, at least one.
        """
        ahead, end = self._ahead, self.cursor + len(offsets)
        if not ahead and offsets[0] == self.cursor and offsets[-1] == end - 1:
            self.cursor = end  # as nearly always
            return
        ahead.update(offsets)
        self._skip_delivered()

    def _skip_delivered(self) -> None:
        while self.cursor in self._ahead:
            self._ahead.remove(self.cursor)
            self.cursor += 1
