"""Client message ids of one process."""

import secrets

from pymq.client.cluster.home import Process
from pymq.protocol.unique_keys import UniqueKeys, month_around


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
