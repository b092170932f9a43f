"""Which queues of a topic belong to which member of a consumer group.

Every member computes the same division from the same two sets, queues and client ids; no message
is exchanged. So the rule is RocketMQ's to the letter, and members of several languages agree.
"""

from collections.abc import Callable, Iterable
from typing import TypeAlias

from pymq.protocol.bodies import MessageQueue

#: Divides queues among clients; returns those of one of them.
Strategy: TypeAlias = Callable[[Iterable[MessageQueue], Iterable[str], str], list[MessageQueue]]


def allocate(
    queues: Iterable[MessageQueue], client_ids: Iterable[str], own_id: str
) -> list[MessageQueue]:
    """Return the queues that ``own_id`` shall read, sorted.

    With n queues and c clients everybody gets n div c neighbouring queues, the first n mod c
    clients one more; those behind the n-th client get none. An id that is listed twice counts
    twice, because it does so for the Java members, too: what falls to its second place is
    nobody's until the broker has dropped the stale connection.

    Args:
        queues: all readable queues of one topic.
        client_ids: all members, in any order.
        own_id: one of them; whoever is not listed gets nothing.

    Source: RocketMQ AllocateMessageQueueAveragely.
    """
    members, every = sorted(client_ids, key=java_order), sort_queues(queues)
    if own_id not in members:
        return []
    share, extra = divmod(len(every), len(members))
    index = members.index(own_id)
    first = index * share + min(index, extra)
    return every[first : first + share + (index < extra)]


def allocate_by_circle(
    queues: Iterable[MessageQueue], client_ids: Iterable[str], own_id: str
) -> list[MessageQueue]:
    """Return every c-th queue for one of c clients; otherwise as ``allocate``.

    Source: RocketMQ AllocateMessageQueueAveragelyByCircle.
    """
    members, every = sorted(client_ids, key=java_order), sort_queues(queues)
    if own_id not in members:
        return []
    return every[members.index(own_id) :: len(members)]


def allocate_shared(
    strategy: Strategy,
    queues: Iterable[MessageQueue],
    client_ids: Iterable[str],
    own_id: str,
    *,
    share_count: int,
) -> list[MessageQueue]:
    """Return the queues that ``own_id`` shall pop from, each once, sorted.

    Args:
        strategy: divides queues that are not shared by all.
        queues, client_ids, own_id: as for ``allocate``.
        share_count: how many other members pop from the same queue; all members pop from all
            queues if it is not above 0, or as high as their number. All queues of a broker
            are one of id -1 then.

    Source: RocketMQ QueryAssignmentProcessor.allocate4Pop.
    """
    members, every = sorted(client_ids, key=java_order), sort_queues(queues)
    if share_count <= 0 or share_count >= len(members) - 1:
        return sorted({MessageQueue(queue.topic, queue.broker_name, -1) for queue in every})
    if own_id not in members:
        return []
    index = members.index(own_id)
    if len(members) > len(every):
        return [every[index % len(every)]] if every else []
    found: set[MessageQueue] = set()
    for number in range(share_count + 1):
        found.update(strategy(every, members, members[(index + number) % len(members)]))
    return sorted(found)


def sort_queues(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """Return queues in the order of RocketMQ's ``MessageQueue.compareTo``."""
    return sorted(
        queues, key=lambda q: (java_order(q.topic), java_order(q.broker_name), q.queue_id)
    )


def java_order(text: str) -> bytes:
    """Return a key that sorts strings as Java does: by UTF-16 code unit."""
    return text.encode("utf-16-be", "surrogatepass")
