"""The features of a broker, each added to the core by one function; see ``parts.Feature``."""

import functools
from collections.abc import Sequence

from pymq.broker.delays.due_messages import DueMessages
from pymq.broker.delays.parking import park_delayed, park_many, park_staged
from pymq.broker.delays.schedule import Schedule
from pymq.broker.forgotten_files import forget_files
from pymq.broker.handlers.connections import ConnectionHandlers
from pymq.broker.handlers.consumers import ConsumerHandlers
from pymq.broker.handlers.delays import DelayHandlers
from pymq.broker.handlers.queue_entries import QueueEntryHandlers
from pymq.broker.handlers.resets import ResetHandlers
from pymq.broker.handlers.retry import RetryHandlers
from pymq.broker.handlers.runtime import RuntimeHandlers
from pymq.broker.handlers.settings import SettingsHandlers
from pymq.broker.handlers.statistics import StatisticsHandlers
from pymq.broker.handlers.store_state import StoreStateHandlers
from pymq.broker.light_queue_feature import make_light_queues
from pymq.broker.live_settings import LiveSettings
from pymq.broker.parts import Core, Feature, MakeFeature, Site, Tables
from pymq.broker.pop_feature import make_assignments, make_pop
from pymq.broker.replication_feature import make_replication
from pymq.broker.sink_feature import make_sinks
from pymq.broker.state.delay_offsets import DelayOffsets
from pymq.broker.timer_feature import make_timers
from pymq.broker.transaction_feature import make_transactions
from pymq.protocol.bodies import DelayOffsetTable
from pymq.protocol.message import DELAY


def delay_levels(site: Site, tables: Tables, core: Core) -> Feature:
    """Delayed messages."""
    levels_ms = site.store_config.delay_levels_ms
    offsets = DelayOffsets(site.clock)
    save_soon = core.saving.add("delayOffset.json", offsets)
    schedule = Schedule(
        site.store,
        DueMessages(site.store_config, site.store_host),
        core.log_writer,
        site.clock,
        offsets,
        levels_ms=levels_ms,
        wait_in_memory=core.responses.wait_in_memory,
        wait_entries=core.responses.wait_entries,
        wait_flushed=core.flusher.wait_flushed,
        save_soon=save_soon,
        save_interval_s=site.config.delay_flush_interval_ms / 1000,
    )
    core.hooks.add(
        DELAY,
        functools.partial(park_delayed, len(levels_ms)),
        functools.partial(park_many, levels_ms),
        functools.partial(park_staged, len(levels_ms)),
    )
    core.arrivals.subscribe(schedule.take)

    def table() -> DelayOffsetTable:
        return offsets.table_of(schedule.cursors(), schedule.ahead())

    def take_back(told: DelayOffsetTable) -> None:
        if offsets.take_back(told):
            save_soon()

    core.offset_followers.delays = table
    core.offset_followers.take_delays = take_back
    core.reports.append(schedule.report)
    return Feature(handlers=DelayHandlers(table).table(), duties=[schedule])


def _steering_of_consumers(site: Site, tables: Tables, core: Core) -> Feature:
    """What administrators see of clients that are connected, and have them do."""
    connections = ConnectionHandlers(tables.clients, site.clock)
    consumers = ConsumerHandlers(
        site.config, tables.clients, tables.topics, tables.groups, core.cold_reads
    )
    resets = ResetHandlers(
        site.config,
        site.store,
        core.cold_reads,
        tables.topics,
        tables.groups,
        tables.offsets,
        tables.clients,
        core.saving.answer_saved,
        core.long_poll.wake,
    )
    return Feature(handlers={**connections.table(), **consumers.table(), **resets.table()})


def retries(site: Site, tables: Tables, core: Core) -> Feature:
    """Messages that consumers send back."""
    handlers = RetryHandlers(
        site.config,
        site.address,
        core.cold_reads,
        core.retries,
        core.log_writer,
        core.statistics,
    )
    return Feature(handlers=handlers.table())


def _reports(site: Site, tables: Tables, core: Core) -> Feature:
    """What the broker says about itself."""
    runtime = RuntimeHandlers(
        site.clock,
        site.store,
        core.cold_reads,
        core.days,
        core.requests,
        core.statistics,
        site.store_config.queues_path,
        core.reports,
    )
    settings = LiveSettings(
        site.config,
        site.store_config,
        site.replication,
        site.clock,
        address=site.address,
        ha_address=site.ha_address,
    )
    settings.save_soon = core.saving.add("liveSettings.json", settings)

    def settings_changed(keys: frozenset[str]) -> None:
        if keys & {"brokerPermission", "autoCreateTopicEnable"}:
            tables.topics.settings_changed()  # and tell the name servers

    settings.on_change = settings_changed
    parts = (
        runtime,
        SettingsHandlers(settings, core.saving.answer_saved),
        StatisticsHandlers(core.statistics),
        StoreStateHandlers(site.store),
        QueueEntryHandlers(site.store, core.cold_reads, tables.clients, tables.filters),
    )
    return Feature(
        handlers={code: handler for part in parts for code, handler in part.table().items()}
    )


def _forgetting(site: Site, tables: Tables, core: Core) -> Feature:
    """Of a slave: nothing is published, nor popped, and nothing of that is known."""
    forget = functools.partial(forget_files, site.store_config.root_path, site.unsaved)
    return Feature(openings=[forget])


#: Of a master, in the order in which their duties start.
MASTER_FEATURES: Sequence[MakeFeature] = (
    make_replication,
    delay_levels,
    retries,
    make_transactions,
    _steering_of_consumers,
    make_pop,
    make_timers,
    make_light_queues,
    make_sinks,
    make_assignments,
    _reports,
)
#: Of a slave: what delivers messages, or writes others, has to wait until it is a master.
SLAVE_FEATURES: Sequence[MakeFeature] = (
    make_replication,
    _steering_of_consumers,
    make_light_queues,
    _forgetting,
    make_assignments,
    _reports,
)
