"""What all readers of a consumer share."""

from collections.abc import Callable
from dataclasses import dataclass

from pymq.client.cluster.pool import ClientPool
from pymq.client.group.broker_offsets import QueueOffsets
from pymq.client.group.inbox import Delivery, Inbox
from pymq.client.group.unread import UnreadQueues
from pymq.protocol.bodies import MessageQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderParts:
    """What all readers of a consumer share.

    Attributes:
        group: consumer group.
        pool: connections.
        inbox: gets the messages.
        offsets: returns who keeps the offset of a queue.
        on_undecodable: gets messages whose body cannot be decompressed.
        unread: says which queues of the group cannot be read.
    """

    group: str
    pool: ClientPool
    inbox: Inbox
    offsets: Callable[[MessageQueue], QueueOffsets]
    on_undecodable: Callable[[Delivery], None]
    unread: UnreadQueues
