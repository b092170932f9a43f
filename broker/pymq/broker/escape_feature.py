"""What a slave has other groups store while it acts for its master: the parts of ``escape``."""

from collections.abc import Callable

from pymq.broker.delays.due_messages import DueMessages
from pymq.broker.delays.schedule import Schedule
from pymq.broker.escape.brokers import OtherBrokers
from pymq.broker.escape.escaping import Escaping
from pymq.broker.escape.half_messages import HalfMessages
from pymq.broker.escape.popped_messages import PoppedMessages, RemoteRevivals
from pymq.broker.escape.waiting_messages import DelayedMessages, TimerMessages
from pymq.broker.escape.writer import RemoteWriter
from pymq.broker.ha.slave import Slave
from pymq.broker.parts import Core, Site, Tables
from pymq.broker.pop.in_flight import InFlight
from pymq.broker.pop.progress import PopProgress
from pymq.broker.pop.record_reading import RecordReading
from pymq.broker.pop_feature import make_in_flight
from pymq.broker.state.delay_offsets import DelayOffsets
from pymq.broker.state.timer_metrics import TimerMetrics
from pymq.broker.state.transactions import OpenTransactions
from pymq.broker.timers.timers import Timers, TimerSettings
from pymq.broker.transactions.start import find_transactions
from pymq.protocol.names import HALF_OP_TOPIC, HALF_TOPIC, TRANSACTION_GROUP
from pymq.protocol.parking import real_place
from pymq.protocol.record import Record
from pymq.protocol.transaction_records import QUEUE_ID
from pymq.store import QueueKey, TimerStore


def make_escaping(
    site: Site,
    tables: Tables,
    core: Core,
    slave: Slave,
    delays: DelayOffsets,
    save_delays: Callable[[], None],
) -> Escaping:
    """Return what has messages stored elsewhere while a slave acts.

    Args:
        delays: how far each delay level is, as the master has told.
        save_delays: to be called when they have changed.
    """
    config, clock, store = site.config, site.clock, site.store
    brokers = OtherBrokers(config.name, config.cluster, config.name_servers, clock)
    writer = RemoteWriter(brokers, f"InnerProducerGroup_{config.name}_{config.broker_id}")
    errands = _Errands(site, tables, core, writer, delays, save_delays)
    return Escaping(
        slave,
        [
            DelayedMessages(errands.schedule, writer, delays),
            TimerMessages(store, clock, errands.timers, core.flusher, site.writers),
            HalfMessages(
                *(store, RecordReading(store, core.responses), clock, errands.open_transactions),
                writer,
                tables.offsets,
                timeout_ms=config.transaction_timeout_ms,
            ),
            PoppedMessages(errands.in_flight, writer),
        ],
        writer,
    )


class _Errands:
    """Makes what does each errand; for each time that the slave acts."""

    def __init__(
        self,
        site: Site,
        tables: Tables,
        core: Core,
        writer: RemoteWriter,
        delays: DelayOffsets,
        save_delays: Callable[[], None],
    ) -> None:
        self._site, self._tables, self._core = site, tables, core
        self._writer = writer
        self._delays = delays
        self._save_delays = save_delays

    def schedule(self) -> Schedule:
        """Return what delivers messages of delay levels."""
        site, core = self._site, self._core
        return Schedule(
            site.store,
            DueMessages(site.store_config, site.store_host, one_by_one=True),
            self._writer,
            site.clock,
            self._delays,
            levels_ms=site.store_config.delay_levels_ms,
            wait_in_memory=core.responses.wait_in_memory,
            wait_entries=core.responses.wait_entries,
            wait_flushed=core.flusher.wait_flushed,
            save_soon=self._save_delays,
            save_interval_s=site.config.delay_flush_interval_ms / 1000,
        )

    def timers(self, files: TimerStore) -> Timers:
        """Return what delivers timer messages."""
        site = self._site
        return Timers(
            files,
            self._writer,
            site.clock,
            TimerMetrics(site.clock),
            TimerSettings(
                precision_ms=site.store_config.timer_precision_ms,
                flush_interval_ms=site.config.timer_flush_interval_ms,
                keeps_rounds=True,
            ),
            readers=site.readers,
            writers=site.writers,
        )

    def open_transactions(self) -> OpenTransactions:
        """Return which half messages are open."""
        half_cursor, op_cursor = (
            self._tables.offsets.find(TRANSACTION_GROUP, topic, QUEUE_ID)
            for topic in (HALF_TOPIC, HALF_OP_TOPIC)
        )
        found = find_transactions(self._site.store, half_cursor, op_cursor, _places)
        for offset, _ in found.unrecorded:
            found.transactions.restore([offset], None)
        return found.transactions

    def in_flight(self) -> InFlight:
        """Return what is popped and not acknowledged."""
        in_flight, _ = make_in_flight(
            *(self._site, self._tables, self._core.responses, PopProgress(self._tables.offsets)),
            RemoteRevivals(self._writer),
            creates_topics=False,
        )
        return in_flight


def _places(half: Record) -> list[QueueKey]:
    place = real_place(half.properties)
    return [] if place is None else [place]
