"""Popping itself: takes messages from the queues of a topic and from its retry topics.

A pop begins at a random queue and goes round. Retry topics come first with a certain probability,
otherwise last, if messages are still wanted.

A filter that looks into records may have to wait for a disk, or for its turn. Meanwhile other pops
pass the queue, and those from which a pop in order has taken messages.

Source: RocketMQ PopMessageProcessor.
"""

import random
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from pymq.broker.pop.checkpoint import MESSAGES_MAX, GroupQueue
from pymq.broker.pop.progress import PopProgress, Step
from pymq.broker.record_response import RecordResponses
from pymq.broker.state.filter_turns import TurnBudget
from pymq.broker.state.order_info import OrderTable
from pymq.broker.state.topics import TopicTable
from pymq.protocol import names
from pymq.store import (
    EntryPrefetchJob,
    MatchingRead,
    MessageStore,
    ReadResult,
    ReadStatus,
    Selection,
)

#: Filtered reads of one queue by one pop that found nothing.
_EMPTY_READS_MAX = 16
_WRONG_OFFSET = frozenset(
    (ReadStatus.OFFSET_TOO_SMALL, ReadStatus.OFFSET_OVERFLOW_BADLY, ReadStatus.OFFSET_FOUND_NULL)
)
_PASSED = frozenset(
    (
        ReadStatus.NO_MATCHED_MESSAGE,
        ReadStatus.OFFSET_FOUND_NULL,
        ReadStatus.MESSAGE_WAS_REMOVING,
    )
)
#: Where to begin in a queue without progress.
INIT_MIN = 0

