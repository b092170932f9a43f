"""Makes and wires the parts of a broker: tables, features, handlers. Reads from top to bottom.

Nothing is started here. The store is already open, and the address is known.
"""

import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from pymq.broker.arrivals import Arrivals
from pymq.broker.change_notices import ChangeNotices
from pymq.broker.cleaner import Cleaner
from pymq.broker.cold_reads import ColdReads
from pymq.broker.config import BrokerConfig
from pymq.broker.deletions import Deletions
from pymq.broker.duties import Duty, Periodic
from pymq.broker.features import FEATURES
from pymq.broker.flusher import Flusher
from pymq.broker.handlers.cleaning import CleaningHandlers
from pymq.broker.handlers.clients import ClientHandlers
from pymq.broker.handlers.group_progress import GroupProgressHandlers
from pymq.broker.handlers.groups import GroupHandlers
from pymq.broker.handlers.offsets import OffsetHandlers
from pymq.broker.handlers.pull import PullHandlers
from pymq.broker.handlers.query import QueryHandlers
from pymq.broker.handlers.queue_locks import QueueLockHandlers
from pymq.broker.handlers.replies import ReplyHandlers
from pymq.broker.handlers.send import SendHandlers
from pymq.broker.handlers.topics import TopicHandlers
from pymq.broker.key_indexing import KeyIndexing
from pymq.broker.log_room import LogRoom
from pymq.broker.log_writer import LogWriter
from pymq.broker.long_poll import LongPoll
from pymq.broker.many_queues import LongAnswers
from pymq.broker.message_hooks import MessageHooks
from pymq.broker.parts import Assembly, Core, Feature, Site, Tables
from pymq.broker.plain_sends import PlainSendStore
from pymq.broker.pressure.admission import Admission
from pymq.broker.pressure.disk_pressure import DiskPressure
from pymq.broker.pressure.write_watch import WriteWatch
from pymq.broker.record_response import RecordResponses
from pymq.broker.registration import Registration
from pymq.broker.retry import Retries
from pymq.broker.selections import Selections
from pymq.broker.sent_properties import SentProperties
from pymq.broker.sinks.staged_layouts import StagedLayouts
from pymq.broker.state.clients import ClientTable
from pymq.broker.state.groups import GroupTable
from pymq.broker.state.offsets import OffsetTable
from pymq.broker.state.queue_locks import QueueLocks
from pymq.broker.state.topics import TopicTable
from pymq.broker.state_saving import StateSaving
from pymq.broker.statistics.broker_statistics import BrokerStatistics
from pymq.broker.statistics.day_totals import DayTotals
from pymq.broker.statistics.request_statistics import RequestStatistics
from pymq.net.dispatcher import Dispatcher, Handler, RunHandler
from pymq.protocol.codes import RequestCode
from pymq.store import FlushMode

#: How long administrative requests wait until the name servers are informed.
ANNOUNCE_WAIT_S = 1.0
#: Share of the machine's memory that the end of the log is assumed to occupy (RocketMQ
#: accessMessageInMemoryMaxRatio).
_MEMORY_RATIO = 0.4
_LOCK_SCAN_INTERVAL_S = 60.0
_SAMPLE_INTERVAL_S = 1.0
#: While something waits for the disk, and otherwise.
_PRESSURE_INTERVAL_S, _PRESSURE_IDLE_S = 0.05, 0.25
_FILTER_SAVE_INTERVAL_S = 10.0
_FILTER_EXPIRY_INTERVAL_S = 60.0

_Item = TypeVar("_Item")


def assemble(site: Site) -> Assembly:
    """Make all parts of a broker.

    Raises:
        StoreError: a table cannot be read.
    """
    tables = _make_tables(site)
    core = _make_core(site, tables)
    features = [make(site, tables, core) for make in FEATURES]
    core.saving.load()
    tables.topics.adopt(site.store.queues())
    return Assembly(
        dispatcher=_make_dispatcher(site, tables, core, features),
        openings=_all(one.openings for one in features),
        duties=[*_list_duties(site, tables, core), *_all(one.duties for one in features)],
        holders=[core.long_poll, *_all(one.holders for one in features)],
        on_ended=[
            tables.clients.drop,
            core.long_poll.drop,
            *_all(one.on_ended for one in features),
        ],
        registration=core.registration,
    )


