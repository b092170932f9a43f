"""Client message ids of one process, and the month from which their time counts."""

import datetime
import secrets

from pymq.client.home import Process
from pymq.protocol.message import UniqueKeys


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


class MessageIds:
    """Client message ids of this process, without knowing an address of ours."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._process = Process()
        # An address of the loopback net, random: ids of processes must differ, and nothing
        # else is read from it.
        address = b"\x7f" + secrets.token_bytes(3)
        self._keys = UniqueKeys(
            address=address, pid=self._process.pid, salt=secrets.randbits(32), start_ms=0
        )
        self._until_ms = 0

    def next(self, now_ms: int) -> str:
        """Return a new id."""
        if self._process.is_forked:
            self._begin()
        if now_ms >= self._until_ms:
            start_ms, self._until_ms = month_around(now_ms)
            self._keys.restart(start_ms)
        return self._keys.next(now_ms)
