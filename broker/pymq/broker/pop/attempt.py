"""A pop that has taken messages: they are handed out once their checkpoints are kept."""

from collections.abc import Callable

from pymq.broker.log_writer import Outcome
from pymq.broker.pop.popping import Taken
from pymq.broker.put_answer import is_in_log
from pymq.store import PutResult


class PopAttempt:
    """One pop.

    Args:
        ended: called when the last checkpoint is kept, or is not.

    Attributes:
        pop_time: ms; part of the handles.
        revive_queue_id: where its checkpoints are, or ORDER_REVIVE_QUEUE.
        kept: messages with a checkpoint, in the order in which they were taken.
        failure: why there is none for others.
        order_counts: ``orderCountInfo``; None if the pop is not in order.
    """

    def __init__(
        self,
        pop_time: int,
        revive_queue_id: int,
        ended: Callable[["PopAttempt"], None] = lambda _: None,
    ) -> None:
        self.pop_time = pop_time
        self.revive_queue_id = revive_queue_id
        self.kept: list[Taken] = []
        self.failure: tuple[PutResult, Outcome] | None = None
        self.order_counts: str | None = None
        self._ended = ended
        self._waiting_count = 0

    def expect(self, count: int) -> None:
        """Wait for this many checkpoints."""
        self._waiting_count = count

    def take(self, taken: Taken, result: PutResult, outcome: Outcome) -> None:
        """Note what became of one checkpoint."""
        if is_in_log(outcome):
            self.kept.append(taken)
        else:
            self.failure = result, outcome
        self._waiting_count -= 1
        if not self._waiting_count:
            self._ended(self)
