"""A clock that was ahead once: no later store time is older, but what is on the disk is known."""

import logging
import random
import struct
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.stores import (
    TOPIC,
    FakeClock,
    QuickFiles,
    bodies,
    config,
    crashed_copy,
    open_store,
    overwrite,
    put_ok,
    queue_path,
    record,
    record_of_size,
)

from pymq.protocol.record import NewRecord
from pymq.store import Files, MessageStore
from pymq.store.recovery.log_end import find_log_end
from pymq.store.state.checkpoint import SLACK_MS, Checkpoint
from pymq.store.truncation import truncate_log

YEAR_MS = 365 * 86_400_000
SEGMENTS, PER_SEGMENT = 40, 3
SMALL: dict[str, Any] = {"segment_bytes": 1024, "queue_file_bytes": 2000}


def keyed() -> NewRecord:
    new = record_of_size(300)
    new.properties = b"KEYS\x01k"
    new.body = new.body[: -len(new.properties)]
    return new


def crashed(root: Path, *, ahead_ms: int = YEAR_MS) -> Path:
    """Fill a store, a message a minute, most of it flushed; return what a crash of it leaves."""
    clock = FakeClock()
    store = open_store(root / "living", clock, **SMALL)
    for number in range(SEGMENTS * PER_SEGMENT):
        clock.now_ms += 60_000
        if number == 5:
            clock.now_ms += ahead_ms
        put_ok(store, keyed())
        if number == 5:
            clock.now_ms -= ahead_ms
        store.keys.index_step()
        if number < SEGMENTS * PER_SEGMENT - 2:
            store.durability.flush()
            store.durability.flush_queues()
    copy = crashed_copy(root / "living", root / "crashed")
    store.close()
    return copy


def read_count(caplog: pytest.LogCaptureFixture) -> int:
    return caplog.text.count("reading ")


def opened(root: Path, files: Files | None = None) -> MessageStore:
    return open_store(root, FakeClock(), files, **SMALL)


@pytest.mark.parametrize("ahead_ms", [0, YEAR_MS])
def test_an_unclean_start_reads_the_end_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ahead_ms: int
) -> None:
    caplog.set_level(logging.INFO, "pymq.store.recovery.recovery")
    root = crashed(tmp_path, ahead_ms=ahead_ms)
    store = opened(root)
    assert read_count(caplog) <= 2
    assert len(bodies(store)) == SEGMENTS * PER_SEGMENT
    assert store.keys.behind_bytes <= 3 * 1024, "the index is nearly complete, too"
    second = crashed_copy(root, tmp_path / "second")
    store.close()
    caplog.clear()
    store = opened(second)
    assert read_count(caplog) <= 2
    assert len(bodies(store)) == SEGMENTS * PER_SEGMENT
    store.close()


def test_so_does_who_looks_for_its_end(tmp_path: Path) -> None:
    mapped = []

    class Watching(QuickFiles):
        def map_for_reading(self, fd: int, size_bytes: int) -> memoryview:
            mapped.append(fd)
            return super().map_for_reading(fd, size_bytes)

    root = crashed(tmp_path)
    assert find_log_end(config(root, **SMALL), Watching()) == SEGMENTS * 1024 - 1024 + 900
    assert len(mapped) <= 3


