"""Where a producer was told to send a message, instead of to the queue whose turn it is.

Of several instructions the first of these counts: a queue, a selector, a sharding key. A queue and
a selector contradict each other and are refused together; with either of them, a sharding key is
stored as the message's property and chooses nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pymq.client.sending.queue_selection import TopicQueues
from pymq.client.sending.send_template import SendTemplate
from pymq.errors import LocalProtocolError
from pymq.protocol.bodies import MessageQueue

#: Gets the queues that can be written to, in Java's order, and returns one of them. It is called
#: for every attempt, in the event loop.
QueueSelector: TypeAlias = Callable[[Sequence[MessageQueue]], MessageQueue]


@dataclass(frozen=True, slots=True)
class Placement:
    """What decides on the queue of one message; at least one is there."""

    queue: MessageQueue | None
    selector: QueueSelector | None
    sharding_key: str | None

    def choose(self, queues: TopicQueues) -> SendTemplate:
        """Return where the message goes.

        Raises:
            LocalProtocolError: the queue it must go to does not exist.
            RouteNotFound: its broker has left the route; it may come back.
        """
        if self.queue is not None:
            return queues.exactly(self.queue)
        if self.selector is not None:
            chosen = self.selector([template.queue for template in queues.templates])
            if not isinstance(chosen, MessageQueue):
                raise LocalProtocolError(
                    f"selector {self.selector!r} returned {chosen!r:.80}, expected one of the "
                    "queues that it was called with"
                )
            return queues.exactly(chosen)
        assert self.sharding_key is not None
        return queues.of_key(self.sharding_key)


def placement(
    queue: MessageQueue | None, selector: QueueSelector | None, sharding_key: str | None
) -> Placement | None:
    """Return what a caller's arguments come to; ``None``: the queue whose turn it is.

    Raises:
        LocalProtocolError: one of them is of a wrong type, or two contradict each other.
    """
    if queue is None and selector is None and sharding_key is None:
        return None
    if queue is not None and not isinstance(queue, MessageQueue):
        raise LocalProtocolError(f"queue={queue!r:.80}, expected one of queues(topic)")
    if selector is not None and not callable(selector):
        raise LocalProtocolError(
            f"selector={selector!r:.80}, expected a function of a list of queues that returns one"
        )
    if queue is not None and selector is not None:
        raise LocalProtocolError(
            f"queue={queue!r} and a selector, expected one of the two: each names the queue"
        )
    if sharding_key is not None:
        _check_sharding_key(sharding_key)
    return Placement(queue, selector, sharding_key)


def _check_sharding_key(key: object) -> None:
    if not isinstance(key, str) or not key:
        hint = f"; write sharding_key=str({key!r:.80})" if isinstance(key, int | float) else ""
        raise LocalProtocolError(
            f"sharding_key={key!r:.80}, expected a str that is not empty, because its hash chooses "
            f"the queue in every client alike{hint}"
        )
