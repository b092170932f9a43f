"""Replication, as a feature: a master's HA port, or a slave that follows."""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from pymq.broker.duties import Duty
from pymq.broker.escape_feature import make_escaping
from pymq.broker.ha.acting import Acting
from pymq.broker.ha.gone_topics import GoneTopics
from pymq.broker.ha.group_watch import GroupWatch, OnGroup
from pymq.broker.ha.in_sync import InSync
from pymq.broker.ha.master import Master
from pymq.broker.ha.master_finder import MasterFinder
from pymq.broker.ha.metadata import Followed, MetadataSync
from pymq.broker.ha.offset_sync import OffsetSync
from pymq.broker.ha.pre_online import MasterPreOnline, SlavePreOnline
from pymq.broker.ha.progress import ReplicaProgress
from pymq.broker.ha.security import security_of
from pymq.broker.ha.slave import Slave
from pymq.broker.ha.slave_connection import SlaveConnection
from pymq.broker.ha.talk import ClassicTalk, EpochTalk, Talk
from pymq.broker.ha.told_master import ToldMaster
from pymq.broker.handlers.delays import FollowedDelayHandlers
from pymq.broker.handlers.replication import MetadataHandlers, ReplicationHandlers
from pymq.broker.handlers.timers import FollowedTimerHandlers
from pymq.broker.own_master import is_own
from pymq.broker.parts import Core, Feature, Site, Tables
from pymq.broker.replication_config import HA_DISTANCE
from pymq.broker.state.delay_offsets import DelayOffsets
from pymq.errors import ConfigurationError, StoreError
from pymq.net.dispatcher import Handler
from pymq.protocol.addresses import split_address
from pymq.protocol.admin_bodies import ReplicationStatus
from pymq.protocol.bodies import ConsumerOffsetTable, DelayOffsetTable, GroupTable
from pymq.protocol.codes import RequestCode
from pymq.protocol.headers.replication import HaInfo
from pymq.protocol.pop_bodies import RequestModeTable
from pymq.store import Arrival, FlushMode

_log = logging.getLogger(__name__)

#: A slave for which nobody waits may lag by as much more.
GATHER_S = 0.002


def make_replication(site: Site, tables: Tables, core: Core) -> Feature:
    """Replication of the log, in the role that this broker has."""
    if core.slave is None:
        return _serve_slaves(site, tables, core)
    return _follow_master(site, tables, core, core.slave)


def _serve_slaves(site: Site, tables: Tables, core: Core) -> Feature:
    if site.ha_socket is None:
        return Feature(
            handlers=_handlers(site, lambda: ReplicationStatus(log_end=site.store.log_end))
        )
    config, group, in_sync = site.replication, site.group, core.in_sync
    make_talk: Callable[[], Talk] = ClassicTalk
    if group is not None and in_sync is not None:
        make_talk = functools.partial(
            EpochTalk, group.epochs.epochs, functools.partial(_shown_end, site, in_sync)
        )
    master = Master(
        site.ha_socket,
        site.store.replication,
        site.writers,
        batch_bytes=config.batch_bytes,
        heartbeat_s=config.heartbeat_ms / 1000,
        silence_s=config.silence_ms / 1000,
        gap_max=config.gap_max_bytes,
        security=security_of(config),
        connection_count_max=config.connection_count_max,
        # With a controller, consumers wait for slaves even if senders do not.
        gather_s=GATHER_S if core.replicas is None and in_sync is None else 0.0,
        sends_whole_log=config.whole_log,
        talk=make_talk,
        on_progress=functools.partial(_take_progress, core),
    )
    core.log_writer.on_written = master.send
    # With a transient pool, what was written can be sent when it was committed.
    core.arrivals.subscribe(lambda arrivals: master.send())
    duties: list[Duty] = [master] if core.replicas is None else [core.replicas, master]
    duties.append(core.offset_followers)

    def follows() -> bool:
        return any(one.confirmed_end >= 0 for one in master.slaves)

    # Who asks and is refused at the HA port never has the log that offsets speak of.
    core.offset_followers.awaited = lambda: None if follows() else ()
    if in_sync is not None:
        in_sync.slaves = lambda: master.slaves
        in_sync.offsets = core.offset_followers
        core.offset_followers.awaited = lambda: in_sync.awaited
        duties.append(in_sync)

    def status() -> ReplicationStatus:
        found = master.status()
        return found if in_sync is None else in_sync.status(found)

    handlers = {
        **_handlers(site, status),
        **MetadataHandlers(
            *(site.store, core.followers, tables.topics.ids, core.offset_followers),
            site.clock,
        ).table(),
    }
    preparations: list[Callable[[], Coroutine[Any, Any, None]]] = []
    if config.acting_master:
        watch = _group_watch(site, None)
        duties.append(watch)
        if not config.skip_pre_online:
            tables.offsets.names_position = True
            online = _master_pre_online(site, tables, core, watch, master)
            preparations += [online.run, functools.partial(_save_offsets, tables, core)]
    return Feature(handlers=handlers, duties=duties, preparations=preparations)


