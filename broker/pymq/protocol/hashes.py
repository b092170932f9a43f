"""The two checksums RocketMQ uses everywhere."""

try:  # Three times as fast on bodies of 100 B, five times on 1 KiB.
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

__all__ = ["crc31", "crc32", "java_hash"]


def java_hash(text: str) -> int:
    """Return Java's ``String.hashCode``: over UTF-16 code units, in signed 32-bit arithmetic.

    Consume-queue tag codes, index slots and queue selection are defined by it, so it must
    agree with Java to the bit; characters outside the BMP count as two units.
    """
    value = 0
    if text.isascii():
        for unit in text.encode():
            value = (31 * value + unit) & 0xFFFFFFFF
    else:
        raw = text.encode("utf-16-be", "surrogatepass")
        for high, low in zip(raw[::2], raw[1::2], strict=True):
            value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def crc31(data: bytes | memoryview) -> int:
    """Return CRC-32 (IEEE) without its top bit, as Java keeps it in a signed int."""
    return crc32(data) & 0x7FFFFFFF