def _all(lists: Iterable[Sequence[_Item]]) -> list[_Item]:
    return [item for items in lists for item in items]


def _make_tables(site: Site) -> Tables:
    config, clock = site.config, site.clock
    has_light = site.store_config.light_queues
    return Tables(
        topics=TopicTable(config, clock, has_light_queues=has_light),
        groups=GroupTable(config, clock, has_light_queues=has_light),
        offsets=OffsetTable(),
        locks=QueueLocks(clock),
        clients=ClientTable(clock, expiry_s=config.client_expiry_ms / 1000),
        filters=site.filters,
    )


def _make_core(site: Site, tables: Tables) -> Core:
    config, store_config, clock, store = site.config, site.store_config, site.clock, site.store
    registration = Registration(
        config,
        address=site.address,
        topics=tables.topics.body,
        on_order_topics=tables.topics.order,
    )
    flusher = _make_flusher(site)
    saving = StateSaving(
        store_config.root_path / "config",
        site.writers,
        announced=functools.partial(registration.wait_announced, ANNOUNCE_WAIT_S),
        flushed=flusher.wait_all_flushed,
    )
    _save_topics(tables.topics, saving, registration)
    tables.groups.on_change = saving.add("subscriptionGroup.json", tables.groups)
    notices = _connect_clients(site, tables)
    saving.add_periodic("consumerFilter.json", tables.filters, interval_s=_FILTER_SAVE_INTERVAL_S)
    saving.add_periodic(
        "consumerOffset.json",
        tables.offsets,
        interval_s=config.offset_flush_interval_ms / 1000,
    )
    long_poll = LongPoll(clock, count_max=config.held_pull_count_max)
    arrivals = Arrivals(store.dispatch)
    arrivals.subscribe(long_poll.take)
    memory_bytes = _memory_bytes(config)
    responses = RecordResponses(store, executor=site.readers, memory_bytes=memory_bytes)
    statistics = BrokerStatistics(config.cluster, int(clock.monotonic_s() * 1000))
    arrivals.subscribe(statistics.take)
    disk, log_writer, admission = _make_writer(site, flusher)
    return Core(
        admission=admission,
        notices=notices,
        registration=registration,
        saving=saving,
        flusher=flusher,
        cleaner=Cleaner(
            store.retention,
            site.writers,
            interval_s=store_config.clean_interval_ms / 1000,
            pause_s=store_config.clean_pause_ms / 1000,
        ),
        key_indexing=KeyIndexing(store.keys, disk.wait_writable, executor=site.writers),
        arrivals=arrivals,
        long_poll=long_poll,
        log_writer=log_writer,
        completion=SentProperties(config.cluster, clock, site.store_host),
        hooks=MessageHooks(),
        retries=Retries(
            tables.topics,
            tables.groups,
            tables.locks,
            level_count=len(store_config.delay_levels_ms),
        ),
        responses=responses,
        cold_reads=ColdReads(store, responses, site.readers),
        days=DayTotals(clock.wall_ms()),
        requests=RequestStatistics(),
        statistics=statistics,
        deletions=Deletions([statistics.forget_topic], [statistics.forget_group]),
        staged=StagedLayouts(),
        reports=[admission.report],
    )


def _save_topics(topics: TopicTable, saving: StateSaving, registration: Registration) -> None:
    """Have changes of the topics saved, and told to the name servers."""
    save = saving.add("topics.json", topics)

    def changed() -> None:
        save()
        registration.announce()

    topics.on_change = changed
    topics.ids.on_change = saving.add("topicIds.json", topics.ids)


def _connect_clients(site: Site, tables: Tables) -> ChangeNotices:
    """Have changes of the clients told to whom they concern."""
    notices = ChangeNotices(tables.clients.members_of)
    if site.config.notify_consumer_ids_changed:
        tables.clients.on_members_changed = notices.changed
    tables.filters.latest_ms = lambda: site.store.dispatch.store_timestamp
    tables.clients.on_subscribed = tables.filters.subscribe
    tables.clients.on_group_gone = tables.filters.unsubscribe
    return notices


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


