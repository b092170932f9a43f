"""The records of plain messages, which one producer sent at once to queues of one topic."""

from collections.abc import Sequence

from pymq.protocol.hashes import crc32
from pymq.protocol.record import HEAD_V4, MAGIC_V1, OVERHEAD_BYTES

_CRC_MASK = 0x7FFFFFFF


class PlainRecords:
    """Messages of one topic that go into the log back to back, each with a place in its queue.

    They are ordinary in every respect: nothing but delivery times is worked out for them at the
    store, hosts are IPv4, and there is no checksum of the whole record.

    Attributes:
        topic: of all.
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
        "_sys_flag",
        "_topic_bytes",
        "bodies",
        "physical_offsets",
        "properties",
        "queue_ids",
        "queue_offsets",
        "record_bytes",
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
    ) -> None:
        """Take messages as they are sent.

        Args:
            topic: of all.
            queue_ids, bodies, properties, born_timestamps, flags, tag_codes: of each.
            born_host: of all, packed.
            sys_flag: of all.
            delays_ms: how long after they are stored they are due, instead of tag codes.
        """
        self.topic = topic
        self.queue_ids = queue_ids
        self.tag_codes = tag_codes
        self._topic_bytes = topic.encode()
        self.bodies = bodies
        self.properties = properties
        self._delays_ms = delays_ms
        self._born_host = born_host
        self._born_timestamps = born_timestamps
        self._flags = flags
        self._sys_flag = sys_flag
        self.physical_offsets: list[int] = []
        self.queue_offsets: list[int] = []
        count = len(bodies)
        self.record_bytes = (
            count * (OVERHEAD_BYTES + len(self._topic_bytes))
            + sum(map(len, bodies))
            + sum(map(len, properties))
        )

    def parked(
        self,
        topic: str,
        queue_ids: Sequence[int],
        properties: Sequence[bytes],
        *,
        delays_ms: Sequence[int],
    ) -> "PlainRecords":
        """Return the same messages where they wait until they are due."""
        return PlainRecords(
            topic,
            queue_ids,
            self.bodies,
            properties,
            born_host=self._born_host,
            born_timestamps=self._born_timestamps,
            flags=self._flags,
            sys_flag=self._sys_flag,
            tag_codes=(),
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
        born_host, sys_flag, pack = self._born_host, self._sys_flag, HEAD_V4.pack
        topic = b"%c%b" % (len(self._topic_bytes), self._topic_bytes)
        overhead = OVERHEAD_BYTES + len(self._topic_bytes)
        for queue_id, queue_offset, body, properties, born_timestamp, flag in zip(
            self.queue_ids, queue_offsets, self.bodies, self.properties,
            self._born_timestamps, self._flags, strict=True,
        ):  # fmt: skip
            body_bytes, properties_bytes = len(body), len(properties)
            size = overhead + body_bytes + properties_bytes
            pieces += (
                pack(
                    size, MAGIC_V1, crc32(body) & _CRC_MASK, queue_id, flag, queue_offset,
                    physical_offset, sys_flag, born_timestamp, born_host, store_timestamp,
                    store_host, 0, 0, body_bytes,
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
