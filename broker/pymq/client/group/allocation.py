"""Ready-made ways to divide a topic's queues among a group's members, for ``Consumer``.

::

    from pymq import Consumer, allocation

    Consumer("127.0.0.1:9876", "billing", allocation=allocation.consistent_hash())

Each member divides for itself and nobody checks: all members of a group must use the same way,
or queues are read twice, or by nobody. Any function of the same arguments does as well::

    def even_and_odd(queues, client_ids, own_id):
        parity = client_ids.index(own_id) % 2
        return [queue for queue in queues if queue.queue_id % 2 == parity]

It gets all readable queues of one topic and the ids of all members, both sorted as RocketMQ
sorts them, and the id of this member; it returns this member's queues. It is asked for the
group's retry topic, too.

Source: RocketMQ AllocateMessageQueueStrategy and its implementations; same results as 5.3.3's.
"""

import bisect
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, TypeVar

from pymq.client.checks import check_count
from pymq.errors import ConfigurationError
from pymq.protocol.allocation import allocate, allocate_by_circle, java_order, sort_queues
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.names import is_retry_topic

#: Of a topic's queues, the ids of all members and the id of one: the queues of that one.
Allocation: TypeAlias = Callable[[list[MessageQueue], list[str], str], Iterable[MessageQueue]]

T = TypeVar("T")

#: Attribute of divisions whose results depend on the names of topics.
_WHOLE_NAMES = "whole_names"
#: Between a room and a broker in the broker's name.
_ROOM_END = "@"


def averagely(
    queues: Sequence[MessageQueue], client_ids: Sequence[str], own_id: str
) -> list[MessageQueue]:
    """Give each member neighbouring queues, as many as the others or one more; the default.

    Source: RocketMQ AllocateMessageQueueAveragely.
    """
    return allocate(queues, client_ids, own_id)


def by_circle(
    queues: Sequence[MessageQueue], client_ids: Sequence[str], own_id: str
) -> list[MessageQueue]:
    """Give the queues out one by one, in turn: of c members each gets every c-th queue.

    Source: RocketMQ AllocateMessageQueueAveragelyByCircle.
    """
    return allocate_by_circle(queues, client_ids, own_id)


def by_config(*own: MessageQueue) -> Allocation:
    """Read the queues that are listed, whoever else is in the group.

    Of the list, those that exist. The group's retry topic, of which nobody knows the queues before
    it exists, is divided ``averagely`` unless the list names queues of it. (In Java nobody reads
    it then.)

    Args:
        own: queues of this member, of any topics; the other members must list the rest.

    Raises:
        ConfigurationError: one is not a ``MessageQueue``.

    Source: RocketMQ AllocateMessageQueueByConfig.
    """
    for queue in own:
        if not isinstance(queue, MessageQueue):
            raise ConfigurationError(f"by_config: {queue!r:.200}: expected a MessageQueue")
    listed = {queue.topic for queue in own}

    def allocate_listed(
        queues: Sequence[MessageQueue], client_ids: Sequence[str], own_id: str
    ) -> list[MessageQueue]:
        topics = {queue.topic for queue in queues}
        if not topics & listed and any(is_retry_topic(topic) for topic in topics):
            return averagely(queues, client_ids, own_id)
        there = set(queues)
        return [queue for queue in dict.fromkeys(own) if queue in there]

    return allocate_listed


def consistent_hash(
    virtual_nodes: int = 10, hash_of: Callable[[str], int] | None = None
) -> Allocation:
    """Move few queues when members come or go, at the price of shares that differ in size.

    Args:
        virtual_nodes: places of each member on the ring; more make the shares more equal.
        hash_of: of a string, a whole number; by default the first four bytes of its MD5.

    Raises:
        ConfigurationError: ``virtual_nodes`` is not a whole number above 0.

    Source: RocketMQ AllocateMessageQueueConsistentHash, ConsistentHashRouter.
    """
    check_count("virtual_nodes", virtual_nodes, 1)
    place_of = hash_of or _md5_place

    def allocate_on_ring(
        queues: Sequence[MessageQueue], client_ids: Sequence[str], own_id: str
    ) -> list[MessageQueue]:
        ring: dict[int, str] = {}
        # An id that is listed twice has twice as many places.
        for client_id in dict.fromkeys(client_ids):
            for number in range(virtual_nodes * client_ids.count(client_id)):
                ring[place_of(f"{client_id}-{number}")] = client_id
        places = sorted(ring)

        def owner(queue: MessageQueue) -> str:
            at = bisect.bisect_left(places, place_of(_java_text(queue)))
            return ring[places[at % len(places)]]

        return [queue for queue in queues if owner(queue) == own_id] if places else []

    allocate_on_ring.__dict__[_WHOLE_NAMES] = True
    return allocate_on_ring


