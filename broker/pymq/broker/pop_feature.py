"""Popping and rebalancing by the broker, as features: their parts and how they are wired."""

import functools

from pymq.broker.config import BrokerConfig
from pymq.broker.duties import Periodic
from pymq.broker.forgotten_files import ORDERS
from pymq.broker.handlers.assignments import AssignmentHandlers
from pymq.broker.handlers.pop import PopHandlers
from pymq.broker.handlers.pop_acks import PopAckHandlers
from pymq.broker.handlers.pop_waits import PopWaitHandlers
from pymq.broker.log_writer import Appends
from pymq.broker.parts import Core, Feature, Site, Tables
from pymq.broker.pop.access import PopAccess
from pymq.broker.pop.checkpoint import GroupQueue
from pymq.broker.pop.checkpoint_table import CheckpointTable
from pymq.broker.pop.in_flight import InFlight
from pymq.broker.pop.pop_order import PopOrder
from pymq.broker.pop.pop_polls import PopPolls
from pymq.broker.pop.pop_response import PopResponses
from pymq.broker.pop.popping import Popping, PopRules
from pymq.broker.pop.progress import PopProgress
from pymq.broker.pop.record_reading import RecordReading
from pymq.broker.pop.resets import PopResets
from pymq.broker.pop.revival import Revival
from pymq.broker.pop.revive_journal import ReviveJournal
from pymq.broker.record_response import RecordResponses
from pymq.broker.selections import Selections
from pymq.broker.state.order_info import OrderTable
from pymq.broker.topic_routes import TopicRoutes
from pymq.protocol.bodies import ConsumerOffsetTable
from pymq.protocol.names import REVIVE_GROUP, revive_topic

#: How often it is checked which queues have become free, and which are not needed any more.
_ORDER_INTERVAL_S, _ORDER_IDLE_S = 0.1, 0.5
_CLEAN_INTERVAL_S = 60.0


def make_pop(site: Site, tables: Tables, core: Core) -> Feature:
    """Popping."""
    config, clock = site.config, site.clock
    progress = PopProgress(tables.offsets)
    in_flight, journal = make_in_flight(site, tables, core.responses, progress, core.log_writer)
    core.arrivals.subscribe(journal.take)
    core.takeovers.offsets.append(functools.partial(_take_escaped, site.config, in_flight))
    polls, notices = (_polls(site, core, newest_first=newest) for newest in (False, True))
    orders = OrderTable(clock)
    core.saving.add_periodic(ORDERS, orders, interval_s=config.offset_flush_interval_ms / 1000)

    def wake(queue: GroupQueue) -> None:
        topic, group, queue_id = queue
        for room in ((topic, group, -1), queue):
            polls.wake(room)
            notices.wake(room)

    order = PopOrder(orders, tables.offsets, tables.topics, tables.groups, clock, wake)
    popping = Popping(
        site.store,
        tables.topics,
        progress,
        core.responses,
        _rules(config),
        orders=orders,
        take_reset=PopResets(tables.offsets, progress, orders, in_flight.has_counted).take,
    )
    core.deletions.topics.extend([in_flight.forget_topic, orders.forget_topic])
    core.deletions.groups.extend([in_flight.forget_group, orders.forget_group])
    access = PopAccess(config, tables.topics, tables.groups)
    handlers = (
        PopHandlers(
            config.name,
            clock,
            site.store,
            access,
            Selections(config, tables.clients, tables.filters),
            core.responses,
            popping=popping,
            in_flight=in_flight,
            order=order,
            statistics=core.statistics,
            polls=polls,
            responses=PopResponses(
                core.responses, broker_name=config.name, rename=not config.pop_actual_topic
            ),
        ),
        PopAckHandlers(site.store, access, in_flight, order, core.statistics),
        PopWaitHandlers(clock, access, popping, polls, notices),
    )
    return Feature(
        handlers={code: handle for one in handlers for code, handle in one.table().items()},
        openings=[in_flight.open, order.open],
        duties=[
            in_flight,
            Periodic("queues popped in order", order.step, _ORDER_INTERVAL_S, idle_s=_ORDER_IDLE_S),
            Periodic("old orders", order.clean, _CLEAN_INTERVAL_S),
        ],
        holders=[polls, notices],
        on_ended=[polls.drop, notices.drop],
    )


def make_assignments(site: Site, tables: Tables, core: Core) -> Feature:
    """Rebalancing by the broker."""
    config = site.config
    core.deletions.topics.append(tables.modes.forget_topic)
    core.deletions.groups.append(tables.modes.forget_group)
    routes = TopicRoutes(config.name, config.name_servers, tables.topics, site.clock)
    handlers = AssignmentHandlers(
        config,
        tables.topics,
        tables.groups,
        tables.clients,
        tables.modes,
        routes,
        core.saving.answer_saved,
    )
    return Feature(handlers=handlers.table(), duties=[routes])


def _polls(site: Site, core: Core, *, newest_first: bool) -> PopPolls:
    polls = PopPolls(
        site.clock,
        count_max=site.config.held_pop_count_max,
        room_count_max=site.config.held_pop_room_count_max,
        newest_first=newest_first,
    )
    core.arrivals.subscribe(polls.take)
    return polls


def _rules(config: BrokerConfig) -> PopRules:
    return PopRules(
        retry_percent=config.pop_retry_percent,
        retry_v2=config.pop_retry_v2,
        retry_v1_too=config.pop_retry_v1_too,
        start_in_memory=config.pop_start_in_memory,
        bytes_max=lambda: config.pull_bytes_max,
    )


def make_in_flight(
    site: Site,
    tables: Tables,
    responses: RecordResponses,
    progress: PopProgress,
    log_writer: Appends,
    *,
    creates_topics: bool = True,
) -> tuple[InFlight, ReviveJournal]:
    """Return what is popped and not acknowledged, and the journal of that.

    Args:
        progress: of the groups.
        log_writer: stores what is revived.
        creates_topics: see ``Revival``.
    """
    config, clock, store, offsets = site.config, site.clock, site.store, tables.offsets
    reading = RecordReading(store, responses)
    table = CheckpointTable(config.revive_queue_count)
    journal = ReviveJournal(
        store,
        reading,
        log_writer,
        offsets,
        table,
        clock,
        tables.topics.ids,
        topic=revive_topic(config.cluster),
        queue_count=config.revive_queue_count,
        broker_name=config.name,
        host=site.store_host,
    )
    revival = Revival(
        reading,
        journal,
        table,
        tables.topics,
        tables.groups,
        offsets,
        clock,
        retry_v2=config.pop_retry_v2,
        creates_topics=creates_topics,
        host=site.store_host,
    )
    in_flight = InFlight(
        store,
        offsets,
        progress,
        table,
        journal,
        revival,
        clock,
        queue_count=config.revive_queue_count,
        broker_name=config.name,
        count_max=config.pop_checkpoint_count_max,
    )
    return in_flight, journal


async def _take_escaped(
    config: BrokerConfig, in_flight: InFlight, told: ConsumerOffsetTable
) -> None:
    """Revive nothing that a slave has revived while it acted."""
    queues = told.offsets.get(f"{revive_topic(config.cluster)}@{REVIVE_GROUP}", {})
    for queue_id, offset in queues.items():
        if queue_id < config.revive_queue_count:
            in_flight.escaped(queue_id, offset + 1)  # RocketMQ's offset is the one before
