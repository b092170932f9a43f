"""Records of exactly-once sinks: staged where no consumer sees them, then copied.

Staged records have the system flag TRANSACTION_ROLLBACK: RocketMQ gives such records no place in a
queue and no keys in the index. (It would index prepared ones.) In the field for the offset of a
prepared message is the part, which tells them from whatever may be stored at that offset later.

The copies are committed messages of a transaction: the same field says where they were staged.

Records of delayed messages are staged as they will wait, parked (``parking``): for the queue of
their level in the schedule topic, or for the timer topic. So their copies are made like all others,
and wait from then on; all records of a run have the same real topic.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pymq.errors import CorruptRecord, RemoteProtocolError
from pymq.protocol.codes import HOST_IPV6_MASK, TRANSACTION_MASK, MessageFlag
from pymq.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC
from pymq.protocol.new_records import SharedFields, cut
from pymq.protocol.parking import real_place
from pymq.protocol.preencoded_records import PreencodedRecords
from pymq.protocol.record import HEAD_BYTES, PROPERTIES_BYTES_MAX, record_magic, topic_field
from pymq.protocol.record_batch import (
    HEAD,
    Bytes,
    Longs,
    RecordColumns,
    gather,
    read_columns,
    spans,
    windows,
)
from pymq.protocol.record_crc import RecordCrc
from pymq.protocol.record_crc_batch import check_record_crcs, write_record_crcs
from pymq.protocol.sink_bodies import StagedRun
from pymq.protocol.tag_codes import entry_tag_codes, level_delay_ms

_STAGED, _COMMIT = int(MessageFlag.TRANSACTION_ROLLBACK), int(MessageFlag.TRANSACTION_COMMIT)
_HEAD_ITEM = f"V{HEAD.itemsize}"
_LENGTH_BYTES = 2
#: Where messages of runs wait.
_PARKING_TOPICS = frozenset((SCHEDULE_TOPIC, TIMER_TOPIC))


class StagedLayout(NamedTuple):
    """How the records of a run lie in the log: all that copying them has to know.

    Attributes:
        sizes: int32, shape (n,): size of each.
        tag_codes: int64, shape (n,): what the entry of each in a queue says about its tag, unless
            that is when it is due.
        has_crc: bool, shape (n,): whether each ends with a checksum.
        real_topic: where they are delivered when they are due; None: they are not delayed.
    """

    sizes: npt.NDArray[np.int32]
    tag_codes: Longs
    has_crc: npt.NDArray[np.bool_]
    real_topic: str | None = None

    @classmethod
    def read(cls, run: StagedRun, data: memoryview | Bytes) -> "StagedLayout":
        """Find out how a run lies in the log; arguments and errors as those of ``check_staged``."""
        records = check_staged(run, data)
        has_crc = _record_crcs(records) != RecordCrc.NONE
        topic = real_topic(run, records)
        # A code that is a time is worked out when the records are copied.
        is_time = run.topic == SCHEDULE_TOPIC
        codes = np.zeros(run.count, np.int64) if is_time else entry_tag_codes(records, ())
        return cls(records.size.astype(np.int32), codes, has_crc, topic)


class StagedRecords(PreencodedRecords):
    """One STAGE_RECORDS body.

    Attributes:
        part: see ``StagedRun``.
        real_topic: see ``StagedLayout``.
    """

    __slots__ = ("part", "real_topic")

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
        self.real_topic: str | None = None

    def encoded_properties(self) -> list[bytes]:
        """Return the properties of each, as they were sent."""
        sent = self._properties
        return [sent.data[place].tobytes() for place in spans(sent.starts, sent.ends)]

    def parked(self, topic: str, queue_id: int, properties: Sequence[bytes]) -> "StagedRecords":
        """Return the same records as they wait until they are due.

        Args:
            topic, queue_id: where.
            properties: of each, there, encoded.

        Raises:
            RemoteProtocolError: the properties of one are too long.
        """
        lengths = np.fromiter(map(len, properties), np.int64, self.count)
        if lengths.max() > PROPERTIES_BYTES_MAX:
            row = int(lengths.argmax())
            raise RemoteProtocolError(
                f"record {row} (from 0) of {self.count} for topic {self.topic}: its properties "
                f"take {lengths[row]} B where it waits to be delivered, expected "
                f"0..{PROPERTIES_BYTES_MAX}; shorten them"
            )
        sent, field = self._properties, topic_field(topic.encode())
        body_ends = sent.starts - _LENGTH_BYTES - len(self._topic_field)
        starts = body_ends - self._body_lengths - HEAD_BYTES
        sizes = body_ends - starts + len(field) + _LENGTH_BYTES + lengths
        pieces: list[bytes | memoryview] = []
        for before, text in zip(
            cut(sent.data.tobytes(), starts, body_ends), properties, strict=True
        ):
            pieces += (before, field, len(text).to_bytes(_LENGTH_BYTES, "big"), text)
        body = bytearray(b"").join(pieces)
        data, places = np.frombuffer(body, np.uint8), np.cumsum(sizes) - sizes
        heads = gather(data, places, HEAD)
        heads["size"], heads["magic"] = sizes, record_magic(field)
        windows(data, HEAD.itemsize)[places] = heads.view(_HEAD_ITEM)
        shared = replace(self._shared, topic=topic, queue_id=queue_id)
        parked = StagedRecords(body, sizes.astype(np.int32), shared, self.part)
        parked.real_topic = self.topic
        return parked

    def stage(self) -> None:
        """Mark the records, which were checked as ordinary ones, as staged."""
        self.sys_flag |= _STAGED
        self.prepared_offset = self.part

    def layout(self) -> StagedLayout:
        """Return how the records lie in the log."""
        has_crc = np.full(self.count, self.record_crc)
        is_time = self.topic == SCHEDULE_TOPIC
        codes = np.zeros(self.count, np.int64) if is_time else self.tag_codes
        return StagedLayout(self.sizes, codes, has_crc, self.real_topic)


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


def real_topic(run: StagedRun, records: RecordColumns) -> str | None:
    """Return where the messages of a run are delivered when they are due; None: at once.

    Args:
        run: whose records they are.
        records: of the run.

    Raises:
        CorruptRecord: they are delayed, and do not say for what.
    """
    if run.topic not in _PARKING_TOPICS:
        return None
    text = records.buffer[records.properties_start[0] : records.ends[0]].tobytes()
    place = real_place(text)
    if place is None:
        raise CorruptRecord(
            f"what was staged at physical offset {run.physical_offset} waits in topic "
            f"{run.topic}, and does not say for which"
        )
    return place[0]


def _record_crcs(records: RecordColumns) -> npt.NDArray[np.int8]:
    return check_record_crcs(records.buffer, records.starts, records.ends, records.properties_start)


class StagedCopies:
    """Copies of the records of a run, for the queue that it names; they go into the log together.

    Attributes:
        topic, queue_ids, tag_codes, sizes: of each; tag codes of delayed ones are set by
            ``encode``.
        record_bytes: size of all copies together.
        physical_offsets: of each; set by ``encode``.
    """

    __slots__ = (
        "_crc_places",
        "_data",
        "_delay_ms",
        "_run",
        "_starts",
        "physical_offsets",
        "queue_ids",
        "record_bytes",
        "sizes",
        "tag_codes",
        "topic",
    )

    def __init__(
        self,
        run: StagedRun,
        data: memoryview,
        layout: StagedLayout | None = None,
        *,
        delay_levels_ms: tuple[int, ...] = (),
    ) -> None:
        """Take the records of a run.

        Args:
            run: which.
            data: what lies in the log at its place; copied.
            layout: of what is known to be there; None: check that the records of the run are.
            delay_levels_ms: delays of levels 1, 2, ...

        Raises:
            CorruptRecord: they are not, or are damaged.
        """
        self._data: Bytes = np.frombuffer(bytearray(data), np.uint8)
        if layout is None:
            layout = StagedLayout.read(run, self._data)
        ends = np.cumsum(layout.sizes, dtype=np.int64)
        self._starts: Longs = ends - layout.sizes
        #: Of those that end with a checksum: where they begin, and end.
        self._crc_places = self._starts[layout.has_crc], ends[layout.has_crc]
        self._run = run
        #: How long after they are stored they are due; None: their tag codes are no times.
        self._delay_ms = (
            level_delay_ms(run.queue_id + 1, delay_levels_ms)
            if run.topic == SCHEDULE_TOPIC
            else None
        )
        self.topic = run.topic
        self.sizes = layout.sizes
        self.record_bytes = len(self._data)
        self.queue_ids: Longs = np.full(run.count, run.queue_id)
        self.tag_codes = layout.tag_codes
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
        if self._delay_ms is not None:
            self.tag_codes = np.full(len(self.sizes), store_timestamp + self._delay_ms, np.int64)
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
