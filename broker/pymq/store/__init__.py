"""The message store: commit log, consume queues and the small files next to them.

``MessageStore`` is the door: it appends and reads, and has parts for the rest (``Durability``,
``Retention``, ``Keys``). The log is the truth, everything else can be rebuilt from it. Bytes and
layout are RocketMQ's.
"""

from pymq.store.config import FlushMode, StoreConfig
from pymq.store.disk_jobs import FlushJob, QueueFlushJob, ReadJob
from pymq.store.dispatch import Arrival, HeldQueues
from pymq.store.durability import Durability
from pymq.store.files import Files
from pymq.store.index.index_prefetch import IndexPrefetchJob
from pymq.store.index.key_query import KeyQuery
from pymq.store.keys import Keys
from pymq.store.matching_read import MatchingRead
from pymq.store.message_store import MessageStore
from pymq.store.put_result import PutResult, PutStatus
from pymq.store.puts import Put, RecordGroup
from pymq.store.queue_read import SCAN_MAX
from pymq.store.queues.entry_prefetch import EntryPrefetchJob
from pymq.store.queues.queue_extension import BitMapTest
from pymq.store.queues.queue_removal import QueueRemoval
from pymq.store.queues.queue_table import QueueKey, same_files
from pymq.store.read_result import ReadResult, ReadStatus
from pymq.store.replication import Replication
from pymq.store.retention.cleaning import Retention
from pymq.store.selection import EVERYTHING, Matches, Selection
from pymq.store.staging import Staging
from pymq.store.state.epoch_file import EpochFile
from pymq.store.statistics import Rates, StatisticsSnapshot
from pymq.store.timer.followed_timers import checkpoint_now
from pymq.store.timer.timer_checkpoint import TimerCheckpoint
from pymq.store.timer.timer_log import TimerMagic
from pymq.store.timer.timer_log import Units as TimerUnits
from pymq.store.timer.timer_queue import Waiting as WaitingTimers
from pymq.store.timer.timer_store import TimerStore
from pymq.store.verdicts import Verdicts

__all__ = [
    "EVERYTHING",
    "SCAN_MAX",
    "Arrival",
    "BitMapTest",
    "Durability",
    "EntryPrefetchJob",
    "EpochFile",
    "Files",
    "FlushJob",
    "FlushMode",
    "HeldQueues",
    "IndexPrefetchJob",
    "KeyQuery",
    "Keys",
    "Matches",
    "MatchingRead",
    "MessageStore",
    "Put",
    "PutResult",
    "PutStatus",
    "QueueFlushJob",
    "QueueKey",
    "QueueRemoval",
    "Rates",
    "ReadJob",
    "ReadResult",
    "ReadStatus",
    "RecordGroup",
    "Replication",
    "Retention",
    "Selection",
    "Staging",
    "StatisticsSnapshot",
    "StoreConfig",
    "TimerCheckpoint",
    "TimerMagic",
    "TimerStore",
    "TimerUnits",
    "Verdicts",
    "WaitingTimers",
    "checkpoint_now",
    "same_files",
]
