"""Makes and wires the parts of a broker: tables, features, handlers. Reads from top to bottom.

Nothing is started here. The store is already open, and the address is known.
"""

import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from pymq.broker.arrivals import Arrivals
from pymq.broker.change_notices import ChangeNotices
from pymq.broker.cleaner import Cleaner
from pymq.broker.cold_reads import ColdReads
from pymq.broker.deletions import Deletions, finish_deletions
from pymq.broker.duties import Duty, Periodic
from pymq.broker.empty_queues import begin_empty_queues
from pymq.broker.features import MASTER_FEATURES, SLAVE_FEATURES
from pymq.broker.flusher import Flusher
from pymq.broker.ha.followers import Followers
from pymq.broker.ha.in_sync import InSync, in_sync_of
from pymq.broker.ha.offset_followers import offset_followers_of
from pymq.broker.ha.progress import Replicas, progress_of
from pymq.broker.ha.slave import slave_of
from pymq.broker.ha.takeovers import Takeovers
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
from pymq.broker.log_writer import LogWriter, WaitFlushed
from pymq.broker.long_poll import LongPoll
from pymq.broker.many_queues import LongAnswers
from pymq.broker.message_hooks import MessageHooks
from pymq.broker.misread_refusals import is_misread
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
from pymq.broker.slave_refusals import with_refusals
from pymq.broker.state.groups import GroupTable
from pymq.broker.state.offsets import OffsetTable
from pymq.broker.state.queue_locks import QueueLocks
from pymq.broker.state.request_modes import RequestModes
from pymq.broker.state.topics import TopicTable
from pymq.broker.statistics.broker_statistics import BrokerStatistics
from pymq.broker.statistics.day_totals import DayTotals
from pymq.broker.statistics.request_statistics import RequestStatistics
from pymq.broker.table_saving import make_saving
from pymq.net.dispatcher import Dispatcher, Handler, RunHandler
from pymq.protocol.codes import RequestCode
from pymq.store import FlushMode

_LOCK_SCAN_INTERVAL_S = 60.0
_SAMPLE_INTERVAL_S = 1.0
#: While something waits for the disk, and otherwise.
_PRESSURE_INTERVAL_S, _PRESSURE_IDLE_S = 0.05, 0.25
_FILTER_EXPIRY_INTERVAL_S = 60.0

_Item = TypeVar("_Item")


