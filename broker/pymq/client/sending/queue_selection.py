"""Which queue a send goes to: turns, keys, and keeping away from brokers that failed."""

from collections.abc import Collection

from pymq.client.sending.send_template import SendTemplate
from pymq.errors import LocalProtocolError, RouteNotFound
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.hashes import java_hash


def hashed_index(key: str, count: int) -> int:
    """Return the index of a key's queue among ``count`` queues, the same one as in Java clients."""
    # Java's remainder takes the sign of the dividend, and then the absolute value is taken.
    return abs(java_hash(key)) % count


class TopicQueues:
    """The queues of one topic that can be sent to; at least one.

    Args:
        templates: of the queues, in Java's order, on which the choice by key depends.
        turn: index of the queue before the one that has the first turn.
    """

    __slots__ = ("_turn", "templates")

    def __init__(self, templates: list[SendTemplate], *, turn: int = 0) -> None:
        assert templates
        self.templates = templates
        self._turn = turn

    def next(self, avoid: Collection[str]) -> SendTemplate:
        """Return the queue whose turn it is.

        Args:
            avoid: names of brokers that get nothing as long as there is another.
        """
        templates = self.templates
        count = len(templates)
        self._turn = turn = (self._turn + 1) % count
        if avoid:
            for step in range(count):
                at = (turn + step) % count
                if templates[at].queue.broker_name not in avoid:
                    self._turn = at
                    return templates[at]
        return templates[turn]

    def of_key(self, sharding_key: str) -> SendTemplate:
        """Return the queue of a key: the one a Java producer chooses (SelectMessageQueueByHash)."""
        return self.templates[hashed_index(sharding_key, len(self.templates))]

    def exactly(self, queue: MessageQueue) -> SendTemplate:
        """Return a certain queue.

        Raises:
            LocalProtocolError: its broker has no such queue.
            RouteNotFound: its broker has left the route; it may come back.
        """
        for template in self.templates:
            if template.queue == queue:
                return template
        brokers = {template.queue.broker_name for template in self.templates}
        if queue.broker_name not in brokers:
            raise RouteNotFound(
                f"broker {queue.broker_name!r} has no queue of topic {queue.topic!r} that can be "
                f"sent to, by its route: is it running? ({', '.join(sorted(brokers))} can)"
            )
        names = ", ".join(f"{t.queue.broker_name}:{t.queue.queue_id}" for t in self.templates)
        raise LocalProtocolError(
            f"{queue!r} cannot be sent to; the queues of its topic are {names}"
        )

    def has_other(self, avoid: Collection[str]) -> bool:
        """Is there a queue on a broker that is not to be avoided?"""
        return any(template.queue.broker_name not in avoid for template in self.templates)


class AvoidedBrokers:
    """Brokers that failed just now. Times are monotonic seconds.

    Read ``names`` on the hot path: a plain set, mostly empty.
    """

    __slots__ = ("_until_s", "names")

    def __init__(self) -> None:
        self._until_s: dict[str, float] = {}
        self.names: set[str] = set()

    def add(self, name: str, until_s: float) -> None:
        """Avoid a broker up to a moment."""
        self._until_s[name] = until_s
        self.names.add(name)

    def expire(self, now_s: float) -> None:
        """Forgive those whose time is over."""
        for name in [name for name, until_s in self._until_s.items() if until_s <= now_s]:
            del self._until_s[name]
            self.names.discard(name)
