"""The message store: commit log, consume queues and the small files beside them.

``MessageStore`` is the one face of it; see ``message_store.py``. The log is the truth,
everything else can be rebuilt from it. Bytes and layout are RocketMQ's.
"""

from pymq.store.append import PutResult, PutStatus
from pymq.store.config import FlushMode, StoreConfig
from pymq.store.dispatch import Arrival
from pymq.store.files import Files
from pymq.store.jobs import FlushJob, QueueFlushJob
from pymq.store.message_store import MessageStore
from pymq.store.query import KeyQuery
from pymq.store.read import ReadResult, ReadStatus
from pymq.store.statistics import Rates, StatisticsSnapshot

__all__ = [
    "Arrival",
    "Files",
    "FlushJob",
    "FlushMode",
    "KeyQuery",
    "MessageStore",
    "PutResult",
    "PutStatus",
    "QueueFlushJob",
    "Rates",
    "ReadResult",
    "ReadStatus",
    "StatisticsSnapshot",
    "StoreConfig",
]
