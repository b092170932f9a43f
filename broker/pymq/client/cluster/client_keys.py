"""The ids that a client gives its messages, and the month in which they count."""

import os
import secrets
import time

from pymq.protocol.unique_keys import UniqueKeys, month_around

#: How often it is checked that ids can still tell the time.
KEYS_CHECK_S = 1.0


class ClientKeys:
    """Makes the ids of one client.

    Args:
        address: ours, packed.
    """

    def __init__(self, address: bytes) -> None:
        self.unique = UniqueKeys(
            address=address, pid=os.getpid(), salt=secrets.randbits(32), start_ms=0
        )
        self._until_ms = 0
        self.step()

    def step(self) -> None:
        """Begin again with a new month."""
        now_ms = time.time_ns() // 1_000_000
        if now_ms >= self._until_ms:
            start_ms, self._until_ms = month_around(now_ms)
            self.unique.restart(start_ms)
