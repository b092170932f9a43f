"""Time, as a value that is passed in: wall time for stamps, monotonic time for waiting."""

import time


class Clock:
    """The machine's clock. Tests pass an object with the same methods instead."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch, as RocketMQ stamps its messages."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary start; never goes back. For deadlines."""
        return time.monotonic()

    def at(self, machine_ms: int) -> int:
        """Return what ``wall_ms`` was at a time of the machine's clock.

        What others stamp, clients and file systems, has times of the machine.
        """
        return machine_ms

    def age_ms(self, machine_ms: int) -> int:
        """Return how old something is that was stamped at a time of the machine's clock."""
        return self.wall_ms() - self.at(machine_ms)
