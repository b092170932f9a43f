"""Records encoded by their sender: the body of SEND_RECORDS, an extension of pymq.

The body is what a pull of the records will return: whole V1 records with IPv4 hosts, back to back.
The sender leaves zeros where only a broker knows the value, and sends the sizes of the records in
the header; so a broker does not encode anything, it only checks and fills in::

    from the sender     size, magic, flag, body, topic, properties
    from the broker     everything else of the 88 bytes before the body, including the body's CRC

That takes a broker a quarter of the time of SEND_BATCH_MESSAGE, whose entries lack half of a
record. (Records that get a checksum at their end are copied once more, to make room for it.) The
sizes, in base64 in a header field::

    1      width w of the following: 1, 2 or 4
    4      smallest size
    n * w  how much larger each record is, big-endian
"""

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from pymq.errors import RemoteProtocolError
from pymq.protocol.crc32_batch import crc32_each
from pymq.protocol.new_records import NewRecords, SharedFields, cut
from pymq.protocol.record import (
    FIXED_BYTES,
    HEAD_BYTES,
    OVERHEAD_BYTES,
    PROPERTIES_BYTES_MAX,
    record_magic,
)
from pymq.protocol.record_batch import HEAD, Longs, gather, windows
from pymq.protocol.record_crc import RECORD_CRC_ROOM
from pymq.protocol.record_crc_batch import cut_record_crcs

#: Largest value of a record's size field.
_SIZE_MAX = (1 << 31) - 1
_SIZES_HEAD = struct.Struct(">BI")
_WIDTHS: dict[int, np.dtype[Any]] = {width: np.dtype(f">u{width}") for width in (1, 2, 4)}


def pack_sizes(sizes: npt.NDArray[Any]) -> bytes:
    """Encode sizes, shape (n,), n > 0, for the header field."""
    smallest = int(sizes.min())
    larger = sizes - smallest
    most = int(larger.max())
    width = 1 if most < 1 << 8 else 2 if most < 1 << 16 else 4
    return _SIZES_HEAD.pack(width, smallest) + larger.astype(_WIDTHS[width]).tobytes()


def unpack_sizes(data: bytes) -> npt.NDArray[np.int32]:
    """Decode what ``pack_sizes`` returned.

    Raises:
        RemoteProtocolError: it is malformed.
    """
    try:
        width, smallest = _SIZES_HEAD.unpack_from(data)
        larger = np.frombuffer(data, _WIDTHS[width], offset=_SIZES_HEAD.size)
    except (struct.error, KeyError, ValueError) as error:
        raise RemoteProtocolError(f"sizes of records in {len(data)} B: {error!r}") from error
    if not len(larger) or smallest + int(larger.max()) > _SIZE_MAX:
        raise RemoteProtocolError(f"sizes of {len(larger)} records, from {smallest} B on")
    sizes: npt.NDArray[np.int32] = larger.astype(np.int32)
    sizes += smallest
    return sizes


