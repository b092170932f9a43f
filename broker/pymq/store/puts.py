"""What can be put into the log."""

from dataclasses import dataclass, field
from typing import TypeAlias

from pymq.protocol.copied_records import CopiedRecords
from pymq.protocol.new_records import NewRecords
from pymq.protocol.plain_records import PlainRecords
from pymq.protocol.record import NewRecord
from pymq.protocol.staged_records import StagedCopies
from pymq.store.put_result import PutResult


@dataclass(slots=True)
class RecordGroup:
    """Records that go into the log together or not at all, of any queues.

    They lie back to back and are one write to one segment. If one of them is refused, all are, and
    a process that dies leaves all of them or none. After a loss of power the first few may be
    there alone, of a group that was not flushed.

    Attributes:
        records: at least one record, or several of one topic as one element, in the order of the
            log.
        places: the result of each element; set when they are written.
    """

    records: tuple[NewRecord | PlainRecords, ...]
    places: list[PutResult] = field(default_factory=list)

    @property
    def topic(self) -> str:
        """Topic of the first record."""
        return self.records[0].topic

    @property
    def queue_id(self) -> int:
        """Queue of the first record."""
        return self.records[0].queue_id


#: One record, several of one queue, or several of several queues.
Put: TypeAlias = (
    NewRecord | NewRecords | PlainRecords | CopiedRecords | StagedCopies | RecordGroup
)
