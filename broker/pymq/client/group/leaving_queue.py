"""A queue that is another member's now, and that is ours until its handler is done."""

import asyncio
import logging
from dataclasses import dataclass

from pymq.client.group.queue_reader import QueueReader

_log = logging.getLogger(__name__)

#: A queue whose handler keeps it from being given up says so after this.
LEAVING_S = 30.0


@dataclass(slots=True, eq=False)
class LeavingQueue:
    """A queue that is read no more.

    Attributes:
        reader: read it.
        is_lost: it is not ours any more, so it is not committed.
        is_waiting: its handler is at work.
        task: gives it up.
    """

    reader: QueueReader
    is_lost: bool
    is_waiting: bool = True
    task: asyncio.Task[None] | None = None

    def say_later(self, group: str) -> asyncio.TimerHandle:
        """Say that its handler keeps it from the member whose it is, unless that is cancelled."""
        return asyncio.get_running_loop().call_later(LEAVING_S, self._say, group)

    def _say(self, group: str) -> None:
        queue, read = self.reader.queue, self.reader.process_queue
        _log.warning(
            "group %r, topic %r, %s:%d: this queue is another member's now, but the handler of the "
            "message at offset %d is not done after %g s; it keeps the queue until then, because "
            "messages are handled in order; give what handles messages a time limit",
            group,
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            read.commit_offset if read is not None else -1,
            LEAVING_S,
        )
