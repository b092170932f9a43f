"""Queues that are popped in order: a group gets the next messages once the last are acknowledged.

What was popped last from a queue blocks it for the group until every message is acknowledged, or
until the messages become visible again; those that were not acknowledged, and all behind them, are
popped once more then. The group's offset moves as messages are acknowledged. When the clock is set
back, by a restart or not, the times of what was popped go back with it.

Source: RocketMQ ConsumerOrderInfoManager, ConsumerOrderInfoLockManager.
"""

import heapq
from collections.abc import Callable, Sequence
from enum import Enum

from pymq.clock import Clock
from pymq.protocol import fastjson
from pymq.protocol.pop_bodies import OrderInfo, OrderInfoTable

_SEPARATOR = "@"
#: What was not touched for so long is forgotten.
_EXPIRY_MS = 24 * 3600 * 1000

#: Topic, group, queue id.
_Queue = tuple[str, str, int]


class Refused(Enum):
    """Why an acknowledgement does not count."""

    UNKNOWN = "the message was not popped"
    LATE = "the messages were popped again since, or will be"


class OrderTable:
    """What each group popped in order from each queue, last.

    Attributes:
        is_changed: whether it is to be saved.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._infos: dict[_Queue, OrderInfo] = {}
        #: When queues become free; of the items of the heap only these count.
        self._free_ms: dict[_Queue, int] = {}
        self._by_free: list[tuple[int, _Queue]] = []
        self._now_ms = 0
        self.is_changed = False

    def is_blocked(
        self, queue: _Queue, attempt_id: str | None = None, invisible_ms: int = 0
    ) -> bool:
        """Return whether a group has to wait before it pops from a queue.

        Args:
            attempt_id: of the request: one that is repeated gets the same messages again.
            invisible_ms: that of the request, if what blocks the queue has none.
        """
        info = self._infos.get(queue)
        if info is None or (info.attempt_id is not None and info.attempt_id == attempt_id):
            return False
        if not info.invisible_ms or info.invisible_ms <= 0:
            info.invisible_ms = invisible_ms
        now = self._clock.wall_ms()
        return any(now < visible_ms for visible_ms in _waiting(info).values())

    def pop(
        self,
        queue: _Queue,
        queue_offsets: Sequence[int],
        *,
        attempt_id: str | None,
        pop_time: int,
        invisible_ms: int,
    ) -> tuple[dict[int, int], int]:
        """Record what a group pops.

        Returns:
            How often messages were popped before, of those that were, and the least of all.
        """
        first = queue_offsets[0]
        now = self._clock.wall_ms()
        self._now_ms = max(self._now_ms, now)
        info = OrderInfo(
            attempt_id=attempt_id,
            pop_time=pop_time,
            invisible_ms=invisible_ms,
            offsets=[first, *(offset - first for offset in queue_offsets[1:])],
            consumed_ms=now,
        )
        before = self._infos.get(queue)
        if before is not None:
            counts = before.consumed_counts or {}
            if before.attempt_id is not None and before.attempt_id == attempt_id:
                again = counts.keys() & {*queue_offsets}
                info.consumed_counts = {offset: counts[offset] for offset in again}
            else:
                popped = set(_offsets(before))
                info.consumed_counts = {
                    offset: counts.get(offset, 0) + 1
                    for offset in queue_offsets
                    if offset in popped
                }
        self._infos[queue] = info
        self._changed(queue, info)
        found = info.consumed_counts or {}
        if len(found) != len(queue_offsets):
            return found, 0
        return found, min(found.values())

    def acknowledge(
        self, queue: _Queue, queue_offset: int, pop_time: int, reached: int = 0
    ) -> int | Refused:
        """Record that a message was consumed; return the offset that the group has reached.

        All in front of the one that it had ``reached`` count as acknowledged: the offsets are saved
        in a file of their own, so after a crash they may know of more than this table. RocketMQ
        sets the group back then.

        If nothing is known of the pop, after a crash or a reset, the messages come again: RocketMQ
        sets the group behind the message instead, past those before it that nobody acknowledged.
        """
        info = self._infos.get(queue)
        if info is None:
            return Refused.LATE
        if not info.offsets:
            return Refused.UNKNOWN
        if info.pop_time != pop_time:
            return Refused.LATE
        offsets = _offsets(info)
        if queue_offset not in offsets:
            return Refused.UNKNOWN
        for number, offset in enumerate(offsets):
            if offset == queue_offset or offset < reached:
                info.acknowledged |= 1 << number
        self._changed(queue, info)
        for number, offset in enumerate(offsets):
            if not info.acknowledged >> number & 1:
                return offset
        return offsets[-1] + 1

    def change(self, queue: _Queue, queue_offset: int, pop_time: int, visible_ms: int) -> None:
        """Record that a message becomes visible at another time."""
        info = self._infos.get(queue)
        if info is not None and info.pop_time == pop_time:
            now = self._clock.wall_ms()
            _follow_clock(info, now)
            info.consumed_ms = now
            info.visible_ms = (info.visible_ms or {}) | {queue_offset: visible_ms}
            self._changed(queue, info)

    def clear(self, queue: _Queue) -> None:
        """Forget what blocks a queue."""
        if self._infos.pop(queue, None) is not None:
            self._free_ms.pop(queue, None)
            self.is_changed = True

    def forget_passed(self, reached: Callable[[_Queue], int]) -> None:
        """Forget what groups have gone past; see ``acknowledge``.

        Args:
            reached: returns the offset that a group has reached in a queue.
        """
        for queue, info in list(self._infos.items()):
            if info.offsets and _offsets(info)[-1] < reached(queue):
                self.clear(queue)

    def forget_topic(self, topic: str) -> None:
        """Forget a topic that is being deleted: one of its name may be created again."""
        for queue in [queue for queue in self._infos if queue[0] == topic]:
            self.clear(queue)

    def forget_group(self, group: str) -> None:
        """The same for a group."""
        for queue in [queue for queue in self._infos if queue[1] == group]:
            self.clear(queue)

    def __len__(self) -> int:
        return len(self._infos)

    def take_free(self) -> list[_Queue]:
        """Return the queues that have become free since the last call."""
        now = self._clock.wall_ms()
        if now < self._now_ms:
            self._set_back(now)
        self._now_ms = now
        found = []
        while self._by_free and self._by_free[0][0] <= now:
            free_ms, queue = heapq.heappop(self._by_free)
            if self._free_ms.get(queue) == free_ms:
                del self._free_ms[queue]
                found.append(queue)
        return found

    def _set_back(self, now: int) -> None:
        """Bring in what was popped when the clock was ahead."""
        for queue, info in self._infos.items():
            if _follow_clock(info, now):
                self._changed(queue, info)

    def clean(self, is_there: Callable[[str, str, int], bool]) -> None:
        """Forget queues that are gone, and what was not touched for a day.

        Args:
            is_there: whether topic, group and queue exist.
        """
        oldest = self._clock.wall_ms() - _EXPIRY_MS
        for queue, info in list(self._infos.items()):
            if info.consumed_ms < oldest or not is_there(*queue):
                self.clear(queue)

    def _changed(self, queue: _Queue, info: OrderInfo) -> None:
        self.is_changed = True
        free_ms = max(_waiting(info).values(), default=self._clock.wall_ms())
        if self._free_ms.get(queue) == free_ms:
            return
        self._free_ms[queue] = free_ms
        heapq.heappush(self._by_free, (free_ms, queue))
        if len(self._by_free) > 2 * len(self._free_ms) + 1000:
            self._by_free = [(ms, queue) for queue, ms in self._free_ms.items()]
            heapq.heapify(self._by_free)

    def to_text(self) -> str:
        """Return the text of ``consumerOrderInfo.json``."""
        table: dict[str, dict[int, OrderInfo]] = {}
        for (topic, group, queue_id), info in self._infos.items():
            table.setdefault(f"{topic}{_SEPARATOR}{group}", {})[queue_id] = info
        return fastjson.dump_pretty(OrderInfoTable(table=table).to_json())

    def restore(self, value: object) -> None:
        """Take over the contents of ``consumerOrderInfo.json``."""
        for key, queues in OrderInfoTable.from_json(value).table.items():
            topic, separator, group = key.partition(_SEPARATOR)
            if separator:
                for queue_id, info in queues.items():
                    self._infos[topic, group, queue_id] = info
                    self._changed((topic, group, queue_id), info)
        self.is_changed = False
        self._set_back(self._clock.wall_ms())


def _offsets(info: OrderInfo) -> list[int]:
    """Return the queue offsets of what was popped."""
    first = info.offsets[:1]
    return [*first, *(first[0] + distance for distance in info.offsets[1:])]


def _waiting(info: OrderInfo) -> dict[int, int]:
    """Return when the messages that are not acknowledged become visible, in ms."""
    changed = info.visible_ms or {}
    regular = info.pop_time + (info.invisible_ms or 0)
    return {
        offset: changed.get(offset, regular)
        for number, offset in enumerate(_offsets(info))
        if not info.acknowledged >> number & 1
    }


def _follow_clock(info: OrderInfo, now: int) -> bool:
    """Have messages become visible as if what was last said of them, ahead of now, were said now.

    Their pop time stays: it is part of their handles.
    """
    ahead_ms = info.consumed_ms - now
    if ahead_ms <= 0:
        return False
    info.visible_ms = {offset: ms - ahead_ms for offset, ms in _waiting(info).items()}
    info.consumed_ms = now
    return True
