"""Makes and wires the parts of a broker: tables, features, handlers. Reads from top to bottom.

Nothing is started here. The store is already open, and the address is known.
"""

import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from pymq.broker.arrivals import Arrivals
from pymq.broker.cleaner import Cleaner
from pymq.broker.config import BrokerConfig
from pymq.broker.day_totals import DayTotals
from pymq.broker.duties import Duty, Periodic
from pymq.broker.flusher import Flusher
from pymq.broker.handlers.cleaning import CleaningHandlers
from pymq.broker.handlers.clients import ClientHandlers, notify_members
from pymq.broker.handlers.groups import GroupHandlers
from pymq.broker.handlers.offsets import OffsetHandlers
from pymq.broker.handlers.pull import PullHandlers
from pymq.broker.handlers.query import QueryHandlers
from pymq.broker.handlers.queue_locks import QueueLockHandlers
from pymq.broker.handlers.runtime import RuntimeHandlers
from pymq.broker.handlers.send import SendHandlers
from pymq.broker.handlers.topics import TopicHandlers
from pymq.broker.key_indexing import KeyIndexing
from pymq.broker.log_writer import LogWriter
from pymq.broker.long_poll import LongPoll
from pymq.broker.message_hooks import MessageHooks
from pymq.broker.record_response import RecordResponses
from pymq.broker.registration import Registration
from pymq.broker.request_statistics import RequestStatistics
from pymq.broker.state.clients import ClientTable
from pymq.broker.state.groups import GroupTable
from pymq.broker.state.offsets import OffsetTable
from pymq.broker.state.queue_locks import QueueLocks
from pymq.broker.state.topics import TopicTable
from pymq.broker.state_saving import StateSaving
from pymq.clock import Clock
from pymq.net.dispatcher import Dispatcher
from pymq.net.server import ServerConnection
from pymq.store import FlushMode, MessageStore, StoreConfig