def test_what_the_checkpoint_does_not_cover_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Queues that are behind the log count as well."""
    clock = FakeClock()
    store = open_store(tmp_path / "living", clock, **SMALL)
    clock.now_ms += YEAR_MS
    put_ok(store, record(b"first"))
    clock.now_ms -= YEAR_MS
    store.durability.flush()
    store.durability.flush_queues()
    for _ in range(10 * PER_SEGMENT):
        clock.now_ms += 60_000
        put_ok(store, record_of_size(300))
        store.durability.flush()
    root = crashed_copy(tmp_path / "living", tmp_path / "crashed")
    store.close()
    overwrite(queue_path(root) / f"{0:020d}", 20, bytes(10 * 20))  # What a power loss may leave.
    caplog.set_level(logging.INFO, "pymq.store.recovery.recovery")
    store = opened(root)
    assert read_count(caplog) >= 10 and len(bodies(store)) == 1 + 10 * PER_SEGMENT
    store.close()


def as_rocketmq(root: Path, *, log_ms: int, queues_ms: int) -> Checkpoint:
    """Write the numbers as RocketMQ 4.9 does, which knows of the first three; load the result."""
    overwrite(root / "checkpoint", 0, struct.pack(">2q", log_ms, queues_ms))
    return loaded(root)


def loaded(root: Path) -> Checkpoint:
    checkpoint = Checkpoint(Files(), root / "checkpoint")
    checkpoint.load()
    return checkpoint


def test_what_rocketmq_has_written_meanwhile_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its times follow the clock: they fall."""
    root = crashed(tmp_path)
    assert loaded(root).complete_end > 0
    now = FakeClock().now_ms + 120_000
    checkpoint = as_rocketmq(root, log_ms=now + 60_000, queues_ms=now)
    assert checkpoint.complete_end == checkpoint.flushed_end == 0
    assert checkpoint.trusted_ms == now - SLACK_MS, "not the later time of ours"
    caplog.set_level(logging.INFO, "pymq.store.recovery.recovery")
    store = opened(root)
    assert read_count(caplog) >= SEGMENTS - 1
    assert len(bodies(store)) == SEGMENTS * PER_SEGMENT
    store.durability.flush_queues()
    assert loaded(root).complete_end == store.log_end, "from now on it is ours again"
    store.close()


@pytest.mark.parametrize("position", [0, 8, 16, 24, 32])
def test_each_number_of_rocketmq_is_noticed(tmp_path: Path, position: int) -> None:
    root = crashed(tmp_path)
    whole = loaded(root)
    assert whole.complete_end == min(whole.confirmed, whole.queues_end) > 0
    overwrite(root / "checkpoint", position, struct.pack(">q", 1_700_000_000_001))
    assert loaded(root).complete_end == 0
    store = opened(root)
    assert len(bodies(store)) == SEGMENTS * PER_SEGMENT
    store.close()


def test_an_offset_that_only_rocketmq_has_written_promises_nothing(tmp_path: Path) -> None:
    """That is what the slaves have, which need not be on this disk."""
    root = crashed(tmp_path)
    overwrite(root / "checkpoint", 32, struct.pack(">q", 1 << 40) + bytes(32))
    assert loaded(root).flushed_end == 0
    store = opened(root)
    assert len(bodies(store)) == SEGMENTS * PER_SEGMENT
    store.close()


def test_any_torn_checkpoint_promises_no_offset(tmp_path: Path, seed: int) -> None:
    root, dice = crashed(tmp_path), random.Random(seed)
    data = (root / "checkpoint").read_bytes()
    for _ in range(200):
        torn = bytearray(data)
        at = dice.randrange(72)
        torn[at] ^= 1 << dice.randrange(8)
        (root / "checkpoint").write_bytes(torn)
        checkpoint = loaded(root)
        assert checkpoint.complete_end == checkpoint.confirmed == 0, at
    for size in (0, 47, 48, 71):
        (root / "checkpoint").write_bytes(data[:size])
        assert loaded(root).complete_end == 0


def test_a_checkpoint_of_an_older_version_is_read_as_it_was(tmp_path: Path) -> None:
    root = crashed(tmp_path, ahead_ms=0)
    now = loaded(root)
    old = (root / "checkpoint").read_bytes()[:48].ljust(4096, b"\0")
    (root / "checkpoint").write_bytes(old)
    before = loaded(root)
    assert (before.trusted_ms, before.flushed_end) == (now.trusted_ms, now.flushed_end)
    assert before.complete_end == 0
    before.save()
    assert (root / "checkpoint").read_bytes() == old


def test_a_log_that_was_cut_is_complete_up_to_there_at_most(tmp_path: Path) -> None:
    root = crashed(tmp_path)
    truncate_log(config(root, **SMALL), 20 * 1024, files=QuickFiles())
    assert loaded(root).complete_end == 20 * 1024
    store = opened(root)
    assert store.log_end == 20 * 1024 and len(bodies(store, TOPIC)) == 20 * PER_SEGMENT
    store.close()
