"""A slave follows its master: it connects, receives the log, and says how far it has come.

With SYNC_FLUSH it says so when what it received is on the disk; RocketMQ's slaves do not wait for
that.

Source: RocketMQ DefaultHAClient (4.x: HAService.HAClient), AutoSwitchHAClient.
"""

import asyncio
import functools
import logging
from collections.abc import Callable

from pymq.broker.disk_executor import DiskExecutor
from pymq.broker.ha.byte_rate import ByteRate
from pymq.broker.ha.following import (
    ClassicFollowing,
    EpochFollowing,
    LogDiverged,
    MakeFollowing,
)
from pymq.broker.ha.log_tails import read_tail
from pymq.broker.ha.master_connection import MasterConnection
from pymq.broker.ha.replica_group import ReplicaGroup
from pymq.broker.ha.secret import connect
from pymq.broker.ha.security import Security, security_of
from pymq.broker.log_writer import WaitFlushed
from pymq.broker.replication_config import ReplicationConfig
from pymq.clock import Clock
from pymq.errors import RemoteProtocolError, StoreError
from pymq.net.said_once import SaidOnce
from pymq.net.tasks import Tasks
from pymq.net.waiting import happens
from pymq.protocol.addresses import split_address
from pymq.protocol.admin_bodies import FollowingStatus, ReplicationStatus
from pymq.protocol.epoch_replication import Handshake
from pymq.store import Replication

_log = logging.getLogger(__name__)

#: A master that cannot be reached, or has closed the connection, is tried again after this.
RETRY_S = 1.0
LOOK_INTERVAL_S = 0.5
#: What was refused is not better a second later.
REFUSED_RETRY_S = 5.0


