"""Held pops: requests that found no message and wait for one, or for their deadline.

Consumers of a group that wait for the same queue, or for any queue of the topic, share a room. A
message is for one of them only, so an arrival wakes one, the one that has waited longest. If it
leaves messages behind it wakes the next. Requests that only want to hear of messages are held in
the same way, apart from those that take them.

Source: RocketMQ PopLongPollingService, PopRequest.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from pymq.broker.held_requests import HeldRequest, HeldRequests
from pymq.clock import Clock
from pymq.store import Arrival

#: A request is answered this long before its deadline, so that its client does not give up first.
EARLY_S = 0.05

#: Topic that was asked for, group, queue id (-1: any).
Room: TypeAlias = tuple[str, str, int]


class Holding(Enum):
    """Whether a request is held (RocketMQ PollingResult)."""

    HELD = "held"
    FULL = "full"
    LATE = "late"


@dataclass(slots=True, eq=False)
class HeldPop(HeldRequest):
    """One pop that waits.

    Attributes:
        room: what for.
        retry_topics: topics whose arrivals are for this room, too.
        wants: whether one of these messages is for it; must not raise.
    """

    room: Room
    retry_topics: Sequence[str]
    wants: Callable[[Arrival], bool]


class PopPolls(HeldRequests[HeldPop]):
    """The held pops of a broker, by room.

    Args:
        count_max: of all of them.
        room_count_max: of one room.
        newest_first: whether the request that came last is woken first.
    """

    def __init__(
        self, clock: Clock, *, count_max: int, room_count_max: int, newest_first: bool = False
    ) -> None:
        super().__init__(clock, early_s=EARLY_S)
        self._count_max = count_max
        self._room_count_max = room_count_max
        self._newest_first = newest_first
        # Dictionaries without values: sets that keep the order.
        self._rooms: dict[Room, dict[HeldPop, None]] = {}
        self._by_topic: dict[str, dict[Room, None]] = {}

    def count_in(self, room: Room) -> int:
        """Return how many requests wait in a room."""
        return len(self._rooms.get(room, ()))

    def hold(self, one: HeldPop) -> Holding:
        """Keep a request until an arrival is for it or its deadline passes.

        Nothing may arrive between its look into the queues and this call: both belong into one
        turn of the event loop.
        """
        if self._count >= self._count_max or self.count_in(one.room) > self._room_count_max:
            return Holding.FULL
        if self._is_closed or self._clock.monotonic_s() > one.deadline_s - EARLY_S:
            return Holding.LATE
        self._rooms.setdefault(one.room, {})[one] = None
        for topic in (one.room[0], *one.retry_topics):
            self._by_topic.setdefault(topic, {})[one.room] = None
        self._add(one)
        return Holding.HELD

    def take(self, arrivals: list[Arrival]) -> None:
        """Wake one request of each room that these arrivals are for."""
        if not self._count:
            return
        for arrival in arrivals:
            for room in list(self._by_topic.get(arrival.topic, ())):
                topic, _, queue_id = room
                if arrival.topic == topic and queue_id >= 0 and queue_id != arrival.queue_id:
                    continue
                self._wake_one(self._wanting(room, arrival))

    def _wanting(self, room: Room, arrival: Arrival) -> Iterator[HeldPop]:
        return (one for one in self._held_in(room) if one.wants(arrival))

    def wake(self, room: Room) -> bool:
        """Wake the request that has waited longest in a room; False if none waits."""
        return self._wake_one(self._held_in(room))

    def _held_in(self, room: Room) -> list[HeldPop]:
        held = list(self._rooms.get(room, ()))
        if self._newest_first:
            held.reverse()
        return held

    def _wake_one(self, held: Iterable[HeldPop]) -> bool:
        """Wake the first of these whose sender is still there."""
        return any(self._answer([one]) for one in held)

    def _forgotten(self, one: HeldPop) -> None:
        room = self._rooms[one.room]
        del room[one]
        if not room:
            del self._rooms[one.room]
            for topic in (one.room[0], *one.retry_topics):
                rooms = self._by_topic[topic]
                rooms.pop(one.room, None)
                if not rooms:
                    del self._by_topic[topic]
