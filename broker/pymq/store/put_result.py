"""What became of what was put.

Source: RocketMQ PutMessageResult, PutMessageStatus.
"""

from dataclasses import dataclass
from enum import Enum


class PutStatus(Enum):
    """What became of one entry (RocketMQ PutMessageStatus)."""

    OK = "ok"  #: stored, as durable as a page cache; wait for a flush to ``physical_end`` for more
    MESSAGE_ILLEGAL = "message illegal"
    PROPERTIES_SIZE_EXCEEDED = "properties size exceeded"
    BUSY = "busy"  #: SYSTEM_BUSY: too much waits for the disk
    NOT_WRITABLE = "not writable"  #: SERVICE_NOT_AVAILABLE: disk full or broken


@dataclass(slots=True)
class PutResult:
    """The outcome for one entry of a put.

    With status OK: ``physical_offset`` and ``queue_offset`` of its first record, ``count`` of
    its records, ``physical_end`` that a flush must reach. Otherwise ``remark`` says why.
    """

    status: PutStatus
    physical_offset: int = -1
    queue_offset: int = -1
    count: int = 0
    physical_end: int = 0
    store_timestamp: int = 0
    remark: str | None = None
