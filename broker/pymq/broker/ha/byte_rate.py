"""How many bytes per second were replicated lately."""

WINDOW_S = 1.0


class ByteRate:
    """Counts bytes, and tells how many there were in the last second.

    Source: RocketMQ FlowMonitor.
    """

    def __init__(self) -> None:
        self._bytes = 0
        self._since_s: float | None = None
        self.per_s = 0

    def count(self, size_bytes: int) -> None:
        """Count some bytes."""
        self._bytes += size_bytes

    def step(self, now_s: float) -> None:
        """Begin another second if one is over; called at least twice a second."""
        if self._since_s is None:
            self._since_s = now_s
        elapsed_s = now_s - self._since_s
        if elapsed_s >= WINDOW_S:
            self.per_s = int(self._bytes / elapsed_s)
            self._bytes, self._since_s = 0, now_s
