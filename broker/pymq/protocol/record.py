"""One stored message: the record of the commit log, as pulls return it verbatim.

Big-endian, no padding, no trailer::

    offset  size    field                       offset   size    field
    0       4       total size, this included   48       B       born host: IP, port as 4 bytes
    4       4       magic: V1 daa320a7,         48+B     8       store timestamp, ms
                    V2 daa320ab                 56+B     S       store host
    8       4       body CRC (31 bits)          56+B+S   4       reconsume times
    12      4       queue id                    60+B+S   8       prepared transaction offset
    16      4       flag                        68+B+S   4 + n   body length, body
    20      8       queue offset                         1 + n   topic (V2: 2 + n)
    28      8       physical offset                      2 + n   properties
    36      4       system flag
    40      8       born timestamp, ms

B and S are 8 for IPv4, 20 for IPv6 (bits 0x10 and 0x20 of the system flag). With two IPv4
hosts everything before the body takes 88 bytes, and a record 90 + body + topic with its length +
properties. The topic decides the version, see ``topic_field``. The body's CRC covers only the body
as stored (compressed or not); a checksum of the whole record is one of its properties, see
``record_crc.py``.

Source: RocketMQ CommitLog, MessageDecoder, MessageExtEncoder.
"""

import ipaddress
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from pymq.errors import CorruptRecord, LocalProtocolError
from pymq.protocol.codes import MessageFlag
from pymq.protocol.hashes import crc31
from pymq.protocol.record_crc import (
    RECORD_CRC_BYTES,
    RecordCrc,
    check_record_crc,
    encode_record_crc,
)

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
#: Padding at the end of a commit-log segment; never sent to clients.
MAGIC_BLANK = 0xCBD43194
BLANK_BYTES = 8

#: Bytes before the body if both hosts are IPv4.
HEAD_BYTES = 88
#: Size of a record with IPv4 hosts without body, ``topic_field`` and properties.
FIXED_BYTES = 90
#: Size of the smallest record: of version 1, and all of these empty.
OVERHEAD_BYTES = FIXED_BYTES + 1
PROPERTIES_BYTES_MAX = 32767
#: RocketMQ reads the length of a V1 record's topic as a signed byte.
TOPIC_BYTES_MAX_V1 = 127
_FIELD_BYTES_MAX_V1 = 1 + TOPIC_BYTES_MAX_V1

_FIXED = struct.Struct(">IIIiiqqiq")
#: Everything before the body of a record with IPv4 hosts.
HEAD_V4 = struct.Struct(">IIIiiqqiq8sq8siqI")
_AFTER_HOSTS = struct.Struct(">iqI")
_LONG = struct.Struct(">q")
_SIZE_MAGIC = struct.Struct(">II")
_SIZE = struct.Struct(">I")
#: Size, magic, queue id, queue offset, physical offset, system flag.
_PLACE = struct.Struct(">II4xi4xqqI")
_SHORT = struct.Struct(">H")
_BORN_V6 = int(MessageFlag.BORN_HOST_IPV6)
_STORE_V6 = int(MessageFlag.STORE_HOST_IPV6)

assert _FIXED.size == 48 and HEAD_V4.size == HEAD_BYTES  # on-disk contract


@dataclass(slots=True)
class NewRecord:
    """A message to be stored; the commit log adds offsets, time and the broker's address.

    ``properties`` are encoded; ``born_host`` is a packed host; ``tag_code`` the Java
    hash of the tag (0 without one). The store works out the code of delayed messages itself.
    """

    topic: str
    queue_id: int
    body: bytes | memoryview
    properties: bytes
    born_host: bytes
    born_timestamp: int
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    tag_code: int = 0


@dataclass(slots=True)
class Record:
    """A stored message. ``body`` and ``properties`` are as stored, not decoded."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    body: bytes
    properties: bytes
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body_crc: int
    size: int


def pack_host(address: str, port: int) -> bytes:
    """Return an address as a record stores it: 8 bytes for IPv4, 20 for IPv6.

    IPv4-mapped IPv6 addresses become IPv4, as the Java side expects.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return ip.packed + port.to_bytes(4, "big")


def unpack_host(packed: bytes) -> tuple[str, int]:
    """Return (address, port) of a packed host."""
    return str(ipaddress.ip_address(packed[:-4])), int.from_bytes(packed[-4:], "big")


def offset_message_id(store_host: bytes, physical_offset: int) -> str:
    """Return the broker's message id: 32 (IPv4) or 56 (IPv6) upper-case hex digits."""
    return (store_host + physical_offset.to_bytes(8, "big")).hex().upper()


def parse_offset_message_id(text: str) -> tuple[bytes, int]:
    """Return (packed host, physical offset) of a broker's message id.

    Raises:
        LocalProtocolError: it is not such an id.
    """
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) not in (16, 28):
        raise LocalProtocolError(f"message id {text[:64]!r}, expected 32 or 56 hex digits")
    return raw[:-8], int.from_bytes(raw[-8:], "big")


