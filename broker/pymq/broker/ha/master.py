"""The HA port of a master: slaves connect here, and are sent the log.

RocketMQ trusts everybody on this port, and sends them all messages. Here it is open to this machine
only, unless the configuration lists other addresses or has a secret, which slaves prove (``door``).

Source: RocketMQ DefaultHAService, AutoSwitchHAService.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from concurrent.futures import Executor

from pymq.broker.disk_executor import DiskExecutor
from pymq.broker.ha.door import ACCEPTED_PER_TURN, BACKLOG, Door
from pymq.broker.ha.security import Security
from pymq.broker.ha.sent_ends import SentEnds
from pymq.broker.ha.slave_connection import SlaveConnection
from pymq.broker.ha.talk import ClassicTalk, Talk
from pymq.net.listening import listen
from pymq.net.said_once import SaidOnce
from pymq.net.standstill import Standstill
from pymq.net.tasks import Tasks
from pymq.protocol.admin_bodies import ReplicationStatus
from pymq.store import Replication

_log = logging.getLogger(__name__)

#: How often it is looked who was silent for too long.
LOOK_INTERVAL_S = 0.5
#: A slave that connects again twice in this time, each time while its last connection stands, is
#: two: each puts the other one out. One alone does that when its network was cut.
TWO_OF_ONE_S = 10.0


class Master:
    """Listens for slaves and sends them what is new.

    Args:
        listening: has taken the port; closed here.
        replication: the log.
        executor: reads what slaves need that are far behind.
        batch_bytes: most of the log in one push (RocketMQ haTransferBatchSize).
        heartbeat_s: a slave to which nothing was sent for so long is sent a heartbeat.
        silence_s: a slave that said nothing for so long is disconnected.
        gap_max: a slave that lacks fewer bytes of the log counts as in sync.
        security: who may connect.
        connection_count_max: how many may; half of them as slaves.
        gather_s: what is written within so long after a push goes with the next one. For a master
            whose senders do not wait: each push costs both sides more than what is in it.
        sends_whole_log: whether slaves that have nothing are sent the log from its first file on,
            also those that are RocketMQ's, and not from its last one.
        talk: returns the language of a new connection.
        on_progress: called after a slave has joined, left, or confirmed more, with the connections
            of those that have said how far they are.

    Attributes:
        slaves: the connections of those that follow or are about to.
    """

    def __init__(
        self,
        listening: socket.socket,
        replication: Replication,
        executor: Executor,
        *,
        batch_bytes: int,
        heartbeat_s: float,
        silence_s: float,
        gap_max: int,
        security: Security,
        connection_count_max: int,
        gather_s: float = 0.0,
        sends_whole_log: bool,
        talk: Callable[[], Talk] = ClassicTalk,
        on_progress: Callable[[list[SlaveConnection]], None] = lambda slaves: None,
    ) -> None:
        self._socket = listening
        self._heartbeat_s = heartbeat_s
        self._silence_s = silence_s
        self._gap_max = gap_max
        self._slave_count_max = connection_count_max // 2
        self._door = Door(
            security,
            silence_s=silence_s,
            count_max=connection_count_max,
            inside=lambda: len(self.slaves),
            make=lambda *, is_proven: SlaveConnection(self, is_proven=is_proven),
        )
        self._on_progress = on_progress
        self._said = SaidOnce(_log)
        #: Broker id -> when, last, a connection of it took the place of one that stood.
        self._replaced_s: dict[int, float] = {}
        self._standstill = Standstill(asyncio.get_running_loop().time())
        self._server: asyncio.Server | None = None
        self._is_closed = False
        self.replication = replication
        self.disk = DiskExecutor(executor)
        self.tasks = Tasks("slaves")
        self.batch_bytes = batch_bytes
        self.gather_s = gather_s
        self.sends_whole_log = sends_whole_log
        self.talk = talk
        self.sent_ends = SentEnds(replication.readable_end)
        self.slaves: list[SlaveConnection] = []

    def start(self) -> None:
        """Begin."""
        self._standstill = Standstill(asyncio.get_running_loop().time())
        self.tasks.start("listening", self._listen())
        self.tasks.repeat("silent slaves", self.look, LOOK_INTERVAL_S)

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            self._door.protocol, sock=self._socket, backlog=ACCEPTED_PER_TURN
        )
        if not self._is_closed:
            listen(self._socket, BACKLOG)  # asyncio has one number for both
        if self._is_closed:
            server.close()
        self._server = server

    def send(self) -> None:
        """Send slaves what was written to the log."""
        for slave in self.slaves:
            slave.send()

    def status(self) -> ReplicationStatus:
        """Return how far the slaves are."""
        end = self.replication.readable_end
        slaves = [slave.status(end, gap_max=self._gap_max) for slave in self.slaves]
        return ReplicationStatus(
            log_end=end, in_sync_slave_count=sum(one.in_sync for one in slaves), slaves=slaves
        )

    def look(self) -> None:
        """Send heartbeats; disconnect who was silent for too long."""
        now_s = asyncio.get_running_loop().time()
        stall_s = self._standstill.look(now_s, LOOK_INTERVAL_S)
        for slave in list(self.slaves):
            # While we stood still, nobody was silent.
            slave.heard_s = min(slave.heard_s + stall_s, now_s)
            slave.rate.step(now_s)
            slave.caught_up.look(slave.confirmed_end, self.replication.readable_end, now_s)
            slave.send()  # what was committed from a transient pool, and is no message of a queue
            if now_s - slave.heard_s > self._silence_s:
                self.refused(
                    slave,
                    f"it has said nothing for {self._silence_s:g} s (haHousekeepingInterval)",
                    "it is connected again when it is back",
                )
                slave.abort()
            elif now_s - slave.spoken_s > self._heartbeat_s:
                slave.send_heartbeat()

    # --- what connections say

    def joined(self, connection: SlaveConnection) -> bool:
        """Take a new connection; False: it may not stay."""
        if len(self.slaves) >= self._slave_count_max:
            self.refused(
                connection,
                f"{len(self.slaves)} slaves are connected, as many as may (half of "
                "pymqHaConnectionsMax)",
                "look who they are: mqadmin haStatus",
            )
            return False
        self.slaves.append(connection)
        return True

    def identified(self, connection: SlaveConnection) -> bool:
        """Take who a slave is; an older connection of the same one is closed."""
        assert connection.handshake is not None
        broker_id = connection.handshake.broker_id
        for other in list(self.slaves):
            known = other.handshake
            if other is not connection and known is not None and known.broker_id == broker_id:
                _log.info("slave %d connects again: %s", broker_id, connection.peer)
                self._look_for_two(broker_id, connection, other)
                other.abort()
                self.left(other)
        return True

    def _look_for_two(
        self, broker_id: int, connection: SlaveConnection, other: SlaveConnection
    ) -> None:
        """Say that two brokers have one id, if it seems so."""
        now_s = asyncio.get_running_loop().time()
        before_s = self._replaced_s.get(broker_id)
        self._replaced_s[broker_id] = now_s
        if before_s is None or now_s - before_s > TWO_OF_ONE_S:
            self._said.over(("two", broker_id))
            return
        self._said.warn(
            ("two", broker_id),
            "%s and %s both say that they are broker %d, and put each other out: two brokers have "
            "copies of one store. What one of them confirms the other one may lack. See which of "
            "them the controllers know (mqadmin getSyncStateSet), stop the other one, and delete "
            "brokerIdentity in its store",
            connection.peer,
            other.peer,
            broker_id,
        )

    def confirmed(self, connection: SlaveConnection) -> None:
        """A slave has more of the log than before."""
        self._said.over(connection.host)
        self._tell_progress()

    def _tell_progress(self) -> None:
        self._on_progress([one for one in self.slaves if one.claimed_end >= 0])

    def left(self, connection: SlaveConnection) -> None:
        """A connection is gone."""
        if connection in self.slaves:
            self.slaves.remove(connection)
            _log.info(
                "slave %s left; it has the log up to %d of %d",
                connection.peer,
                connection.confirmed_end,
                self.replication.readable_end,
            )
            self._tell_progress()

    def refused(self, connection: SlaveConnection, cause: str, cure: str) -> None:
        """Say why a slave cannot follow, once for as long as that is so."""
        self._said.warn(
            connection.host, "slave %s is disconnected: %s; %s", connection.peer, cause, cure
        )

    async def close(self) -> None:
        """Disconnect all slaves and stop; idempotent."""
        self._is_closed = True
        if self._server is not None:
            self._server.close()
            self._server = None
        else:
            self._socket.close()
        await self._door.close()
        for slave in list(self.slaves):
            slave.abort()
        await self.tasks.close()
        await self.disk.close(lambda error: _log.debug("not read: %s", error))
