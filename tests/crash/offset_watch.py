"""A consumer that reads nothing: it commits where queues end, and asks what is committed."""

from __future__ import annotations

import threading
from typing import Final, Self

from tests.crash.failover_checkers import (
    CommitBegun,
    CommitEvent,
    Committed,
    Queried,
    QueryBegun,
)

from pymq.client.sockets.blocking_client import BlockingClient
from pymq.errors import PymqError

GROUP: Final = "offsets"
PAUSE_S: Final = 0.05
TIMEOUT_S: Final = 3.0
END_TIMEOUT_S: Final = 240.0


class OffsetWatch:
    """A thread that commits and asks, until it is closed; a context manager.

    Attributes:
        events: what it did, and was told.
        last_error: why the last request came to nothing that did.
    """

    def __init__(self, name_server: str, topic: str) -> None:
        self._client = BlockingClient(name_server, timeout_s=TIMEOUT_S)
        self._topic = topic
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.events: list[CommitEvent] = []
        self.last_error: PymqError | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.finish()

    def finish(self) -> list[CommitEvent]:
        """Ask once more for everything, stop, and return what happened; idempotent."""
        self._stopped.set()
        self._thread.join(END_TIMEOUT_S)
        assert not self._thread.is_alive()
        self._client.close()
        return self.events

    def _run(self) -> None:
        last = False
        while not last:
            last = self._stopped.is_set()
            try:
                self._turn()
            except PymqError as error:
                self.last_error = error
            self._stopped.wait(PAUSE_S)

    def _turn(self) -> None:
        client = self._client
        for queue, (_, end) in client.bounds(client.read_queues(self._topic)).items():
            name = f"{queue.broker_name}/{queue.queue_id}"
            self.events.append(QueryBegun(name))
            # Brokers say 0, too, of a group that has committed nothing in a short queue.
            at = client.committed_offset(GROUP, queue) or None
            self.events.append(Queried(name, at))
            if end > (at or 0):
                self.events.append(CommitBegun(name, end))
                client.commit_offset(GROUP, queue, end)
                self.events.append(Committed(name, end))
