"""Which queues of a topic belong to which member of a consumer group.

Every member computes the same division from the same two sets, queues and client ids; no message
is exchanged. So the rule is RocketMQ's to the letter, and members of several languages agree.
"""

from collections.abc import Iterable

from pymq.protocol.bodies import MessageQueue


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
    members = sorted(client_ids, key=_java_order)
    if own_id not in members:
        return []
    every = sorted(
        queues, key=lambda q: (_java_order(q.topic), _java_order(q.broker_name), q.queue_id)
    )
    share, extra = divmod(len(every), len(members))
    index = members.index(own_id)
    first = index * share + min(index, extra)
    return every[first : first + share + (index < extra)]


def _java_order(text: str) -> bytes:
    """Java compares strings by UTF-16 code unit."""
    return text.encode("utf-16-be", "surrogatepass")
