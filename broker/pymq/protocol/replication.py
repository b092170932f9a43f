"""What a master and its slaves say to each other on the HA port: the commit log, as it is stored.

::

    slave -> master, a report                master -> slave, a push
    offset  size  field (big-endian)         offset  size  field (big-endian)
    0       8     end of the slave's log     0       8     physical offset of the body
                                             8       4     size of the body; 0: a heartbeat
                                             12      ...   body: bytes of the commit log

There is no handshake: the first report says where the master begins, 0 that the slave has nothing
yet. A body lies in one file of the log; it may begin and end inside of a record.

A pymq slave that has nothing reports ``WHOLE_LOG`` before 0. RocketMQ's masters begin with their
last file then, whatever was before; to them, that number means that nothing was reported yet.

A pymq slave that has something says before its first report what the end of its log is::

    0       8     0xFE, "pymqHD", 1
    8       8     0xFE, physical offset from which on the digest is, to the offset of the report
    16      24    three times 0xFE and 7 bytes: the first 21 bytes of SHA-256 of that

Each word is a negative number, as in a hello (``replication_secret``), and all are sent with the
report: RocketMQ's masters look at the last number only of what has arrived.

Source: RocketMQ DefaultHAConnection, DefaultHAClient (4.x: HAConnection, HAService.HAClient).
"""

import hashlib
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from pymq.errors import RemoteProtocolError
from pymq.protocol.replication_secret import refusal_at

_REPORT = struct.Struct(">q")
_PUSH = struct.Struct(">qi")
REPORT_BYTES, PUSH_HEADER_BYTES = _REPORT.size, _PUSH.size
#: A report of pymq slaves: the log is wanted from its first file on.
WHOLE_LOG = -1
#: The first word of what such slaves say of the end of their logs, and what follows it.
TAIL_MARK = b"\xfepymqHD\x01"
_TAIL_NUMBER = _REPORT.unpack(TAIL_MARK)[0]
_TAIL_PARTS, _PART_BYTES = 3, 7
_TAIL_WORDS = 1 + _TAIL_PARTS
#: Larger bodies are refused: they do not fit into the buffer of RocketMQ's slaves (4 MiB), either.
PUSH_BYTES_MAX = (4 << 20) - PUSH_HEADER_BYTES
#: Room for what arrives; a few pushes of the usual size.
_INBOX_BYTES = 1 << 20


class LogTail(NamedTuple):
    """What the end of a slave's log is: the digest of it from ``first`` on."""

    first: int
    digest: bytes


def tail_of(first: int, data: bytes) -> LogTail:
    """Return what a slave says of the end of its log.

    Args:
        first: physical offset at which it begins.
        data: the bytes from there to the end of the log.
    """
    return LogTail(first, hashlib.sha256(data).digest()[: _TAIL_PARTS * _PART_BYTES])


def encode_tail(tail: LogTail) -> bytes:
    """Return how a slave says what the end of its log is, before its first report."""
    text = tail.first.to_bytes(_PART_BYTES) + tail.digest
    parts = range(0, len(text), _PART_BYTES)
    return TAIL_MARK + b"".join(TAIL_MARK[:1] + text[at : at + _PART_BYTES] for at in parts)


def encode_report(physical_end: int) -> bytes:
    """Return the report of a slave whose log ends at a physical offset."""
    return _REPORT.pack(physical_end)


def encode_push_header(physical_offset: int, size_bytes: int) -> bytes:
    """Return what comes before a body of the log; with size 0, a heartbeat."""
    return _PUSH.pack(physical_offset, size_bytes)


