"""What is kept after clean stops, crashes and damage."""

import logging
import shutil
import struct
from pathlib import Path

import pytest
from tests.unit.store.recovery.recovered import assert_whole, reopen
from tests.unit.store.stores import (
    TOPIC,
    FakeClock,
    QuickFiles,
    batch,
    bodies,
    config,
    crashed_copy,
    log_files,
    open_store,
    overwrite,
    put_ok,
    queue_path,
    record,
    record_of_size,
)

from pymq.errors import CorruptRecord, StoreClosed
from pymq.protocol.record import encode_blank
from pymq.store import Files, FlushMode, MessageStore
from pymq.store.state.checkpoint import SLACK_MS, Checkpoint


def test_after_a_crash_everything_written_is_there(filled: Path) -> None:
    for _ in range(3):
        store = reopen(filled)
        assert_whole(store)
        assert store.durability.unflushed_bytes == 0
        store.close()
    assert not (filled / "recovered").exists()


def test_crash_during_every_stage_of_the_abort_marker(filled: Path, tmp_path: Path) -> None:
    (filled / "abort").unlink()  # As if the stop had been clean, but nothing else says so.
    store = reopen(filled)
    assert_whole(store)
    second = crashed_copy(filled, tmp_path / "second")
    store.close()
    store = reopen(second)
    assert_whole(store)
    store.close()


@pytest.mark.parametrize("clean", [False, True])
def test_missing_queues_are_rebuilt(filled: Path, clean: bool) -> None:
    if clean:
        reopen(filled).close()
    before = _queue_files(filled)
    shutil.rmtree(queue_path(filled, TOPIC, 1))
    store = reopen(filled)
    assert_whole(store)
    store.close()
    assert _queue_files(filled) == before
    shutil.rmtree(filled / "consumequeue")
    store = reopen(filled)
    assert_whole(store)
    store.close()
    assert _queue_files(filled) == before


def _queue_files(root: Path) -> dict[str, bytes]:
    files = (root / "consumequeue").rglob("0*")
    return {str(path): path.read_bytes() for path in files if path.is_file()}


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("keep", [0, 1, 5, 9, 10, 13])
def test_short_queues_are_completed(filled: Path, clean: bool, keep: int) -> None:
    if clean:
        reopen(filled).close()
    before = _queue_files(filled)
    for path in sorted(queue_path(filled).iterdir()):
        base = int(path.name)
        if base >= keep * 20:
            path.unlink()
        elif base + 200 > keep * 20:
            overwrite(path, keep * 20 - base, bytes(200 - (keep * 20 - base)))
    store = reopen(filled)
    assert_whole(store)
    store.close()
    assert _queue_files(filled) == before


