"""Compressed bodies: vectors of the Java codecs, limits, and bytes that are none."""

import random
import sys
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymq.errors import ConfigurationError, LocalProtocolError, RemoteProtocolError
from pymq.protocol.compression import (
    Compression,
    compress,
    compression_flags,
    compression_of,
    decompress,
    deflate,
    inflate,
)

# 64 times "x", compressed by the Java client.
VECTORS = {
    Compression.LZ4: "04224d186070730b0000001f7801002750787878787800000000",
    Compression.ZSTD: "28b52ffd00584400001078780100930016010000",
    Compression.ZLIB: "785eaba8a00c0000cf6d1e01",
}


@pytest.mark.parametrize("kind", Compression)
def test_vectors(kind: Compression) -> None:
    flags = compression_flags(kind)
    raw = bytes.fromhex(VECTORS[kind])
    assert decompress(raw, flags) == b"x" * 64
    assert decompress(memoryview(raw), flags) == b"x" * 64
    assert decompress(raw, flags, bytes_max=64) == b"x" * 64
    with pytest.raises(RemoteProtocolError, match="more than 63 B"):
        decompress(raw, flags, bytes_max=63)


def test_zlib_vector_is_what_we_write() -> None:
    assert compress(b"x" * 64, Compression.ZLIB).hex() == VECTORS[Compression.ZLIB]


def test_lz4_blocks_are_independent_as_java_demands() -> None:
    raw = compress(bytes(range(256)) * 1024, Compression.LZ4)
    assert raw[4] & 0x20, f"frame header {raw[:7].hex()}: dependent blocks"


@pytest.mark.parametrize("kind", Compression)
def test_every_truncation_is_refused(kind: Compression) -> None:
    for raw in (bytes.fromhex(VECTORS[kind]), compress(bytes(range(256)) * 8, kind)):
        for size in range(len(raw)):
            with pytest.raises(RemoteProtocolError):
                decompress(raw[:size], compression_flags(kind))


@pytest.mark.parametrize(
    ("sys_flag", "kind"),
    [
        (0x000, None),
        (0x300, None),  # without bit 0 the type means nothing
        (0x001, Compression.ZLIB),  # clients before 4.9.4
        (0x101, Compression.LZ4),
        (0x201, Compression.ZSTD),
        (0x301, Compression.ZLIB),
        (0x30D, Compression.ZLIB),
    ],
)
def test_flags(sys_flag: int, kind: Compression | None) -> None:
    assert compression_of(sys_flag) is kind
    if kind is not None:
        assert compression_of(compression_flags(kind)) is kind


@pytest.mark.parametrize("sys_flag", [0x401, 0x501, 0x701])
def test_unknown_kinds(sys_flag: int) -> None:
    with pytest.raises(RemoteProtocolError, match="names compression"):
        decompress(b"", sys_flag)


def test_plain_bodies_pass() -> None:
    assert decompress(b"abc", 0) == b"abc"
    assert decompress(memoryview(b"abc"), 0x300) == b"abc"


@pytest.mark.parametrize("level", [1, 5, 9])
@pytest.mark.parametrize("kind", Compression)
@given(body=st.binary(max_size=300) | st.binary(min_size=1, max_size=9).map(lambda b: b * 999))
def test_round_trip(kind: Compression, level: int, body: bytes) -> None:
    packed = compress(body, kind, level=level)
    assert decompress(packed, compression_flags(kind)) == body
    assert compress(memoryview(body), kind, level=level) == packed


def test_levels() -> None:
    for level in (0, 10, -1):
        with pytest.raises(LocalProtocolError, match="level"):
            compress(b"", Compression.ZLIB, level=level)


@pytest.mark.parametrize("kind", Compression)
def test_a_small_body_cannot_become_huge(kind: Compression) -> None:
    bomb = compress(bytes(32 << 20), kind)
    with pytest.raises(RemoteProtocolError, match=r"more than 1048576 B \(bytes_max\)"):
        decompress(bomb, compression_flags(kind), bytes_max=1 << 20)


@pytest.mark.parametrize("kind", Compression)
def test_what_exceeds_the_limit_is_never_held(kind: Compression) -> None:
    """The limit bounds the memory, not only the result; 64 MiB stand behind these few bytes."""
    if kind is Compression.ZSTD:
        zstandard = pytest.importorskip("zstandard")
        stream = zstandard.ZstdCompressor(level=1, write_content_size=False).compressobj()
        parts = [stream.compress(bytes(1 << 20)) for _ in range(64)]
        bomb = b"".join([*parts, stream.flush()])
    else:
        bomb = compress(bytes(64 << 20), kind)
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match="more than 1048576 B"):
            decompress(bomb, compression_flags(kind), bytes_max=1 << 20)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 48 << 20


def test_zstandard_that_does_not_tell_its_size() -> None:
    zstandard = pytest.importorskip("zstandard")
    flags = compression_flags(Compression.ZSTD)
    pack = zstandard.ZstdCompressor(write_content_size=False).compress
    body = random.Random(1).randbytes(50_000)  # stays that long, so it takes many steps
    assert decompress(pack(body), flags) == body
    with pytest.raises(RemoteProtocolError, match="more than"):
        decompress(pack(bytes(32 << 20)), flags, bytes_max=1 << 20)


@pytest.mark.parametrize("kind", Compression)
@given(raw=st.binary(max_size=80))
def test_random_bodies_raise_only_our_error(kind: Compression, raw: bytes) -> None:
    for data in (raw, bytes.fromhex(VECTORS[kind])[:6] + raw):
        try:
            decompress(data, compression_flags(kind), bytes_max=1 << 20)
        except RemoteProtocolError:
            pass


@pytest.mark.parametrize("kind", Compression)
def test_damaged_bodies_raise_only_our_error(kind: Compression, seed: int) -> None:
    chance = random.Random(seed)
    original = compress(bytes(chance.choices(range(8), k=400)), kind)
    for _ in range(1_000):
        damaged = bytearray(original)
        damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            decompress(bytes(damaged), compression_flags(kind), bytes_max=1 << 20)
        except RemoteProtocolError:
            pass


@pytest.mark.parametrize("kind", [Compression.LZ4, Compression.ZSTD])
def test_a_missing_package_is_named(kind: Compression, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("lz4", "lz4.frame", "zstandard"):
        monkeypatch.setitem(sys.modules, module, None)
    for call in (
        lambda: compress(b"x", kind),
        lambda: decompress(b"x", compression_flags(kind)),
    ):
        with pytest.raises(ConfigurationError, match=r"pip install 'pymq-rocketmq\[compression\]'"):
            call()


def test_bytes_behind_a_zlib_stream_are_ignored() -> None:
    assert inflate(deflate(b"abc") + b"more", bytes_max=3) == b"abc"
    assert inflate(zlib.compress(b""), bytes_max=0) == b""
