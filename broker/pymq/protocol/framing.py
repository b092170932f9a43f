"""Frames: where one command ends and the next begins.

::

    offset  size          field (big-endian)
    0       4             length: bytes that follow this field
    4       1             header serialization: 0 JSON, 1 binary
    5       3             header length
    8       header length header
    ...     the rest      body, may be empty

No magic, no checksum. The limit counts the whole frame, its length field included, and is
applied before anything is allocated. Source: RocketMQ NettyDecoder, NettyEncoder.
"""

import struct
from collections.abc import Callable
from typing import TypeAlias

from pymq.errors import LocalProtocolError, RemoteProtocolError
from pymq.protocol.command import Command, decode_header, encode_header
from pymq.protocol.plain_runs import PlainRun, PlainRunReader

#: RocketMQ ``com.rocketmq.remoting.frameMaxLength``.
FRAME_BYTES_MAX = 16 << 20

#: Larger frames that arrive in pieces have views as bodies.
VIEW_BYTES_MIN = 64 << 10
#: Memory for such a frame is allocated once this share of it has arrived: a mere length, which
#: costs the peer nothing, does not claim any.
_SHARE_BEFORE_MEMORY = 1 / 16

_PREFIX = struct.Struct(">II")
_LENGTH = struct.Struct(">I")


def _fresh(size: int) -> memoryview:
    return memoryview(bytearray(size))


#: What comes in: a command, or several that are handled as one.
Incoming: TypeAlias = Command | PlainRun


