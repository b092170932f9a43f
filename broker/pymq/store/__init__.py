"""The message store: commit log, consume queues and the small files next to them.

``MessageStore`` is the door: it appends and reads, and has parts for the rest (``Durability``,
``Retention``, ``Keys``). The log is the truth, everything else can be rebuilt from it. Bytes and
layout are RocketMQ's.
"""

from pymq.store.config import FlushMode, StoreConfig
from pymq.store.disk_jobs import FlushJob, QueueFlushJob
from pymq.store.dispatch import Arrival
from pymq.store.durability import Durability
from pymq.store.files import Files
from pymq.store.index.key_query import KeyQuery
from pymq.store.keys import Keys
from pymq.store.message_store import MessageStore
from pymq.store.put_result import PutResult, PutStatus
from pymq.store.queue_read import ReadResult, ReadStatus
from pymq.store.queues.queue_table import QueueKey
from pymq.store.retention.cleaning import Retention
from pymq.store.statistics import Rates, StatisticsSnapshot

__all__ = [
    "Arrival",
    "Durability",
    "Files",
    "FlushJob",
    "FlushMode",
    "KeyQuery",
    "Keys",
    "MessageStore",
    "PutResult",
    "PutStatus",
    "QueueFlushJob",
    "QueueKey",
    "Rates",
    "ReadResult",
    "ReadStatus",
    "Retention",
    "StatisticsSnapshot",
    "StoreConfig",
]
