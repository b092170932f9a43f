"""Where a blocking client reads a queue: at its master, or at a replica that its broker suggests.

The answer to a pull says which broker id should get the next one (suggestWhichBrokerId). A
RocketMQ master with ``slaveReadEnable`` names a slave while it is asked for messages that it
would have to fetch from its disk, and the slave names the master again when that is over.
"""

import time
from dataclasses import dataclass

from pymq.client.cluster.network import advertised
from pymq.client.sockets.blocking_pool import BlockingPool
from pymq.errors import ConnectionFailed
from pymq.net.blocking import BlockingChannel
from pymq.protocol.bodies import MessageQueue

#: A replica that failed, or lacks what it was asked for, is left alone this long. As long as a
#: route stays in use (pollNameServerInterval).
REPLICA_AVOIDED_S = 30.0


@dataclass(frozen=True, slots=True)
class ReadSource:
    """A broker that has a queue.

    Attributes:
        channel: the connection to it.
        address: its ``host:port``.
        is_master: whether it is the queue's master.
        is_chosen: it is a replica although the route has a master, which can be asked instead.
    """

    channel: BlockingChannel
    address: str
    is_master: bool
    is_chosen: bool


class ReadSources:
    """The brokers from which one client reads, and the replicas that it avoids at the moment.

    Args:
        pool: connections and routes.
    """

    def __init__(self, pool: BlockingPool) -> None:
        self._pool = pool
        self._avoided_until_s: dict[str, float] = {}  # by address, monotonic

    def open(self, queue: MessageQueue, broker_id: int) -> ReadSource:
        """Return where to read a queue: at that broker id, else at the master, else at any slave.

        Args:
            queue: which.
            broker_id: as suggested; a replica that is avoided, or cannot be reached, is passed
                over if there is a master.

        Raises:
            PymqError: there is no route, or nobody to be reached.
        """
        route, name = self._pool.route(queue.topic), queue.broker_name
        master = route.masters().get(name)
        address = route.read_address(name, broker_id)
        hint = advertised(name)
        if master is not None and address != master:
            if self._avoided_until_s.get(address, 0.0) <= time.monotonic():
                try:
                    channel = self._pool.channel(address, hint)
                    return ReadSource(channel, address, is_master=False, is_chosen=True)
                except ConnectionFailed:
                    self._avoid(address)
            address = master
        channel = self._pool.channel(address, hint)
        return ReadSource(channel, address, is_master=address == master, is_chosen=False)

    def avoid(self, source: ReadSource) -> None:
        """Leave a replica alone for a while."""
        self._avoid(source.address)

    def _avoid(self, address: str) -> None:
        self._avoided_until_s[address] = time.monotonic() + REPLICA_AVOIDED_S
