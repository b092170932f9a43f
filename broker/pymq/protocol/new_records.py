"""Several records that are to be stored together: the base of all kinds of batches.

Source: RocketMQ MessageExtBatch, MessageExtEncoder (batch).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pymq.errors import RemoteProtocolError
from pymq.protocol.batch_properties import BatchProperties
from pymq.protocol.codes import HOST_IPV6_MASK
from pymq.protocol.record import host_flags, record_magic, topic_field
from pymq.protocol.record_batch import HEAD, Bytes, Longs, head_layout, spans
from pymq.protocol.record_crc_batch import write_record_crcs
from pymq.protocol.tag_codes import tag_codes

#: Bodies that are larger than this on average are cut out as views.
_VIEW_BODY_BYTES = 600


@dataclass(slots=True, kw_only=True)
class SharedFields:
    """What all records of one batch have in common.

    Attributes:
        topic, queue_id: where they go.
        sys_flag: as sent; ``NewRecords`` sets the bits that say which hosts are IPv6.
        born_timestamp: ms.
        born_host, store_host: packed addresses of the sender and of the broker.
        record_crc: whether every record is to end with its checksum.
        more_properties: encoded; follow those of each message, and count instead of them.
    """

    topic: str
    queue_id: int
    sys_flag: int = 0
    born_timestamp: int
    born_host: bytes
    store_host: bytes
    reconsume_times: int = 0
    record_crc: bool = False
    more_properties: bytes = b""


class NewRecords:
    """Records that go into the log back to back, as one batch for one queue.

    Attributes:
        topic, queue_id: where they go.
        sys_flag: of each, with the bits that say which hosts are IPv6.
        count: number of records.
        record_bytes: size of all of them together.
        sizes: int32, shape (count,): size of each.
        starts: int64, shape (count,): where each begins, relative to the first.
        tag_codes: int64, shape (count,): Java hash of each one's tag, 0 without a tag.
        host_bytes: size of both hosts of a record together.
        prepared_offset: of each; what it means depends on the system flag.
        record_crc: whether each ends with its checksum, included in its size.
    """

    __slots__ = (
        "_body_lengths",
        "_flags",
        "_properties",
        "_shared",
        "_topic_field",
        "count",
        "host_bytes",
        "prepared_offset",
        "queue_id",
        "record_bytes",
        "record_crc",
        "sizes",
        "starts",
        "sys_flag",
        "tag_codes",
        "topic",
    )

    count: int
    record_bytes: int
    sizes: npt.NDArray[np.int32]
    starts: Longs
    tag_codes: Longs
    _body_lengths: Longs
    _flags: npt.NDArray[Any]
    _properties: BatchProperties

    def __init__(self, shared: SharedFields) -> None:
        """Keep what is common to all; subclasses set the rest.

        Raises:
            RemoteProtocolError: the system flag says that a host is IPv6, which it is not.
        """
        self._shared = shared
        self.topic = shared.topic
        self._topic_field = topic_field(shared.topic.encode())
        self.queue_id = shared.queue_id
        flags = host_flags(shared.born_host, shared.store_host)
        if shared.sys_flag & HOST_IPV6_MASK & ~flags:  # readers would look for a longer host
            raise RemoteProtocolError(
                f"the system flag {shared.sys_flag:#x} says IPv6, the host is IPv4"
            )
        self.sys_flag = shared.sys_flag | flags
        self.host_bytes = len(shared.born_host) + len(shared.store_host)
        self.record_crc = shared.record_crc
        self.prepared_offset = 0

    def records_with(self, names: frozenset[bytes]) -> list[tuple[int, dict[str, str]]]:
        """Return (number, properties) of records that have one of the given properties.

        Args:
            names: each begins with D or T; see ``BatchProperties.rows_with``.
        """
        return self._properties.rows_with(names)

    def has_property(self, name: bytes) -> bool:
        """Does any record have a property? Cheap if not: one search of the whole input."""
        return self._properties.has(name)

    def _find_properties(self, data: Bytes, starts: Longs, ends: Longs) -> None:
        """Record where the properties are in the input, and compute the tag codes."""
        self._properties = BatchProperties(data, starts, ends)
        self.tag_codes = tag_codes(self._properties)

    def encode(
        self, *, physical_offset: int, queue_offset: int, store_timestamp: int, store_host: bytes
    ) -> bytes | memoryview:
        """Return the records, ready for the log.

        Args:
            physical_offset: of the first record; the others follow.
            queue_offset: of the first record; the others follow.
            store_timestamp: ms, common to all.
            store_host: our packed address, of the same length as the one the batch was made with.
        """
        raise NotImplementedError

    def _heads(
        self,
        body_crcs: Longs,
        *,
        physical_offset: int,
        queue_offset: int,
        store_timestamp: int,
        store_host: bytes,
    ) -> npt.NDArray[Any]:
        """Return everything before the bodies, shape (count,); arguments as ``encode``."""
        born_host = self._shared.born_host
        head = HEAD if self.host_bytes == 16 else head_layout(len(born_host), len(store_host))
        same = np.zeros(1, head)
        same["magic"] = record_magic(self._topic_field)
        same["queue_id"] = self.queue_id
        same["sys_flag"] = self.sys_flag
        same["born_timestamp"] = self._shared.born_timestamp
        same["born_host"] = np.void(born_host)
        same["store_timestamp"] = store_timestamp
        same["store_host"] = np.void(store_host)
        same["reconsume_times"] = self._shared.reconsume_times
        same["prepared_transaction_offset"] = self.prepared_offset
        rows = np.repeat(same, self.count)
        rows["size"] = self.sizes
        rows["body_crc"] = body_crcs & 0x7FFFFFFF
        rows["flag"] = self._flags
        rows["queue_offset"] = np.arange(queue_offset, queue_offset + self.count)
        rows["physical_offset"] = self.starts + physical_offset
        rows["body_bytes"] = self._body_lengths
        return rows

    def _with_record_crcs(self, data: Bytes) -> memoryview:
        """Fill in the checksums of records that are otherwise complete."""
        write_record_crcs(data, self.starts, self.starts + self.sizes)
        return data.data


def items(rows: npt.NDArray[Any]) -> list[bytes]:
    """Return each item of an array as its bytes."""
    found: list[bytes] = rows.view(f"V{rows.dtype.itemsize}").tolist()
    return found


def cut(text: bytes, starts: Longs, ends: Longs) -> list[bytes | memoryview]:
    """Return ``text[starts[i]:ends[i]]`` for every i."""
    # Copying a small piece costs less than a view on it, which the garbage collector tracks.
    is_large = len(text) > _VIEW_BODY_BYTES * len(starts)
    whole = memoryview(text) if is_large else text
    return list(map(whole.__getitem__, spans(starts, ends)))