class FrameDecoder:
    """Turns a stream of bytes, cut anywhere, into commands. For one connection.

    Bytes are fed, or received in place: while a large frame is being received, ``room`` says where
    to put the bytes, and ``filled`` is told how many came.

    Args:
        frame_bytes_max: largest frame accepted.
        memory: returns memory for a large frame; it stays in use while the body is referenced.
        plain_runs: recognizes runs of requests, which then come out as one; None: each is a
            command like all others.
    """

    __slots__ = (
        "_filled_bytes",
        "_large",
        "_memory",
        "_pending",
        "_plain_runs",
        "_wanted",
        "frame_bytes_max",
    )

    def __init__(
        self,
        *,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        memory: Callable[[int], memoryview] = _fresh,
        plain_runs: PlainRunReader | None = None,
    ) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._plain_runs = plain_runs
        self._memory = memory
        self._pending = bytearray()
        self._wanted = 4  # nothing can be decoded before this many bytes are pending
        self._large: memoryview | None = None
        self._filled_bytes = 0

    @property
    def pending_bytes(self) -> int:
        """Bytes received of a frame that is not complete."""
        return len(self._pending) + self._filled_bytes

    def clear(self) -> None:
        """Drop what was received of an incomplete frame; the stream cannot be resumed."""
        self._pending, self._large, self._filled_bytes = bytearray(), None, 0

    @property
    def missing_bytes(self) -> int:
        """Bytes that the incomplete frame needs at least."""
        pending_bytes = self.pending_bytes
        return self._wanted - pending_bytes if pending_bytes else 0

    @property
    def room(self) -> memoryview | None:
        """Where to put the rest of the large frame being received; None if there is none."""
        return None if self._large is None else self._large[self._filled_bytes :]

    def filled(self, count: int) -> list[Incoming]:
        """Record ``count`` bytes received into ``room``; return the command that they complete.

        Raises:
            RemoteProtocolError: the frame's header is malformed.
        """
        assert self._large is not None
        self._filled_bytes += count
        if self._filled_bytes < self._wanted:
            return []
        frame, self._large, self._filled_bytes = self._large, None, 0
        return [_decode_frame(frame)]

    def feed(self, data: bytes) -> list[Incoming]:
        """Take the next bytes of the stream and return the commands that they complete.

        Raises:
            RemoteProtocolError: the stream is not a sequence of frames; it cannot be resumed.
        """
        if self._large is not None:
            part = data[: self.missing_bytes]
            self._large[self._filled_bytes : self._filled_bytes + len(part)] = part
            rest = data[len(part) :]
            return self.filled(len(part)) + (self.feed(rest) if rest else [])
        if self._pending:
            self._pending += data
            if len(self._pending) < self._wanted:
                self._take_memory()
                return []
            whole, self._pending = self._pending, bytearray()
            if self._wanted > VIEW_BYTES_MIN:
                # A large body is a view on what was gathered, not another copy.
                view = memoryview(whole)
                first = _decode_frame(view[: self._wanted])
                return [first, *self.feed(bytes(view[self._wanted :]))]
            data = bytes(whole)
        commands: list[Incoming] = []
        position, end = 0, len(data)
        plain_runs = self._plain_runs
        while end - position >= 8:
            if plain_runs is not None:
                runs, position = plain_runs.read(
                    data, position, frame_bytes_max=self.frame_bytes_max
                )
                if runs:
                    commands += runs
                    continue
            length, word = _PREFIX.unpack_from(data, position)
            frame_end = position + 4 + length
            if length + 4 > self.frame_bytes_max or length < 4:
                raise self._bad_length(data[position : position + 8], length)
            if frame_end > end:
                break
            header_start = position + 8
            body_start = header_start + (word & 0xFFFFFF)
            if body_start > frame_end:
                raise RemoteProtocolError(
                    f"header of {word & 0xFFFFFF} B in a frame with room for {length - 4}"
                )
            commands.append(
                decode_header(word >> 24, data[header_start:body_start], data[body_start:frame_end])
            )
            position = frame_end
        self._keep(data, position)
        return commands

    def _keep(self, data: bytes, position: int) -> None:
        remaining = len(data) - position
        if not remaining:
            return
        self._wanted = 4
        if remaining >= 4:
            (length,) = _LENGTH.unpack_from(data, position)
            if length + 4 > self.frame_bytes_max or length < 4:
                raise self._bad_length(data[position : position + 8], length)
            self._wanted = length + 4
        self._pending += memoryview(data)[position:]
        self._take_memory()

    def _take_memory(self) -> None:
        """Allocate memory for the incomplete frame if it is large and enough of it has arrived.

        Raises:
            RemoteProtocolError: it cannot become a frame.
        """
        size = len(self._pending)
        if self._wanted > 8 <= size:
            _check_start(self._pending)
        if self._wanted > VIEW_BYTES_MIN and size >= self._wanted * _SHARE_BEFORE_MEMORY:
            self._large = self._memory(self._wanted)
            self._large[:size] = self._pending
            self._filled_bytes = size
            self._pending = bytearray()

    def _bad_length(self, start: bytes, length: int) -> RemoteProtocolError:
        return RemoteProtocolError(
            f"frame of {length + 4} B, expected 8..{self.frame_bytes_max} (frame_bytes_max)"
            f"; its first bytes are {start!r}{_foreign(start)}"
        )


def commands_of(run: PlainRun) -> list[Command]:
    """Return the requests of a run one by one, as if it had not been recognized."""
    found = FrameDecoder(frame_bytes_max=len(run.frames)).feed(run.frames)
    return [command for command in found if isinstance(command, Command)]


def _decode_frame(frame: memoryview) -> Command:
    """Return the command of one whole frame; its body is a view on it."""
    _, word = _PREFIX.unpack_from(frame)
    body_start = 8 + (word & 0xFFFFFF)
    if body_start > len(frame):
        raise RemoteProtocolError(
            f"header of {word & 0xFFFFFF} B in a frame with room for {len(frame) - 8}"
        )
    return decode_header(word >> 24, bytes(frame[8:body_start]), frame[body_start:])


def _check_start(data: bytes | bytearray | memoryview) -> None:
    """Look at the first eight bytes of a frame whose rest may never come.

    Raises:
        RemoteProtocolError: they are those of another protocol.
    """
    if not any(data[4:8]):
        start = bytes(data[:8])
        raise RemoteProtocolError(
            f"JSON header of 0 B; the first bytes are {start!r}{_foreign(start)}"
        )


