"""Resets that a consumer was told of, and may not have gone to yet.

RocketMQ's consumers before 5.2 leave the queue, go there ten seconds later, and commit meanwhile,
or when they are stopped, where they were: that would undo the reset.

Source: RocketMQ DefaultMQPushConsumerImpl.pullMessage (OFFSET_ILLEGAL).
"""

from typing import Final

from pymq.broker.state.offset_places import Place
from pymq.clock import Clock

#: Longer than the ten seconds, on a machine that stands still for a while.
TOLD_S: Final = 60.0


class ToldResets:
    """Says which commits are of the time before a reset.

    Until the group pulls from the queue again, or commits just what it was told; at most for
    ``TOLD_S``.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: Where to, and until when that counts (monotonic).
        self._told: dict[Place, tuple[int, float]] = {}

    def __len__(self) -> int:
        return len(self._told)

    def note(self, place: Place, offset: int) -> None:
        """A consumer is told to go on at an offset."""
        now_s = self._clock.monotonic_s()
        over = [one for one, (_, until_s) in self._told.items() if until_s <= now_s]
        for one in over:
            del self._told[one]
        self._told[place] = offset, now_s + TOLD_S

    def end(self, place: Place) -> None:
        """The group has gone on."""
        self._told.pop(place, None)

    def overtake(self, place: Place, offset: int) -> bool:
        """Return whether a commit of an offset is of the time before the reset."""
        told = self._told.get(place)
        if told is None:
            return False
        to, until_s = told
        if offset == to or self._clock.monotonic_s() >= until_s:
            self.end(place)
            return False
        return True