class Slave:
    """Follows the master that it is told of.

    Args:
        replication: the log.
        wait_flushed: waits until the log is on the disk; None: what is written counts as received.
        clock: for times that are told.
        on_lost: called when the master cannot be reached: it may be elsewhere by now.
        security: which masters are trusted.
        heartbeat_s: the master is told how far we are at least this often.
        silence_s: a master that said nothing for so long is given up.
        following: makes the language of a new connection.
        on_diverged: called with the physical offset at which the log has to be cut; it is tried
            again, so whoever cuts it ends this.

    Attributes:
        master: ``host:port`` of the master's HA port; None: unknown.
        is_following: whether the master is connected, and has sent something.
        on_begun: called when the master is connected, and when it is followed.
        is_unsure: whether the end of the log may be cut off: nobody may read it until the master
            has confirmed it.
        is_acting: whether this broker acts for its master, which is away.
        knows_offsets: returns whether consumers may be told what is committed; to be set.
        rate: of what was received of the log.
    """

    def __init__(
        self,
        replication: Replication,
        wait_flushed: WaitFlushed | None,
        clock: Clock,
        on_lost: Callable[[], None],
        security: Security,
        *,
        heartbeat_s: float,
        silence_s: float,
        following: MakeFollowing,
        on_diverged: Callable[[int], None] = lambda common_end: None,
    ) -> None:
        self.replication = replication
        self._wait_flushed = wait_flushed
        self._clock = clock
        self._on_lost = on_lost
        self._security = security
        self._heartbeat_s = heartbeat_s
        self._silence_s = silence_s
        self._on_diverged = on_diverged
        self._following = following
        self._changed = asyncio.Event()
        self._connection: MasterConnection | None = None
        self._said = SaidOnce(_log)
        self._refusal = ""
        self._disk = DiskExecutor(None)
        self._tasks = Tasks("slave")
        #: Where our log ended when this connection began; all of that is visible.
        self._begun_end = 0
        self.master: str | None = None
        self.is_following = False
        self.is_unsure = self.is_acting = False
        self.rate = ByteRate()
        self.on_begun: Callable[[], None] = lambda: None
        self.knows_offsets: Callable[[], bool] = lambda: False

    def start(self) -> None:
        """Begin."""
        self._tasks.start("following", self._run())

    @property
    def peer(self) -> str | None:
        """``host:port`` of the master's HA port, as the connection tells it; None: there is none.

        A master that has to prove the secret has proven it.
        """
        return None if self._connection is None else self._connection.peer

    @property
    def wants_proof(self) -> bool:
        """Whether there is a secret."""
        return self._security.secret is not None

    @property
    def hands_over(self) -> bool:
        """Does it act for a master that is about to be online, and takes over what is kept here?

        Whoever acts follows nobody until such a master asks for that, and the master asks for what
        is kept here when it is followed. When it dies, it is not followed any more.
        """
        return self.is_acting and self._connection is not None

    @property
    def has_master(self) -> bool:
        """Whether clients find the master where it is."""
        return self.is_following and not self.is_acting

    def follow(self, master: str | None) -> None:
        """Follow a master, given by ``host:port`` of its HA port, and none other; None: nobody."""
        if master == self.master:
            return
        self.master = master
        self.is_following = False
        self._changed.set()
        if self._connection is not None:
            self._connection.give_up("it is not the master any more")

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            if self.master is None:
                await self._changed.wait()
                continue
            pause_s = RETRY_S
            try:
                await self._follow(self.master)
            except (OSError, TimeoutError, RemoteProtocolError) as error:
                hint, cause = "", "connection"
                if isinstance(error, RemoteProtocolError):
                    pause_s, cause = REFUSED_RETRY_S, "refusal"
                    if str(error) != self._refusal:  # another reason is news
                        self._said.over(cause)
                        self._refusal = str(error)
                elif isinstance(error, ConnectionResetError) and not self.is_following:
                    pause_s = REFUSED_RETRY_S
                    hint = (
                        " before it has sent anything (its log says why; it may want TLS: "
                        "pymqHaTls)"
                    )
                self._said.warn(
                    cause,
                    "this slave does not follow its master %s, what is sent there is not kept "
                    "here: %s%s; trying again every %g s",
                    self.master,
                    error or type(error).__name__,
                    hint,
                    pause_s,
                )
                self._on_lost()
            except LogDiverged as error:
                pause_s = REFUSED_RETRY_S
                _log.warning("%s", error)
                self._on_diverged(error.common_end)
            except StoreError as error:
                pause_s = REFUSED_RETRY_S
                self._said.warn(
                    "log",
                    "this slave cannot follow its master %s: %s; trying again every %g s",
                    self.master,
                    error,
                    REFUSED_RETRY_S,
                )
            except Exception:
                _log.exception("following %s failed; trying again in %g s", self.master, RETRY_S)
            finally:
                self.is_following = False
            await happens(self._changed, pause_s)

    async def _follow(self, master: str) -> None:
        """Follow until the connection is lost.

        Raises:
            OSError, TimeoutError: it cannot be made, or was lost.
            RemoteProtocolError: a master does not speak like that.
            StoreError: what it sends cannot be appended.
        """
        loop = asyncio.get_running_loop()
        host, port = split_address(master)
        self._begun_end = end = self.replication.begin()
        await self._flush(end)
        connection = await connect(host, port, self._security, self._make_connection)
        self._connection = connection
        try:
            if master != self.master:
                raise ConnectionAbortedError("it is not the master any more")
            tail = None
            if connection.tells_tail:
                tail = await read_tail(self.replication, self._disk, end)
            connection.begin(end, tail)
            self.on_begun()
            pause_s = min(self._heartbeat_s, LOOK_INTERVAL_S)
            while not connection.ended.done():
                await asyncio.wait([connection.ended], timeout=pause_s)
                now_s = loop.time()
                self.rate.step(now_s)
                if now_s - connection.heard_s > self._silence_s:
                    connection.give_up(
                        f"it has said nothing for {self._silence_s:g} s (haHousekeepingInterval)"
                    )
                elif now_s - connection.spoken_s >= self._heartbeat_s and self.is_following:
                    connection.report()
            connection.ended.result()
        finally:
            connection.close()
            self._connection = None

    async def _flush(self, end: int) -> None:
        """Wait until what is reported first is on the disk, if that counts.

        Raises:
            StoreError: it is not.
        """
        if self._wait_flushed is None:
            return
        told: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

        def done(reason: str | None) -> None:
            if not told.done():  # it is when the waiting task was cancelled
                told.set_result(reason)

        self._wait_flushed(end, done)
        reason = await told
        if reason is not None:
            raise StoreError(f"its log is not on the disk: {reason}")

    def _make_connection(self) -> MasterConnection:
        return MasterConnection(
            self._following(), self.replication, self._wait_flushed, self._taken
        )

    def _taken(self, size_bytes: int) -> None:
        """More of the log has arrived, and is appended."""
        self.rate.count(size_bytes)
        confirmed_end = self.replication.shown_end
        if confirmed_end is None or confirmed_end >= self._begun_end:
            self.is_unsure = False
        if not self.is_following:
            self.is_following = True
            self._said.over("connection")
            self._said.over("refusal")
            self._said.over("log")
            _log.info("following master %s from %d on", self.master, self.replication.kept_end)
            self.on_begun()

    def status(self) -> ReplicationStatus:
        """Return how we follow the master."""
        end = self.replication.readable_end
        connection = self._connection
        following = FollowingStatus(
            master=self.master,
            log_end=end,
            bytes_per_s=self.rate.per_s,
            is_active=self.is_following,
        )
        if connection is not None:
            now_s, now_ms = asyncio.get_running_loop().time(), self._clock.wall_ms()
            following.heard_ms = now_ms - int((now_s - connection.heard_s) * 1000)
            following.spoken_ms = now_ms - int((now_s - connection.spoken_s) * 1000)
        return ReplicationStatus(master=False, log_end=end, following=following)

    async def close(self) -> None:
        """Stop; idempotent."""
        await self._tasks.close()
        await self._disk.close(lambda error: _log.debug("not read: %s", error))


def slave_of(
    config: ReplicationConfig,
    replication: Replication,
    wait_flushed: WaitFlushed | None,
    clock: Clock,
    on_lost: Callable[[], None],
    group: ReplicaGroup | None,
) -> Slave | None:
    """Return what follows the master of a broker; None if that is one itself."""
    if config.role.is_master:
        return None
    following: MakeFollowing = functools.partial(ClassicFollowing, wants_whole_log=True)
    if group is not None:
        handshake = Handshake(group.term.own_id, config.from_last_file, config.is_learner)
        following = functools.partial(EpochFollowing, handshake, group.epochs)
    slave = Slave(
        replication,
        wait_flushed,
        clock,
        on_lost,
        security_of(config),
        heartbeat_s=config.heartbeat_ms / 1000,
        silence_s=config.silence_ms / 1000,
        following=following,
        on_diverged=(lambda end: None) if group is None else group.steering.diverged,
    )
    slave.is_unsure = group is not None
    slave.follow(None if group is not None else config.master_address)
    return slave
