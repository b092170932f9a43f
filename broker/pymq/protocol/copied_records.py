"""Stored records that are stored once more, each in another place: what waited, and is due.

Almost everything about such a record stays as it is, byte for byte, so none is taken apart: of its
head, which has a fixed layout, some columns get new values, all records at a time; body and
properties are cut out and joined again around the new topic.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pymq.protocol.record import FIXED_BYTES, HEAD_BYTES, record_magic, topic_field
from pymq.protocol.record_batch import Longs


class CopiedRecords:
    """Copies of stored records for queues of one topic, which go into the log back to back.

    They keep their body, flags and properties, and when, where and how often they were sent; that
    they belonged to a transaction is forgotten. The records have IPv4 hosts and no checksum of the
    whole record.

    Attributes:
        topic: of all.
        queue_ids, tag_codes, sizes: of each.
        record_bytes: size of all copies together.
        physical_offsets: of each; set by ``encode``.
    """

    __slots__ = (
        "_bodies",
        "_heads",
        "_tails",
        "_topic_field",
        "physical_offsets",
        "queue_ids",
        "record_bytes",
        "sizes",
        "tag_codes",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        queue_ids: npt.NDArray[Any],
        heads: npt.NDArray[Any],
        bodies: Sequence[bytes],
        tails: Sequence[bytes],
        *,
        tag_codes: Longs,
    ) -> None:
        """Take over parts of the records.

        Args:
            topic: where they go.
            queue_ids: of each.
            heads: everything before the body of each, dtype ``record_batch.HEAD``; is changed.
            bodies: of each.
            tails: the properties of each, behind the two bytes of their length.
            tag_codes: of each.
        """
        self.topic = topic
        self.queue_ids = queue_ids
        self.tag_codes = tag_codes
        self._topic_field = topic_field(topic.encode())
        self._heads = heads
        self._bodies = bodies
        self._tails = tails
        tail_bytes = np.fromiter(map(len, tails), np.int64, len(tails))
        fixed_bytes = FIXED_BYTES - 2 + len(self._topic_field)
        self.sizes: Longs = heads["body_bytes"].astype(np.int64) + tail_bytes + fixed_bytes
        self.record_bytes = int(self.sizes.sum())
        self.physical_offsets: Longs = np.empty(0, np.int64)

    @property
    def queue_id(self) -> int:
        """Queue of the first record."""
        return int(self.queue_ids[0])

    def encode(
        self,
        *,
        physical_offset: int,
        queue_offsets: Longs,
        store_timestamp: int,
        store_host: bytes,
    ) -> list[bytes]:
        """Return the copies in pieces, ready for the log.

        Args:
            physical_offset: of the first copy; the others follow.
            queue_offsets: of each.
            store_timestamp: ms, common to all.
            store_host: our packed address, IPv4.
        """
        self.physical_offsets = self.sizes.cumsum() - self.sizes + physical_offset
        heads = self._heads
        heads["size"] = self.sizes
        heads["magic"] = record_magic(self._topic_field)
        heads["queue_id"] = self.queue_ids
        heads["queue_offset"] = queue_offsets
        heads["physical_offset"] = self.physical_offsets
        heads["store_timestamp"] = store_timestamp
        heads["store_host"] = np.void(store_host)
        heads["prepared_transaction_offset"] = 0
        text = heads.tobytes()
        pieces: list[bytes] = []
        at = 0
        for body, tail in zip(self._bodies, self._tails, strict=True):
            pieces += (text[at : at + HEAD_BYTES], body, self._topic_field, tail)
            at += HEAD_BYTES
        return pieces