def _group_watch(site: Site, on_group: OnGroup | None) -> GroupWatch:
    config = site.replication
    return GroupWatch(
        site.config,
        site.address,
        on_group,
        heartbeat_s=config.controller_heartbeat_ms / 1000,
        interval_s=config.group_interval_ms / 1000,
        expiry_s=config.not_active_ms / 1000,
    )


def _master_pre_online(
    site: Site, tables: Tables, core: Core, watch: GroupWatch, master: Master
) -> MasterPreOnline:
    async def take_offsets(body: bytes) -> None:
        told = ConsumerOffsetTable.decode(body)
        for take in core.takeovers.offsets:
            await take(told)
        if not tables.offsets.take_back(told):
            _log.warning("the consumer offsets of this master are newer than those of its slave")

    return MasterPreOnline(
        watch,
        HaInfo(
            ha_address=site.ha_address,
            flushed_end=site.store.durability.flushed_end,
            address=site.address,
        ),
        lambda: sum(one.confirmed_end >= 0 for one in master.slaves),
        take_offsets=take_offsets,
        take_delays=lambda body: core.offset_followers.take_delays(DelayOffsetTable.decode(body)),
        take_timers=lambda body: core.takeovers.timers(body),
    )


async def _save_offsets(tables: Tables, core: Core) -> None:
    """Have a file that names a change of this run, before slaves follow it and name another one."""
    tables.offsets.is_changed = True
    try:
        await core.saving.save()
    except StoreError as error:
        _log.error("not saved before this master is online: %s", error)  # it is tried again


def _shown_end(site: Site, in_sync: InSync) -> int:
    """Return up to where slaves may show the log: with SYNC_FLUSH, what is on this disk, too.

    What slaves have flushed before their master would be shown, and lost when both lose their power
    and the master alone comes back.
    """
    end = in_sync.confirmed_end
    if site.store_config.flush_mode is FlushMode.SYNC:
        return min(end, site.store.durability.flushed_end)
    return end


def _handlers(
    site: Site,
    status: Callable[[], ReplicationStatus],
    acting: Acting | None = None,
    pause: Callable[[], Awaitable[None]] | None = None,
) -> Mapping[int, Handler]:
    return ReplicationHandlers(
        *(site.config, site.store, site.address, site.ha_address, site.group, status),
        acting=acting,
        pause=pause,
    ).table()


def _take_progress(core: Core, slaves: list[SlaveConnection]) -> None:
    if core.in_sync is not None:
        core.in_sync.update()
    elif isinstance(core.replicas, ReplicaProgress):
        core.replicas.update(
            [one.confirmed_end for one in slaves], [one.claimed_end for one in slaves]
        )


def _follow_master(site: Site, tables: Tables, core: Core, slave: Slave) -> Feature:
    _check_master(site)
    config = site.replication

    def kept_end() -> int | None:
        # Before the master has heard from it, the log may have an end that is not the master's.
        if slave.is_following:
            return site.store.replication.kept_end
        # RocketMQ's masters refuse nobody, but may say nothing before their first heartbeat.
        return 0 if metadata.is_foreign and slave.peer is not None else None

    followed = _FollowedTables(site, tables, core)
    offset_sync = OffsetSync(
        *(tables.offsets, followed.take_delays, site.store.replication.timers.hear, kept_end),
        broker_id=site.config.broker_id,
    )
    slave.knows_offsets = functools.partial(_knows_offsets, site, tables, offset_sync)
    metadata = MetadataSync(
        followed.list(lambda: offset_sync.is_foreign),
        kept_end,
        core.flusher.wait_all_flushed,
        GoneTopics(
            tables.topics, tables.offsets, core.deletions, site.store, core.cleaner.remove
        ),
        site.writers,
        is_connected=lambda: slave.peer is not None,
        version=tables.versions,
        on_deleted=offset_sync.begin_again,
        clock=site.clock,
        broker_id=site.config.broker_id,
        interval_s=config.metadata_interval_ms / 1000,
    )

    def look(arrivals: list[Arrival]) -> None:
        if any(arrival.topic not in tables.topics for arrival in arrivals):
            metadata.want()  # nobody can read them yet

    core.arrivals.subscribe(look)
    core.reports.append(lambda: {"brokerActive": str(slave.is_acting).lower()})
    duties: list[Duty] = [slave, metadata, offset_sync, followed]
    escaping = None
    if config.remote_escape:
        escaping = make_escaping(site, tables, core, slave, followed.delays, followed.save_delays)
        duties.append(escaping)
    acting: Acting | None = None
    preparations: list[Callable[[], Coroutine[Any, Any, None]]] = []
    told = ToldMaster(config.master_address, slave, metadata, offset_sync)
    if site.group is None:
        tables.offsets.moved = set()
        core.registration.on_master = told.follow
        if config.acting_master:
            acting = Acting(
                *(site.config.broker_id, site.config.name, slave, told.follow),
                core.long_poll.answer_all,
            )
            core.registration.on_master = acting.registered
            watch = _group_watch(site, acting.group)
            duties += [acting, watch]
            if not config.skip_pre_online:
                online = SlavePreOnline(watch, acting.group, lambda: slave.is_following)
                preparations.append(online.run)
    else:
        told.follow_tables(site.group.term.master_address)
        duties.append(MasterFinder(site.group.term.master_address, slave))
    handlers = {
        **_handlers(site, slave.status, acting, None if escaping is None else escaping.pause),
        **FollowedDelayHandlers(followed.delays.table).table(),
        **FollowedTimerHandlers(site.store.replication.timers.told, site.writers).table(),
    }
    return Feature(handlers=handlers, duties=duties, preparations=preparations)


