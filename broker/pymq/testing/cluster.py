"""A name server and a broker inside this process, with a thread and an event loop of their own."""

import asyncio
import atexit
import dataclasses
import os
import shutil
import tempfile
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self, TypeVar

from pymq.broker.broker import Broker
from pymq.broker.config import BrokerConfig
from pymq.client.home import Process
from pymq.clock import Clock
from pymq.errors import ClientClosed, ClientMisplaced, ConfigurationError, PymqError
from pymq.namesrv.config import NamesrvConfig
from pymq.namesrv.server import NameServer
from pymq.store import FlushMode, StoreConfig

_T = TypeVar("_T")

#: Small enough for a quick start wherever the temporary directory is.
SEGMENT_BYTES = 64 << 20
#: On a developer's well-filled disk sends must not be refused, nor messages deleted.
DISK_FREE_ENOUGH_BYTES = 256 << 20
_STOP_TIMEOUT_S = 30.0
NOT_STARTED = "the cluster is not started: use it inside `with`, or between start() and stop()"


class Cluster:
    """One name server and one broker on free loopback ports.

    Use it as a context manager, or call ``start`` and ``stop``. Clients of any language may
    connect to ``name_server``, also those in children made by ``fork``; but only the process
    that started the cluster can stop it.

    Args:
        store: directory of the store, kept when the cluster stops; by default a temporary one
            that is deleted with it, or at the latest when the process ends.
        flush: ``"async"`` or ``"sync"``: how durable an acknowledged message is.
        broker: settings of the broker, as fields of ``BrokerConfig``.
        store_settings: settings of the store, as fields of ``StoreConfig``.
        clock: tells the broker the time.

    Raises:
        ConfigurationError: ``flush`` is neither of the two.
    """

    def __init__(
        self,
        store: str | Path | None = None,
        *,
        flush: str = "async",
        broker: dict[str, Any] | None = None,
        store_settings: dict[str, Any] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._is_temporary = store is None
        self._root = Path(store) if store is not None else Path()
        if flush not in {mode.value for mode in FlushMode}:
            raise ConfigurationError(f"flush={flush!r}: expected 'async' or 'sync'")
        self._flush = FlushMode(flush)
        self._broker_config = BrokerConfig(**{"listen_port": 0, **(broker or {})})
        self._more_name_servers = self._broker_config.name_servers
        self._store_settings = {
            "segment_bytes": SEGMENT_BYTES,
            "disk_free_enough_bytes": DISK_FREE_ENOUGH_BYTES,
            **(store_settings or {}),
        }
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        #: Where it runs; a child made by ``fork`` has a copy of all this, but not the thread.
        self._process = Process()
        self._name_server: NameServer | None = None
        self._broker: Broker | None = None

    # --- life

    def start(self) -> Self:
        """Start both; return when the broker is registered and accepts messages.

        Raises:
            PymqError: the name server, the broker or the store could not be started.
            ClientMisplaced: it runs in the parent of this process.
        """
        if self._thread is not None:
            self._check_process()
            return self
        self._process = Process()
        if self._is_temporary:
            self._root = Path(tempfile.mkdtemp(prefix="pymq-"))
            # No clean stop by then: Python's executors take no more work.
            atexit.register(self._remove)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="pymq-cluster", daemon=True
        )
        self._thread.start()
        try:
            self._run(self._start())
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop both cleanly; idempotent. In a child made by ``fork`` it does nothing."""
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

    def restart_broker(self) -> None:
        """Stop the broker cleanly and start it again on its store and its port."""
        self._run(self._restart_broker())

    def stop_broker(self) -> None:
        """Stop the broker cleanly; the name server keeps running."""
        self._run(self._close_broker())

    def start_broker(self) -> None:
        """Start the broker again on its store and its port; does nothing while it runs."""
        self._run(self._open_broker())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    # --- what tests need

    @property
    def name_server(self) -> str:
        """``host:port`` of the name server.

        Raises:
            ClientClosed: it was never started.
        """
        if self._name_server is None:
            raise ClientClosed(NOT_STARTED)
        return self._name_server.address

    @property
    def broker_address(self) -> str:
        """``host:port`` of the broker.

        Raises:
            ClientClosed: it is stopped.
        """
        if self._broker is None:
            raise ClientClosed("the broker is stopped: call start_broker()")
        return self._broker.address

    @property
    def broker_name(self) -> str:
        """The broker's name in routes."""
        return self._broker_config.name

    @property
    def store(self) -> Path:
        """The directory of the store."""
        return self._root

    # --- on the loop

    async def _start(self) -> None:
        self._name_server = NameServer(NamesrvConfig(port=0))
        await self._name_server.start()
        self._broker_config = dataclasses.replace(
            self._broker_config,
            name_servers=(self._name_server.address, *self._more_name_servers),
        )
        await self._open_broker()

    async def _open_broker(self) -> None:
        if self._broker is not None:
            return
        store_config = StoreConfig(
            root_path=self._root, flush_mode=self._flush, **self._store_settings
        )
        broker = Broker(self._broker_config, store_config, self._clock)
        await broker.start()
        self._broker = broker
        # A restarted broker keeps the port that clients know.
        self._broker_config = dataclasses.replace(self._broker_config, listen_port=broker.port)

    async def _close_broker(self) -> None:
        broker, self._broker = self._broker, None
        if broker is not None:
            await broker.close()

    async def _restart_broker(self) -> None:
        await self._close_broker()
        await self._open_broker()

    async def _close(self) -> None:
        try:
            await self._close_broker()
        finally:
            if self._name_server is not None:
                await self._name_server.close()

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        try:
            self._check_process()
            if self._loop is None:
                raise ClientClosed(NOT_STARTED)
        except PymqError:
            work.close()
            raise
        done: Future[_T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return done.result()

    def _remove(self) -> None:
        if not self._process.is_forked:
            shutil.rmtree(self._root, ignore_errors=True)

    def _check_process(self) -> None:
        if self._process.is_forked:
            raise ClientMisplaced(
                f"the cluster runs in process {self._process.pid}, not in its child {os.getpid()}: "
                "use name_server here, and start and stop it there"
            )
