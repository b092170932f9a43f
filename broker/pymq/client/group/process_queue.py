"""One queue that a consumer reads: what was pulled and is not finished, and what to commit."""

from collections import OrderedDict
from collections.abc import Sequence

from pymq.protocol.bodies import MessageQueue
from pymq.protocol.message import ReceivedMessage


class ProcessQueue:
    """Messages are finished in any order; the offset to commit never passes an unfinished one.

    After a restart everything from the committed offset on is delivered again, so at worst a
    message comes twice, and none is skipped.

    Invariants: unfinished offsets are below ``next_offset`` and not below ``commit_offset``;
    ``commit_offset`` only grows. RocketMQ calls this ProcessQueue, too.
    """

    __slots__ = (
        "_unfinished",
        "dropped",
        "failures",
        "is_paused",
        "message_bytes",
        "next_offset",
        "pulled_ms",
        "queue",
    )

    def __init__(self, queue: MessageQueue, next_offset: int) -> None:
        self.queue = queue
        #: Queue offset at which the next pull begins.
        self.next_offset = next_offset
        #: When messages were asked for last: milliseconds since 1970; 0: never.
        self.pulled_ms = 0
        #: Total size of the unfinished bodies.
        self.message_bytes = 0
        #: The queue is somebody else's now: nothing of it is delivered or committed any more.
        self.dropped = False
        #: Nothing of it is delivered for the moment.
        self.is_paused = False
        #: Queue offset -> why a message that failed is still here, for log messages.
        self.failures: dict[int, str] = {}
        # Queue offset -> size of its body, in ascending order of offsets.
        self._unfinished: OrderedDict[int, int] = OrderedDict()

    @property
    def message_count(self) -> int:
        """How many messages are unfinished."""
        return len(self._unfinished)

    @property
    def commit_offset(self) -> int:
        """The smallest queue offset that is not finished: where a restart has to begin."""
        for offset in self._unfinished:
            return offset
        return self.next_offset

    @property
    def last_offset(self) -> int | None:
        """The greatest queue offset that is not finished; ``None``: everything is."""
        return next(reversed(self._unfinished), None)

    @property
    def span(self) -> int:
        """How many entries lie between the first unfinished message and the next pull."""
        return self.next_offset - self.commit_offset

    def pulled(self, messages: Sequence[ReceivedMessage], next_offset: int) -> None:
        """Take what a pull returned.

        Args:
            messages: those that concern us, ascending; what a filter left out is finished.
            next_offset: where the next pull begins, at least where this one did.
        """
        assert next_offset >= self.next_offset, "a pull went backwards"
        for message in messages:
            size = len(message.body)
            self._unfinished[message.queue_offset] = size
            self.message_bytes += size
        self.next_offset = next_offset

    def acknowledge(self, queue_offset: int) -> int | None:
        """A message was consumed, or its broker has taken it back.

        Returns:
            The size of its body; ``None`` when it was finished before.
        """
        size = self._unfinished.pop(queue_offset, None)
        if size is not None:
            self.message_bytes -= size
            if self.failures:
                self.failures.pop(queue_offset, None)
        return size
