"""Has a broker of a group with a controller run in the role that it has in each term.

Source: RocketMQ ReplicasManager.changeToMaster, changeToSlave, AutoSwitchHAService.
"""

import asyncio
import logging
import socket
from dataclasses import replace

from pymq.broker.config import BrokerConfig
from pymq.broker.forgotten_files import forget_files
from pymq.broker.ha.heartbeat import Position
from pymq.broker.ha.identity import IdentityFiles
from pymq.broker.ha.lost_log import advising
from pymq.broker.ha.membership import Membership
from pymq.broker.ha.replica_group import MembersListener, ReplicaGroup
from pymq.broker.ha.term import Term
from pymq.broker.replication_config import ReplicationConfig, Role
from pymq.broker.run import Base, Requests, Run
from pymq.errors import PymqError, StoreError
from pymq.net.said_once import SaidOnce
from pymq.net.tasks import Tasks
from pymq.protocol.command import Command
from pymq.protocol.controller import SyncStateSet
from pymq.protocol.epochs import Epoch, Epochs
from pymq.store import EpochFile, MessageStore, StoreConfig
from pymq.store.recovery.log_end import find_log_end
from pymq.store.truncation import truncate_log

_log = logging.getLogger(__name__)

RETRY_S = 1.0
#: A broker that could not run as the master this often lets the controllers elect another one.
FAILED_COUNT_MAX = 3
#: It is said that the controllers are waited for when that takes longer.
_WAITING_S = 3.0


