"""Timer messages, as a feature: its parts and how they are wired."""

import functools
import logging

from pymq.broker.handlers.timers import TimerHandlers
from pymq.broker.parts import Core, Feature, Site, Tables
from pymq.broker.state.timer_metrics import TimerMetrics
from pymq.broker.timers.parking import (
    TIMER_PROPERTIES,
    TimerParking,
    refuse_staged_timers,
    refuse_timers,
)
from pymq.broker.timers.timers import Timers, TimerSettings
from pymq.protocol.names import TIMER_TOPIC
from pymq.store import MessageStore, TimerCheckpoint, TimerStore, checkpoint_now

_log = logging.getLogger(__name__)


def make_timers(site: Site, tables: Tables, core: Core) -> Feature:
    """Timer messages."""
    config, store_config, store = site.config, site.store_config, site.store
    metrics = TimerMetrics(site.clock)
    handlers = TimerHandlers(
        config, site.clock, tables.topics, store.timers, metrics, core.hooks, core.log_writer
    )
    if store.timers is None:
        for name in TIMER_PROPERTIES:
            core.hooks.add(name, refuse_timers, for_staged=refuse_staged_timers)
        return Feature(handlers=handlers.table())
    core.saving.add_periodic(
        "timermetrics", metrics, interval_s=config.offset_flush_interval_ms / 1000
    )
    core.deletions.topics.append(metrics.forget)
    timers = Timers(
        store.timers,
        core.log_writer,
        site.clock,
        metrics,
        TimerSettings(
            precision_ms=store_config.timer_precision_ms,
            flush_interval_ms=config.timer_flush_interval_ms,
            stops_enqueue=config.timer_stop_enqueue,
            stops_dequeue=config.timer_stop_dequeue,
        ),
        readers=site.readers,
        writers=site.writers,
    )
    parking = TimerParking(
        timers.now_ms,
        store.timers.congestion,
        precision_ms=store_config.timer_precision_ms,
        delay_ms_max=config.timer_max_delay_s * 1000,
        congestion_max=config.timer_congestion_max,
    )
    for name in TIMER_PROPERTIES:
        core.hooks.add(name, parking.park, for_staged=parking.park_staged)
    core.arrivals.subscribe(timers.take)
    core.offset_followers.timers = functools.partial(_checkpoint, store.timers)
    core.takeovers.timers = functools.partial(_take_back, site.store, timers)
    return Feature(handlers=handlers.table(), duties=[timers])


def _checkpoint(timers: TimerStore) -> bytes:
    return checkpoint_now(timers).encode()


def _take_back(store: MessageStore, timers: Timers, body: bytes) -> None:
    """Deliver nothing that a slave has delivered, as its checkpoint says."""
    told = TimerCheckpoint.decode(body)
    if told is None:
        return
    physical_end = store.log_end
    if told.queue_offset < store.queue_bounds(TIMER_TOPIC, 0)[1]:
        read = store.read(TIMER_TOPIC, 0, told.queue_offset, count_max=1, bytes_max=1)
        physical_end = read.starts[0] if read.count else 0
    if timers.take_back(told.read_ms, physical_end):
        _log.info("timer messages that are due before %d were delivered by a slave", told.read_ms)