def _make_writer(site: Site, flusher: Flusher) -> tuple[DiskPressure, LogWriter, Admission]:
    config, clock, store = site.config, site.clock, site.store
    is_sync = site.store_config.flush_mode is FlushMode.SYNC
    disk = DiskPressure(config, clock, store, site.trials, flush_begun_s=lambda: flusher.begun_s)
    log_writer = LogWriter(
        functools.partial(store.put, store_host=site.store_host),
        flusher.wait_flushed if is_sync else None,
        disk,
    )
    return disk, log_writer, Admission(config, clock, disk, log_writer)


def _make_dispatcher(
    site: Site, tables: Tables, core: Core, features: Sequence[Feature]
) -> Dispatcher:
    plain_sends = PlainSendStore(
        site.config,
        site.store_config,
        tables.topics,
        core.completion,
        core.hooks,
        core.log_writer,
        site.store_host,
    )
    run_handlers: dict[int, RunHandler] = {RequestCode.SEND_MESSAGE_V2: plain_sends.take}
    for feature in features:
        run_handlers.update(feature.run_handlers)
    return Dispatcher(
        f"broker {site.config.name}",
        *_core_handlers(site, tables, core),
        *(feature.handlers for feature in features),
        observer=core.requests,
        admission=core.admission,
        run_handlers=run_handlers,
    )


def _core_handlers(site: Site, tables: Tables, core: Core) -> list[Mapping[int, Handler]]:
    config, clock, store = site.config, site.clock, site.store
    topics, groups, offsets = tables.topics, tables.groups, tables.offsets
    clients, deletions, statistics = tables.clients, core.deletions, core.statistics
    selections = Selections(config, clients, tables.filters)
    answer_saved = core.saving.answer_saved
    send = SendHandlers(
        config,
        topics,
        core.retries,
        core.completion,
        hooks=core.hooks,
        log_writer=core.log_writer,
        staged=core.staged,
        store_host=site.store_host,
        message_bytes_max=site.store_config.message_bytes_max,
        record_crc=site.store_config.append_record_crc,
    )
    long_answers = LongAnswers()
    handlers = (
        send,
        ReplyHandlers(
            config,
            clock,
            clients,
            core.log_writer,
            address=site.address,
            store_host=site.store_host,
            accept=send.accept,
        ),
        PullHandlers(
            config,
            clock,
            store,
            topics,
            groups,
            offsets,
            selections,
            core.long_poll,
            core.responses,
            statistics,
        ),
        ClientHandlers(config, clock, clients, groups, topics, selections),
        OffsetHandlers(store, offsets, groups, topics, core.cold_reads),
        QueueLockHandlers(tables.locks),
        TopicHandlers(
            *(config, topics, offsets, store, core.cold_reads, statistics, deletions),
            long_answers,
            answer_saved,
        ),
        GroupHandlers(groups, offsets, deletions, answer_saved),
        GroupProgressHandlers(
            *(config, clock, site.address, groups, topics, offsets, clients, store),
            core.cold_reads,
            statistics,
            long_answers,
        ),
        QueryHandlers(
            store, core.responses, core.cold_reads, core.key_indexing.wait_indexed, site.readers
        ),
        CleaningHandlers(config, store, topics, offsets, core.cleaner.run_soon, answer_saved),
    )
    return [part.table() for part in handlers]


def _list_duties(site: Site, tables: Tables, core: Core) -> list[Duty]:
    def sample() -> None:
        now_s, statistics = site.clock.monotonic_s(), core.statistics
        site.store.statistics.sample(now_s)
        statistics.step(int(now_s * 1000))
        core.days.step(
            site.clock.wall_ms(),
            put_count=statistics.put_count,
            get_count=statistics.read_count,
        )

    def look() -> bool:
        site.readers.expire()
        return core.admission.step() or len(site.readers) > 0

    scan_s = site.config.client_scan_interval_ms / 1000
    return [
        core.arrivals,
        core.saving,
        core.flusher,
        LogRoom(site.store, site.writers, site.clock),
        core.cleaner,
        core.key_indexing,
        core.notices,
        WriteWatch(lambda: core.log_writer.writing_since_s),
        Periodic("pressure", look, _PRESSURE_INTERVAL_S, idle_s=_PRESSURE_IDLE_S),
        Periodic("statistics", sample, _SAMPLE_INTERVAL_S),
        Periodic("client expiry", tables.clients.expire, scan_s),
        Periodic("filter expiry", tables.filters.expire, _FILTER_EXPIRY_INTERVAL_S),
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