def host_flags(born_host: bytes, store_host: bytes) -> int:
    """Return the system-flag bits that say which hosts are IPv6."""
    return (len(born_host) == 20) * _BORN_V6 | (len(store_host) == 20) * _STORE_V6


def topic_field(topic: bytes) -> bytes:
    """Return an encoded topic with its length in front, as a record has it between its body and
    the length of its properties.

    The length has one byte in a record of version 1 and two in one of version 2, which is for
    longer topics only: 4.x peers cannot read it. ``record_magic`` tells the version of a field.
    """
    return len(topic).to_bytes(1 if len(topic) <= TOPIC_BYTES_MAX_V1 else 2, "big") + topic


def record_magic(field: bytes) -> int:
    """Return the magic of a record with this ``topic_field``."""
    return MAGIC_V1 if len(field) <= _FIELD_BYTES_MAX_V1 else MAGIC_V2


def record_size(body_bytes: int, field_bytes: int, properties_bytes: int, host_bytes: int) -> int:
    """Return the size of a record.

    Args:
        body_bytes, properties_bytes: of these.
        field_bytes: of its ``topic_field``.
        host_bytes: of both hosts together: 16, 28 or 40.
    """
    return FIXED_BYTES - 16 + host_bytes + body_bytes + field_bytes + properties_bytes


def encode_record(
    new: NewRecord,
    field: bytes,
    *,
    size: int,
    queue_offset: int,
    physical_offset: int,
    store_timestamp: int,
    store_host: bytes,
) -> tuple[bytes, bytes | memoryview, bytes]:
    """Return a record as (head, body, tail) without copying the body.

    Args:
        new: the message; its limits were checked.
        field: ``topic_field`` of its topic.
        size: ``record_size`` of it.
        queue_offset: its position in its queue.
        physical_offset: its position in the log.
        store_timestamp: ms.
        store_host: our packed address.
    """
    born_host = new.born_host
    body = new.body
    tail = b"%b%b%b" % (field, _SHORT.pack(len(new.properties)), new.properties)
    magic = MAGIC_V1 if len(field) <= _FIELD_BYTES_MAX_V1 else MAGIC_V2  # no call: it is hot
    if len(born_host) + len(store_host) == 16:
        head = HEAD_V4.pack(
            size,
            magic,
            crc31(body),
            new.queue_id,
            new.flag,
            queue_offset,
            physical_offset,
            new.sys_flag,
            new.born_timestamp,
            born_host,
            store_timestamp,
            store_host,
            new.reconsume_times,
            new.prepared_transaction_offset,
            len(body),
        )
        return head, body, tail
    fixed = _FIXED.pack(
        size,
        magic,
        crc31(body),
        new.queue_id,
        new.flag,
        queue_offset,
        physical_offset,
        new.sys_flag | host_flags(born_host, store_host),
        new.born_timestamp,
    )
    after = _AFTER_HOSTS.pack(new.reconsume_times, new.prepared_transaction_offset, len(body))
    head = b"".join((fixed, born_host, _LONG.pack(store_timestamp), store_host, after))
    return head, body, tail


def decode_record(buffer: bytes | memoryview, position: int = 0, *, verify: bool = False) -> Record:
    """Return the record that starts at ``position``; body and properties are copied.

    Args:
        buffer: bytes of a log, a pull response, ...
        position: where the record starts.
        verify: also check the body's CRC, and the record's if it ends with one.

    Raises:
        CorruptRecord: there is no complete, well-formed V1 or V2 record.
    """
    try:
        return _decode(buffer, position, verify)
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise CorruptRecord(
            f"record at {position} of {len(buffer)} B cannot be read: {error}"
        ) from error