@pytest.mark.parametrize("position", [0, 1, 7, 8, 11, 12, 19, 105, 219, 399])
def test_damaged_queue_entries_are_repaired_after_a_crash(filled: Path, position: int) -> None:
    before = _queue_files(filled)
    path = sorted(queue_path(filled).iterdir())[position // 200]
    data = path.read_bytes()
    overwrite(path, position % 200, bytes((data[position % 200] ^ 0x55,)))
    store = reopen(filled)
    assert_whole(store)
    store.close()
    assert _queue_files(filled) == before


def test_a_missing_queue_file_is_rebuilt(filled: Path) -> None:
    sorted(queue_path(filled).iterdir())[0].unlink()
    store = reopen(filled)
    assert_whole(store)
    store.close()


def test_a_prepared_segment_is_dropped_after_a_crash(tmp_path: Path) -> None:
    live = tmp_path / "live"
    store = open_store(live, segment_bytes=1024)
    put_ok(store, record(b"one"))
    store.ahead.prepare_segment()
    root = crashed_copy(live, tmp_path / "crashed")
    store.close()
    assert len(log_files(root)) == 2
    store = open_store(root, segment_bytes=1024)
    assert bodies(store) == [b"one"] and len(log_files(root)) == 1
    put_ok(store, record_of_size(900), record(b"three"))
    assert len(log_files(root)) == 2
    store.close()


def test_crash_between_the_blank_record_and_the_next(tmp_path: Path) -> None:
    live = tmp_path / "live"
    store = open_store(live, segment_bytes=1024)
    put_ok(store, record_of_size(900))
    store.ahead.prepare_segment()
    root = crashed_copy(live, tmp_path / "crashed")
    store.close()
    overwrite(log_files(root)[0], 900, encode_blank(124))
    store = open_store(root, segment_bytes=1024)
    assert store.log_end == 1024 and len(log_files(root)) == 2
    (result,) = put_ok(store, record(b"two"))
    assert result.physical_offset == 1024
    store.close()
    log_files(root)[1].unlink()  # And with no next file at all: it is made.
    shutil.rmtree(root / "consumequeue")
    (root / "queues.json").unlink()
    (root / "checkpoint").unlink()  # which knows that the second message was safe
    store = open_store(root, segment_bytes=1024)
    assert store.log_end == 1024
    (result,) = put_ok(store, record(b"two"))
    assert result.physical_offset == 1024 and len(bodies(store)) == 2
    store.close()


@pytest.mark.parametrize(
    "name", ["commitlog/00000000000000004096", f"consumequeue/{TOPIC}/0/" + "0" * 20]
)
def test_a_file_whose_creation_was_cut_short(tmp_path: Path, name: str) -> None:
    live = tmp_path / "live"
    store = open_store(live)
    put_ok(store, record(b"one", queue_id=1))
    root = crashed_copy(live, tmp_path / "crashed")
    store.close()
    (root / name).parent.mkdir(exist_ok=True, parents=True)
    (root / name).touch()
    store = open_store(root)
    put_ok(store, record(b"two"), record_of_size(4000))
    assert bodies(store, TOPIC, 1) == [b"one"] and bodies(store)[0] == b"two"
    store.close()


def test_queue_whose_older_records_are_gone_begins_with_blank_entries(tmp_path: Path) -> None:
    root = tmp_path / "store"
    settings = {"segment_bytes": 1024}
    store = open_store(root, **settings)
    put_ok(store, *(record_of_size(200, queue_id=number % 2) for number in range(30)))
    store.close()
    for path in log_files(root)[:4]:
        path.unlink()
    shutil.rmtree(root / "consumequeue")
    (root / "queues.json").unlink()
    store = open_store(root, **settings)
    low, end = store.queue_bounds(TOPIC, 0)
    assert 0 < low < end == 15
    assert len(bodies(store)) == 15 - low
    (first,) = [
        path for path in queue_path(root).iterdir() if int(path.name) == low * 20 // 200 * 200
    ]
    blanks = struct.pack(">qiq", 0, 0x7FFFFFFF, 0) * (low % 10)
    assert first.read_bytes().startswith(blanks)
    store.close()
    store = open_store(root, **settings)
    assert store.queue_bounds(TOPIC, 0) == (low, 15)
    (result,) = put_ok(store, record())
    assert result.queue_offset == 15
    store.close()


def test_min_offset_follows_the_first_segment(tmp_path: Path) -> None:
    root = tmp_path / "store"
    settings = {"segment_bytes": 1024}
    store = open_store(root, **settings)
    put_ok(store, record(b"old", queue_id=1))
    put_ok(store, *(record_of_size(200) for number in range(30)))
    store.close()
    for path in log_files(root)[:2]:
        path.unlink()
    store = open_store(root, **settings)
    low, end = store.queue_bounds(TOPIC, 0)
    assert store.record_at(2048).queue_offset == low and end == 30
    assert store.queue_bounds(TOPIC, 1) == (1, 1)
    store.close()


def test_a_topic_that_was_deleted_and_made_again_keeps_its_second_life(tmp_path: Path) -> None:
    root = tmp_path / "live"
    store = open_store(root)
    put_ok(store, *(record(b"old %d" % number) for number in range(5)))
    store.retention.delete_queues(TOPIC)
    put_ok(store, record(b"new 0"), record(b"new 1"))
    copy = crashed_copy(root, tmp_path / "crashed")
    store.close()
    store = open_store(copy)
    assert bodies(store) == [b"new 0", b"new 1"]
    store.close()
    shutil.rmtree(copy / "consumequeue")
    store = open_store(copy)
    assert bodies(store) == [b"new 0", b"new 1"]
    store.close()


def test_sync_mode_shows_after_a_crash_what_it_has_made_durable(tmp_path: Path) -> None:
    live = tmp_path / "live"
    store = open_store(live, flush_mode=FlushMode.SYNC)
    put_ok(store, record(b"flushed"))
    store.durability.flush()
    put_ok(store, batch([b"in the page cache"] * 2))
    root = crashed_copy(live, tmp_path / "crashed")
    store.close()
    store = open_store(root, flush_mode=FlushMode.SYNC)
    assert bodies(store) == [b"flushed", *[b"in the page cache"] * 2]
    store.close()


def test_a_clean_open_reads_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(tmp_path / "s")
    put_ok(store, *(record(b"x", queue_id=number) for number in range(20)))
    store.close()
    with caplog.at_level(logging.INFO, "pymq.store"):
        open_store(tmp_path / "s").close()
    assert not caplog.records


@pytest.mark.parametrize("indexed", [False, True], ids=["at once", "once indexed"])
def test_one_crash_soon_after_another_reads_only_what_is_new(tmp_path: Path, indexed: bool) -> None:
    clock = FakeClock()
    first = open_store(tmp_path / "first", clock, segment_bytes=1024)
    for number in range(20):
        put_ok(first, record(b"old %d" % number))
        clock.now_ms += SLACK_MS // 10
    second = reopen(crashed_copy(tmp_path / "first", tmp_path / "second"), clock=clock)
    first.close()
    assert not second.durability.queue_flush_due
    if indexed:
        while second.keys.index_step():
            assert second.durability.queue_flush_due == (second.keys.behind_bytes == 0)
        second.durability.flush_queues()
        assert not second.durability.queue_flush_due
    for number in range(20):
        put_ok(second, record(b"new %d" % number))
    root = crashed_copy(tmp_path / "second", tmp_path / "third")
    second.close()
    overwrite(log_files(root)[0], 4, b"not a record")  # nobody looks
    third = reopen(root, clock=clock)
    assert third.queue_bounds(TOPIC, 0) == (0, 40)
    third.close()


@pytest.mark.parametrize(
    ("level", "delay_ms"),
    [
        *((b"1", 1000), (b"18", 7_200_000), (b"99", 7_200_000), (b"0", 1000), (b"2x", None)),
        pytest.param(b"9" * 5000, None, id="digits"),
    ],
)
def test_delayed_messages_have_their_delivery_time_in_their_queue(
    tmp_path: Path, level: bytes, delay_ms: int | None
) -> None:
    """It is counted from the store time, which whoever hands in the record cannot know."""
    root = tmp_path / "store"
    store = open_store(root, segment_bytes=8192)
    delayed = record(b"x", topic="SCHEDULE_TOPIC_XXXX", queue_id=17, tag="TagA")
    delayed.properties = b"DELAY\x01%b\x02TAGS\x01TagA\x02REAL_QID\x011" % level
    (result,) = put_ok(store, delayed)
    store.close()
    code = delayed.tag_code if delay_ms is None else result.store_timestamp + delay_ms
    (path,) = queue_path(root, "SCHEDULE_TOPIC_XXXX", 17).iterdir()
    assert path.read_bytes()[12:20] == struct.pack(">q", code)
    shutil.rmtree(root / "consumequeue")
    open_store(root, segment_bytes=8192).close()
    assert path.read_bytes()[12:20] == struct.pack(">q", code)


def test_damaged_small_files_are_made_again(filled: Path) -> None:
    (filled / "checkpoint").write_bytes(b"short")
    (filled / "queues.json").write_bytes(b"{]")
    store = reopen(filled)
    assert_whole(store)
    store.close()
    assert (filled / "checkpoint").stat().st_size == 4096


def test_a_cancelled_recovery_loses_nothing(filled: Path) -> None:
    answers = iter([False, True])
    with pytest.raises(StoreClosed, match="nothing is lost"):
        MessageStore.open(
            config(filled, segment_bytes=1024),
            FakeClock(),
            files=QuickFiles(),
            is_cancelled=lambda: next(answers),
        )
    store = reopen(filled)
    assert_whole(store)
    store.close()


def test_a_checkpoint_that_another_broker_left_as_it_was_vouches_for_nothing(
    tmp_path: Path,
) -> None:
    """RocketMQ 4.9 cuts and adds without a word about our number."""
    clock, root = FakeClock(), tmp_path / "store"
    store = open_store(root, clock)
    put_ok(store, record(b"first"), record(b"second"))
    store.close()
    checkpoint = Checkpoint(Files(), root / "checkpoint")
    checkpoint.load()
    checkpoint.confirmed += 1000
    checkpoint.save()
    (root / "abort").touch()
    (root / "queues.json").unlink()
    with pytest.raises(CorruptRecord, match="was safe"):
        open_store(root, clock)
    checkpoint.log_timestamp -= 1  # older than the last record
    checkpoint.save()
    store = open_store(root, clock)
    assert bodies(store) == [b"first", b"second"]
    store.close()


def test_a_clock_that_stands_still_makes_nothing_safe(tmp_path: Path) -> None:
    """Records after the last flush have the checkpoint's time when the clock was set back."""
    clock = FakeClock()
    live = tmp_path / "live"
    store = open_store(live, clock)
    put_ok(store, record(b"first"), record(b"safe"))
    store.durability.flush()
    for number in range(3):
        put_ok(store, record(b"unsafe %d" % number))
    torn = crashed_copy(live, tmp_path / "torn")
    damaged = crashed_copy(live, tmp_path / "damaged")
    store.close()
    path = log_files(torn)[0]
    overwrite(path, path.read_bytes().index(b"unsafe 1"), b"X")
    store = open_store(torn, clock)
    assert bodies(store) == [b"first", b"safe", b"unsafe 0"]
    store.close()
    path = log_files(damaged)[0]
    overwrite(path, path.read_bytes().index(b"first"), b"X")
    with pytest.raises(CorruptRecord, match="position 0 "):
        open_store(damaged, clock)


@pytest.mark.parametrize("again", [0, 2])
def test_deleted_queues_that_a_power_loss_brings_back_are_dropped(
    tmp_path: Path, again: int
) -> None:
    live = tmp_path / "live"
    store = open_store(live)
    put_ok(store, *(record(b"old %d" % number) for number in range(5)))
    before = crashed_copy(queue_path(live), tmp_path / "before")
    store.retention.delete_queues(TOPIC)
    put_ok(store, *(record(b"new %d" % number) for number in range(again)))
    root = crashed_copy(live, tmp_path / "crashed")
    store.close()
    shutil.rmtree(root / "consumequeue")
    shutil.copytree(before, queue_path(root))
    store = open_store(root)
    assert bodies(store) == [b"new 0", b"new 1"][:again]
    (result,) = put_ok(store, record(b"next"))
    assert result.queue_offset == again
    store.close()


def test_messages_where_a_deleted_topics_were_cut_off_are_not_taken_for_those(
    tmp_path: Path,
) -> None:
    """The deletion is durable at once, the log's end is not: after a power loss it is reused."""
    live = tmp_path / "live"
    store = open_store(live)
    put_ok(store, *(record(b"old %d" % number) for number in range(5)))
    store.retention.delete_queues(TOPIC)
    root = crashed_copy(live, tmp_path / "lost power")
    store.close()
    overwrite(log_files(root)[0], 0, bytes(4096))
    store = open_store(root)
    put_ok(store, record(b"new 0"), record(b"new 1"))
    crashed = crashed_copy(root, tmp_path / "crashed")
    store.close()
    shutil.rmtree(crashed / "consumequeue")
    store = open_store(crashed)
    assert bodies(store) == [b"new 0", b"new 1"]
    store.close()


@pytest.mark.parametrize("kept", [1, 3])
def test_a_queue_that_lost_its_front_files_begins_from_scratch(tmp_path: Path, kept: int) -> None:
    """What is left of it may point behind the end of the log: nothing of it is trusted."""
    store = open_store(tmp_path / "store", queue_file_bytes=20)
    results = put_ok(store, *(record(b"%d" % number) for number in range(5)))
    root = crashed_copy(tmp_path / "store", tmp_path / "copy")
    store.close()
    for path in sorted(queue_path(root).iterdir())[:2]:
        path.unlink()
    (log,) = log_files(root)
    end = results[kept].physical_offset
    overwrite(log, end, bytes(log.stat().st_size - end))
    store = open_store(root, queue_file_bytes=20)
    assert store.queue_bounds(TOPIC, 0) == (0, kept)
    assert bodies(store) == [b"%d" % number for number in range(kept)]
    store.close()
    assert len(list(queue_path(root).iterdir())) == kept