async def assemble(
    site: Site, in_thread: Callable[[Callable[[], None]], Awaitable[None]]
) -> Assembly:
    """Make all parts of a broker.

    Args:
        site: what it is built on.
        in_thread: runs work on the disk.

    Raises:
        StoreError: a table cannot be read.
    """
    tables = _make_tables(site)
    core = _make_core(site, tables)
    makers = MASTER_FEATURES if core.slave is None else SLAVE_FEATURES
    features = [make(site, tables, core) for make in makers]
    await in_thread(core.saving.load)  # takes seconds if there are many: the controller hears us
    core.saving.load_shared()
    finish_deletions(site.store, tables.offsets)
    tables.topics.ids.log_lost()
    if site.group is not None and site.group.term.is_master:
        tables.topics.begin_term(site.group.term.number)
    tables.topics.adopt(site.store.queues())
    if core.slave is None:
        begin_empty_queues(site.store, tables.topics, tables.offsets)
    return Assembly(
        dispatcher=_make_dispatcher(site, tables, core, features),
        openings=_all(one.openings for one in features),
        duties=[
            *_list_duties(site, tables, core),
            *_all(one.duties for one in features if one.preparations),
        ],
        preparations=_all(one.preparations for one in features),
        later_duties=_all(one.duties for one in features if not one.preparations),
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
    topics = TopicTable(config, clock, has_light_queues=has_light, folds_case=site.store.folds_case)
    topics.ids.log_end = lambda: site.store.log_end
    return Tables(
        topics=topics,
        groups=GroupTable(config, clock, has_light_queues=has_light),
        offsets=OffsetTable(clock),
        locks=QueueLocks(clock),
        clients=site.clients,
        filters=site.filters,
        modes=RequestModes(),
    )


def _make_core(site: Site, tables: Tables) -> Core:
    config, store_config, clock, store = site.config, site.store_config, site.clock, site.store
    registration = Registration(
        config,
        address=site.address,
        ha_address=site.ha_address,
        topics=tables.topics.body,
        on_order_topics=tables.topics.order,
        acting_expiry_ms=site.replication.not_active_ms if site.replication.acting_master else None,
        is_alone=site.group is None,
    )
    flusher = _make_flusher(site)
    followers = Followers(tables.versions)
    offset_followers = offset_followers_of(site.replication, tables.offsets, clock)
    saving = make_saving(site, tables, registration, followers, offset_followers, flusher)
    notices = _connect_clients(site, tables)
    long_poll = LongPoll(clock, count_max=config.held_pull_count_max)
    arrivals = Arrivals(store.dispatch)
    arrivals.subscribe(long_poll.take)
    responses = RecordResponses(store, executor=site.readers, memory_bytes=config.memory_bytes)
    statistics = BrokerStatistics(config.cluster, int(clock.monotonic_s() * 1000))
    arrivals.subscribe(statistics.take)
    in_sync = in_sync_of(site.replication, site.group, store.replication, clock)
    replicas = _replicas_of(site, in_sync)
    wait_flushed = flusher.wait_flushed if store_config.flush_mode is FlushMode.SYNC else None
    disk, log_writer, admission = _make_writer(site, flusher, wait_flushed, replicas)
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
        replicas=replicas,
        followers=followers,
        offset_followers=offset_followers,
        in_sync=in_sync,
        takeovers=Takeovers(),
        slave=slave_of(
            *(site.replication, store.replication, wait_flushed, clock),
            registration.announce,
            site.group,
        ),
        reports=[admission.report],
    )


def _replicas_of(site: Site, in_sync: InSync | None) -> Replicas | None:
    if in_sync is not None:
        return in_sync.progress
    return progress_of(site.replication, site.clock, lambda: site.store.log_end)


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


def _make_writer(
    site: Site,
    flusher: Flusher,
    wait_flushed: WaitFlushed | None,
    replicas: Replicas | None,
) -> tuple[DiskPressure, LogWriter, Admission]:
    config, clock, store = site.config, site.clock, site.store
    disk = DiskPressure(config, clock, store, site.trials, flush_begun_s=lambda: flusher.begun_s)
    put = functools.partial(store.put, store_host=site.store_host)
    log_writer = LogWriter(
        put if replicas is None else replicas.guarded(put),
        wait_flushed,
        disk,
        None if replicas is None else replicas.wait,
    )
    return disk, log_writer, Admission(config, clock, disk, log_writer)


def _make_dispatcher(
    site: Site, tables: Tables, core: Core, features: Sequence[Feature]
) -> Dispatcher:
    handlers = [*_core_handlers(site, tables, core), *(feature.handlers for feature in features)]
    if core.slave is not None:
        every = {code: handle for table in handlers for code, handle in table.items()}
        return Dispatcher(
            f"slave {site.config.name}",
            with_refusals(every, site.config, core.slave, has_controller=site.group is not None),
            observer=core.requests,
            admission=core.admission,
            is_misread=is_misread,
        )
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
        *handlers,
        observer=core.requests,
        admission=core.admission,
        run_handlers=run_handlers,
        is_misread=is_misread,
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
            core.slave,
        ),
        ClientHandlers(config, clock, clients, groups, topics, selections),
        OffsetHandlers(
            *(store, offsets, groups, topics, core.cold_reads),
            core.offset_followers.wait if core.offset_followers.is_waited_for else None,
        ),
        QueueLockHandlers(tables.locks),
        TopicHandlers(
            *(config, topics, offsets, store, core.cold_reads, statistics, deletions),
            *(long_answers, core.cleaner.remove, answer_saved),
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
        CleaningHandlers(
            *(config, store, topics, offsets, core.cleaner.run_soon, core.cleaner.remove),
            answer_saved,
        ),
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
        core.flusher,
        core.saving,  # ends first: what it saves last waits for a flush
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
