"""The body of SEND_BATCH_MESSAGE: several messages of one topic, back to back.

Per message, big-endian::

    4  size of all of it, itself included     4      flag
    4  magic, 0                               4 + n  body
    4  body CRC, 0                            2 + n  properties

Worked example, flag 0, body "b0" and properties ``TAGS 1 tagA 2`` (each number one byte)::

    00000022 00000000 00000000 00000000 00000002 6230 000a 54414753 01 74616741 02

This module encodes and decodes one by one; ``new_batch`` reads all messages of a body together.

Source: RocketMQ MessageDecoder.encodeMessages, decodeMessages.
"""

import struct
from collections.abc import Iterable

from pymq.errors import LocalProtocolError, RemoteProtocolError
from pymq.protocol.record import PROPERTIES_BYTES_MAX

#: Everything in front of a message's body, and the length in front of its properties.
BATCH_HEAD = struct.Struct(">IIIiI")
BATCH_LENGTH = struct.Struct(">H")
#: What a message of a batch takes in addition to its body and its properties.
BATCH_OVERHEAD_BYTES = 22

assert BATCH_HEAD.size + BATCH_LENGTH.size == BATCH_OVERHEAD_BYTES  # wire contract


def encode_batch(messages: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    """Return the body of a batch.

    Args:
        messages: (flag, body, encoded properties) of each message.

    Raises:
        LocalProtocolError: properties exceed 32767 bytes, or a flag 32 bits.
    """
    parts: list[bytes] = []
    for flag, body, properties in messages:
        if len(properties) > PROPERTIES_BYTES_MAX:
            raise LocalProtocolError(
                f"properties of {len(properties)} B, expected at most {PROPERTIES_BYTES_MAX}"
            )
        size = BATCH_OVERHEAD_BYTES + len(body) + len(properties)
        try:
            head = BATCH_HEAD.pack(size, 0, 0, flag, len(body))
        except struct.error as error:
            raise LocalProtocolError(
                f"message of a batch with flag {flag} and a body of {len(body)} B: {error}"
            ) from error
        parts += (head, body, BATCH_LENGTH.pack(len(properties)), properties)
    return b"".join(parts)


def decode_batch(data: bytes | memoryview) -> list[tuple[int, bytes, bytes]]:
    """Return (flag, body, encoded properties) of each message of a batch.

    Raises:
        RemoteProtocolError: the sizes do not fit together.
    """
    messages: list[tuple[int, bytes, bytes]] = []
    position, total = 0, len(data)
    while position < total:
        if total - position < BATCH_OVERHEAD_BYTES:
            raise _bad_batch(position, f"{total - position} B left for a message")
        size, _, _, flag, body_bytes = BATCH_HEAD.unpack_from(data, position)
        end = position + size
        body_at = position + BATCH_HEAD.size
        properties_at = body_at + body_bytes + 2
        if end > total or properties_at > end:
            raise _bad_batch(position, f"size {size} and body {body_bytes} of {total} B")
        (properties_bytes,) = BATCH_LENGTH.unpack_from(data, properties_at - 2)
        if properties_at + properties_bytes != end or properties_bytes > PROPERTIES_BYTES_MAX:
            raise _bad_batch(
                position, f"fields end at {properties_at + properties_bytes}, size says {end}"
            )
        body = bytes(data[body_at : body_at + body_bytes])
        messages.append((flag, body, bytes(data[properties_at:end])))
        position = end
    return messages


def _bad_batch(position: int, text: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"message of a batch at {position}: {text}")
