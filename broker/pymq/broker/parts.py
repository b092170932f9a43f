"""What a broker is made of: the site it stands on, its tables, its core, and what features add."""

import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pymq.broker.arrivals import Arrivals
from pymq.broker.change_notices import ChangeNotices
from pymq.broker.cleaner import Cleaner
from pymq.broker.cold_reads import ColdReads
from pymq.broker.config import BrokerConfig
from pymq.broker.deletions import Deletions
from pymq.broker.duties import Duty
from pymq.broker.flusher import Flusher
from pymq.broker.ha.followers import Followers
from pymq.broker.ha.in_sync import InSync
from pymq.broker.ha.offset_followers import OffsetFollowers
from pymq.broker.ha.progress import Replicas
from pymq.broker.ha.replica_group import ReplicaGroup
from pymq.broker.ha.slave import Slave
from pymq.broker.ha.takeovers import Takeovers
from pymq.broker.key_indexing import KeyIndexing
from pymq.broker.log_writer import LogWriter
from pymq.broker.long_poll import LongPoll
from pymq.broker.message_hooks import MessageHooks
from pymq.broker.pressure.admission import Admission
from pymq.broker.read_queue import ReadQueue
from pymq.broker.record_response import RecordResponses
from pymq.broker.registration import Registration
from pymq.broker.replication_config import ReplicationConfig
from pymq.broker.retry import Retries
from pymq.broker.sent_properties import SentProperties
from pymq.broker.sinks.staged_layouts import StagedLayouts
from pymq.broker.state.clients import ClientTable
from pymq.broker.state.filters import FilterTable
from pymq.broker.state.groups import GroupTable
from pymq.broker.state.offsets import OffsetTable
from pymq.broker.state.queue_locks import QueueLocks
from pymq.broker.state.request_modes import RequestModes
from pymq.broker.state.topics import TopicTable
from pymq.broker.state_saving import StateSaving
from pymq.broker.statistics.broker_statistics import BrokerStatistics
from pymq.broker.statistics.day_totals import DayTotals
from pymq.broker.statistics.request_statistics import RequestStatistics
from pymq.clock import Clock
from pymq.net.dispatcher import Dispatcher, Handler, RunHandler
from pymq.net.server import ServerConnection
from pymq.protocol.headers.replication import metadata_version
from pymq.store import MessageStore, StoreConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What a broker is built on.

    Attributes:
        config, store_config, replication: its settings.
        clock: tells the time.
        store: is open.
        filters: of consumer groups, from which the store makes bit maps.
        clients: who is connected.
        address: ``host:port`` at which clients reach it.
        store_host: the same, packed: part of every record and message id.
        ha_socket: has taken the HA port; None: there is none.
        ha_address: ``host:port`` at which slaves reach it, while it is a master; None as well.
        group: in which it is, if that has a controller.
        writers, readers, trials: executors for work on the disk; see ``Broker``.
        unsaved: texts of tables that the run before could not save; see ``StateFile``.
    """

    config: BrokerConfig
    store_config: StoreConfig
    replication: ReplicationConfig
    clock: Clock
    store: MessageStore
    filters: FilterTable
    clients: ClientTable
    address: str
    store_host: bytes
    ha_socket: socket.socket | None
    ha_address: str | None
    group: ReplicaGroup | None
    writers: Executor
    readers: ReadQueue
    trials: Executor
    unsaved: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tables:
    """What a broker knows."""

    topics: TopicTable
    groups: GroupTable
    offsets: OffsetTable
    locks: QueueLocks
    clients: ClientTable
    filters: FilterTable
    modes: RequestModes

    def versions(self) -> str:
        """Return what names the topics, groups and request modes that there are now."""
        # Without modes as it was before they counted: a master, or a slave, may be older.
        ids = self.topics.ids.digest() + self.modes.digest()
        return metadata_version(self.topics.version, self.groups.version, ids=ids)


#: Returns lines of the report of a broker (GET_BROKER_RUNTIME_INFO): names and values.
Report: TypeAlias = Callable[[], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Core:
    """What every feature may stand on."""

    admission: Admission
    notices: ChangeNotices
    registration: Registration
    saving: StateSaving
    flusher: Flusher
    cleaner: Cleaner
    key_indexing: KeyIndexing
    arrivals: Arrivals
    long_poll: LongPoll
    log_writer: LogWriter
    completion: SentProperties
    hooks: MessageHooks
    retries: Retries
    responses: RecordResponses
    cold_reads: ColdReads
    days: DayTotals
    requests: RequestStatistics
    statistics: BrokerStatistics
    deletions: Deletions
    staged: StagedLayouts
    #: Who has what of a SYNC_MASTER; None: nobody waits for slaves.
    replicas: Replicas | None
    #: Which slaves have the topics and groups.
    followers: Followers
    #: Which slaves have the consumer offsets.
    offset_followers: OffsetFollowers
    #: The sync state set of a master that has a controller.
    in_sync: InSync | None
    takeovers: Takeovers
    #: What follows the master; None: this is one.
    slave: Slave | None
    #: What features say of themselves in the report of the broker.
    reports: list[Report] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """What a feature adds to a broker.

    It has already asked for what it needs of the core: its message hooks, its tables' files, what
    it wants to hear of arrivals.

    Attributes:
        handlers: of its requests, by code.
        run_handlers: of runs of them, by code.
        duties: start after those of the core, in order.
        preparations: what has to happen before the duties of other features start.
        openings, holders, on_ended: as in ``Assembly``.
    """

    handlers: Mapping[int, Handler] = field(default_factory=dict)
    run_handlers: Mapping[int, RunHandler] = field(default_factory=dict)
    openings: Sequence[Callable[[], None]] = ()
    duties: Sequence[Duty] = ()
    preparations: Sequence[Callable[[], Coroutine[Any, Any, None]]] = ()
    holders: Sequence[Duty] = ()
    on_ended: Sequence[Callable[[ServerConnection], object]] = ()


#: Makes a feature. Nothing is started, and no table is loaded yet.
MakeFeature: TypeAlias = Callable[[Site, Tables, Core], Feature]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """The parts that a broker itself deals with.

    Attributes:
        dispatcher: takes all requests.
        openings: what takes long at a start, such as reading much of the store. Each is called
            once, in a thread, when the tables are loaded; until the last one has returned, nobody
            else uses the store.
        duties: in the order in which they start.
        preparations: are waited for then.
        later_duties: start after that.
        holders: duties that keep requests for later; they are closed first, while answers can
            still leave.
        on_ended: what refers to connections; each is called with every connection that is gone,
            and must not raise.
        registration: announces the broker.
    """

    dispatcher: Dispatcher
    openings: Sequence[Callable[[], None]]
    duties: Sequence[Duty]
    preparations: Sequence[Callable[[], Coroutine[Any, Any, None]]]
    later_duties: Sequence[Duty]
    holders: Sequence[Duty]
    on_ended: Sequence[Callable[[ServerConnection], object]]
    registration: Registration