class PreencodedRecords(NewRecords):
    """One SEND_RECORDS body that is to be stored."""

    __slots__ = ("_body_crcs", "_data")

    def __init__(
        self,
        body: bytes | bytearray | memoryview,
        sizes: npt.NDArray[np.int32],
        shared: SharedFields,
    ) -> None:
        """Check a body.

        Args:
            body: the records. If it is writable they are completed in place, not in a copy.
            sizes: int32, shape (n,), n > 0: size of each.
            shared: what the records have in common; both hosts are IPv4.

        Raises:
            RemoteProtocolError: the body does not agree with sizes and topic.
        """
        super().__init__(shared)
        if self.host_bytes != 16:
            raise RemoteProtocolError("pre-encoded records have IPv4 hosts; send a batch instead")
        self.count = len(sizes)
        self.sizes = sizes
        fixed_bytes = FIXED_BYTES + len(self._topic_field)
        ends = np.cumsum(sizes, dtype=np.int64)
        if not len(sizes) or sizes.min() < fixed_bytes or ends[-1] != len(body):
            raise RemoteProtocolError(
                f"records of {len(body)} B for topic {self.topic}, expected the sum of "
                f"{len(sizes)} sizes, each at least {fixed_bytes}"
            )
        self.record_bytes = len(body)
        self.starts = ends - sizes
        self._data = np.frombuffer(body, np.uint8)
        body_starts, body_ends = self._check_heads(ends)
        properties_starts = self._check_tails(body_ends, ends)
        stops = cut_record_crcs(self._data, properties_starts, ends)
        self._find_properties(self._data, properties_starts, stops)
        self._body_crcs = crc32_each(self._data, body_starts, body_ends)
        if self.record_crc or stops is not ends:
            self._rebuild(properties_starts, stops)

    def _check_heads(self, ends: Longs) -> tuple[Longs, Longs]:
        """Return where bodies begin and end."""
        heads = gather(self._data, self.starts, HEAD)
        magic = record_magic(self._topic_field)
        if not ((heads["magic"] == magic) & (heads["size"] == self.sizes)).all():
            raise RemoteProtocolError(f"a record begins with a wrong size, or not with {magic:08x}")
        self._flags = heads["flag"]
        self._body_lengths = heads["body_bytes"].astype(np.int64)
        body_starts = self.starts + HEAD_BYTES
        body_ends = body_starts + self._body_lengths
        if (body_ends > ends - (OVERHEAD_BYTES - HEAD_BYTES)).any():
            raise RemoteProtocolError("a record's body runs past its end")
        return body_starts, body_ends

    def _check_tails(self, body_ends: Longs, ends: Longs) -> Longs:
        """Return where properties begin."""
        data = self._data
        properties_starts = body_ends + (len(self._topic_field) + 2)
        if (properties_starts > ends).any():
            raise RemoteProtocolError("a record's topic runs past its end")
        expected = np.frombuffer(self._topic_field, np.uint8)
        width = len(expected) + 2
        tails = gather(data, body_ends, f"V{width}").view(np.uint8).reshape(-1, width)
        if not (tails[:, :-2] == expected).all():
            raise RemoteProtocolError(f"a record's topic is not {self.topic}")
        lengths = tails[:, -2].astype(np.int64) << 8 | tails[:, -1]
        too_long = lengths > PROPERTIES_BYTES_MAX
        if too_long.any() or not (properties_starts + lengths == ends).all():
            raise RemoteProtocolError("a record's fields miss its end")
        return properties_starts

    def _rebuild(self, properties_starts: Longs, stops: Longs) -> None:
        """Copy the records so that they end at ``stops``, plus room for a checksum if wanted."""
        room = RECORD_CRC_ROOM if self.record_crc else b""
        suffixes = [room] * self.count
        if room:
            bare = (stops > properties_starts) & (self._data[stops - 1] != 2)
            for index in np.flatnonzero(bare).tolist():
                suffixes[index] = b"\x02" + room
        pieces: list[bytes | memoryview] = [b""] * (2 * self.count)
        pieces[::2] = cut(self._data.tobytes(), self.starts, stops)
        pieces[1::2] = suffixes
        self._data = np.frombuffer(bytearray(b"").join(pieces), np.uint8)
        sizes = stops - self.starts + np.fromiter(map(len, suffixes), np.int64, self.count)
        lengths = sizes - (properties_starts - self.starts)
        if (most := int(lengths.max())) > PROPERTIES_BYTES_MAX:
            raise RemoteProtocolError(
                f"a record's properties take {most} B with its checksum, expected "
                f"0..{PROPERTIES_BYTES_MAX}"
            )
        ends = np.cumsum(sizes)
        self.sizes = sizes.astype(np.int32)
        self.starts = ends - sizes
        self.record_bytes = int(ends[-1])
        windows(self._data, 2)[ends - lengths - 2] = lengths.astype(">u2").view("V2")

    def encode(
        self, *, physical_offset: int, queue_offset: int, store_timestamp: int, store_host: bytes
    ) -> bytes | memoryview:
        """Fill in what only the broker knows; see ``NewRecords.encode``."""
        if not self._data.flags.writeable:
            self._data = self._data.copy()
        heads = self._heads(
            self._body_crcs,
            physical_offset=physical_offset,
            queue_offset=queue_offset,
            store_timestamp=store_timestamp,
            store_host=store_host,
        )
        windows(self._data, HEAD_BYTES)[self.starts] = heads.view(f"V{HEAD_BYTES}")
        return self._with_record_crcs(self._data) if self.record_crc else self._data.data