def _foreign(start: bytes) -> str:
    """Say what the bytes look like if they are clearly another protocol."""
    if start[3:] in (b"\x04\0\0\0\0", b"\x07\0\0\0\0"):  # SETTINGS or GOAWAY of stream 0
        return (
            ": HTTP/2, which gRPC ports speak (8081 of a RocketMQ 5 proxy); give the remoting port "
            "(9876 of a name server, 8080 of a proxy)"
        )
    if start[:2] == b"\x15\x03":
        return (
            ": a TLS alert, so this port speaks TLS only; give a port without TLS, or set "
            "tls.server.mode=permissive at the server"
        )
    if start[:1] == b"\x16":
        return ": a TLS handshake on a plain port; disable TLS in the client"
    if start[:4] in (b"GET ", b"POST", b"HEAD", b"PUT ", b"HTTP"):
        return ": HTTP, but this port speaks RocketMQ remoting"
    return ""


def read_prefix(
    data: bytes | bytearray | memoryview,
    position: int,
    *,
    frame_bytes_max: int = FRAME_BYTES_MAX,
) -> tuple[int, int, int]:
    """Return (header form, where the header ends, where the frame ends) of the frame at a position.

    For readers that place bodies themselves; needs only the first eight bytes of the frame.

    Raises:
        RemoteProtocolError: they are not the start of a frame.
    """
    length, word = _PREFIX.unpack_from(data, position)
    check_length(data, position, frame_bytes_max)
    if not word:
        _check_start(data[position : position + 8])
    header_bytes = word & 0xFFFFFF
    if header_bytes > length - 4:
        raise RemoteProtocolError(
            f"header of {header_bytes} B in a frame with room for {length - 4}"
        )
    return word >> 24, position + 8 + header_bytes, position + 4 + length


def check_length(
    data: bytes | bytearray | memoryview, position: int, frame_bytes_max: int
) -> None:
    """Look at the length of a frame, of which four bytes are there.

    Raises:
        RemoteProtocolError: no frame is that long: these bytes are something else.
    """
    (length,) = _LENGTH.unpack_from(data, position)
    if length + 4 > frame_bytes_max or length < 4:
        start = bytes(data[position : position + 8])
        raise FrameDecoder(frame_bytes_max=frame_bytes_max)._bad_length(start, length)


def encode_frame(command: Command, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> bytes:
    """Return the whole frame of a command whose body is small enough to be copied.

    Raises:
        LocalProtocolError: the frame would exceed ``frame_bytes_max``.
    """
    prefix, body = encode_parts(command, frame_bytes_max=frame_bytes_max)
    return b"".join((prefix, body)) if body else prefix


def encode_parts(
    command: Command, *, frame_bytes_max: int = FRAME_BYTES_MAX
) -> tuple[bytes, bytes | memoryview]:
    """Return the frame of a command as (everything before the body, the body itself).

    Raises:
        LocalProtocolError: the frame would exceed ``frame_bytes_max``.
    """
    head = encode_head(command, len(command.body), frame_bytes_max=frame_bytes_max)
    return head, command.body


def encode_head(
    command: Command, body_bytes: int, *, frame_bytes_max: int = FRAME_BYTES_MAX
) -> bytes:
    """Return everything before the body of a command's frame.

    Args:
        command: its own body does not count.
        body_bytes: length of the body that will follow.

    Raises:
        LocalProtocolError: the frame would exceed ``frame_bytes_max``.
    """
    header = encode_header(command)
    prefix = frame_prefix(
        len(header), body_bytes, form=command.form, frame_bytes_max=frame_bytes_max
    )
    return prefix + header


def frame_prefix(
    header_bytes: int, body_bytes: int, *, form: int, frame_bytes_max: int = FRAME_BYTES_MAX
) -> bytes:
    """Return the eight bytes in front of a header.

    Raises:
        LocalProtocolError: the frame would exceed ``frame_bytes_max``.
    """
    length = 4 + header_bytes + body_bytes
    if length + 4 > frame_bytes_max or header_bytes > 0xFFFFFF:
        raise LocalProtocolError(
            f"frame of {length + 4} B with a header of {header_bytes}, expected at most "
            f"{frame_bytes_max} (frame_bytes_max); send less at once"
        )
    return _PREFIX.pack(length, form << 24 | header_bytes)
