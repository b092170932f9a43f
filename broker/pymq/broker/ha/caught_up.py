"""When a slave last had everything that its master had."""

import math


class CaughtUp:
    """Of one slave, as its master sees it; pure.

    A slave that confirms what the log held when it was last looked at had everything then.

    Attributes:
        at_s: when it had everything, as far as is known; minus infinity: never.
    """

    __slots__ = ("_mark", "at_s")

    def __init__(self) -> None:
        self.at_s = -math.inf
        #: Where the log ended at some time, which the slave has not confirmed yet.
        self._mark: tuple[int, float] | None = None

    def look(self, confirmed_end: int, log_end: int, now_s: float) -> None:
        """Take how far the slave and the log are now."""
        if confirmed_end >= log_end:
            self.at_s, self._mark = now_s, None
            return
        if self._mark is not None and confirmed_end >= self._mark[0]:
            self.at_s, self._mark = self._mark[1], None
        if self._mark is None:
            self._mark = log_end, now_s

    def behind_ms(self, behind_bytes: int, now_s: float) -> int | None:
        """Return for how long the slave has lacked something; None: it never had everything.

        Args:
            behind_bytes: how much of the log it lacks now.
            now_s: the time.
        """
        if behind_bytes <= 0:
            return 0
        return None if math.isinf(self.at_s) else round((now_s - self.at_s) * 1000)
