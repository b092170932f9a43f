"""Records of exactly-once sinks: staged where no consumer sees them, then copied.

Staged records have the system flag TRANSACTION_ROLLBACK: RocketMQ gives such records no place in a
queue and no keys in the index. (It would index prepared ones.) In the field for the offset of a
prepared message is the part, which tells them from whatever may be stored at that offset later.

The copies are committed messages of a transaction: the same field says where they were staged.
"""

import numpy as np
import numpy.typing as npt

from pymq.errors import CorruptRecord
from pymq.protocol.codes import HOST_IPV6_MASK, TRANSACTION_MASK, MessageFlag
from pymq.protocol.new_records import SharedFields
from pymq.protocol.preencoded_records import PreencodedRecords
from pymq.protocol.record_batch import (
    HEAD,
    Bytes,
    Longs,
    RecordColumns,
    gather,
    read_columns,
    windows,
)
from pymq.protocol.record_crc import RecordCrc
from pymq.protocol.record_crc_batch import check_record_crcs, write_record_crcs
from pymq.protocol.sink_bodies import StagedRun
from pymq.protocol.tag_codes import entry_tag_codes

_STAGED, _COMMIT = int(MessageFlag.TRANSACTION_ROLLBACK), int(MessageFlag.TRANSACTION_COMMIT)
_HEAD_ITEM = f"V{HEAD.itemsize}"


class StagedRecords(PreencodedRecords):
    """One STAGE_RECORDS body.

    Attributes:
        part: see ``StagedRun``.
    """

    __slots__ = ("part",)

    def __init__(
        self,
        body: bytes | bytearray | memoryview,
        sizes: npt.NDArray[np.int32],
        shared: SharedFields,
        part: int,
    ) -> None:
        """Check a body; arguments and errors as those of ``PreencodedRecords``."""
        super().__init__(body, sizes, shared)
        self.part = part

    def stage(self) -> None:
        """Mark the records, which were checked as ordinary ones, as staged."""
        self.sys_flag |= _STAGED
        self.prepared_offset = self.part


def check_staged(run: StagedRun, data: memoryview | Bytes) -> RecordColumns:
    """Return the records of a run, if they are there.

    Args:
        run: which.
        data: what lies in the log at its place.

    Raises:
        CorruptRecord: something else does, or their checksums say that they are damaged.
    """
    records = read_columns(data)
    if (
        len(records) != run.count
        or records.one_topic != run.topic.encode()
        or (records.queue_id != run.queue_id).any()
        or (records.sys_flag & (TRANSACTION_MASK | HOST_IPV6_MASK) != _STAGED).any()
        or (records.prepared_transaction_offset != run.part).any()
    ):
        raise CorruptRecord(
            f"what was staged at physical offset {run.physical_offset} is not there any more"
        )
    if (_record_crcs(records) == RecordCrc.WRONG).any():
        raise CorruptRecord(f"what was staged at physical offset {run.physical_offset} is damaged")
    return records


def _record_crcs(records: RecordColumns) -> npt.NDArray[np.int8]:
    return check_record_crcs(records.buffer, records.starts, records.ends, records.properties_start)


class StagedCopies:
    """Copies of the records of a run, for the queue that it names; they go into the log together.

    Attributes:
        topic, queue_ids, tag_codes, sizes: of each.
        record_bytes: size of all copies together.
        physical_offsets: of each; set by ``encode``.
    """

    __slots__ = (
        "_crc_places",
        "_data",
        "_run",
        "_starts",
        "physical_offsets",
        "queue_ids",
        "record_bytes",
        "sizes",
        "tag_codes",
        "topic",
    )

    def __init__(self, run: StagedRun, data: memoryview) -> None:
        """Check that the records of a run are there.

        Args:
            run: which.
            data: what lies in the log at its place; copied.

        Raises:
            CorruptRecord: they are not, or are damaged.
        """
        self._data: Bytes = np.frombuffer(bytearray(data), np.uint8)
        records = check_staged(run, self._data)
        has_crc = _record_crcs(records) != RecordCrc.NONE
        #: Of those that end with a checksum: where they begin, and end.
        self._crc_places = records.starts[has_crc], records.ends[has_crc]
        self._run = run
        self.topic = run.topic
        self._starts = records.starts
        self.sizes: Longs = records.size
        self.record_bytes = len(self._data)
        self.queue_ids: Longs = np.full(run.count, run.queue_id)
        self.tag_codes = entry_tag_codes(records, ())
        self.physical_offsets: Longs = np.empty(0, np.int64)

    @property
    def queue_id(self) -> int:
        """Queue of all records."""
        return self._run.queue_id

    def encode(
        self,
        *,
        physical_offset: int,
        queue_offsets: Longs,
        store_timestamp: int,
        store_host: bytes,
    ) -> list[bytes | memoryview]:
        """Return the copies, ready for the log; arguments as those of ``CopiedRecords.encode``."""
        self.physical_offsets = self._starts + physical_offset
        heads = gather(self._data, self._starts, HEAD)
        heads["queue_offset"] = queue_offsets
        heads["physical_offset"] = self.physical_offsets
        heads["sys_flag"] = heads["sys_flag"] & ~TRANSACTION_MASK | _COMMIT
        heads["store_timestamp"] = store_timestamp
        heads["store_host"] = np.void(store_host)
        heads["prepared_transaction_offset"] = self._starts + self._run.physical_offset
        windows(self._data, HEAD.itemsize)[self._starts] = heads.view(_HEAD_ITEM)
        if len(self._crc_places[0]):
            write_record_crcs(self._data, *self._crc_places)
        return [self._data.data]
