"""The checksum of a whole record: the property that it may end with (RocketMQ 5.2 and later).

20 bytes, the last ones of a record, part of its properties and counted in its size::

    8   name    __CRC32#
    1   0x01
    10  digits  the checksum, least significant digit first, padded with '0'
    1   0x02

The checksum is ``crc31`` of everything before the 20 bytes, so it covers what the body's CRC does
not: offsets, times, hosts, flags, topic, properties. 1867854957 is ``7594587681``. To readers of
properties it is a property like any other; the last of several counts.

**What a wrong one means.** A broker writes this property to every record or, by default, to none.
But any client may send a property of this name, and honest ones do: a forwarded message carries the
checksum of the record that it was read from, and RocketMQ stores what it gets unless it writes
checksums itself. So:

* A checksum that fits is the broker's: a client does not know the offsets and the store time.
* One that does not fit is damage in a log whose broker writes checksums, else a foreign property.
  A reader of single records (``decode_record``) has to treat it as damage; a reader of logs tells
  the two apart by the records around it (``store.log.log_scan``).
* What we store never ends with anybody else's checksum: a foreign one is cut off first, whether we
  write checksums or not.
* 19 bytes of the right kind claim a checksum. If all 20 were required, a flipped bit in one of them
  would hide the property from the check.

Source: RocketMQ CommitLog (CRC32_RESERVED_LEN), MessageDecoder.createCrc32.
"""

import re
from enum import IntEnum

from pymq.protocol.hashes import crc31

RECORD_CRC_BYTES = 20
#: How many of them have to match to claim a checksum.
RECORD_CRC_CLAIM_BYTES = 19
RECORD_CRC_NAME = "__CRC32#"
#: What precedes the digits.
RECORD_CRC_PREFIX = RECORD_CRC_NAME.encode() + b"\x01"
#: Placeholder of a checksum until the rest of its record is known.
RECORD_CRC_ROOM = bytes(RECORD_CRC_BYTES)
assert len(RECORD_CRC_PREFIX) + 10 + 1 == RECORD_CRC_BYTES  # on-disk contract

_DIGITS = frozenset(b"0123456789")
_AT_END = re.compile(rb"(?:" + RECORD_CRC_PREFIX + rb"[0-9]{10}\x02)+\Z")
_ANYWHERE = re.compile(rb"(?:\A|(?<=\x02))" + RECORD_CRC_PREFIX + rb"[^\x02]*(?:\x02|\Z)")


class RecordCrc(IntEnum):
    """Result of checking the end of a record for a checksum."""

    WRONG = -1  #: claims one that does not fit
    NONE = 0
    FITS = 1


def encode_record_crc(crc: int) -> bytes:
    """Return the property for a checksum, a number of 31 bits."""
    return b"%b%b\x02" % (RECORD_CRC_PREFIX, (b"%010d" % crc)[::-1])


def check_record_crc(record: bytes | memoryview, properties_bytes: int) -> RecordCrc:
    """Say whether a whole record ends with a checksum, and with the right one."""
    if properties_bytes < RECORD_CRC_BYTES:
        return RecordCrc.NONE
    found = bytes(record[-RECORD_CRC_BYTES:])
    if not _is_claim(found):
        return RecordCrc.NONE
    wanted = encode_record_crc(crc31(record[:-RECORD_CRC_BYTES]))
    return RecordCrc.FITS if found == wanted else RecordCrc.WRONG


def _is_claim(end: bytes) -> bool:
    # Of two parts of the name, one wrong byte leaves one as it is.
    if not (end.startswith(b"__CR") or end.startswith(b"C32#", 4)):
        return False
    good = sum(a == b for a, b in zip(end, RECORD_CRC_PREFIX, strict=False))
    good += sum(byte in _DIGITS for byte in end[len(RECORD_CRC_PREFIX) : -1])
    return good + (end[-1] == 2) >= RECORD_CRC_CLAIM_BYTES


def ends_with_record_crc(properties: bytes) -> bool:
    """Say whether encoded properties end with a checksum, right or wrong."""
    return _AT_END.search(properties, max(0, len(properties) - RECORD_CRC_BYTES)) is not None


def cut_record_crc(properties: bytes) -> bytes:
    """Return encoded properties without the checksums at their end."""
    return _AT_END.sub(b"", properties)


def with_record_crc_room(properties: bytes) -> bytes:
    """Return encoded properties with room for a checksum at their end, and no other one.

    Source: RocketMQ MessageUtils.deleteProperty, MessageExtEncoder.encode.
    """
    if RECORD_CRC_PREFIX in properties:
        properties = _ANYWHERE.sub(b"", properties)
    gap = b"\x02" if properties and properties[-1] != 2 else b""
    return properties + gap + RECORD_CRC_ROOM
