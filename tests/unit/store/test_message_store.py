"""MessageStore: put, read, flush, times, deletion, bounds."""

import gc
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests.unit.store.stores import (
    HOST,
    TOPIC,
    FakeClock,
    batch,
    bodies,
    log_files,
    open_paths,
    open_store,
    put_ok,
    queue_path,
    record,
    record_of_size,
)

from pymq.errors import (
    CorruptRecord,
    OffsetOutOfRange,
    StoreClosed,
    StoreLocked,
    StoreMismatch,
)
from pymq.protocol.hashes import java_hash
from pymq.protocol.record import decode_record, decode_records
from pymq.store import Arrival, FlushMode, PutStatus, ReadStatus, Selection


def test_results_and_bounds(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    results = put_ok(store, record(b"a"), record(b"b", queue_id=1), batch([b"c", b"d"]))
    assert [(r.queue_offset, r.count) for r in results] == [(0, 1), (0, 1), (1, 2)]
    assert results[-1].physical_end == store.log_end
    assert store.queue_bounds(TOPIC, 0) == (0, 3)
    assert store.queue_bounds(TOPIC, 1) == (0, 1)
    assert store.queue_bounds(TOPIC, 2) == (0, 0)
    assert store.queues() == [(TOPIC, 0), (TOPIC, 1)]
    assert bodies(store) == [b"a", b"c", b"d"]
    store.close()


def test_an_illegal_entry_does_not_harm_its_neighbours(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = open_store(root, message_bytes_max=1000, segment_bytes=1 << 17)
    long_properties = record()
    long_properties.properties = b"x" * 32768
    short_host = record()
    short_host.born_host = b"1234"
    results = store.put(
        [
            record(b"first"),
            record(1001),
            long_properties,
            record(topic="../escape"),
            record(topic="x" * 128),
            record(topic=""),
            record(queue_id=-1),
            record(flag=1 << 40),
            short_host,
            record(b"last"),
        ],
        HOST,
    )
    illegal = PutStatus.MESSAGE_ILLEGAL
    assert [result.status for result in results] == [
        PutStatus.OK,
        illegal,
        PutStatus.PROPERTIES_SIZE_EXCEEDED,
        *[illegal] * 6,
        PutStatus.OK,
    ]
    assert all(result.remark for result in results[1:-1])
    assert "1001" in str(results[1].remark) and "message_bytes_max" in str(results[1].remark)
    assert [one.queue_offset for one in (results[0], results[-1])] == [0, 1]
    assert bodies(store) == [b"first", b"last"]
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    store.close()


def test_a_bug_in_the_caller_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with pytest.raises(TypeError):
        store.put([record(b"a"), record(None)], HOST)  # type: ignore[arg-type]
    put_ok(store, record(b"b"))
    assert bodies(store) == [b"b"]
    store.close()


@pytest.mark.parametrize(
    ("offset", "status", "following"),
    [
        (-1, ReadStatus.OFFSET_TOO_SMALL, 0),
        (5, ReadStatus.OFFSET_OVERFLOW_ONE, 5),
        (6, ReadStatus.OFFSET_OVERFLOW_BADLY, 5),
        (4, ReadStatus.FOUND, 5),
    ],
)
def test_read_outside_the_queue(
    tmp_path: Path, offset: int, status: ReadStatus, following: int
) -> None:
    store = open_store(tmp_path)
    put_ok(store, batch([b"x"] * 5))
    result = store.read(TOPIC, 0, offset, count_max=32, bytes_max=1000)
    assert (result.status, result.next_queue_offset) == (status, following)
    assert (result.queue_first, result.queue_end) == (0, 5)
    store.close()


def test_read_of_no_queue_and_of_an_empty_one(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    result = store.read(TOPIC, 0, 9, count_max=1, bytes_max=1)
    assert (result.status, result.next_queue_offset) == (ReadStatus.NO_MATCHED_LOGIC_QUEUE, 0)
    put_ok(store, record(sys_flag=0x4))
    result = store.read(TOPIC, 0, 9, count_max=1, bytes_max=1)
    assert (result.status, result.next_queue_offset) == (ReadStatus.NO_MESSAGE_IN_QUEUE, 0)
    store.close()


def test_read_limits(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_ok(store, *(record_of_size(200) for _ in range(10)))
    read = lambda count, size: store.read(TOPIC, 0, 2, count_max=count, bytes_max=size)  # noqa: E731
    assert read(3, 10_000).count == 3
    assert read(100, 1).count == 1
    assert read(100, 599).count == 2
    assert read(100, 600).count == 3
    assert read(100, 10_000).count == 8
    result = read(100, 10_000)
    assert len(result.buffers) == 1 and len(result.buffers[0]) == 1600
    store.close()


def test_records_of_other_queues_split_the_buffers(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_ok(store, record(), record(), record(queue_id=1), record(), record(queue_id=1), record())
    result = store.read(TOPIC, 0, 0, count_max=32, bytes_max=1 << 20)
    size = 91 + 9 + 4
    assert [len(buffer) for buffer in result.buffers] == [2 * size, size, size]
    store.close()


def _reference_read(
    entries: list[tuple[int, int]], wanted: set[int], count_max: int, bytes_max: int, scan: int
) -> tuple[list[int], int]:
    """RocketMQ's loop over (size, tag code): indexes found, entries consumed."""
    found: list[int] = []
    total = consumed = 0
    for index, (size, tag) in enumerate(entries[: max(scan, count_max)]):
        if found and (total + size > bytes_max or len(found) >= count_max):
            break
        consumed += 1
        if tag in wanted:
            found.append(index)
            total += size
    return found, consumed


@pytest.mark.parametrize("seed", range(20))
def test_filtered_reads_stop_where_rocketmqs_loop_stops(tmp_path: Path, seed: int) -> None:
    from tests.unit.store.stores import seeded

    dice = seeded(seed)
    store = open_store(tmp_path, segment_bytes=1 << 16)
    tags = ["A", "B", "C", "D"]
    entries = []
    for _ in range(200):
        tag = dice.choice(tags)
        new = record_of_size(dice.choice([110, 150, 400]), tag=tag)
        put_ok(store, new)
        entries.append((91 + 9 + len(new.properties) + len(new.body), java_hash(tag)))
    for _ in range(50):
        chosen = {java_hash(tag) for tag in dice.sample(tags, dice.randint(0, 3))} | {77}
        offset = dice.randrange(200)
        limits = (
            dice.randint(1, 40),
            dice.choice([1, 500, 2000, 100_000]),
            dice.choice([1, 20, 800]),
        )
        found, consumed = _reference_read(entries[offset:], chosen, *limits)
        result = store.read(
            TOPIC,
            0,
            offset,
            count_max=limits[0],
            bytes_max=limits[1],
            selection=Selection(np.array(sorted(chosen), np.int64)),
            scan_max=limits[2],
        )
        got = [one.queue_offset for buffer in result.buffers for one in decode_records(buffer)]
        assert got == [offset + index for index in found]
        assert result.next_queue_offset == offset + consumed
        assert result.count == len(found)
        expected = ReadStatus.FOUND if found else ReadStatus.NO_MATCHED_MESSAGE
        assert result.status is expected
    store.close()


def test_async_records_are_visible_at_once_sync_ones_after_their_flush(tmp_path: Path) -> None:
    seen: list[Arrival] = []
    store = open_store(tmp_path, flush_mode=FlushMode.SYNC)
    store.dispatch.listener = seen.extend
    put_ok(store, record(tag="TagA"))
    job = store.durability.begin_flush()
    put_ok(store, record(), record(queue_id=1))
    assert store.queue_bounds(TOPIC, 0) == (0, 0) and not seen
    job.run()
    assert not seen
    store.durability.finish_flush(job)
    assert store.queue_bounds(TOPIC, 0) == (0, 1)
    assert store.queue_bounds(TOPIC, 1) == (0, 0)
    (one,) = seen
    assert (one.topic, one.queue_id, one.queue_first, one.queue_end) == (TOPIC, 0, 0, 1)
    assert seen[0].tag_codes.tolist() == [java_hash("TagA")]
    assert store.durability.unflushed_bytes > 0
    put_ok(store, record(), record(queue_id=1))
    store.durability.flush()
    found = [(one.queue_id, one.queue_first, one.queue_end) for one in seen[1:]]
    assert found == [(0, 1, 3), (1, 0, 2)]
    assert store.durability.unflushed_bytes == 0
    store.close()


def test_close_flushes_and_reopen_finds_everything(tmp_path: Path) -> None:
    for mode in FlushMode:
        root = tmp_path / mode.value
        store = open_store(root, flush_mode=mode)
        put_ok(store, *(record(b"%d" % number) for number in range(100)))
        store.close()
        store = open_store(root, flush_mode=mode)
        assert bodies(store) == [b"%d" % number for number in range(100)]
        (result,) = put_ok(store, record(b"more"))
        assert result.queue_offset == 100
        store.close()
        with pytest.raises(StoreClosed):
            store.put([record()], HOST)


def test_store_time_never_goes_back(tmp_path: Path) -> None:
    clock = FakeClock(1_000_000)
    store = open_store(tmp_path, clock)
    put_ok(store, record())
    clock.now_ms = 900_000
    (result,) = put_ok(store, record())
    assert result.store_timestamp == 1_000_000
    store.close()
    store = open_store(tmp_path, clock)
    (result,) = put_ok(store, record())
    assert result.store_timestamp == 1_000_000
    store.close()


def test_offset_by_time(tmp_path: Path) -> None:
    clock = FakeClock()
    store = open_store(tmp_path, clock)
    assert store.earliest_time is None
    for now in (100, 200, 200, 200, 300):
        clock.now_ms = now
        put_ok(store, record())
    by_time = store.offset_by_time
    assert [by_time(TOPIC, 0, at) for at in (0, 100, 150, 200, 250, 300, 301)] == [
        0, 0, 1, 1, 4, 4, 5,
    ]  # fmt: skip
    assert [by_time(TOPIC, 0, at, upper=True) for at in (0, 100, 150, 200, 250, 300, 301)] == [
        0, 0, 0, 3, 3, 4, 4,
    ]  # fmt: skip
    assert by_time(TOPIC, 9, 100) == 0
    assert store.earliest_time == 100
    assert store.message_time(TOPIC, 0, 4) == 300
    assert store.message_time(TOPIC, 0, 5) is None
    store.close()


def test_record_at(tmp_path: Path) -> None:
    store = open_store(tmp_path, segment_bytes=1024)
    results = put_ok(store, *(record(b"%d" % number) for number in range(20)))
    assert store.record_at(results[13].physical_offset).body == b"13"
    with pytest.raises(CorruptRecord):
        store.record_at(3)
    for outside in (-1, store.log_end, store.log_end + 5000):
        with pytest.raises(OffsetOutOfRange):
            store.record_at(outside)
    store.close()


def test_a_record_is_viewed_once_it_is_visible(tmp_path: Path) -> None:
    store = open_store(tmp_path, segment_bytes=1024, flush_mode=FlushMode.SYNC)
    results = put_ok(store, *(record(b"%d" % number) for number in range(20)))
    place = results[13].physical_offset
    with pytest.raises(OffsetOutOfRange, match=f"{place}, the log shows 0..0"):
        store.record_view(place)
    store.durability.flush()
    view = store.record_view(place)
    assert view.readonly
    assert decode_record(view, verify=True) == store.record_at(place)
    padding = results[13].physical_end - results[13].physical_end % 1024 - 8
    for nothing in (-1, 3, padding, store.log_end, store.log_end + 5000):
        with pytest.raises((CorruptRecord, OffsetOutOfRange)):
            store.record_view(nothing)
    store.close()


def test_deleted_queues_begin_from_scratch(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_ok(store, record(b"old"), record(b"other", topic="Other"), record(b"old", queue_id=3))
    store.durability.flush()
    assert store.retention.delete_queues(TOPIC) == 2
    assert not queue_path(tmp_path).parent.exists()
    assert (store.queues(), store.queue_bounds(TOPIC, 0)) == ([("Other", 0)], (0, 0))
    put_ok(store, record(b"new"))
    assert bodies(store) == [b"new"]
    store.close()
    store = open_store(tmp_path)
    assert bodies(store) == [b"new"]
    assert store.queues() == [("Other", 0), (TOPIC, 0)]
    assert bodies(store, "Other") == [b"other"]
    store.close()


def test_deleting_drops_what_waits_for_a_flush(tmp_path: Path) -> None:
    store = open_store(tmp_path, flush_mode=FlushMode.SYNC)
    put_ok(store, record(b"old"), record(b"other", topic="Other"))
    store.retention.delete_queues(TOPIC)
    put_ok(store, record(b"new"))
    store.durability.flush()
    assert bodies(store) == [b"new"]
    assert bodies(store, "Other") == [b"other"]
    store.close()


def test_buffers_outlive_the_store(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_ok(store, record(b"kept"))
    buffers = store.read(TOPIC, 0, 0, count_max=1, bytes_max=1).buffers
    store.close()
    gc.collect()
    assert [one.body for one in decode_records(buffers[0])] == [b"kept"]


def test_the_next_segment_is_prepared_and_dropped_if_unused(tmp_path: Path) -> None:
    store = open_store(tmp_path, segment_bytes=1024)
    put_ok(store, record_of_size(300))
    assert not store.ahead.segment_due
    put_ok(store, record_of_size(300))
    assert store.ahead.segment_due
    store.ahead.prepare_segment()
    store.ahead.prepare_segment()
    assert not store.ahead.segment_due
    assert [path.name[-4:] for path in log_files(tmp_path)] == ["0000", "1024"]
    put_ok(store, record_of_size(500))
    assert len(log_files(tmp_path)) == 2
    store.ahead.prepare_segment()
    assert len(log_files(tmp_path)) == 3
    store.close()
    assert len(log_files(tmp_path)) == 2


def test_a_second_store_on_the_directory_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_ok(store, record(b"mine"))
    with pytest.raises(StoreLocked, match=str(tmp_path)):
        open_store(tmp_path)
    script = (
        "import sys; from pathlib import Path; from pymq.clock import Clock\n"
        "from pymq.errors import StoreLocked; from pymq.store import MessageStore, StoreConfig\n"
        "try: MessageStore.open(StoreConfig(root_path=Path(sys.argv[1])), Clock())\n"
        "except StoreLocked: sys.exit(7)\n"
    )
    # The same-process refusal must not have given the lock away, so ask another process now.
    other = subprocess.run([sys.executable, "-c", script, str(tmp_path)], timeout=300, check=False)
    assert other.returncode == 7
    java = (
        "import fcntl, sys; f = open(sys.argv[1], 'r+')\n"
        "fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)"
    )
    other = subprocess.run(
        [sys.executable, "-c", java, str(tmp_path / "lock")],
        timeout=300,
        check=False,
        stderr=subprocess.DEVNULL,
    )
    assert other.returncode == 1
    store.close()
    store = open_store(tmp_path)
    assert bodies(store) == [b"mine"]
    store.close()


def _tree(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def test_another_segment_size_is_refused_and_nothing_changed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_ok(store, record())
    store.close()
    before = _tree(tmp_path)
    with pytest.raises(StoreMismatch, match="4096 B, expected 8192 B.*mappedFileSizeCommitLog"):
        open_store(tmp_path, segment_bytes=8192)
    with pytest.raises(StoreMismatch, match="200 B, expected 400 B.*mappedFileSizeConsumeQueue"):
        open_store(tmp_path, queue_file_bytes=400)
    assert _tree(tmp_path) == before
    store = open_store(tmp_path)
    assert len(bodies(store)) == 1
    store.close()


@pytest.mark.parametrize(
    "path", ["commitlog/notes.txt", "consumequeue/TopicTest/0/notes.txt", "commitlog/" + "9" * 20]
)
def test_foreign_files_in_data_directories_are_refused(tmp_path: Path, path: str) -> None:
    store = open_store(tmp_path)
    put_ok(store, record())
    store.close()
    (tmp_path / path).write_bytes(bytes(4096 if path[-1] == "9" else 5))
    with pytest.raises(StoreMismatch, match=path):
        open_store(tmp_path)
    (tmp_path / path).unlink()
    store = open_store(tmp_path)
    assert len(bodies(store)) == 1
    store.close()


def test_directories_and_files_of_rocketmq_are_left_alone(tmp_path: Path) -> None:
    for name in ("index", "config", "timerlog", "commitlog/sub", "consumequeue/T/notanumber"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "index" / "not a number").write_bytes(b"index")
    (tmp_path / "timerwheel").write_bytes(b"wheel")
    (tmp_path / "config" / "topics.json").write_bytes(b"{}")
    before = _tree(tmp_path)
    store = open_store(tmp_path)
    put_ok(store, record())
    store.close()
    after = _tree(tmp_path)
    assert {name: after[name] for name in before} == before


def test_flushes_and_segments_made_in_another_thread(tmp_path: Path) -> None:
    store = open_store(tmp_path, segment_bytes=4096, flush_mode=FlushMode.SYNC)
    with ThreadPoolExecutor(2) as executor:
        prepared: Future[None] | None = None
        for number in range(300):
            put_ok(store, record(b"%d" % number), record(400, queue_id=1))
            if store.ahead.segment_due and (prepared is None or prepared.done()):
                prepared = executor.submit(store.ahead.prepare_segment)
            if number % 7 == 0:
                job, end = store.durability.begin_flush(), store.log_end
                running = executor.submit(job.run)
                put_ok(store, record(b"meanwhile", queue_id=2))
                running.result(timeout=300)
                store.durability.finish_flush(job)
                assert store.durability.flushed_end == job.physical_end == end
                assert store.queue_bounds(TOPIC, 0) == (0, number + 1)
            if number % 50 == 0:
                queue_job = store.durability.begin_queue_flush()
                executor.submit(queue_job.run).result(timeout=300)
                store.durability.finish_queue_flush(queue_job)
    store.close()
    store = open_store(tmp_path, segment_bytes=4096)
    assert bodies(store) == [b"%d" % number for number in range(300)]
    assert len(bodies(store, TOPIC, 1)) == 300 and len(bodies(store, TOPIC, 2)) == 43
    store.close()


def test_thousands_of_queues(tmp_path: Path) -> None:
    settings = {"segment_bytes": 1 << 20, "queue_file_bytes": 2000, "queue_files_open_max": 64}
    store = open_store(tmp_path, **settings)
    for turn in range(2):
        put_ok(store, *(record(b"%d" % turn, queue_id=number) for number in range(2000)))
    store.durability.flush_queues()
    store.close()
    store = open_store(tmp_path, **settings)
    assert len(store.queues()) == 2000
    for number in (0, 999, 1999):
        assert bodies(store, TOPIC, number) == [b"0", b"1"]
    store.close()


def test_many_queues_share_few_descriptors(tmp_path: Path) -> None:
    store = open_store(tmp_path, queue_files_open_max=5, segment_bytes=1 << 16)
    for turn in range(3):
        put_ok(store, *(record(b"%d" % turn, queue_id=number) for number in range(30)))
    for number in range(30):
        assert bodies(store, TOPIC, number) == [b"0", b"1", b"2"]
    assert len(open_paths(tmp_path)) < 40
    store.close()
    store = open_store(tmp_path, queue_files_open_max=5, segment_bytes=1 << 16)
    assert bodies(store, TOPIC, 29) == [b"0", b"1", b"2"]
    store.close()
