"""Ready-made choices of a queue, for ``selector=`` of a producer's sends.

::

    from pymq import Message, selectors

    in_room = selectors.in_machine_room("fra1")
    await producer.send(Message("orders", b"..."), selector=in_room)

Any function of a list of queues that returns one of them does as well.

Source: RocketMQ MessageQueueSelector and its implementations.
"""

import itertools
import random
from collections.abc import Sequence

from pymq.client.sending.placement import QueueSelector
from pymq.client.sending.queue_selection import hashed_index
from pymq.errors import ConfigurationError, RouteNotFound
from pymq.protocol.bodies import MessageQueue

#: Between a room and a broker in the broker's name.
_ROOM_END = "@"


def by_hash(key: str) -> QueueSelector:
    """Return a selector of the queue that belongs to a key (SelectMessageQueueByHash).

    As ``sharding_key``, but the key is not stored with the message.

    Raises:
        ConfigurationError: ``key`` is not a string.
    """
    _check_text("by_hash", "key", key)

    def select(queues: Sequence[MessageQueue]) -> MessageQueue:
        return queues[hashed_index(key, len(queues))]

    return select


def at_random(chance: random.Random | None = None) -> QueueSelector:
    """Return a selector of any queue (SelectMessageQueueByRandom).

    Args:
        chance: source of chance; by default one of its own.

    Raises:
        ConfigurationError: ``chance`` is something else.
    """
    if chance is not None and not isinstance(chance, random.Random):
        raise ConfigurationError(f"at_random({chance!r:.80}): expected a random.Random")
    source = chance or random.Random()

    def select(queues: Sequence[MessageQueue]) -> MessageQueue:
        return source.choice(queues)

    return select


def in_machine_room(*rooms: str) -> QueueSelector:
    """Return a selector of the queues of brokers in certain machine rooms, one after the other.

    A broker named ``fra1@broker-a`` is in room ``fra1``: the convention of RocketMQ's
    AllocateMessageQueueByMachineRoom. (SelectMessageQueueByMachineRoom has no code.)

    Raises:
        ConfigurationError: ``rooms`` are not strings, or there is none.
        RouteNotFound: (the selector) no broker of the topic is in one of the rooms.
    """
    if not rooms:
        raise ConfigurationError("in_machine_room(): expected the name of a room, or several")
    for room in rooms:
        _check_text("in_machine_room", "room", room)
    turn = itertools.count()

    def select(queues: Sequence[MessageQueue]) -> MessageQueue:
        near = [queue for queue in queues if _room_of(queue) in rooms]
        if not near:
            names = ", ".join(sorted({queue.broker_name for queue in queues}))
            raise RouteNotFound(
                f"no broker of the topic is in machine room {' or '.join(rooms)}: found {names}; "
                "a broker is in room R if its brokerName is R@anything"
            )
        return near[next(turn) % len(near)]

    return select


def _check_text(name: str, what: str, value: object) -> None:
    if not isinstance(value, str):
        hint = f"; write {name}(str({value!r:.80}))" if isinstance(value, int | float) else ""
        raise ConfigurationError(f"{name}({value!r:.80}): expected the {what} as a str{hint}")


def _room_of(queue: MessageQueue) -> str | None:
    room, end, _ = queue.broker_name.partition(_ROOM_END)
    return room if end else None
