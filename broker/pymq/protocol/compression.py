"""Compression of message bodies, according to the bits of a message's system flag.

====  ==================================================  ====================
bits  format                                              needs
====  ==================================================  ====================
000   zlib stream (RFC 1950), from clients before 4.9.4   standard library
100   LZ4 *frame* (magic 04 22 4d 18) of independent      the package lz4
      blocks, never a raw block
200   Zstandard frame without dictionary                  the package zstandard
300   zlib stream                                         standard library
====  ==================================================  ====================

They are valid only together with bit 0x1, "compressed". Brokers store and return bodies unchanged;
consumers decompress. Source: RocketMQ common/CompressionType, MessageSysFlag.
"""

import importlib
import zlib
from enum import IntEnum
from types import ModuleType

from pymq.errors import ConfigurationError, LocalProtocolError, RemoteProtocolError
from pymq.protocol.codes import COMPRESSION_MASK, MessageFlag

#: Largest decompressed body, by default. Clients refuse to send more than 4 MiB, but that is a
#: setting of theirs, which may have been raised.
DECOMPRESSED_BYTES_MAX = 64 << 20
#: Java clients' ``compressMsgBodyOverHowmuch``: bodies of this size or more are compressed.
COMPRESS_BYTES_MIN = 4096
LEVEL_DEFAULT = 5

_COMPRESSED = int(MessageFlag.COMPRESSED)


class Compression(IntEnum):
    """Formats of a compressed body; the value of bits 8-10 of the system flag."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


#: Module and package of the formats that are not in the standard library.
_PACKAGES = {
    Compression.LZ4: ("lz4.frame", "lz4"),
    Compression.ZSTD: ("zstandard", "zstandard"),
}


def compression_flags(kind: Compression) -> int:
    """Return the system-flag bits for a body compressed this way."""
    return _COMPRESSED | kind << 8


def compression_of(sys_flag: int) -> Compression | None:
    """Return how a body is compressed, ``None`` if it is not.

    Raises:
        RemoteProtocolError: the bits do not name a format.
    """
    if not sys_flag & _COMPRESSED:
        return None
    number = (sys_flag & COMPRESSION_MASK) >> 8
    if number == 0:
        return Compression.ZLIB
    try:
        return Compression(number)
    except ValueError as error:
        raise RemoteProtocolError(
            f"system flag {sys_flag:#x} names compression {number}, expected 0..3"
        ) from error


def check_installed(kind: Compression) -> None:
    """Accept a format for which everything is there.

    Raises:
        ConfigurationError: the package that the format needs is not installed.
    """
    if kind in _PACKAGES:
        _package(*_PACKAGES[kind])


def compress(
    body: bytes | memoryview, kind: Compression, *, level: int = LEVEL_DEFAULT
) -> bytes:
    """Return a body in compressed form.

    Args:
        body: what to compress.
        kind: the format.
        level: effort, 1..9.

    Raises:
        LocalProtocolError: ``level`` is out of range.
        ConfigurationError: the package that the format needs is not installed.
    """
    if not 1 <= level <= 9:
        raise LocalProtocolError(f"compression level {level}, expected 1..9")
    if kind is Compression.LZ4:
        # Java's reader (lz4-java) refuses frames whose blocks depend on each other.
        compressed: bytes = _package(*_PACKAGES[kind]).compress(
            body, compression_level=level, block_linked=False
        )
        return compressed
    if kind is Compression.ZSTD:
        zstandard = _package(*_PACKAGES[kind])
        frame: bytes = zstandard.ZstdCompressor(level=level).compress(body)
        return frame
    return deflate(body, level=level)


def decompress(
    body: bytes | memoryview, sys_flag: int, *, bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> bytes:
    """Return a message's body as its producer wrote it.

    Args:
        body: the body as stored.
        sys_flag: of the message; says whether and how the body is compressed.
        bytes_max: the output is limited to this, whatever the input announces.

    Raises:
        RemoteProtocolError: the body is not what the flag says, or exceeds ``bytes_max``.
        ConfigurationError: the package that the format needs is not installed.
    """
    kind = compression_of(sys_flag)
    if kind is None:
        return bytes(body)
    if kind is Compression.LZ4:
        return _unpack_lz4(body, bytes_max)
    if kind is Compression.ZSTD:
        return _unpack_zstd(body, bytes_max)
    return inflate(body, bytes_max=bytes_max)


def deflate(data: bytes | memoryview, *, level: int = LEVEL_DEFAULT) -> bytes:
    """Return a zlib stream (RFC 1950)."""
    return zlib.compress(data, level)


def inflate(data: bytes | memoryview, *, bytes_max: int) -> bytes:
    """Return the contents of a zlib stream; bytes after its end are ignored, as in Java.

    Raises:
        RemoteProtocolError: it is not a complete stream, or contains more than ``bytes_max``.
    """
    stream = zlib.decompressobj()
    try:
        # One byte more than the limit tells a complete result from a truncated one.
        result = stream.decompress(data, bytes_max + 1)
    except zlib.error as error:
        raise _malformed("zlib", data, str(error)) from error
    return _checked("zlib", data, result, stream.eof, bytes_max)


def _unpack_lz4(body: bytes | memoryview, bytes_max: int) -> bytes:
    frame = _package(*_PACKAGES[Compression.LZ4])
    stream = frame.LZ4FrameDecompressor()
    try:
        result: bytes = stream.decompress(body, bytes_max + 1)
    except (RuntimeError, EOFError, ValueError) as error:
        raise _malformed("LZ4", body, str(error)) from error
    return _checked("LZ4", body, result, stream.eof, bytes_max)


def _unpack_zstd(body: bytes | memoryview, bytes_max: int) -> bytes:
    zstandard = _package(*_PACKAGES[Compression.ZSTD])
    try:
        announced = zstandard.frame_content_size(body)
        if announced > bytes_max:
            raise _bomb("Zstandard", body, bytes_max)
        if announced >= 0:
            # One call on a frame that contains its size also detects truncation.
            result: bytes = zstandard.ZstdDecompressor().decompress(body)
            return result
        return _unpack_zstd_stream(zstandard, body, bytes_max)
    except zstandard.ZstdError as error:
        raise _malformed("Zstandard", body, str(error)) from error


def _unpack_zstd_stream(
    zstandard: ModuleType, body: bytes | memoryview, bytes_max: int
) -> bytes:
    stream = zstandard.ZstdDecompressor().decompressobj()
    result = bytearray()
    # A single call cannot be limited. Small steps limit it: a block, of at least 4 B, expands to at
    # most 128 KiB, so a step yields at most 16 MiB.
    for start in range(0, len(body), 512):
        result += stream.decompress(body[start : start + 512])
        if len(result) > bytes_max or stream.eof:
            break
    return _checked("Zstandard", body, bytes(result), stream.eof, bytes_max)


def _checked(
    name: str, data: bytes | memoryview, result: bytes, complete: bool, bytes_max: int
) -> bytes:
    if len(result) > bytes_max:
        raise _bomb(name, data, bytes_max)
    if not complete:
        raise _malformed(name, data, "it ends too early")
    return result


def _bomb(name: str, data: bytes | memoryview, bytes_max: int) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"{name} data of {len(data)} B contains more than {bytes_max} B (bytes_max)"
    )


def _malformed(name: str, data: bytes | memoryview, text: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"{name} data of {len(data)} B cannot be read: {text}")


def _package(module: str, package: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            f"bodies compressed with {package} need the Python package {package!r}, which is "
            "not installed: pip install 'pymq-rocketmq[compression]'"
        ) from error