#: A pop in steps: each is a read that has to wait for a disk or its turn before the next. Whoever
#: closes it before its end undoes it.
Steps: TypeAlias = Generator[MatchingRead | EntryPrefetchJob, None, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a group wants.

    Attributes:
        queue_id: -1: any queue of the topic.
        count_max: number of messages.
        init_mode: 0: begin at a queue's first message, otherwise at its last.
        selection: which messages.
        in_order: whether queues that the group has not finished with are left out.
        attempt_id, invisible_ms: of the request, if it is in order.
    """

    topic: str
    group: str
    queue_id: int
    count_max: int
    init_mode: int
    selection: Selection
    in_order: bool = False
    attempt_id: str | None = None
    invisible_ms: int = 0


@dataclass(slots=True)
class Taken:
    """Messages of one queue.

    Attributes:
        topic: the one that was asked for, or one of its retry topics.
        start_offset: where the group was.
        queue_offsets: of the messages.
        step: to be kept once there is a checkpoint, or undone; None in order.
    """

    topic: str
    queue_id: int
    start_offset: int
    queue_offsets: list[int]
    result: ReadResult
    step: Step | None


@dataclass(slots=True)
class Popped:
    """What a pop took, and about how many messages are left.

    Attributes:
        is_unfinished: messages that are not wanted are still to be passed.
    """

    taken: list[Taken] = field(default_factory=list)
    rest_count: int = 0
    is_unfinished: bool = False

    @property
    def count(self) -> int:
        """Number of messages."""
        return sum(one.result.count for one in self.taken)


@dataclass(frozen=True, slots=True, kw_only=True)
class PopRules:
    """How to pop; RocketMQ's settings.

    Attributes:
        retry_percent: how often retry topics come first.
        retry_v2: whether new retry topics have names of the new form.
        retry_v1_too: whether those of the old form are read as well.
        start_in_memory: begin at the start of a queue that lies in memory as a whole, even if
            asked to begin at its end: the group is probably older than the queue.
        bytes_max: returns how many bytes of one queue's messages.
    """

    retry_percent: int
    retry_v2: bool
    retry_v1_too: bool
    start_in_memory: bool
    bytes_max: Callable[[], int]


class _Forgotten(Exception):
    """A topic or a group was deleted while a pop waited: the pop is over.

    Where it was in a queue may be void, and in no other queue may it begin. Such an offset, once
    committed, would have another topic of that name begin behind its first messages.
    """


class Popping:
    """Takes messages.

    Args:
        orders: knows the queues that are blocked.
        take_reset: called before each pop from a queue; sets the group back if it is to be, and
            returns False if that is not possible yet.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: TopicTable,
        progress: PopProgress,
        responses: RecordResponses,
        rules: PopRules,
        *,
        orders: OrderTable,
        take_reset: Callable[[GroupQueue], bool],
    ) -> None:
        self._store = store
        self._topics = topics
        self._progress = progress
        self._responses = responses
        self._rules = rules
        self._orders = orders
        self._take_reset = take_reset
        self._random = random.Random()
        self._busy: set[GroupQueue] = set()

    def retry_topics(self, topic: str, group: str) -> list[str]:
        """Return the names of the retry topics that belong to a topic, existing or not."""
        found = [names.pop_retry_topic(topic, group, v2=self._rules.retry_v2)]
        if self._rules.retry_v2 and self._rules.retry_v1_too:
            found.append(names.pop_retry_topic(topic, group, v2=False))
        return found

    def pop(self, wanted: Wanted, budget: TurnBudget, popped: Popped) -> Steps:
        """Take messages, in steps; every step of ``popped.taken`` is to be kept or undone.

        Args:
            wanted: by whom, and which.
            budget: the time it has.
            popped: gets what is taken.

        Raises:
            CorruptRecord: a queue or the log is damaged.
        """
        try:
            for topic, queue_id in self._places(wanted, popped):
                if budget.is_over:
                    popped.is_unfinished = True
                    break
                yield from self._pop_queue(wanted, topic, queue_id, budget, popped)
        except _Forgotten:
            popped.is_unfinished = True
        except BaseException:  # also when nobody wants the rest
            for taken in popped.taken:
                if taken.step is not None:
                    self._progress.undo(taken.step)
            raise
        finally:
            if wanted.in_order:
                self._busy -= {(one.topic, wanted.group, one.queue_id) for one in popped.taken}

    def has_any(
        self,
        topic: str,
        group: str,
        queue_id: int,
        *,
        in_order: bool = False,
        attempt_id: str | None = None,
    ) -> bool:
        """Return whether there are messages that a group has not looked at, and may pop."""
        for place in self._queues(topic, queue_id):
            queue = place[0], group, place[1]
            if in_order and self._orders.is_blocked(queue, attempt_id):
                continue
            if self._rest(group, *place):
                return True
        return any(
            self._rest(group, *place)
            for retry in self.retry_topics(topic, group)
            for place in self._queues(retry, -1)
        )

    def _places(self, wanted: Wanted, popped: Popped) -> Iterator[tuple[str, int]]:
        if wanted.in_order:
            yield from self._queues(wanted.topic, wanted.queue_id)
            return
        retry_first = self._random.randrange(100) < self._rules.retry_percent
        if retry_first:
            yield from self._retry_queues(wanted, popped)
        yield from self._queues(wanted.topic, wanted.queue_id)
        if not retry_first:
            yield from self._retry_queues(wanted, popped)

    def _retry_queues(self, wanted: Wanted, popped: Popped) -> Iterator[tuple[str, int]]:
        retries = self.retry_topics(wanted.topic, wanted.group)
        if self._random.random() < 0.5:
            retries.reverse()
        for topic in retries:
            yield from self._queues(topic, -1)
            if any(taken.topic == topic for taken in popped.taken):
                return  # an answer cannot tell retry topics of two forms apart

    def _queues(self, topic: str, queue_id: int) -> Iterator[tuple[str, int]]:
        if queue_id >= 0:
            yield topic, queue_id
            return
        config = self._topics.find(topic)
        if config is None or config.read_queue_count < 1:
            return
        count = config.read_queue_count
        first = self._random.randrange(count)
        for number in range(first, first + count):
            yield topic, number % count

    def _pop_queue(
        self, wanted: Wanted, topic: str, queue_id: int, budget: TurnBudget, popped: Popped
    ) -> Steps:
        """Take messages of one queue, if it is free.

        Raises:
            _Forgotten: see there.
        """
        queue = topic, wanted.group, queue_id
        left = min(wanted.count_max, MESSAGES_MAX) - popped.count
        if left <= 0 or queue in self._busy:
            rest = self._rest(wanted.group, topic, queue_id)
            popped.rest_count += rest
            popped.is_unfinished |= left > 0 and rest > 0  # the other pop may leave some
            return
        if not self._take_reset(queue):
            popped.is_unfinished = True
            return
        yield from self._pop_alone(wanted, queue, left, budget, popped)

    def _pop_alone(
        self, wanted: Wanted, queue: GroupQueue, left: int, budget: TurnBudget, popped: Popped
    ) -> Steps:
        """Take up to ``left`` messages of a queue that no other pop waits with.

        Raises:
            _Forgotten: see there.
        """
        topic, _, queue_id = queue
        at = yield from self._start(wanted, queue)
        if wanted.in_order and self._orders.is_blocked(
            queue, wanted.attempt_id, wanted.invisible_ms
        ):
            return  # what is left there is not to be had now
        for _ in range(_EMPTY_READS_MAX):
            result = yield from self._read(wanted, queue, at, left, budget)
            if result.status in _WRONG_OFFSET:
                at = result.next_queue_offset
                self._progress.commit(queue, at)
                result = yield from self._read(wanted, queue, at, left, budget)
            if result.count:
                step = None
                if wanted.in_order:
                    self._busy.add(queue)  # what was taken blocks it when the pop is over
                else:
                    step = self._progress.begin(queue, at, result.next_queue_offset)
                popped.taken.append(
                    Taken(topic, queue_id, at, result.queue_offsets(), result, step)
                )
                at = result.next_queue_offset
                break
            if result.status not in _PASSED or result.next_queue_offset <= at:
                break
            self._progress.skip(queue, at, result.next_queue_offset)
            at = result.next_queue_offset
            if budget.is_over:
                popped.is_unfinished = True
                break
        else:
            popped.is_unfinished = True
        popped.rest_count += max(0, self._store.queue_bounds(topic, queue_id)[1] - at)

    def _read(
        self, wanted: Wanted, queue: GroupQueue, at: int, count_max: int, budget: TurnBudget
    ) -> Generator[MatchingRead | EntryPrefetchJob, None, ReadResult]:
        topic, _, queue_id = queue
        prefetch = self._store.reads.entry_prefetch(topic, queue_id, at)
        if prefetch is not None:
            yield from self._alone(queue, prefetch)
        found: ReadResult | MatchingRead = self._store.reads.begin(
            topic,
            queue_id,
            at,
            count_max=count_max,
            bytes_max=self._rules.bytes_max(),
            selection=wanted.selection,
        )
        while isinstance(found, MatchingRead):
            if budget.is_spent or self._responses.is_cold(*found.places()):
                yield from self._alone(queue, found)
            found = self._store.reads.advance(found) or found
            if isinstance(found, MatchingRead) and budget.is_over:
                found = self._store.reads.stop(found)
        return found

    def _alone(self, queue: GroupQueue, awaited: MatchingRead | EntryPrefetchJob) -> Steps:
        """Wait for something while nobody else pops from a queue for the same group.

        Raises:
            _Forgotten: see there.
        """
        before = self._progress.forgotten_count
        self._busy.add(queue)
        try:
            yield awaited
        finally:
            self._busy.discard(queue)
        if self._progress.forgotten_count != before:
            raise _Forgotten

    def _rest(self, group: str, topic: str, queue_id: int) -> int:
        first, end = self._store.queue_bounds(topic, queue_id)
        at = self._progress.find((topic, group, queue_id))
        return max(0, end - (first if at is None else at))

    def _start(
        self, wanted: Wanted, queue: GroupQueue
    ) -> Generator[MatchingRead | EntryPrefetchJob, None, int]:
        """Return the offset of the next message; a group that has none gets one."""
        at = self._progress.find(queue)
        if at is not None and at >= 0:
            return at
        topic, _, queue_id = queue
        first, end = self._store.queue_bounds(topic, queue_id)
        if wanted.init_mode == INIT_MIN or names.is_retry_topic(topic):
            at = first
        elif self._rules.start_in_memory and first <= 0:
            prefetch = self._store.reads.entry_prefetch(topic, queue_id, 0, 1)
            if prefetch is not None:
                yield from self._alone(queue, prefetch)
            at = 0 if self._is_in_memory(topic, queue_id) else max(end - 1, 0)
        else:
            at = max(end - 1, 0)
        self._progress.commit(queue, at)
        return at

    def _is_in_memory(self, topic: str, queue_id: int) -> bool:
        place = self._store.physical_offset(topic, queue_id, 0)
        return place is not None and self._responses.is_recent(place)