def _knows_offsets(site: Site, tables: Tables, sync: OffsetSync) -> bool:
    # With a controller, others may have become the master, and taken commits, meanwhile.
    return tables.offsets.is_known if site.group is None else sync.is_current


def _check_master(site: Site) -> None:
    """Look whether a slave can find its master.

    Raises:
        ConfigurationError: it would follow itself.
    """
    config = site.replication
    master = config.master_address
    if master is not None and is_own(master, site.address, _own_ports(site)):
        raise ConfigurationError(
            f"haMasterAddress={master}: this is the address of this slave itself; "
            "give that of its master's HA port (its brokerIP2 and haListenPort), or leave it to "
            "the name servers. If its master is on this machine and has that port, give this slave "
            "another haListenPort"
        )
    if not site.config.name_servers and site.group is None:
        _log.warning(
            "this slave copies no topics, groups and offsets%s: it does not know where its master "
            "is, give it a name server (namesrvAddr)",
            "" if config.master_address else ", and no messages",
        )


def _own_ports(site: Site) -> set[int]:
    """Return the port for clients, and the one for slaves that this broker has as a master."""
    _, port = split_address(site.address)
    ha_port = site.replication.listen_port
    if ha_port is None and site.config.listen_port:
        ha_port = port + HA_DISTANCE
    return {port} | ({ha_port} if ha_port else set())


class _FollowedTables:
    """The tables of a slave, and how each follows the master's."""

    def __init__(self, site: Site, tables: Tables, core: Core) -> None:
        self._site, self._tables, self._core = site, tables, core
        self.delays = DelayOffsets(site.clock)
        # As by a master that delivers: it tells of them all the time.
        self.save_delays = core.saving.add_periodic(
            "delayOffset.json",
            self.delays,
            interval_s=site.config.delay_flush_interval_ms / 1000,
        )

    def list(self, copies_offsets: Callable[[], bool]) -> "list[Followed[Any]]":
        """Return them in the order in which the master is asked.

        Args:
            copies_offsets: returns whether all offsets have to be asked for.
        """
        tables, code = self._tables, RequestCode
        return [
            Followed(
                "groups",
                code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
                GroupTable.decode,
                tables.groups.take_over,
            ),
            Followed(
                "request modes",
                code.GET_ALL_MESSAGE_REQUEST_MODE,
                RequestModeTable.decode,
                tables.modes.take_over,
                is_optional=True,
            ),
            Followed(
                "consumer offsets",
                code.GET_ALL_CONSUMER_OFFSET,
                ConsumerOffsetTable.decode,
                tables.offsets.take_over,
                is_about_log=True,
                is_wanted=copies_offsets,
            ),
            Followed(
                "delay offsets",
                code.GET_ALL_DELAY_OFFSET,
                DelayOffsetTable.decode,
                self.take_delays,
                is_about_log=True,
                is_wanted=copies_offsets,
            ),
            Followed(
                "timers",
                code.GET_TIMER_CHECK_POINT,
                bytes,
                lambda body: functools.partial(
                    self._site.store.replication.timers.keep,
                    body,
                    may_be_ahead=self._site.replication.remote_escape,
                ),
                is_about_log=True,
                is_optional=True,
            ),
        ]

    def start(self) -> None:
        """Nothing to begin: the tables are told."""

    async def close(self) -> None:
        """Have on the disk what was told last; idempotent."""
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(
                self._site.writers, self._site.store.replication.timers.keep_heard
            )
        except StoreError as error:
            _log.error("how far the master's timers are is not kept: %s", error)

    def take_delays(self, table: DelayOffsetTable) -> None:
        """Take over up to where the messages of each level are delivered."""
        self.delays.take_over(table)
