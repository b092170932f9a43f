"""Tells when this process stood still: then nobody else was silent.

A process that is frozen (a suspended machine, SIGSTOP, a debugger) hears nothing meanwhile, though
all may have been said: timers run before any socket is read when it goes on. Whoever counts silence
looks at the clock every now and then; a look that comes late by more than half a second tells of a
standstill, and everybody is granted that time.
"""

#: A look at the clock that comes this much later than it should: it is we who stood still.
STALLED_S = 0.5


class Standstill:
    """Looks at the clock, every now and then.

    Args:
        now_s: the time, on the clock that ``look`` is given.
    """

    __slots__ = ("_looked_s",)

    def __init__(self, now_s: float) -> None:
        self._looked_s = now_s

    def look(self, now_s: float, interval_s: float) -> float:
        """Return for how long this process stood still since the last look; 0: it did not.

        Args:
            interval_s: how often this is called. As much may be missing of a standstill.
        """
        late_s = now_s - self._looked_s - interval_s
        self._looked_s = now_s
        return late_s if late_s > STALLED_S else 0.0
