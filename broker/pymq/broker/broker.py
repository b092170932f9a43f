"""Broker: builds the parts, wires them, owns their lifetime. It answers nothing itself."""

import asyncio
import functools
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from pymq.broker.cleaner import Cleaner
from pymq.broker.config import BrokerConfig
from pymq.broker.day_totals import DayTotals
from pymq.broker.flusher import Flusher
from pymq.broker.handlers.cleaning import CleaningHandlers
from pymq.broker.handlers.clients import ClientHandlers, notify_members
from pymq.broker.handlers.groups import GroupHandlers
from pymq.broker.handlers.locks import LockHandlers
from pymq.broker.handlers.offsets import OffsetHandlers
from pymq.broker.handlers.pull import PullHandlers
from pymq.broker.handlers.query import QueryHandlers
from pymq.broker.handlers.runtime import RuntimeHandlers
from pymq.broker.handlers.send import SendHandlers
from pymq.broker.handlers.topics import TopicHandlers
from pymq.broker.key_indexing import KeyIndexing
from pymq.broker.long_poll import LongPoll
from pymq.broker.message_hooks import MessageHooks
from pymq.broker.registration import Registration, reachable_address
from pymq.broker.requests import Requests
from pymq.broker.state.clients import ClientTable
from pymq.broker.state.files import StateFile
from pymq.broker.state.groups import GroupTable
from pymq.broker.state.offsets import OffsetTable
from pymq.broker.state.queue_locks import QueueLocks
from pymq.broker.state.topics import TopicTable
from pymq.broker.transfer import RecordTransfer
from pymq.clock import Clock
from pymq.errors import ConfigurationError, StoreError
from pymq.net.server import Server, ServerConfig, ServerConnection
from pymq.net.tasks import Tasks
from pymq.protocol.codes import ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.new_records import NewRecords
from pymq.protocol.record import NewRecord, pack_host
from pymq.store import Arrival, FlushMode, MessageStore, PutResult, StoreConfig

_log = logging.getLogger(__name__)

#: How long start and administration wait for name servers to learn something.
ANNOUNCE_WAIT_S = 1.0
#: The fast (VIP) port is this much below the main one.
VIP_DISTANCE = 2
_EPHEMERAL_TRIES = 50
#: Threads, made when they are needed; see ``Broker``.
_WRITERS, _READERS = 9, 2
#: Share of the machine's memory that the end of the log is taken to occupy (RocketMQ
#: accessMessageInMemoryMaxRatio).
_MEMORY_RATIO = 0.4


