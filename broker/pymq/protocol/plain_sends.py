"""Runs of plain sends: requests of one connection that differ only in their message.

A producer's headers are the same text again and again, but for five values::

    {"code":310,"extFields":{"a":"group","b":"topic",...,"e":"QUEUE","f":"0","g":"BORN","h":"FLAG",
     "i":"PROPERTIES","j":"0",...},"flag":0,"language":"JAVA","opaque":OPAQUE,...}

How they are found: ``plain_runs``.

Source: the headers that fastjson writes for RocketMQ RemotingCommand and
SendMessageRequestHeaderV2.
"""

import functools
import re
from collections.abc import Iterable, Sequence
from typing import Final

from pymq.errors import RemoteProtocolError
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import decode_header
from pymq.protocol.header_templates import TEMPLATE_COUNT_MAX, Shape, Template
from pymq.protocol.headers.send import SendRequest

#: Between the properties of one message and of the next; cannot occur inside of them.
SEPARATOR: Final = b"\x03"
#: The whole header; the fixed parts are the odd groups. No part may hide a second field of the
#: same name: of two the last one would count.
_HEADER = re.compile(
    rb'(\{"code":310,"extFields":\{"a":"[^"\\\x00-\x1f]*","b":"[^"\\\x00-\x1f]*",'
    rb'"c":"[^"\\\x00-\x1f]*","d":"\d{1,9}","e":")(\d{1,9})(","f":"\d{1,9}","g":")(\d{1,18})'
    rb'(","h":")(\d{1,9})(","i":")([^"\x00-\x1f]*)(","j":"0","k":"(?:fals|tru)e",'
    rb'(?:"l":"\d{1,9}",)?"m":"false"(?:,"n":"[^"\\\x00-\x1f]*")?\},"flag":0,'
    rb'"language":"[A-Z]+","opaque":)(0|[1-9]\d{0,9})'
    rb'(,"serializeTypeCurrentRPC":"JSON","version":\d{1,9}\})'
)
_VALUES = (rb"(\d{1,9})", rb"(\d{1,18})", rb"(\d{1,9})", rb'([^"\x00-\x1f]*)', rb"(0|[1-9]\d{0,9})")


class PlainSends:
    """Sends of a connection whose headers differ only in queue, time, flag, properties and opaque.

    None of them is one-way, a batch, or a retry that counts.

    Attributes:
        header: the fields that they share; the others in it mean nothing.
        frames: all of them as they arrived, one after another.
        queue_ids, born_timestamps, flags: of each.
        opaques: of each, as digits.
        bodies: of each.
        properties: of all, as the log stores them, each with U+0002 in front, with ``SEPARATOR``
            in between. None: they cannot be read without parsing the JSON text.
    """

    code = RequestCode.SEND_MESSAGE_V2

    __slots__ = (
        "bodies",
        "born_timestamps",
        "flags",
        "frames",
        "header",
        "opaques",
        "properties",
        "queue_ids",
    )

    def __init__(
        self,
        header: SendRequest,
        frames: bytes,
        rows: Sequence[tuple[bytes, ...]],
        bodies: list[bytes],
    ) -> None:
        self.header = header
        self.frames = frames
        queue_ids, born_timestamps, flags, properties, self.opaques = zip(*rows, strict=True)
        self.queue_ids = list(map(int, queue_ids))
        self.born_timestamps = list(map(int, born_timestamps))
        self.flags = list(map(int, flags))
        self.bodies = bodies
        self.properties = _read_properties(properties)

    def __len__(self) -> int:
        return len(self.bodies)


def _read_properties(texts: Iterable[bytes]) -> bytes | None:
    # All of them at once; the escapes are those that every client needs for its separators.
    joined = b"\\u0002" + (SEPARATOR + b"\\u0002").join(texts)
    joined = joined.replace(b"\\u0001", b"\x01").replace(b"\\u0002", b"\x02")
    if b"\\" in joined:
        return None
    if not joined.isascii():
        try:
            joined.decode()
        except UnicodeDecodeError:
            return None
    return joined


def shape_of_send(header: bytes) -> Shape | None:
    """Return what a header has in common with others of its run; None if it cannot be in one."""
    found = _HEADER.fullmatch(header)
    return None if found is None else found.groups()[::2]


@functools.lru_cache(TEMPLATE_COUNT_MAX)
def template_of_sends(shape: Shape) -> Template[SendRequest] | None:
    """Return the template of the headers with a shape; None if they are not well-formed."""
    example = _interleaved(shape, (b"0", b"0", b"0", b"", b"0", b""))
    try:
        command = decode_header(0, example, b"")
        header = SendRequest.from_v2(command.fields or {})
    except RemoteProtocolError:
        return None
    assert command.code == RequestCode.SEND_MESSAGE_V2 and not command.flag
    pattern = _interleaved(map(re.escape, shape), (*_VALUES, b""))
    return Template(re.compile(pattern), header)


def _interleaved(fixed: Iterable[bytes], values: Iterable[bytes]) -> bytes:
    return b"".join(part for pair in zip(fixed, values, strict=True) for part in pair)
