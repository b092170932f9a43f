"""How fast a queue is asked again that answers at once, and brings its reader nowhere."""

#: Pause after the first such answer; it doubles with each one that follows.
PAUSE_MIN_S = 0.01
PAUSE_MAX_S = 1.0
#: Who takes this long to answer needs no pause.
HELD_S = 0.1


class PullPace:
    """The pauses between pulls, which only a broker that is out of order makes necessary.

    A broker holds a pull for which it has nothing. One that answers at once that there is nothing,
    or that reading has to go on where it stands, would be asked thousands of times in a second.
    """

    __slots__ = ("_pause_s",)

    def __init__(self) -> None:
        self._pause_s = 0.0

    @property
    def is_slowed(self) -> bool:
        """Did the last pull bring the reader nowhere?"""
        return self._pause_s > 0.0

    def pause_after(self, *, has_advanced: bool, took_s: float) -> float:
        """Return how long to wait before the next pull, in seconds.

        Args:
            has_advanced: does the next one begin behind where this one did? A move to another
                offset is none: it may lead back.
            took_s: from the request to its answer.
        """
        if has_advanced or took_s >= HELD_S:
            self._pause_s = 0.0
        else:
            self._pause_s = min(max(2 * self._pause_s, PAUSE_MIN_S), PAUSE_MAX_S)
        return self._pause_s