class RoleChanges:
    """Runs the broker: ends one run when a term ends, and begins the next.

    Args:
        base: what all runs stand on.
        config, store_config, replication: settings; those of the role depend on the term.
        requests: those of clients.
        ha_socket: has taken the HA port; None: slaves cannot connect.
    """

    def __init__(
        self,
        base: Base,
        config: BrokerConfig,
        store_config: StoreConfig,
        replication: ReplicationConfig,
        requests: Requests,
        ha_socket: socket.socket | None,
    ) -> None:
        self._base = base
        self._config = config
        self._store_config = store_config
        self._replication = replication
        self._requests = requests
        self._ha_socket = ha_socket
        self._epochs = EpochFile(store_config.root_path)
        self._members: MembersListener | None = None
        #: Of its term: its run may go on for a while when the next one has begun.
        self._members_term = 0
        self._run: Run | None = None
        #: The term of the run, and the one that there should be a run for.
        self._term: Term | None = None
        self._wanted: Term | None = None
        #: How often it could not be the master of that one.
        self._failed_count = 0
        #: Whether the last run that was begun could not be.
        self._has_failed = False
        #: Where the log has to be cut before that.
        self._cut_end: int | None = None
        self._changed = asyncio.Event()
        #: Where the log ends while no run has the store open.
        self._log_end = 0
        self._is_closed = False
        self._started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._said = SaidOnce(_log)
        self._tasks = Tasks("roles")
        #: The end of the last run, which nothing cuts short.
        self._endings = Tasks("end of a role")
        self._ending: asyncio.Task[None] | None = None
        self._membership = Membership(
            config,
            replication,
            base.clock,
            IdentityFiles(store_config.root_path, cluster=config.cluster, name=config.name),
            address=base.address,
            log=self,
            on_term=self._begin_term,
            on_members=self._take_members,
        )

    def start(self) -> None:
        """Begin."""
        self._tasks.start("runs", self._follow_terms())

    async def wait_started(self) -> None:
        """Return when the broker runs in some role.

        Raises:
            StoreError: the store cannot be opened.
            ConfigurationError: a port is taken.
        """
        done, _ = await asyncio.wait([self._started], timeout=_WAITING_S)
        if not done:
            _log.warning(
                "this broker waits until a controller (%s, controllerAddr) says in which role it "
                "runs; until then it answers nobody",
                ", ".join(self._replication.controllers),
            )
        await self._started

    async def look_again(self) -> None:
        """Do what is due now: wall time has jumped."""
        if self._run is not None:
            await self._run.look_again()

    # --- what the parts of a run ask

    def told(self, request: Command) -> None:
        """Take a notification of a controller.

        Raises:
            RemoteProtocolError: it is malformed.
        """
        self._membership.told(request)

    async def alter(
        self, broker_ids: frozenset[int], epoch: int, *, term: int
    ) -> SyncStateSet | None:
        """Ask for another sync state set; see ``Membership.alter``."""
        return await self._membership.alter(broker_ids, epoch, term=term)

    def diverged(self, common_end: int) -> None:
        """The log has to be cut at a physical offset before it can follow its master's."""
        self._cut_end = common_end
        self._changed.set()

    def members_listener(self, in_sync: MembersListener | None, *, term: int) -> None:
        """Have a master's parts told of the set that the controller has in their term."""
        self._members, self._members_term = in_sync, term

    # --- what the membership asks, and tells

    def position(self) -> Position:
        """Return how far the log is."""
        run = self._run
        if run is not None and run.store is not None:
            self._log_end = run.store.log_end
        confirmed_end = 0 if self._members is None else self._members.confirmed_end
        last_epoch = self._epochs.epochs.last_number
        return Position(last_epoch, self._log_end, confirmed_end, self.is_able)

    @property
    def is_able(self) -> bool:
        """Whether this broker, which is a slave, could be the master: not if it refuses writes.

        The master always is: controllers hear by silence that it is not, and by its offset whether
        others have caught up.
        """
        if self._wanted is not None and self._wanted.is_master:
            return True
        store = None if self._run is None else self._run.store
        if self._term is None or store is None:
            return not self._has_failed
        return store.not_writable_reason is None

    def _begin_term(self, term: Term | None) -> None:
        self._count_from_zero()
        self._wanted = term
        self._changed.set()

    def _take_members(self, term: int, members: SyncStateSet) -> None:
        if self._members is not None and term == self._members_term:
            self._members.told(members)

    # --- runs

    async def _follow_terms(self) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._base.writers, self._look)
        except Exception as error:  # whoever waits for the start has to hear of it
            self._started.set_exception(error)
            return
        self._membership.start()
        while True:
            await self._changed.wait()
            self._changed.clear()
            term, cut_end = self._wanted, self._cut_end
            if term is None:  # none yet, or not any more
                await self._end_run()
                await self._turn_clients_away()
                continue
            if term == self._term and cut_end is None:
                continue
            try:
                await self._change(term, cut_end)
            except PymqError as error:
                if not self._started.done():
                    self._started.set_exception(error)
                    return
                self._said.warn(
                    "change",
                    "this broker cannot run as the %s of epoch %d, and answers nobody: %s; trying "
                    "again every %g s",
                    _role_of(term),
                    term.number,
                    error,
                    RETRY_S,
                )
                await self._try_again_later(term)
            except Exception as error:
                if not self._started.done():
                    self._started.set_exception(error)
                    return
                _log.exception("this broker could not change its role; trying again")
                await self._try_again_later(term)
            else:
                self._said.over("change")
                self._has_failed = False
                self._count_from_zero()
                if not self._started.done():
                    self._started.set_result(None)

    def _look(self) -> None:
        """See how far the log goes: the controller elects by that, before any run opens it.

        Raises:
            StoreError: no run could open it, so this broker must not be elected.
        """
        self._epochs.load()
        with advising(group=self._config.name, root=self._store_config.root_path):
            self._log_end = find_log_end(
                self._store_config, self._base.files, is_cancelled=lambda: self._is_closed
            )

    async def _try_again_later(self, failed: Term) -> None:
        """A run could not begin: have nobody come here before the next try."""
        self._term, self._has_failed = None, True
        if failed.is_master and failed is self._wanted:
            self._failed_count += 1
            if self._failed_count == FAILED_COUNT_MAX:
                _log.warning(
                    "this broker could not run as the master of epoch %d, %d times: until it can, "
                    "it sends the controllers no heartbeats, so that they may elect another one",
                    failed.number,
                    FAILED_COUNT_MAX,
                )
                self._membership.keep_silent(is_silent=True)
        await self._turn_clients_away()
        asyncio.get_running_loop().call_later(RETRY_S, self._changed.set)

    def _count_from_zero(self) -> None:
        """It is the master, or may become it, or is not to be it any more."""
        if self._failed_count >= FAILED_COUNT_MAX:
            self._membership.keep_silent(is_silent=False)
        self._failed_count = 0

    async def _change(self, term: Term, cut_end: int | None) -> None:
        """End the run that there is, and begin one for a term.

        Raises:
            StoreError: the store cannot be opened, or cut.
        """
        begun_s = asyncio.get_running_loop().time()
        await self._end_run()
        if cut_end is not None:
            await asyncio.get_running_loop().run_in_executor(
                self._base.writers, self._cut, cut_end
            )
            self._cut_end, self._log_end = None, cut_end
        self._run = run = self._make_run(term)
        with advising(group=self._config.name, root=self._store_config.root_path):
            await run.start()
        self._term = term
        _log.info(
            "broker %d of group %s is the %s of epoch %d, after %.3f s",
            term.own_id,
            self._config.name,
            _role_of(term),
            term.number,
            asyncio.get_running_loop().time() - begun_s,
        )

    async def _end_run(self) -> None:
        run, self._run, self._term = self._run, None, None
        if run is None:
            return
        if run.store is not None:
            self._log_end = run.store.log_end
        # In a task of its own: a broker that stops meanwhile ends this one, not the run's end.
        self._ending = self._endings.start("run", _close(run))
        await asyncio.wait([self._ending])
        if self._ha_socket is not None:
            _stop_listening(self._ha_socket)

    async def _turn_clients_away(self) -> None:
        """It is not known when the next run follows, if any does: send clients elsewhere.

        Name servers forget a broker whose connection ends.
        """
        await self._base.forget_registrations()
        await self._requests.turn_away()

    def _cut(self, end: int) -> None:
        """Cut the log, and then its epochs: the other way around, nobody could tell where."""
        forget_files(self._store_config.root_path, self._base.unsaved)
        truncate_log(self._store_config, end)
        self._epochs.save(self._epochs.epochs.cut(end))

    def _make_run(self, term: Term) -> Run:
        config, replication = self._config, self._replication
        if term.is_master:
            config = replace(config, broker_id=0)
            if not replication.role.is_master:
                replication = replace(replication, role=Role.SYNC_MASTER)
        else:
            config = replace(config, broker_id=term.own_id)
            replication = replace(replication, role=Role.SLAVE)
        is_open = term.is_master and self._ha_socket is not None
        return Run(
            self._base if term.is_master else replace(self._base, ha_address=None),
            config,
            replace(self._store_config, transient_pool=False),
            replication,
            self._requests,
            ha_socket=self._ha_socket.dup() if is_open and self._ha_socket else None,
            group=ReplicaGroup(term, self._epochs, self),
            prepare=lambda store: self._epochs.save(_epochs_of(term, self._epochs.epochs, store)),
        )

    async def close(self) -> None:
        """Ask the controllers no more, and end the run; idempotent.

        Raises:
            StoreError: the last flush failed; everything is closed nevertheless. If the run was
                ending anyway, that is logged.
        """
        self._is_closed = True
        await self._membership.close()
        await self._tasks.close()
        if self._ending is not None:
            await asyncio.wait([self._ending])
        if not self._started.done():
            self._started.cancel()
        run, self._run = self._run, None
        if run is not None:
            await run.close()


async def _close(run: Run) -> None:
    try:
        await run.close()
    except StoreError as error:
        _log.error("the store was not closed as it should be: %s", error)


def _epochs_of(term: Term, epochs: Epochs, store: MessageStore) -> Epochs:
    """Return the epochs of a log at the beginning of a run."""
    end = store.log_end
    if not term.is_master:
        return epochs.cut(end)
    if not epochs.entries and end:
        # The log of a broker that had no controller: all of it is its own.
        return Epochs((Epoch(term.number, store.log_first),))
    return epochs.begun(term.number, end)


def _role_of(term: Term) -> str:
    return "master" if term.is_master else "slave"


def _stop_listening(listening: socket.socket) -> None:
    """Have connections refused while this broker is a slave; the port stays taken."""
    if listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        try:
            listening.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # this system cannot do that: connections wait, and are told nothing