def by_machine_room(*rooms: str) -> Allocation:
    """Read only queues of brokers in certain machine rooms, all members alike.

    A broker named ``fra1@broker-a`` is in room ``fra1``. Queues in other rooms are read by nobody
    of this group.

    Args:
        rooms: one or more.

    Raises:
        ConfigurationError: there is none, or one is not a string.

    Source: RocketMQ AllocateMessageQueueByMachineRoom.
    """
    if not rooms or not all(isinstance(room, str) for room in rooms):
        raise ConfigurationError(f"by_machine_room{rooms!r:.200}: expected names of rooms")

    def allocate_in_rooms(
        queues: Sequence[MessageQueue], client_ids: Sequence[str], own_id: str
    ) -> list[MessageQueue]:
        if own_id not in client_ids:
            return []
        near = [queue for queue in queues if _room_of(queue.broker_name) in rooms]
        share, extra = divmod(len(near), len(client_ids))
        index = client_ids.index(own_id)
        mine = near[index * share : (index + 1) * share]
        # What cannot be divided is at the end.
        return mine + ([near[len(client_ids) * share + index]] if index < extra else [])

    return allocate_in_rooms


def machine_room_nearby(
    room_of_queue: Callable[[MessageQueue], str],
    room_of_client: Callable[[str], str],
    within: Allocation = averagely,
) -> Allocation:
    """Divide the queues of each machine room among the members in that room.

    Queues in a room without a member are divided among all.

    Args:
        room_of_queue: the room of a queue's broker.
        room_of_client: the room of a member, by its client id (``address@instance``).
        within: how queues are divided among members.

    Source: RocketMQ AllocateMachineRoomNearby.
    """

    def allocate_nearby(
        queues: Sequence[MessageQueue], client_ids: Sequence[str], own_id: str
    ) -> list[MessageQueue]:
        if own_id not in client_ids:
            return []
        queues_in = _by_room(queues, room_of_queue, "room_of_queue")
        clients_in = _by_room(client_ids, room_of_client, "room_of_client")
        own_room = room_of_client(own_id)
        near = queues_in.pop(own_room, [])
        found = list(within(near, clients_in[own_room], own_id)) if near else []
        for room in sorted(queues_in.keys() - clients_in.keys(), key=java_order):
            found += within(queues_in[room], list(client_ids), own_id)
        return found

    allocate_nearby.__dict__[_WHOLE_NAMES] = goes_by_whole_names(within)
    return allocate_nearby


def goes_by_whole_names(allocation: Allocation) -> bool:
    """Must topics be called as brokers call them, with their namespace, as members in Java do?"""
    return getattr(allocation, _WHOLE_NAMES, False) is True


def own_share(
    allocation: Allocation,
    queues: Iterable[MessageQueue],
    client_ids: Iterable[str],
    own_id: str,
) -> set[MessageQueue]:
    """Return what is this member's part, after a look whether it can be.

    Raises:
        ConfigurationError: ``allocation`` failed, or returned something else than some of the
            queues.
    """
    every, members = sort_queues(queues), sorted(client_ids, key=java_order)
    if not every:
        return set()
    name = name_of(allocation)
    try:
        answer = allocation(list(every), list(members), own_id)
        found = list(answer)
        share = set(found)
    except Exception as error:
        raise ConfigurationError(
            f"allocation={name} failed for {len(every)} queues and {len(members)} members, so this "
            f"member keeps the queues it has: {error!r:.300}"
        ) from error
    wrong = [queue for queue in found if queue not in set(every)]
    if wrong or len(found) != len(share):
        what = f"{wrong[0]!r:.200}, which is not one of them" if wrong else "a queue twice"
        raise ConfigurationError(
            f"allocation={name} was given {len(every)} queues and returned {what}, so this member "
            "keeps the queues it has; it must return those of the given queues that are to be read "
            "by this member"
        )
    return share


def name_of(allocation: Allocation) -> str:
    """Return what a program calls a division; ours that take arguments are closures."""
    if getattr(allocation, "__module__", "") == __name__:
        return str(getattr(allocation, "__qualname__", "")).partition(".")[0]
    return str(getattr(allocation, "__name__", repr(allocation)))


def _by_room(items: Iterable[T], room_of: Callable[[T], str], name: str) -> dict[str, list[T]]:
    found: dict[str, list[T]] = {}
    for item in items:
        room = room_of(item)
        if not room or not isinstance(room, str):
            raise ConfigurationError(
                f"{name}({item!r:.200}) is {room!r:.80}, expected the name of a room"
            )
        found.setdefault(room, []).append(item)
    return found


def _room_of(broker_name: str) -> str | None:
    # Java's split drops empty parts at the end.
    parts = broker_name.rstrip(_ROOM_END).split(_ROOM_END)
    return parts[0] if len(parts) == 2 else None


def _java_text(queue: MessageQueue) -> str:
    """Return RocketMQ's ``MessageQueue.toString()``."""
    return (
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
        f"queueId={queue.queue_id}]"
    )


def _md5_place(text: str) -> int:
    digest = hashlib.md5(text.encode("utf-8", "replace"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4])
