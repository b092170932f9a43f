"""Bytes on the disk: the vectors captured from RocketMQ 4.9.8, and the end-of-file rule."""

import stat
import struct
from pathlib import Path

import numpy as np
import pytest
from tests.unit.store.stores import (
    BORN,
    HOST,
    TOPIC,
    FakeClock,
    batch,
    bodies,
    log_files,
    open_store,
    put_ok,
    queue_bytes,
    record,
    record_of_size,
    seeded,
)

from pymq.errors import ConfigurationError
from pymq.protocol.hashes import java_hash
from pymq.store import PutStatus, StoreConfig
from pymq.store.files import Files
from pymq.store.log.log_scan import Stop, follow_sizes
from pymq.store.state.checkpoint import Checkpoint

VECTOR_TIME = 0x1A1F982784D


def test_a_record_is_stored_as_rocketmq_stores_it(tmp_path: Path) -> None:
    new = record(b"Hello 0", flag=7)
    new.properties = (
        b"KEYS\x01k0 dup\x02UNIQ_KEY\x01UNIQ0000000000000000000000000010\x02TAGS\x01TagA"
    )
    with_store = open_store(tmp_path, FakeClock(VECTOR_TIME))
    put_ok(with_store, new)
    with_store.close()
    expected = bytes.fromhex(
        "000000aa daa320a7 6f55306d 00000000 00000007 0000000000000000 0000000000000000 00000000"
        "0000018bcfe56800 0a010203000015b3 000001a1f982784d 7f00000100007ca7 00000000"
        "0000000000000000 00000007 48656c6c6f2030 09 546f70696354657374 003f"
    )
    data = log_files(tmp_path)[0].read_bytes()
    assert data[:170] == expected + new.properties
    assert not any(data[170:]) and len(data) == 4096


