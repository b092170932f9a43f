"""The outcome of puts.

Source: RocketMQ PutMessageResult, PutMessageStatus.
"""

from dataclasses import dataclass
from enum import Enum


class PutStatus(Enum):
    """The outcome of one put (RocketMQ PutMessageStatus)."""

    OK = "ok"  #: stored in the page cache; on the disk after a flush up to ``physical_end``
    MESSAGE_ILLEGAL = "message illegal"
    PROPERTIES_SIZE_EXCEEDED = "properties size exceeded"
    BUSY = "busy"  #: SYSTEM_BUSY: too much data waits for the disk
    NOT_REPLICATED = "not replicated"  #: IN_SYNC_REPLICAS_NOT_ENOUGH: too few slaves follow
    NOT_WRITABLE = "not writable"  #: SERVICE_NOT_AVAILABLE: disk full or broken


@dataclass(slots=True)
class PutResult:
    """The outcome of one put: of a record, or of a batch.

    With status OK: ``physical_offset`` and ``queue_offset`` of its first record, ``count`` of
    its records, ``physical_end`` of the last one. Otherwise ``remark`` says why.
    """

    status: PutStatus
    physical_offset: int = -1
    queue_offset: int = -1
    count: int = 0
    physical_end: int = 0
    store_timestamp: int = 0
    remark: str | None = None