class ReportReader:
    """Finds reports in a stream of bytes, cut anywhere."""

    __slots__ = ("_parts", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        #: What has arrived of the end of a log that is being told; None: none is.
        self._parts: list[bytes] | None = None

    def feed(self, data: bytes) -> Iterator[int | LogTail]:
        """Yield the reports that are complete now, and what is said besides, in order."""
        data = self._rest + data
        whole = len(data) - len(data) % REPORT_BYTES
        self._rest = data[whole:]
        for (report,) in _REPORT.iter_unpack(data[:whole]):
            if self._parts is None:
                if report != _TAIL_NUMBER:
                    yield report
                else:
                    self._parts = []
                continue
            self._parts.append(_REPORT.pack(report)[1:])
            if len(self._parts) == _TAIL_WORDS:
                first, *digest = self._parts
                self._parts = None
                yield LogTail(int.from_bytes(first), b"".join(digest))


class Push(NamedTuple):
    """A part of the master's log, or a heartbeat.

    Attributes:
        physical_offset: where the body begins; of a heartbeat, where the next one will.
        body: valid until there is ``room`` for more; empty: a heartbeat.
    """

    physical_offset: int
    body: memoryview


class FrameInbox:
    """Cuts what is received, in pieces of any size, into frames of a head and a body.

    Bytes are received in place: ``room`` says where to put them, ``frames`` how many came.

    Args:
        size_of: returns the size of the frame that begins some bytes, head and body, or, if
            there are too few to tell, how many are needed for that.
    """

    __slots__ = ("_end", "_inbox", "_needed", "_size_of", "_start")

    def __init__(self, size_of: Callable[[memoryview], int]) -> None:
        self._size_of = size_of
        self._inbox = memoryview(bytearray(_INBOX_BYTES))
        self._start = self._end = self._needed = 0

    def room(self) -> memoryview:
        """Return where to put the next bytes; never empty. Frames are not valid any more then."""
        self._make_room(self._needed)
        return self._inbox[self._end :]

    def frames(self, count: int) -> Iterator[memoryview]:
        """Yield the frames that ``count`` more bytes complete; to be exhausted before ``room``.

        Raises:
            RemoteProtocolError: ``size_of`` says that this is no frame.
        """
        self._end += count
        while True:
            rest = self._inbox[self._start : self._end]
            needed = self._size_of(rest)
            if len(rest) < needed:
                break
            self._start += needed
            yield rest[:needed]
        self._needed = needed

    def _make_room(self, needed: int) -> None:
        """Move the beginning of a frame to the front when its rest would not fit behind it."""
        rest = self._inbox[self._start : self._end]
        if self._start + needed <= len(self._inbox) and self._end < len(self._inbox):
            if rest:
                return
            self._start = self._end = 0
            return
        if needed > len(self._inbox):
            inbox = memoryview(bytearray(needed))
            inbox[: len(rest)] = rest
            self._inbox = inbox
        else:
            self._inbox[: len(rest)] = bytes(rest)
        self._start, self._end = 0, len(rest)


class PushReader:
    """Turns what is received, cut anywhere, into pushes. For one connection."""

    __slots__ = ("_inbox",)

    def __init__(self) -> None:
        self._inbox = FrameInbox(_push_bytes)

    def room(self) -> memoryview:
        """Return where to put the next bytes; never empty."""
        return self._inbox.room()

    def received(self, count: int) -> Iterator[Push]:
        """Yield the pushes that ``count`` more bytes complete; to be exhausted before ``room``.

        Raises:
            RemoteProtocolError: this is not what a master sends.
        """
        for frame in self._inbox.frames(count):
            yield Push(_PUSH.unpack_from(frame)[0], frame[PUSH_HEADER_BYTES:])


def _push_bytes(data: memoryview) -> int:
    if len(data) < PUSH_HEADER_BYTES:
        return PUSH_HEADER_BYTES
    physical_offset, size = _PUSH.unpack_from(data)
    if physical_offset < 0 or not 0 <= size <= PUSH_BYTES_MAX:
        refusal = refusal_at(physical_offset)
        if refusal is not None:
            raise RemoteProtocolError(refusal.text)
        raise RemoteProtocolError(
            f"a push of {size} B at physical offset {physical_offset}, expected 0.."
            f"{PUSH_BYTES_MAX} B: this is not the HA port of a RocketMQ master"
        )
    return PUSH_HEADER_BYTES + int(size)
