"""The records of plain messages, which one producer sent at once to queues of one topic."""

from collections.abc import Sequence
from typing import NamedTuple

from pymq.protocol.codes import HOST_IPV6_MASK
from pymq.protocol.hashes import crc32
from pymq.protocol.record import (
    FIXED_BYTES,
    HEAD_BYTES,
    HEAD_V4,
    MAGIC_V1,
    record_magic,
    topic_field,
)
from pymq.protocol.record_crc import RECORD_CRC_PREFIX

_CRC_MASK = 0x7FFFFFFF


class StoredPlain(NamedTuple):
    """What a stored record says, if it is a plain one, or the half message of one.

    Attributes:
        body, properties: as stored.
        born_host: packed, IPv4.
    """

    queue_offset: int
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    body: bytes
    properties: bytes


def read_plain(record: memoryview, topic: bytes) -> StoredPlain | None:
    """Take a stored record apart; None if it is not plain, not of a topic, or damaged.

    Args:
        record: as stored.
        topic: ``topic_field`` of the topic.
    """
    data = bytes(record)
    (
        _, magic, crc, _, flag, queue_offset, _, sys_flag, born_timestamp, born_host, _, _, times,
        _, body_bytes,
    ) = HEAD_V4.unpack_from(data)  # fmt: skip
    body_end = HEAD_BYTES + body_bytes
    properties_start = body_end + len(topic) + 2
    if (
        magic != MAGIC_V1
        or times
        or sys_flag & HOST_IPV6_MASK
        or not data.startswith(topic, body_end)
        or int.from_bytes(data[properties_start - 2 : properties_start], "big")
        != len(data) - properties_start
    ):
        return None
    body, properties = data[HEAD_BYTES:body_end], data[properties_start:]
    if crc32(body) & _CRC_MASK != crc or RECORD_CRC_PREFIX in properties:
        return None
    return StoredPlain(
        queue_offset, flag, sys_flag, born_timestamp, born_host, body, properties
    )


class PlainRecords:
    """Messages of one topic that go into the log back to back, each with a place in its queue.

    They are ordinary in every respect: nothing but delivery times is worked out for them at the
    store, hosts are IPv4, and there is no checksum of the whole record.

    Attributes:
        topic, sys_flag: of all.
        queue_ids, bodies, properties: of each.
        tag_codes: of each; of delayed ones set by ``encode``.
        record_bytes: size of all records together.
        physical_offsets, queue_offsets: of each; set by ``encode``.
    """

    __slots__ = (
        "_born_host",
        "_born_timestamps",
        "_delays_ms",
        "_flags",
        "_prepared_offsets",
        "_topic_field",
        "bodies",
        "physical_offsets",
        "properties",
        "queue_ids",
        "queue_offsets",
        "record_bytes",
        "sys_flag",
        "tag_codes",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        queue_ids: Sequence[int],
        bodies: Sequence[bytes],
        properties: Sequence[bytes],
        *,
        born_host: bytes,
        born_timestamps: Sequence[int],
        flags: Sequence[int],
        sys_flag: int,
        tag_codes: Sequence[int],
        delays_ms: Sequence[int] | None = None,
        prepared_offsets: Sequence[int] | None = None,
    ) -> None:
        """Take messages as they are sent, or copied.

        Args:
            topic: of all.
            queue_ids, bodies, properties, born_timestamps, flags, tag_codes: of each.
            born_host: of all, packed.
            sys_flag: of all.
            delays_ms: how long after they are stored they are due, instead of tag codes.
            prepared_offsets: physical offset of each one's half message; None: there is none.
        """
        self.topic = topic
        self.queue_ids = queue_ids
        self.tag_codes = tag_codes
        self._topic_field = topic_field(topic.encode())
        self.bodies = bodies
        self.properties = properties
        self._delays_ms = delays_ms
        self._prepared_offsets = prepared_offsets
        self._born_host = born_host
        self._born_timestamps = born_timestamps
        self._flags = flags
        self.sys_flag = sys_flag
        self.physical_offsets: list[int] = []
        self.queue_offsets: list[int] = []
        count = len(bodies)
        self.record_bytes = (
            count * (FIXED_BYTES + len(self._topic_field))
            + sum(map(len, bodies))
            + sum(map(len, properties))
        )

    def parked(
        self,
        topic: str,
        queue_ids: Sequence[int],
        properties: Sequence[bytes],
        *,
        sys_flag: int,
        delays_ms: Sequence[int] | None = None,
    ) -> "PlainRecords":
        """Return the same messages where they wait until they are due, or committed.

        Args:
            topic: where they wait.
            queue_ids, properties: of each, there.
            sys_flag: of all.
            delays_ms: as above; None: nobody knows how long.
        """
        return PlainRecords(
            topic,
            queue_ids,
            self.bodies,
            properties,
            born_host=self._born_host,
            born_timestamps=self._born_timestamps,
            flags=self._flags,
            sys_flag=sys_flag,
            tag_codes=self.tag_codes if delays_ms is None else (),
            delays_ms=delays_ms,
        )

    @property
    def queue_id(self) -> int:
        """Queue of the first record."""
        return self.queue_ids[0]

    def encode(
        self,
        *,
        physical_offset: int,
        queue_offsets: list[int],
        store_timestamp: int,
        store_host: bytes,
    ) -> tuple[list[bytes], list[int]]:
        """Return the records in pieces, ready for the log, and the size of each.

        Args:
            physical_offset: of the first record; the others follow.
            queue_offsets: of each.
            store_timestamp: ms, common to all.
            store_host: our packed address, IPv4.
        """
        pieces: list[bytes] = []
        sizes, physical_offsets = [], []
        born_host, sys_flag, pack = self._born_host, self.sys_flag, HEAD_V4.pack
        topic = self._topic_field
        magic, overhead = record_magic(topic), FIXED_BYTES + len(topic)
        prepared_offsets = self._prepared_offsets or [0] * len(queue_offsets)
        for queue_id, queue_offset, body, properties, born_timestamp, flag, prepared_offset in zip(
            self.queue_ids, queue_offsets, self.bodies, self.properties,
            self._born_timestamps, self._flags, prepared_offsets, strict=True,
        ):  # fmt: skip
            body_bytes, properties_bytes = len(body), len(properties)
            size = overhead + body_bytes + properties_bytes
            pieces += (
                pack(
                    size, magic, crc32(body) & _CRC_MASK, queue_id, flag, queue_offset,
                    physical_offset, sys_flag, born_timestamp, born_host, store_timestamp,
                    store_host, 0, prepared_offset, body_bytes,
                ),
                body,
                topic,
                properties_bytes.to_bytes(2, "big"),
                properties,
            )  # fmt: skip
            sizes.append(size)
            physical_offsets.append(physical_offset)
            physical_offset += size
        self.physical_offsets, self.queue_offsets = physical_offsets, queue_offsets
        if self._delays_ms is not None:
            self.tag_codes = [store_timestamp + delay_ms for delay_ms in self._delays_ms]
        return pieces, sizes