#: How long administrative requests wait until the name servers are informed.
ANNOUNCE_WAIT_S = 1.0
#: Share of the machine's memory that the end of the log is assumed to occupy (RocketMQ
#: accessMessageInMemoryMaxRatio).
_MEMORY_RATIO = 0.4
_LOCK_SCAN_INTERVAL_S = 60.0
_SAMPLE_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What a broker is built on.

    Attributes:
        config, store_config: its settings.
        clock: tells the time.
        store: is open.
        address: ``host:port`` at which clients reach it.
        store_host: the same, packed: part of every record and message id.
        writers, readers: executors for work on the disk; see ``Broker``.
    """

    config: BrokerConfig
    store_config: StoreConfig
    clock: Clock
    store: MessageStore
    address: str
    store_host: bytes
    writers: Executor
    readers: Executor


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """The parts that a broker itself deals with.

    Attributes:
        dispatcher: takes all requests.
        duties: in the order in which they start.
        holders: duties that keep requests for later; they are closed first, while answers can
            still leave.
        on_ended: what refers to connections; each is called with every connection that is gone,
            and must not raise.
        registration: announces the broker.
    """

    dispatcher: Dispatcher
    duties: Sequence[Duty]
    holders: Sequence[Duty]
    on_ended: Sequence[Callable[[ServerConnection], object]]
    registration: Registration


@dataclass(frozen=True, slots=True)
class _Tables:
    """What a broker knows."""

    topics: TopicTable
    groups: GroupTable
    offsets: OffsetTable
    locks: QueueLocks
    clients: ClientTable


@dataclass(frozen=True, slots=True)
class _Features:
    """What a broker does, apart from storing messages."""

    registration: Registration
    saving: StateSaving
    flusher: Flusher
    cleaner: Cleaner
    key_indexing: KeyIndexing
    arrivals: Arrivals
    long_poll: LongPoll
    log_writer: LogWriter
    hooks: MessageHooks
    responses: RecordResponses
    days: DayTotals
    requests: RequestStatistics


def assemble(site: Site) -> Assembly:
    """Make all parts of a broker.

    Raises:
        StoreError: a table cannot be read.
    """
    tables = _make_tables(site)
    features = _make_features(site, tables)
    features.saving.load()
    tables.topics.adopt(site.store.queues())
    return Assembly(
        dispatcher=_make_dispatcher(site, tables, features),
        duties=_list_duties(site, tables, features),
        holders=[features.long_poll],
        on_ended=[tables.clients.drop, features.long_poll.drop],
        registration=features.registration,
    )


def _make_tables(site: Site) -> _Tables:
    config, clock = site.config, site.clock
    return _Tables(
        topics=TopicTable(config, clock),
        groups=GroupTable(clock, auto_create=config.auto_create_group),
        offsets=OffsetTable(),
        locks=QueueLocks(clock),
        clients=ClientTable(
            clock,
            expiry_s=config.client_expiry_ms / 1000,
            on_members_changed=notify_members,
        ),
    )


def _make_features(site: Site, tables: _Tables) -> _Features:
    config, store_config, clock, store = site.config, site.store_config, site.clock, site.store
    registration = Registration(config, address=site.address, topics=tables.topics.body)
    saving = StateSaving(
        store_config.root_path / "config",
        site.writers,
        announced=functools.partial(registration.wait_announced, ANNOUNCE_WAIT_S),
    )
    save_topics = saving.add("topics.json", tables.topics)

    def topics_changed() -> None:
        save_topics()
        registration.announce()

    tables.topics.on_change = topics_changed
    tables.groups.on_change = saving.add("subscriptionGroup.json", tables.groups)
    saving.add_periodic(
        "consumerOffset.json",
        tables.offsets,
        interval_s=config.offset_flush_interval_ms / 1000,
    )
    flusher = _make_flusher(site)
    long_poll = LongPoll(clock, count_max=config.held_pull_count_max)
    arrivals = Arrivals(store.dispatch)
    arrivals.subscribe(long_poll.take)
    is_sync = store_config.flush_mode is FlushMode.SYNC
    return _Features(
        registration=registration,
        saving=saving,
        flusher=flusher,
        cleaner=Cleaner(
            store.retention,
            site.writers,
            interval_s=store_config.clean_interval_ms / 1000,
            pause_s=store_config.clean_pause_ms / 1000,
        ),
        key_indexing=KeyIndexing(store.keys),
        arrivals=arrivals,
        long_poll=long_poll,
        log_writer=LogWriter(
            functools.partial(store.put, store_host=site.store_host),
            flusher.wait_flushed if is_sync else None,
        ),
        hooks=MessageHooks({}),
        responses=RecordResponses(
            store, executor=site.readers, memory_bytes=_memory_bytes(config)
        ),
        days=DayTotals(clock.wall_ms()),
        requests=RequestStatistics(),
    )


def _make_flusher(site: Site) -> Flusher:
    config = site.store_config
    return Flusher(
        site.store,
        site.writers,
        site.clock,
        commit_interval_s=config.commit_interval_ms / 1000 if config.transient_pool else None,
        commit_pages_least=config.commit_pages_least,
        interval_s=config.flush_interval_ms / 1000,
        pages_least=config.flush_pages_least,
        thorough_interval_s=config.flush_thorough_interval_ms / 1000,
        queue_interval_s=config.queue_flush_interval_ms / 1000,
        timeout_s=site.config.sync_flush_timeout_ms / 1000,
    )


def _make_dispatcher(site: Site, tables: _Tables, features: _Features) -> Dispatcher:
    config, clock, store = site.config, site.clock, site.store
    topics, groups, offsets = tables.topics, tables.groups, tables.offsets
    clients, locks = tables.clients, tables.locks
    answer_saved = features.saving.answer_saved
    handlers = (
        SendHandlers(
            config,
            topics,
            groups,
            locks,
            hooks=features.hooks,
            log_writer=features.log_writer,
            store_host=site.store_host,
            message_bytes_max=site.store_config.message_bytes_max,
            record_crc=site.store_config.append_record_crc,
        ),
        PullHandlers(
            config,
            clock,
            store,
            topics,
            groups,
            offsets,
            clients,
            features.long_poll,
            features.responses,
        ),
        ClientHandlers(config, clock, clients, groups, topics),
        OffsetHandlers(store, offsets, groups, topics, memory_bytes=_memory_bytes(config)),
        QueueLockHandlers(config, locks),
        TopicHandlers(config, topics, offsets, store, answer_saved),
        GroupHandlers(config, groups, topics, offsets, clients, store, answer_saved),
        QueryHandlers(
            store, features.responses, features.key_indexing.wait_indexed, site.readers
        ),
        CleaningHandlers(
            config, store, topics, offsets, features.cleaner.run_soon, answer_saved
        ),
        RuntimeHandlers(
            clock, store, features.days, features.requests, site.store_config.queues_path
        ),
    )
    return Dispatcher(
        f"broker {config.name}",
        *(part.table() for part in handlers),
        observer=features.requests,
    )


def _list_duties(site: Site, tables: _Tables, features: _Features) -> list[Duty]:
    def sample() -> None:
        statistics = site.store.statistics
        statistics.sample(site.clock.monotonic_s())
        features.days.step(
            site.clock.wall_ms(),
            put_count=statistics.put_count,
            get_count=statistics.get_count,
        )

    scan_s = site.config.client_scan_interval_ms / 1000
    return [
        features.arrivals,
        features.saving,
        features.flusher,
        features.cleaner,
        features.key_indexing,
        Periodic("statistics", sample, _SAMPLE_INTERVAL_S),
        Periodic("client expiry", tables.clients.expire, scan_s),
        Periodic("lock expiry", tables.locks.expire, _LOCK_SCAN_INTERVAL_S),
    ]


def _memory_bytes(config: BrokerConfig) -> int:
    """Return how much of the end of the log is assumed to be in memory."""
    if config.memory_bytes is not None:
        return config.memory_bytes
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        total = 1 << 30
    return int(total * _MEMORY_RATIO)
