"""Runs of plain ends of transactions: requests of one connection that differ only in which one.

A producer's headers are the same text again and again, but for a few values::

    {"code":37,"extFields":{"commitLogOffset":"PHYSICAL","commitOrRollback":"DECISION",...,
     "tranStateTableOffset":"OFFSET","transactionId":"..."},"flag":2,...,"opaque":...}

The order of the fields is that of a hash table, and differs between clients. How they are found:
``plain_runs``.

Source: the headers that fastjson writes for RocketMQ RemotingCommand and
EndTransactionRequestHeader.
"""

import functools
import re
from collections.abc import Callable, Iterable, Sequence

from pymq.errors import RemoteProtocolError
from pymq.protocol.codes import CommandFlag, RequestCode
from pymq.protocol.command import decode_header
from pymq.protocol.header_templates import TEMPLATE_COUNT_MAX, Shape, Template
from pymq.protocol.headers.transactions import EndTransactionRequest

#: The whole header of a one-way request without a remark.
_HEADER = re.compile(
    rb'\{"code":37,"extFields":\{((?:"\w+":"[^"\\\x00-\x1f]*",)*"\w+":"[^"\\\x00-\x1f]*")\},'
    rb'"flag":2,"language":"([A-Z]+)","opaque":(?:0|[1-9]\d{0,9}),'
    rb'"serializeTypeCurrentRPC":"JSON","version":(\d{1,9})\}'
)
_FIELD = re.compile(rb'"(\w+)":"([^"]*)"')
#: The values that differ: what they look like, with a name if they are used.
_VALUES = {
    b"tranStateTableOffset": rb"(?P<queue_offset>\d{1,18})",
    b"commitLogOffset": rb"(?P<physical_offset>\d{1,18})",
    b"commitOrRollback": rb"(?P<decision>\d{1,2})",
    b"msgId": rb'[^"\\\x00-\x1f]*',
    b"transactionId": rb'[^"\\\x00-\x1f]*',
}
_USED = frozenset((b"tranStateTableOffset", b"commitLogOffset", b"commitOrRollback"))


class PlainEnds:
    """Ends of transactions whose headers differ only in the transaction and the decision.

    All of them are one-way.

    Attributes:
        header: the fields that they share; the others in it mean nothing.
        frames: all of them as they arrived, one after another.
        queue_offsets, physical_offsets: of each half message.
        decisions: about each, as in ``EndTransactionRequest``.
    """

    code = RequestCode.END_TRANSACTION

    __slots__ = ("decisions", "frames", "header", "physical_offsets", "queue_offsets")

    def __init__(
        self,
        template: Template[EndTransactionRequest],
        frames: bytes,
        rows: Sequence[tuple[bytes, ...]],
    ) -> None:
        self.header = template.header
        self.frames = frames
        number_of = template.pattern.groupindex
        columns = [list(map(int, column)) for column in zip(*rows, strict=True)]
        self.queue_offsets = columns[number_of["queue_offset"] - 1]
        self.physical_offsets = columns[number_of["physical_offset"] - 1]
        self.decisions = columns[number_of["decision"] - 1]

    def __len__(self) -> int:
        return len(self.decisions)


def shape_of_end(header: bytes) -> Shape | None:
    """Return what a header has in common with others of its run; None if it cannot be in one."""
    found = _HEADER.fullmatch(header)
    if found is None:
        return None
    text, language, version = found.groups()
    fields = _FIELD.findall(text)
    names = {name for name, _ in fields}
    if len(names) < len(fields) or not names >= _USED:
        return None  # Of two fields of a name the last one would count.
    fixed = (part for name, value in fields for part in (name, b"" if name in _VALUES else value))
    return language, version, *fixed


@functools.lru_cache(TEMPLATE_COUNT_MAX)
def template_of_ends(shape: Shape) -> Template[EndTransactionRequest] | None:
    """Return the template of the headers with a shape; None if they are not well-formed."""
    language, version, *fixed = shape
    fields = list(zip(fixed[::2], fixed[1::2], strict=True))
    example = [(name, b"0" if name in _VALUES else value) for name, value in fields]
    patterns = [(name, _VALUES.get(name) or re.escape(value)) for name, value in fields]
    try:
        command = decode_header(0, _header(example, language, b"0", version), b"")
        header = EndTransactionRequest.from_fields(command.fields)
    except RemoteProtocolError:
        return None
    assert command.code == RequestCode.END_TRANSACTION and command.flag == CommandFlag.ONE_WAY
    pattern = _header(patterns, language, rb"(?:0|[1-9]\d{0,9})", version, escape=re.escape)
    return Template(re.compile(pattern), header)


def _header(
    fields: Iterable[tuple[bytes, bytes]],
    language: bytes,
    opaque: bytes,
    version: bytes,
    *,
    escape: Callable[[bytes], bytes] = bytes,
) -> bytes:
    """Return a header, or the pattern of one, whose parts are escaped already."""
    head, behind = escape(b'{"code":37,"extFields":{'), escape(b'},"flag":2,"language":"')
    text = b",".join(b'"%b":"%b"' % field for field in fields)
    tail = escape(b',"serializeTypeCurrentRPC":"JSON","version":')
    return b"".join(
        (head, text, behind, language, b'","opaque":', opaque, tail, version, escape(b"}"))
    )
