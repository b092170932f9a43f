"""Runs of plain sends: consecutive requests of one connection that differ only in their message.

A producer's headers are the same text again and again, but for five values::

    {"code":310,"extFields":{"a":"group","b":"topic",...,"e":"QUEUE","f":"0","g":"BORN","h":"FLAG",
     "i":"PROPERTIES","j":"0",...},"flag":0,"language":"JAVA","opaque":OPAQUE,...}

What stays the same is a template: its fields are parsed once, in the usual way, and then it is
enough to compare the rest and cut the values out, at a third of the cost. Whatever does not look
exactly like that is left to ``command.decode_header``.

Source: the headers that fastjson writes for RocketMQ RemotingCommand and
SendMessageRequestHeaderV2.
"""

import functools
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pymq.errors import RemoteProtocolError
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import decode_header
from pymq.protocol.headers.send import SendRequest

_PREFIX = struct.Struct(">II")
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
_TEMPLATE_COUNT_MAX = 1024
#: Fewer sends cost less one by one.
RUN_COUNT_MIN = 3
#: Where sends are mixed with others, it is tried again after this many frames at the latest.
_PAUSE_MAX = 63


@dataclass(frozen=True, slots=True)
class _Template:
    """What the headers of a run have in common.

    Attributes:
        pattern: matches such a header; its groups are the values.
        header: the fields; those that vary are of some message.
    """

    pattern: re.Pattern[bytes]
    header: SendRequest


class PlainSends:
    """Consecutive sends whose headers differ only in queue, times, flag, properties and opaque.

    None of them is one-way, a batch, or a retry that counts.

    Attributes:
        header: the fields that they share; the others in it mean nothing.
        frames: all of them as they arrived.
        queue_ids, born_timestamps, flags: of each.
        opaques: of each, as digits.
        bodies: of each.
        properties: of all, as the log stores them, each with U+0002 in front, with ``SEPARATOR``
            in between. None: they cannot be read without parsing the JSON text.
    """

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


class PlainSendReader:
    """Recognizes the runs of one connection."""

    __slots__ = ("_last_fixed", "_pause", "_skipped", "_template")

    def __init__(self) -> None:
        self._template: _Template | None = None
        self._last_fixed: tuple[bytes, ...] | None = None
        self._pause = 0  # frames that are not looked at after the last one in vain
        self._skipped = 0  # of those

    def read(
        self, data: bytes, position: int, *, frame_bytes_max: int
    ) -> tuple[PlainSends | None, int]:
        """Return the run that begins at a frame, and the position behind it.

        Args:
            data: input; may end in the middle of a frame.
            position: of the frame, of which at least eight bytes are there.
            frame_bytes_max: where it is larger, whether or not it is a send, nothing is found.
        """
        start, end = position, len(data)
        length, _ = _PREFIX.unpack_from(data, start)
        if end - start < RUN_COUNT_MIN * length:
            return None, start
        if self._skipped < self._pause:
            self._skipped += 1
            return None, start
        template = self._template
        rows: list[tuple[bytes, ...]] = []
        bodies: list[bytes] = []
        while end - position >= 8:
            length, word = _PREFIX.unpack_from(data, position)
            header_start = position + 8
            frame_end, body_start = position + 4 + length, header_start + word  # form 0: JSON
            if frame_end > end or body_start > frame_end or length + 4 > frame_bytes_max:
                break
            found = template and template.pattern.match(data, header_start, body_start)
            if not found or found.end() != body_start:
                if rows or not self._learn(data, header_start, body_start):
                    break
                template = self._template
                continue
            rows.append(found.groups())
            bodies.append(data[body_start:frame_end])
            position = frame_end
        if len(rows) < RUN_COUNT_MIN:
            self._pause = min(2 * self._pause + 1, _PAUSE_MAX)
            self._skipped = 0
            return None, start
        self._pause = 0
        assert template is not None
        return PlainSends(template.header, data[start:position], rows, bodies), position

    def _learn(self, data: bytes, start: int, end: int) -> bool:
        """Take over the template of a header; True if there is another one now.

        Only what comes twice in a row is worth it.
        """
        found = _HEADER.fullmatch(data, start, end)
        fixed = None if found is None else found.groups()[::2]
        if fixed is None or fixed != self._last_fixed:
            self._last_fixed = fixed
            return False
        template = _template(fixed)
        if template is None or template is self._template:
            return False
        self._template = template
        return True


@functools.lru_cache(_TEMPLATE_COUNT_MAX)
def _template(fixed: tuple[bytes, ...]) -> _Template | None:
    example = _interleaved(fixed, (b"0", b"0", b"0", b"", b"0", b""))
    try:
        command = decode_header(0, example, b"")
        header = SendRequest.from_v2(command.fields or {})
    except RemoteProtocolError:
        return None
    assert command.code == RequestCode.SEND_MESSAGE_V2 and not command.flag
    pattern = _interleaved(map(re.escape, fixed), (*_VALUES, b""))
    return _Template(re.compile(pattern), header)


def _interleaved(fixed: Iterable[bytes], values: Iterable[bytes]) -> bytes:
    return b"".join(part for pair in zip(fixed, values, strict=True) for part in pair)
