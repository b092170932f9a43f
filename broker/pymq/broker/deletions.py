"""What is forgotten when a topic or a group is deleted: there may be another one of its name."""

from collections.abc import Callable
from dataclasses import dataclass, field

from pymq.broker.state.offsets import OffsetTable
from pymq.store import MessageStore


@dataclass(frozen=True, slots=True)
class Deletions:
    """Who is called with the name of what is being deleted, before its offsets go.

    A topic has no queues any more: their deletion comes first, as only that can be refused.

    Attributes:
        topics, groups: those; they must not raise.
    """

    topics: list[Callable[[str], object]] = field(default_factory=list)
    groups: list[Callable[[str], object]] = field(default_factory=list)

    def topic(self, name: str) -> None:
        """A topic is being deleted."""
        for forget in self.topics:
            forget(name)

    def group(self, name: str) -> None:
        """A group is being deleted."""
        for forget in self.groups:
            forget(name)


def finish_deletions(store: MessageStore, offsets: OffsetTable) -> None:
    """Forget where groups were in topics that were deleted before a crash, here and from now on."""
    offsets.follow_deletions(
        store.retention.recorded_deletions,
        lambda topic, queue_id: store.queue_bounds(topic, queue_id)[0],
    )
