"""The part of a consumer's face that is about its queues: which they are, pause, resume."""

from collections.abc import Iterable

from pymq.client.consuming.consumer_parts import ConsumerParts
from pymq.protocol.bodies import MessageQueue


class QueueControl:
    """What a consumer says and is told of its queues."""

    _parts: ConsumerParts

    def _check_open(self) -> None:
        raise NotImplementedError

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are ours at the moment."""
        return sorted(self._parts.held.readers)

    @property
    def paused(self) -> list[MessageQueue]:
        """The queues of ours that are paused."""
        return self._parts.held.paused

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Pull and deliver nothing of some queues; handlers that are at work finish.

        The queues stay ours. One that is given up and comes back is not paused any more, unless
        all were paused.

        Args:
            queues: of ``assignment``; ``None``: all, also those to come.

        Raises:
            ConfigurationError: one is not ours; none was paused.
            ClientClosed: the consumer is not open.
            ClientMisplaced: it was started in another process, thread or event loop.
        """
        self._check_open()
        self._parts.thread_inbox.put_back([])  # what no thread has taken yet
        self._parts.held.pause(queues)

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Go on with some queues, or with all, where ``pause`` stopped. Raises what it does."""
        self._check_open()
        self._parts.held.resume(queues)