def _decode(buffer: bytes | memoryview, position: int, verify: bool) -> Record:
    size, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born = (
        _FIXED.unpack_from(buffer, position)
    )
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise CorruptRecord(f"record at {position}: magic {magic:08x}, expected daa320a7 or ...ab")
    end = position + size
    if end > len(buffer) or size < OVERHEAD_BYTES:
        raise CorruptRecord(
            f"record at {position}: {size} B, expected {OVERHEAD_BYTES}..{len(buffer) - position}"
        )
    at = position + 48
    born_end = at + (20 if sys_flag & _BORN_V6 else 8)
    store_end = born_end + 8 + (20 if sys_flag & _STORE_V6 else 8)
    (store_timestamp,) = _LONG.unpack_from(buffer, born_end)
    reconsume, prepared, body_bytes = _AFTER_HOSTS.unpack_from(buffer, store_end)
    body_at = store_end + 16
    topic_at = body_at + body_bytes
    if topic_at >= end:
        raise CorruptRecord(f"record at {position}: body of {body_bytes} B runs past its end")
    if magic == MAGIC_V1:
        topic_bytes = buffer[topic_at]
        topic_at += 1
    else:
        (topic_bytes,) = _SHORT.unpack_from(buffer, topic_at)
        topic_at += 2
    properties_at = topic_at + topic_bytes + 2
    (properties_bytes,) = _SHORT.unpack_from(buffer, properties_at - 2)
    if properties_at + properties_bytes != end:
        raise CorruptRecord(
            f"record at {position}: its fields end at {properties_at + properties_bytes}, "
            f"its size says {end}"
        )
    body = bytes(buffer[body_at : body_at + body_bytes])
    if verify and crc31(body) != crc:
        raise CorruptRecord(f"record at {position}: body CRC {crc31(body):08x}, expected {crc:08x}")
    if verify and properties_bytes >= RECORD_CRC_BYTES:
        _verify_record_crc(buffer, position, end, properties_bytes)
    return Record(
        str(buffer[topic_at : topic_at + topic_bytes], "utf-8"),
        queue_id,
        queue_offset,
        physical_offset,
        body,
        bytes(buffer[properties_at:end]),
        flag,
        sys_flag,
        born,
        bytes(buffer[at:born_end]),
        store_timestamp,
        bytes(buffer[born_end + 8 : store_end]),
        reconsume,
        prepared,
        crc,
        size,
    )


def _verify_record_crc(
    buffer: bytes | memoryview, position: int, end: int, properties_bytes: int
) -> None:
    record = memoryview(buffer)[position:end]
    if check_record_crc(record, properties_bytes) is RecordCrc.WRONG:
        raise CorruptRecord(
            f"record at {position}: its end {bytes(record[-RECORD_CRC_BYTES:])!r} is not the "
            f"CRC of the record, {encode_record_crc(crc31(record[:-RECORD_CRC_BYTES]))!r}"
        )


def record_place(buffer: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return (size, physical offset) of the record at a position, by its first 48 bytes.

    Raises:
        CorruptRecord: no complete V1 or V2 record can start there.
    """
    try:
        size, magic, _, _, _, _, physical_offset, _, _ = _FIXED.unpack_from(buffer, position)
    except struct.error as error:
        raise CorruptRecord(
            f"record at {position} of {len(buffer)} B cannot be read: {error}"
        ) from error
    left = len(buffer) - position
    if magic not in (MAGIC_V1, MAGIC_V2) or not OVERHEAD_BYTES <= size <= left:
        raise CorruptRecord(
            f"record at {position}: magic {magic:08x}, {size} B, expected daa320a7 or ...ab, "
            f"{OVERHEAD_BYTES}..{left} B"
        )
    return size, physical_offset


def record_properties(
    buffer: bytes | memoryview, position: int, end: int
) -> tuple[int, int, bytes]:
    """Return (queue id, queue offset, encoded properties) of the record in [position, end).

    Its body is not touched.

    Raises:
        CorruptRecord: a V1 or V2 record does not end there.
    """
    try:
        size, magic, queue_id, queue_offset, _, sys_flag = _PLACE.unpack_from(buffer, position)
        at = position + 84
        if sys_flag & (_BORN_V6 | _STORE_V6):
            at += 12 * (bool(sys_flag & _BORN_V6) + bool(sys_flag & _STORE_V6))
        at += 4 + _SIZE.unpack_from(buffer, at)[0]
        at += 1 + buffer[at] if magic == MAGIC_V1 else 2 + _SHORT.unpack_from(buffer, at)[0]
        properties_bytes = _SHORT.unpack_from(buffer, at)[0]
    except (struct.error, IndexError) as error:
        raise CorruptRecord(
            f"record at {position} of {len(buffer)} B cannot be read: {error}"
        ) from error
    at += 2
    if magic not in (MAGIC_V1, MAGIC_V2) or at + properties_bytes != end or size != end - position:
        raise CorruptRecord(
            f"record at {position}: magic {magic:08x}, {size} B, fields up to "
            f"{at + properties_bytes}, expected a record of {end - position} B"
        )
    return queue_id, queue_offset, bytes(buffer[at:end])


def decode_records(buffer: bytes | memoryview, *, verify: bool = False) -> Iterator[Record]:
    """Yield the records that fill the buffer, in order.

    Raises:
        CorruptRecord: something in the buffer is not a record.
    """
    position, end = 0, len(buffer)
    while position < end:
        record = decode_record(buffer, position, verify=verify)
        yield record
        position += record.size


def encode_blank(size: int) -> bytes:
    """Return the eight bytes that mark the last ``size`` bytes of a segment as unused."""
    return _SIZE_MAGIC.pack(size, MAGIC_BLANK)