class Broker:
    """A broker and its store.

    There are two executors, so that consumers who read old messages never keep producers
    waiting. One writes: ``Flusher`` (log and queue syncs, preparation of the next segment),
    ``StateFile`` (three tables), ``Cleaner`` (deletions), opening and closing the store; it has
    a thread for each of them. The other one reads for ``RecordTransfer`` what is not in memory
    any more.
    """

    def __init__(
        self, config: BrokerConfig, store_config: StoreConfig, clock: Clock | None = None
    ) -> None:
        self.config = config
        self.store_config = store_config
        self._clock = clock or Clock()
        self._servers: list[Server] = []
        self._writers = ThreadPoolExecutor(_WRITERS, thread_name_prefix="pymq-write")
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="pymq-read")
        self._tasks = Tasks("broker")
        self._is_built = False
        self._is_closed = False
        self._takes_requests = True
        self._store: MessageStore | None = None
        self._opening: asyncio.Future[MessageStore] | None = None
        self.address = ""

    # --- start

    async def start(self) -> None:
        """Open the store, listen and register.

        Raises:
            ConfigurationError: a port is taken, or an address is not ours.
            StoreError: the store cannot be opened (locked, damaged, of another size, no space).
        """
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> None:
        config = self.config
        loop = asyncio.get_running_loop()
        self._bind()
        host = config.advertised_address or reachable_address(config.bind_address)
        self.address = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        self._warn_of_addresses(host)
        store_host = pack_host(host, self.port)
        self._opening = loop.run_in_executor(self._writers, self._open_store)
        self._store = store = await asyncio.shield(self._opening)
        self._build(store, store_host)
        for server in self._servers:
            await server.start()
        await self._registration.start(ANNOUNCE_WAIT_S)

    def _open_store(self) -> MessageStore:
        return MessageStore.open(
            self.store_config, self._clock, is_cancelled=lambda: self._is_closed
        )

    def _build(self, store: MessageStore, store_host: bytes) -> None:
        """Make the parts and wire them: tables, features, handlers."""
        config, clock = self.config, self._clock
        sync = self.store_config.flush_mode is FlushMode.SYNC
        memory_bytes = _memory_bytes() if config.memory_bytes is None else config.memory_bytes

        self._topics = TopicTable(config, clock, self._topics_changed)
        self._groups = GroupTable(
            clock, self._groups_changed, auto_create=config.auto_create_group
        )
        self._offsets = OffsetTable()
        self._locks = QueueLocks(clock)
        self._clients = ClientTable(
            clock,
            expiry_s=config.client_expiry_ms / 1000,
            on_members_changed=notify_members,
        )
        self._registration = Registration(
            config, address=self.address, topics=self._topics.body
        )
        self._open_state_files()
        self._topics.adopt(store.queues())

        self._days = DayTotals(clock.wall_ms())
        self._long_poll = LongPoll(clock, count_max=config.held_pull_count_max)
        store.dispatch.listener = self._arrived
        self._flusher = Flusher(
            store,
            self._writers,
            clock,
            commit_interval_s=(
                self.store_config.commit_interval_ms / 1000
                if self.store_config.transient_pool
                else None
            ),
            commit_pages_least=self.store_config.commit_pages_least,
            interval_s=self.store_config.flush_interval_ms / 1000,
            pages_least=self.store_config.flush_pages_least,
            thorough_interval_s=self.store_config.flush_thorough_interval_ms / 1000,
            queue_interval_s=self.store_config.queue_flush_interval_ms / 1000,
            timeout_s=config.sync_flush_timeout_ms / 1000,
        )
        self._cleaner = Cleaner(
            store.retention,
            self._writers,
            interval_s=self.store_config.clean_interval_ms / 1000,
            pause_s=self.store_config.clean_pause_ms / 1000,
        )
        self._key_indexing = KeyIndexing(store.keys)
        transfer = RecordTransfer(
            store,
            executor=self._readers,
            tasks=self._tasks,
            memory_bytes=memory_bytes,
            frame_bytes_max=config.frame_bytes_max,
        )
        self._requests = Requests(
            {
                **SendHandlers(
                    config,
                    self._topics,
                    self._groups,
                    self._locks,
                    hooks=MessageHooks({}),
                    put=functools.partial(self._put, store, store_host),
                    wait_synced=self._flusher.wait_synced if sync else None,
                    store_host=store_host,
                    message_bytes_max=self.store_config.message_bytes_max,
                    record_crc=self.store_config.append_record_crc,
                ).table(),
                **PullHandlers(
                    config,
                    clock,
                    store,
                    self._topics,
                    self._groups,
                    self._offsets,
                    self._clients,
                    self._long_poll,
                    transfer,
                ).table(),
                **ClientHandlers(
                    config, clock, self._clients, self._groups, self._topics
                ).table(),
                **OffsetHandlers(
                    store,
                    self._offsets,
                    self._groups,
                    self._topics,
                    memory_bytes=memory_bytes,
                ).table(),
                **LockHandlers(config, self._locks).table(),
                **TopicHandlers(
                    config, self._topics, self._offsets, store, self._answer_when_saved
                ).table(),
                **GroupHandlers(
                    config,
                    self._groups,
                    self._topics,
                    self._offsets,
                    self._clients,
                    store,
                    self._answer_when_saved,
                ).table(),
                **QueryHandlers(
                    store, transfer, self._key_indexing.wait_indexed, self._tasks, self._readers
                ).table(),
                **CleaningHandlers(
                    config,
                    store,
                    self._topics,
                    self._offsets,
                    self._cleaner.run_soon,
                    self._tasks,
                    self._answer_when_saved,
                ).table(),
                **RuntimeHandlers(
                    clock, store, self._days, self.store_config.queues_path
                ).table(),
            }
        )
        self._flusher.start()
        self._key_indexing.start()
        self._tasks.repeat("statistics", functools.partial(self._sample, store), 1.0)
        self._cleaner.start()
        self._tasks.repeat("held pulls", self._long_poll.expire, 0.1)
        self._tasks.repeat(
            "client expiry", self._clients.expire, config.client_scan_interval_ms / 1000
        )
        self._tasks.repeat("lock expiry", self._locks.expire, 60.0)
        self._tasks.repeat(
            "consumer offsets", self._save_offsets, config.offset_flush_interval_ms / 1000
        )
        self._is_built = True

    def _open_state_files(self) -> None:
        directory = self.store_config.root_path / "config"
        self._topic_file, self._group_file, self._offset_file = self._state_files = [
            StateFile(
                directory / name,
                to_text=table.to_text,
                restore=table.restore,
                executor=self._writers,
            )
            for name, table in (
                ("topics.json", self._topics),
                ("subscriptionGroup.json", self._groups),
                ("consumerOffset.json", self._offsets),
            )
        ]
        for file in self._state_files:
            file.load()

    def _bind(self) -> None:
        """Take the main port and the VIP port below it."""
        if self.config.listen_port:
            main = self._server(self.config.listen_port)
            main.bind()
            self._servers.append(main)
            self._bind_vip(main.port)
            return
        for _ in range(_EPHEMERAL_TRIES):
            main = self._server(0)
            main.bind()
            self._servers = [main]
            if self._bind_vip(main.port):
                return
            self._servers.clear()
        self._servers = [main]

    def _bind_vip(self, port: int) -> bool:
        if not self.config.vip_port:
            return True
        vip = self._server(port - VIP_DISTANCE)
        try:
            vip.bind()
        except ConfigurationError as error:
            if self.config.listen_port:
                _log.warning(
                    "no VIP port: %s. Clients with the VIP channel switched on cannot send", error
                )
            return False
        self._servers.append(vip)
        return True

    def _server(self, port: int) -> Server:
        config = ServerConfig(
            host=self.config.bind_address,
            port=port,
            frame_bytes_max=self.config.frame_bytes_max,
        )
        return Server(config, self._on_commands, self._on_ended)

    def _warn_of_addresses(self, host: str) -> None:
        bind = self.config.bind_address
        if bind in ("127.0.0.1", "::1", "localhost") and host not in ("127.0.0.1", "::1"):
            _log.warning(
                "clients are told to connect to %s (brokerIP1), but this broker listens on %s "
                "only; set bindAddress to an address they reach",
                host,
                bind,
            )
        elif bind not in ("127.0.0.1", "::1", "localhost"):
            _log.warning(
                "listening on %s without access control: whoever reaches port %d can read, "
                "write and delete everything",
                bind,
                self.port,
            )

    # --- wiring

    def _on_commands(self, connection: ServerConnection, commands: list[Command]) -> None:
        if self._takes_requests:
            self._requests.on_commands(connection, commands)

    def _on_ended(self, connection: ServerConnection) -> None:
        self._clients.drop(connection)
        self._long_poll.drop(connection)

    def _put(
        self,
        store: MessageStore,
        store_host: bytes,
        entries: Sequence[NewRecord | NewRecords],
    ) -> list[PutResult]:
        return store.put(entries, store_host)

    def _sample(self, store: MessageStore) -> None:
        found = store.statistics
        found.sample(self._clock.monotonic_s())
        self._days.step(
            self._clock.wall_ms(), put_count=found.put_count, get_count=found.get_count
        )

    def _arrived(self, arrivals: list[Arrival]) -> None:
        if not len(self._long_poll):
            return
        for arrival in arrivals:
            self._long_poll.wake(
                (arrival.topic, arrival.queue_id), arrival.queue_end, arrival.tag_codes
            )

    def _topics_changed(self) -> None:
        self._topic_file.changed()
        self._tasks.start("save topics", self._save(self._topic_file))
        self._registration.announce()

    def _groups_changed(self) -> None:
        self._group_file.changed()
        self._tasks.start("save groups", self._save(self._group_file))

    async def _save(self, file: StateFile) -> None:
        try:
            await file.save()
        except StoreError as error:
            _log.error("settings could not be written: %s; the next change tries again", error)

    async def _save_offsets(self) -> None:
        if self._offsets.is_changed:
            self._offsets.is_changed = False
            self._offset_file.changed()
        await self._save(self._offset_file)

    def _answer_when_saved(self, connection: ServerConnection, command: Command) -> None:
        self._tasks.start("administration", self._save_and_answer(connection, command))

    async def _save_and_answer(self, connection: ServerConnection, command: Command) -> None:
        """Answer an administrative change once it is on the disk and name servers know it."""
        try:
            for file in (self._topic_file, self._group_file):
                await file.save()
            await self._save_offsets()
        except StoreError as error:
            response = command.reply(ResponseCode.SYSTEM_ERROR, f"not saved: {error}")
        else:
            await self._registration.wait_announced(ANNOUNCE_WAIT_S)
            response = command.reply(ResponseCode.SUCCESS)
        connection.respond(command, response)

    # --- use and end

    @property
    def port(self) -> int:
        """The main port."""
        return self._servers[0].port

    async def close(self) -> None:
        """Leave the name servers, answer who waits, flush and close. Twice is harmless.

        Raises:
            StoreError: the last flush failed; everything is closed all the same.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if self._is_built:
            await self._registration.close()
            self._long_poll.answer_all()
        for server in self._servers:
            await server.close()
        try:
            if self._store is None and self._opening is not None:
                # Stopped while the store was being opened: a recovery ends early.
                await asyncio.wait([self._opening])
                if not self._opening.cancelled() and self._opening.exception() is None:
                    self._store = self._opening.result()
            if self._store is not None:
                await self._close_store(self._store)
        finally:
            await self._tasks.close()
            self._writers.shutdown()
            self._readers.shutdown()

    async def _close_store(self, store: MessageStore) -> None:
        loop = asyncio.get_running_loop()
        try:
            if self._is_built:
                # Connections that are closing may still hold requests; nobody hears the answers.
                self._takes_requests = False
                await self._key_indexing.close()
                await self._cleaner.close()
                await self._flusher.close()
                await self._save_offsets()
                for file in self._state_files:
                    await file.save()
        finally:
            await loop.run_in_executor(self._writers, store.close)


def _memory_bytes() -> int:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        total = 1 << 30
    return int(total * _MEMORY_RATIO)