def test_consume_queue_vector(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_ok(
        store,
        record_of_size(170, tag="TagA"),
        record_of_size(170, queue_id=1),
        record_of_size(170, tag="TagA"),
        record_of_size(221, queue_id=17),
        record_of_size(340, tag="TagA", sys_flag=0x4),
        record_of_size(170, tag="TagA"),
    )
    assert store.queue_bounds(TOPIC, 0) == (0, 3)
    store.close()
    assert queue_bytes(tmp_path, 4) == bytes.fromhex(
        "0000000000000000 000000aa 000000000027a807"
        "0000000000000154 000000aa 000000000027a807"
        "000000000000042f 000000aa 000000000027a807" + "00" * 20
    )


def test_negative_tag_hash_is_sign_extended(tmp_path: Path) -> None:
    tag = "a-tag-with-a-negative-hash"
    assert java_hash(tag) < 0
    store = open_store(tmp_path)
    put_ok(store, record(tag=tag))
    store.close()
    assert queue_bytes(tmp_path, 1)[12:] == struct.pack(">q", java_hash(tag))


def test_prepared_and_rolled_back_records_carry_queue_offset_0(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    results = put_ok(
        store,
        record(),
        record(sys_flag=0x4),
        record(sys_flag=0xC),
        record(sys_flag=0x8),
    )
    assert [result.queue_offset for result in results] == [0, 0, 0, 1]
    assert store.record_at(results[2].physical_offset).queue_offset == 0
    store.close()


def test_blank_record_vector(tmp_path: Path) -> None:
    store = open_store(tmp_path, segment_bytes=1024)
    put_ok(store, record_of_size(901), record_of_size(170))
    store.close()
    first, second = log_files(tmp_path)
    assert first.read_bytes()[901:] == bytes.fromhex("0000007bcbd43194") + bytes(1024 - 909)
    assert second.name == "00000000000000001024"
    assert second.read_bytes()[:8] == bytes.fromhex("000000aadaa320a7")


@pytest.mark.parametrize("left", range(160))
def test_a_record_leaves_eight_bytes_or_opens_the_next_file(tmp_path: Path, left: int) -> None:
    size = 120
    store = open_store(tmp_path, segment_bytes=1024)
    first, second = 400, 1024 - 400 - 8 - left
    put_ok(store, record_of_size(first), record_of_size(second))
    (result,) = put_ok(store, record_of_size(size))
    assert result.physical_offset == (1024 if left < size else 1024 - 8 - left)
    assert result.physical_end == result.physical_offset + size
    put_ok(store, record_of_size(200))
    assert len(bodies(store)) == 4
    store.close()
    store = open_store(tmp_path, segment_bytes=1024)
    assert len(bodies(store)) == 4
    store.close()
    if left < size:
        rest = log_files(tmp_path)[0].read_bytes()[first + second :]
        assert rest == struct.pack(">II", left + 8, 0xCBD43194) + bytes(left)


def test_a_batch_moves_as_a_whole(tmp_path: Path) -> None:
    store = open_store(tmp_path, segment_bytes=1024)
    put_ok(store, record_of_size(600))
    (result,) = put_ok(store, batch([b"x" * 50] * 3))
    assert (result.physical_offset, result.queue_offset, result.count) == (1024, 1, 3)
    assert result.physical_end == store.log_end == 1024 + 3 * (91 + 9 + 50)
    assert bodies(store)[1:] == [b"x" * 50] * 3
    store.close()


def test_a_batch_larger_than_a_file_is_illegal(tmp_path: Path) -> None:
    store = open_store(tmp_path, segment_bytes=1024)
    results = store.put([record(), batch([b"x" * 300] * 3), record()], HOST)
    assert [result.status for result in results] == [
        PutStatus.OK,
        PutStatus.MESSAGE_ILLEGAL,
        PutStatus.OK,
    ]
    assert "must fit into one commit-log file" in str(results[1].remark)
    assert [result.queue_offset for result in results] == [0, -1, 1]
    store.close()


def test_records_with_ipv6_hosts(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    host = bytes(15) + b"\x01" + struct.pack(">i", 10911)
    new = record(b"six")
    new.born_host = host
    (result,) = store.put([new], host)
    assert result.status is PutStatus.OK
    found = store.record_at(0)
    assert (found.born_host, found.store_host, found.sys_flag) == (host, host, 0x30)
    assert store.message_time(TOPIC, 0, 0) == result.store_timestamp
    (result,) = store.put([record(sys_flag=0x10)], HOST)
    assert result.status is PutStatus.MESSAGE_ILLEGAL
    store.close()


def test_checkpoint_vector(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(
        bytes.fromhex("000001a1f9827906 000001a1f9827906 000001a1f9827864").ljust(4096, b"\0")
    )
    checkpoint = Checkpoint(Files(), path)
    checkpoint.load()
    assert checkpoint.trusted_ms == 0x1A1F9827906 - 3000
    before = path.read_bytes()
    checkpoint.save()
    assert path.read_bytes() == before


def test_small_files_of_an_open_and_of_a_closed_store(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = open_store(root, FakeClock(5_000_000))
    assert (root / "lock").read_bytes() == b"lock"
    assert (root / "abort").read_bytes().isdigit()
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    put_ok(store, record())
    store.close()
    assert not (root / "abort").exists()
    values = struct.unpack_from(">5q", (root / "checkpoint").read_bytes())
    assert values == (5_000_000, 5_000_000, 5_000_000, 0, store.log_end)
    assert (root / "checkpoint").stat().st_size == 4096
    store.close()


def test_queue_files_have_their_nominal_length_and_take_no_space(tmp_path: Path) -> None:
    store = open_store(tmp_path, queue_file_bytes=6_000_000)
    put_ok(store, record())
    path = tmp_path / "consumequeue" / TOPIC / "0" / ("0" * 20)
    assert path.stat().st_size == 6_000_000
    assert path.stat().st_blocks * 512 < 100_000
    store.close()


def test_queue_entries_cross_files(tmp_path: Path) -> None:
    store = open_store(tmp_path, segment_bytes=1 << 16, queue_file_bytes=100)
    put_ok(store, batch([b"%d" % number for number in range(23)]))
    names = sorted(path.name for path in (tmp_path / "consumequeue" / TOPIC / "0").iterdir())
    assert names == [f"{base:020d}" for base in range(0, 500, 100)]
    assert bodies(store) == [b"%d" % number for number in range(23)]
    store.close()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("segment_bytes", 0),
        ("segment_bytes", 1 << 31),
        ("queue_file_bytes", 0),
        ("message_bytes_max", -1),
        ("flush_interval_ms", 0),
        ("flush_mode", "sync"),
        ("commit_log_paths", (Path("/disk1/log"), Path("/disk1/log"))),
        ("commit_log_paths", (Path("/disk1/log,/disk2/log"),)),
    ],
)
def test_configuration_errors_name_the_field(tmp_path: Path, field: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=field):
        StoreConfig(root_path=tmp_path, **{field: value})  # type: ignore[arg-type]


def test_queue_file_size_is_rounded_up(tmp_path: Path) -> None:
    assert StoreConfig(root_path=tmp_path, queue_file_bytes=101).queue_file_bytes == 120
    assert len(BORN) == 8


def test_records_of_one_size_and_of_many_are_followed_alike(seed: int) -> None:
    dice = seeded(seed)
    for _ in range(200):
        sizes = [dice.choice([91, 100, 100, 100, 300]) for _ in range(dice.randrange(1, 9))]
        heads = [struct.pack(">II", size, 0xDAA320A7).ljust(size, b"x") for size in sizes]
        tail = dice.choice([b"", bytes(20), struct.pack(">II", 50, 0xCBD43194), heads[0][:60]])
        view = memoryview(b"front" + b"".join(heads) + tail)
        starts, end, stop = follow_sizes(view, 5, len(view))
        assert starts.tolist() == [0, *np.cumsum(sizes)][:-1]
        assert end == 5 + sum(sizes)
        expected = {0: Stop.END, 20: Stop.END, 8: Stop.BLANK, 60: Stop.BAD}[len(tail)]
        assert stop is expected
