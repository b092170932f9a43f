"""Message ids that whoever makes a message gives it (UNIQ_KEY).

Source: RocketMQ MessageClientIDSetter.
"""

import datetime
import itertools


def month_around(now_ms: int) -> tuple[int, int]:
    """Return when the month of a moment begins and ends, in ms since the Unix epoch.

    The month is that of the local time zone. Tools read a message's time out of its id, as ms since
    then (MessageClientIDSetter).
    """
    now = datetime.datetime.fromtimestamp(now_ms / 1000)
    # Naive, and so local: midnight may have another offset from UTC than now.
    start = datetime.datetime(now.year, now.month, 1)
    following = (start + datetime.timedelta(days=32)).replace(day=1)
    return int(start.timestamp() * 1000), int(following.timestamp() * 1000)


class UniqueKeys:
    """Makes client message ids (UNIQ_KEY), unique among clients with different arguments.

    Upper-case hex of: address (4 or 16 bytes), process id (2), salt (4), ms since ``start_ms``
    (4), counter (2). The salt grows by one whenever the counter wraps, so that no id is repeated,
    however many belong to one millisecond and however the clock is set. Tools reconstruct the time
    on the assumption that the start is the first midnight, local time, of the month; the owner
    calls ``restart`` when a month begins. ``next`` may be called from several threads.
    """

    __slots__ = ("_counter", "_current", "_host", "_salt", "_start_ms")

    def __init__(self, *, address: bytes, pid: int, salt: int, start_ms: int) -> None:
        self._host = (address + (pid & 0xFFFF).to_bytes(2, "big")).hex().upper()
        self._salt = salt
        self._start_ms = start_ms
        self._counter = itertools.count()
        # What the ids of one millisecond have in common. One value, so that threads see it whole.
        self._current = (-1, "")

    def restart(self, start_ms: int) -> None:
        """Count milliseconds from another start."""
        self._start_ms = start_ms

    def next(self, now_ms: int) -> str:
        """Return a new id."""
        number = next(self._counter)
        moment = ((now_ms - self._start_ms) & 0xFFFFFFFF) + (number >> 16 << 32)
        known, common = self._current
        if known != moment:
            salt = (self._salt + (number >> 16)) & 0xFFFFFFFF
            common = f"{self._host}{salt:08X}{moment & 0xFFFFFFFF:08X}"
            self._current = (moment, common)
        return f"{common}{number & 0xFFFF:04X}"
