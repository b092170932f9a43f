"""A name server and brokers inside this process, with a thread and an event loop of their own."""

import asyncio
import atexit
import dataclasses
import os
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pymq.broker.broker import Broker
from pymq.broker.config import BrokerConfig
from pymq.client.cluster.home import Process
from pymq.clock import Clock
from pymq.errors import ClientClosed, ClientMisplaced, ConfigurationError, PymqError
from pymq.store import FlushMode
from pymq.testing.cluster_clock import ClusterClock
from pymq.testing.handles import BrokerHandle, NamesrvHandle
from pymq.testing.inspection import Inspection
from pymq.testing.members import Member, Store, make_members, start_members, stop_members
from pymq.testing.naming import NamesrvMember
from pymq.testing.scratch import Scratch
from pymq.testing.turns import serve
from pymq.testing.waits import wait_in_sync, wait_master

if TYPE_CHECKING:
    from pymq.controller.server import Controller

_T = TypeVar("_T")

_STOP_TIMEOUT_S = 30.0
NOT_STARTED = "the cluster is not started: use it inside `with`, or between start() and stop()"


class Cluster(Inspection):
    """One name server and one broker, or more of them, on free loopback ports.

    Use it in ``with`` or ``async with``, or call ``start`` and ``stop``. It has a thread and an
    event loop of its own, so that its methods may be called from anywhere; in a coroutine, those
    that start or stop something keep the loop waiting for some hundredths of a second. Clients of
    any language may connect to ``name_server``, also those in children made by ``fork``; but only
    the process that started the cluster can stop it.

    With ``replicas``, each group has that many brokers and a master of its own, which a controller
    in this process replaces when it is gone. The ids of the brokers of a group are 1, 2, ...; at
    first, 1 is the master. They are SYNC_MASTERs, so a message that is acknowledged with
    ``SendStatus.OK`` is at two of them, and at all that are in sync.

    Args:
        store: directory of the store, kept when the cluster stops; by default a temporary one
            that is deleted with it, or when the process ends; if that is killed, by the next one.
            Several brokers have directories of their own in it.
        brokers: number of brokers that take messages, with names of their own: ``broker-a``,
            ``broker-b``, ...; topics that are created have queues on all of them.
        replicas: number of brokers of each of these names.
        flush: ``"async"`` or ``"sync"``: how durable an acknowledged message is.
        broker: settings of every broker, as fields of ``BrokerConfig``.
        replication: their part in replication, as fields of ``ReplicationConfig``.
        store_settings: settings of the stores, as fields of ``StoreConfig``.
        clock: tells the brokers the time, instead of one that tests can advance.

    Raises:
        ConfigurationError: ``flush`` is neither of the two, a number is out of range, or settings
            that several brokers cannot share.
    """

    def __init__(
        self,
        store: str | Path | None = None,
        *,
        brokers: int = 1,
        replicas: int = 1,
        flush: str = "async",
        broker: dict[str, Any] | None = None,
        replication: dict[str, Any] | None = None,
        store_settings: dict[str, Any] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._is_temporary = store is None
        self._scratch: Scratch | None = None
        self._root = Path(store) if store is not None else Path()
        if flush not in {mode.value for mode in FlushMode}:
            raise ConfigurationError(f"flush={flush!r}: expected 'async' or 'sync'")
        self._clock = clock or ClusterClock(self._time_moved)
        self._store = Store(FlushMode(flush), store_settings or {}, self._clock)
        self._members = make_members(
            brokers, replicas, broker or {}, replication or {}, self._clock
        )
        self._has_controller = replicas > 1
        self._more_name_servers = self._broker_config.name_servers
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        #: Where it runs; a child made by ``fork`` has a copy of all this, but not the thread.
        self._process = Process()
        self._naming: NamesrvMember | None = None
        self._controller: Controller | None = None

    # --- life

    def start(self) -> Self:
        """Start all; return when the brokers are registered and accept messages.

        Raises:
            PymqError: a server or a store could not be started.
            ClientMisplaced: it runs in the parent of this process.
        """
        if self._thread is not None:
            self._check_process()
            return self
        self._process = Process()
        if self._is_temporary:
            self._scratch = Scratch()
            self._root = self._scratch.path / "store"
            # No clean stop by then: Python's executors take no more work.
            atexit.register(self._remove)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=serve, args=(self._loop,), name="pymq-cluster", daemon=True
        )
        self._thread.start()
        try:
            self._run(self._start())
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop all cleanly; idempotent. In a child made by ``fork`` it does nothing."""
        if self._thread is None or self._loop is None or self._process.is_forked:
            return
        try:
            self._run(self._close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_STOP_TIMEOUT_S)
            self._loop.close()
            self._thread = self._loop = None
            if self._is_temporary:
                atexit.unregister(self._remove)
                self._remove()

    def broker(self, name: str | None = None, broker_id: int | None = None) -> BrokerHandle:
        """Return a handle of a broker: to stop, kill and restart it, and to have it fail.

        Args:
            name: of its group; if it is left out, those of all groups are meant.
            broker_id: which one of the group; if it is left out, all of them are meant.

        Raises:
            ConfigurationError: there is no such broker.
        """
        return BrokerHandle(self._chosen(name, broker_id), self._run, self._open)

    @property
    def namesrv(self) -> NamesrvHandle:
        """A handle of the name server, as of a broker.

        Raises:
            ClientClosed: it was never started.
        """
        if self._naming is None:
            raise ClientClosed(NOT_STARTED)
        return NamesrvHandle(self._naming, self._run)

    def restart_broker(self, name: str | None = None, broker_id: int | None = None) -> None:
        """Shorthand for ``broker(name, broker_id).restart()``."""
        self.broker(name, broker_id).restart()

    def stop_broker(self, name: str | None = None, broker_id: int | None = None) -> None:
        """Shorthand for ``broker(name, broker_id).stop()``."""
        self.broker(name, broker_id).stop()

    def kill_broker(self, name: str | None = None, broker_id: int | None = None) -> None:
        """Shorthand for ``broker(name, broker_id).kill()``."""
        self.broker(name, broker_id).kill()

    def start_broker(self, name: str | None = None, broker_id: int | None = None) -> None:
        """Shorthand for ``broker(name, broker_id).start()``."""
        self.broker(name, broker_id).start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        # In a thread, so that what else runs on the caller's loop goes on.
        starting = asyncio.get_running_loop().run_in_executor(None, self.start)
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.wait([starting])
            self.stop()
            raise

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.stop)

    # --- what tests need

    @property
    def clock(self) -> ClusterClock:
        """The time of the brokers, which can be advanced.

        Raises:
            ConfigurationError: the cluster was given another clock.
        """
        if not isinstance(self._clock, ClusterClock):
            raise ConfigurationError("the cluster was made with clock=: advance that one")
        return self._clock

    @property
    def name_server(self) -> str:
        """``host:port`` of the name server.

        Raises:
            ClientClosed: it was never started.
        """
        return self.namesrv.address

    @property
    def controller(self) -> str:
        """``host:port`` of the controller.

        Raises:
            ClientClosed: it was never started, or there is none without ``replicas``.
        """
        if self._controller is None:
            raise ClientClosed(NOT_STARTED if self._has_controller else "replicas=1: no controller")
        return self._controller.address

    @property
    def broker_address(self) -> str:
        """``host:port`` of the broker; of several, the first one.

        Raises:
            ClientClosed: it is stopped.
        """
        if self._broker is None:
            raise ClientClosed("the broker is stopped: call start_broker()")
        return self._broker.address

    @property
    def broker_name(self) -> str:
        """The broker's name in routes; of several, the first one's."""
        return self._broker_config.name

    @property
    def broker_names(self) -> list[str]:
        """The names of all brokers in routes."""
        return list(dict.fromkeys(member.name for member in self._members))

    @property
    def store(self) -> Path:
        """The directory of the store; several are in it, as ``broker-a/1`` with ``replicas``."""
        return self._root

    def address(self, name: str | None = None, broker_id: int | None = None) -> str:
        """Return ``host:port`` of a broker.

        Args:
            name: of its group; may be left out if there is only one.
            broker_id: which one of the group; may be left out if it is the only one.

        Raises:
            ConfigurationError: there is no such broker, or there are several.
            ClientClosed: it is stopped.
        """
        return self.broker(name, broker_id).address

    def master(self, name: str | None = None) -> int:
        """Return the id of a group's master, once there is one that the name server knows.

        Args:
            name: of the group; may be left out if there is only one.

        Raises:
            ConfigurationError: there is no such group, or there are several.
            RequestTimeout: there was none for ``waits.WAIT_S``.
        """
        names = self.broker_names
        if name is None and len(names) > 1:
            raise ConfigurationError(f"which group? {', '.join(names)}")
        return wait_master(self.name_server, self._chosen(name, None))

    def wait_in_sync(self) -> None:
        """Wait until every group has a master, and every broker that runs is in sync with it.

        Then each of them may become the master without a loss of what was acknowledged.

        Raises:
            RequestTimeout: that was not so for ``waits.WAIT_S``.
        """
        for name in self.broker_names:
            self.master(name)
        if self._has_controller:
            wait_in_sync(self.name_server, self.controller, self._members)

    # --- which broker

    @property
    def _broker(self) -> Broker | None:
        return self._members[0].broker

    @property
    def _broker_config(self) -> BrokerConfig:
        return self._members[0].config

    def _chosen(self, name: str | None, broker_id: int | None) -> list[Member]:
        """Return the brokers that are meant, at least one."""
        found = [
            member
            for member in self._members
            if name in (None, member.name) and broker_id in (None, member.broker_id)
        ]
        if not found:
            names = ", ".join(f"{one.name}/{one.broker_id}" for one in self._members)
            raise ConfigurationError(f"no broker {name}/{broker_id}: expected one of {names}")
        return found

    # --- on the loop

    async def _start(self) -> None:
        naming = NamesrvMember(self._root / "namesrv" / "kvConfig.json")
        await naming.start()
        self._naming = naming
        name_servers = (naming.address, *self._more_name_servers)
        if self._has_controller:
            await self._start_controller()
        for member in self._members:
            member.config = dataclasses.replace(member.config, name_servers=name_servers)
        await self._open(self._members)

    async def _start_controller(self) -> None:
        from pymq.controller.config import ControllerConfig
        from pymq.controller.server import Controller

        store = f"file:{self._root / 'controller'}"
        # Nobody is waited for: who has these stores is here, whatever ports brokers had before.
        self._controller = Controller(ControllerConfig(listen_port=0, store=store, patience_ms=0))
        await self._controller.start()
        more: dict[str, Any] = {"controllers": (self._controller.address,)}
        for member in self._members:
            member.replication = dataclasses.replace(
                member.replication, controller_mode=True, **more
            )

    async def _open(self, members: Sequence[Member]) -> None:
        await start_members(members, self._store, self._root, self._naming)

    def _time_moved(self) -> None:
        """Have all brokers look at the time; a cluster that does not run has none that could."""
        if self._thread is not None:
            self._run(self._look_again())

    async def _look_again(self) -> None:
        running = [member.broker for member in self._members if member.broker is not None]
        await asyncio.gather(*(broker.look_again() for broker in running))

    async def _close(self) -> None:
        for member in self._members:
            member.files.is_full = False  # what is tested is over
        controller, self._controller = self._controller, None
        if controller is not None:
            await controller.close()  # first: nobody is to succeed the first master that stops
        try:
            await stop_members(self._members, for_good=True)
        finally:
            if self._naming is not None:
                await self._naming.stop(for_good=True)

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        try:
            self._check_process()
            if self._loop is None:
                raise ClientClosed(NOT_STARTED)
        except PymqError:
            work.close()
            raise
        done: Future[_T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return done.result()
        except CancelledError as error:
            raise ClientClosed("the cluster was stopped meanwhile") from error

    def _remove(self) -> None:
        if not self._process.is_forked and self._scratch is not None:
            self._scratch.remove()

    def _check_process(self) -> None:
        if self._process.is_forked:
            raise ClientMisplaced(
                f"the cluster runs in process {self._process.pid}, not in its child {os.getpid()}: "
                "use name_server here, and start and stop it there"
            )
