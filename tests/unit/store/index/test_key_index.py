"""The key index: its bytes against RocketMQ's rules, what is found, and what crashes leave."""

import errno
import itertools
import random
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.store.index.index_model import IndexModel, keys_of
from tests.unit.store.stores import (
    TOPIC,
    FailingFiles,
    FakeClock,
    batch,
    crashed_copy,
    failing_in,
    log_files,
    never,
    open_store,
    overwrite,
    put_ok,
    record,
    seeded,
)

from pymq.errors import CorruptRecord, StoreError, StoreMismatch
from pymq.protocol.record import NewRecord, Record, decode_record
from pymq.store import Files, FlushMode, MessageStore
from pymq.store.index.index_file import IndexFile
from pymq.store.index.index_format import ITEM, IndexHeader, IndexLayout, unpack_header
from pymq.store.index.indexer import STEP_BYTES_LEAST, STEP_BYTES_MAX
from pymq.store.index.key_index import KeyIndex
from pymq.store.index.key_query import OTHER_COUNT_MAX

SLOTS, LIMIT = 50, 100
ENTRIES_START = 40 + 4 * SLOTS


def keyed(*keys: str, unique: str | None = None, **changes: Any) -> NewRecord:
    """Return a record with keys."""
    new = record(**changes)
    texts = [] if unique is None else [f"UNIQ_KEY\x01{unique}"]
    texts += [f"KEYS\x01{' '.join(keys)}"] if keys else []
    new.properties = "\x02".join([*texts, "TAGS\x01a"]).encode()
    return new


def index_all(store: MessageStore) -> None:
    while store.keys.index_step():
        pass
    assert store.keys.behind_bytes == 0


def found(store: MessageStore, key: str, topic: str = TOPIC, **limits: int) -> list[bytes]:
    """Return the bodies of what a query finds."""
    result = store.keys.query(topic, key, **limits)
    return [decode_record(buffer, verify=True).body for buffer in result.buffers]


def index_files(root: Path) -> list[Path]:
    return sorted((root / "index").glob("*"))  # None before the first key.


def contents(root: Path) -> list[bytes]:
    return [path.read_bytes() for path in index_files(root)]


def log_records(root: Path) -> list[Record]:
    """Return all records of a log without damage."""
    records: list[Record] = []
    for path in log_files(root):
        data, at = path.read_bytes(), 0
        while data[at : at + 4] != bytes(4) and data[at + 4 : at + 8] != b"\xcb\xd4\x31\x94":
            records.append(decode_record(data, at))
            at += records[-1].size
    return records


def expected_contents(root: Path, slots: int = SLOTS, limit: int = LIMIT) -> list[bytes]:
    model = IndexModel(slots, limit)
    for one in log_records(root):
        model.add(one)
    return model.contents()


def put_many(store: MessageStore, clock: FakeClock, dice: random.Random, count: int) -> None:
    """Put records with all kinds of keys."""
    for number in range(count):
        clock.now_ms += dice.choice([0, 0, 1, 700, 5000])
        keys = dice.choices(["a", "b", "Grüße", "\U0001f600", "", "k1", "k2"], k=dice.randrange(4))
        item: Any = keyed(
            *keys,
            unique=dice.choice([None, f"{dice.getrandbits(128):032X}"]),
            topic=dice.choice([TOPIC, "Other", "%RETRY%group"]),
            queue_id=dice.randrange(2),
            body=b"%d" % number,
            sys_flag=dice.choice([0, 0, 0, 0x4, 0x8, 0xC]),
        )
        if dice.randrange(10) == 0:
            item = batch([b"of a batch"] * 3)
        put_ok(store, item)


# ---------------------------------------------------------------------------------- bytes


def test_vector_of_rocketmq(tmp_path: Path) -> None:
    """The head of an index file that RocketMQ 4.9.8 wrote: 10 slots, 20 items."""
    layout = IndexLayout(10, 20)
    assert layout.file_bytes == 40 + 40 + 400
    files = Files()
    path = tmp_path / "20240131235959123"
    fd = files.create(path, layout.file_bytes, reserve=False)
    file = IndexFile(files, path, layout, IndexHeader(), fd)
    hashes = np.array([0x7AABEBDE, 0x0029E6A7, 0x0512DCBD, 0x7AABEBDD], np.int32)
    begin = 0x1A1F982784D
    file.add(hashes[:3], np.array([0, 0, 0]), np.array([begin] * 3))
    file.add(hashes[3:], np.array([0xAA]), np.array([begin + 3]))
    file.snapshot().save(files)
    file.close()
    data = path.read_bytes()
    assert data[:40].hex() == (
        "000001a1f982784d000001a1f9827850000000000000000000000000000000aa0000000400000005"
    )
    numbers = {0x7AABEBDE % 10: 1, 3: 2, 7: 3, 0x7AABEBDD % 10: 4}
    slots = np.frombuffer(data, ">i4", 10, 40).tolist()
    assert slots == [numbers.get(slot, 0) for slot in range(10)]
    assert data[80:100] == bytes(20)
    assert data[100:180].hex() == (
        "7aabebde" "0000000000000000" "00000000" "00000000"
        "0029e6a7" "0000000000000000" "00000000" "00000000"
        "0512dcbd" "0000000000000000" "00000000" "00000000"
        "7aabebdd" "00000000000000aa" "00000000" "00000000"
    )  # fmt: skip
    assert unpack_header(data) == IndexHeader(begin, begin + 3, 0, 0xAA, 4, 5)


@pytest.mark.parametrize("repeat", range(3))
def test_files_are_those_of_rocketmq(tmp_path: Path, seed: int, repeat: int) -> None:
    dice, clock = seeded(seed + repeat), FakeClock()
    store = open_store(tmp_path, clock)
    put_many(store, clock, dice, 60)  # Enough for several files, whatever the dice say.
    for _ in range(6):
        put_many(store, clock, dice, dice.randrange(60))
        if dice.randrange(2):
            index_all(store)
        if dice.randrange(3) == 0:
            store.close()
            assert contents(tmp_path) == expected_contents(tmp_path)
            store = open_store(tmp_path, clock)
    store.close()
    assert len(index_files(tmp_path)) > 1
    assert contents(tmp_path) == expected_contents(tmp_path)


def test_names_are_local_times_in_order(tmp_path: Path) -> None:
    clock = FakeClock(1_700_000_000_123)
    index = KeyIndex(Files(), tmp_path / "index", IndexLayout(10, 3))
    times = np.full(5, clock.now_ms)
    index.add(np.arange(5, dtype=np.int32), np.arange(5) * 100, times, clock.now_ms)
    index.add(np.arange(5, dtype=np.int32), 900 + np.arange(5) * 100, times, clock.now_ms - 9999)
    names = [path.name for path in index_files(tmp_path)]
    assert len(names) == 5 and [file.path.name for file in index] == names
    assert all(len(name) == 17 and name.isdigit() for name in names)
    assert names[0].endswith("123") and names[1].endswith("124") and names[4].endswith("127")
    index.close()


# ------------------------------------------------------------------------------- queries


def test_every_key_of_every_message_is_found(tmp_path: Path, seed: int) -> None:
    dice, clock = seeded(seed), FakeClock()
    store = open_store(tmp_path, clock)
    put_many(store, clock, dice, 300)
    index_all(store)
    records = log_records(tmp_path)
    everything: dict[tuple[str, str], list[Record]] = {}
    for one in records:
        for key in set(keys_of(one)):
            everything.setdefault((one.topic, key), []).append(one)
    assert len(everything) > 100
    for (topic, key), wanted in everything.items():
        begin, end = sorted(dice.choices([one.store_timestamp for one in records], k=2))
        for limits in ({}, {"begin_ms": begin, "end_ms": end}, {"count_max": 2}):
            low, high = limits.get("begin_ms", 0), limits.get("end_ms", 1 << 62)
            there = [one for one in reversed(wanted) if low <= one.store_timestamp <= high]
            result = store.keys.query(topic, key, **limits)
            got = [decode_record(buffer) for buffer in result.buffers]
            assert got == there[: limits.get("count_max", 64)]
    assert found(store, "absent") == [] and found(store, "a", "NoSuchTopic") == []
    store.close()


def test_what_shares_a_hash_is_not_found(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_ok(store, keyed("Aa", body=b"Aa"), keyed("BB", body=b"BB"))  # both hash to 2112
    index_all(store)
    assert found(store, "Aa") == [b"Aa"] and found(store, "BB") == [b"BB"]
    assert found(store, "C#") == []
    store.close()


def test_a_query_gives_up_on_a_hash_that_too_many_messages_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys of one hash are easily made, to keep the threads busy in which queries run."""
    twins = ["".join(parts) for parts in itertools.product(("Aa", "BB"), repeat=15)]
    wanted = twins.pop()
    store = open_store(tmp_path, index_item_limit=100_000, segment_bytes=1 << 22)
    put_ok(store, keyed(wanted, body=b"wanted"))
    put_ok(store, *(keyed(key) for key in twins[: OTHER_COUNT_MAX - 1]))
    index_all(store)
    decoded = 0

    def counted(*arguments: Any) -> Record:
        nonlocal decoded
        decoded += 1
        return decode_record(*arguments)

    monkeypatch.setattr("pymq.store.index.key_query.decode_record", counted)
    assert found(store, wanted) == [b"wanted"]
    put_ok(store, *(keyed(key) for key in twins[OTHER_COUNT_MAX - 1 : 20_000]))
    index_all(store)
    decoded = 0
    with pytest.raises(StoreError, match="messages with other keys of the same hash"):
        found(store, wanted)
    assert decoded == OTHER_COUNT_MAX + 1
    assert found(store, twins[19_999], count_max=1) != []
    store.close()


def test_a_message_is_found_once_whatever_its_keys(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_ok(store, keyed("k", "k", unique="k", body=b"one"))
    index_all(store)
    assert found(store, "k") == [b"one"]
    store.close()


def test_at_most_64_messages(tmp_path: Path) -> None:
    store = open_store(tmp_path, index_item_limit=1000, segment_bytes=1 << 16)
    put_ok(store, *(keyed("k", body=b"%d" % number) for number in range(100)))
    index_all(store)
    assert found(store, "k") == [b"%d" % number for number in range(99, 35, -1)]
    assert found(store, "k", count_max=0) == found(store, "k", count_max=-1) == []
    store.close()


def test_times_are_exact_though_the_index_knows_seconds(tmp_path: Path) -> None:
    clock = FakeClock(1_700_000_000_000)
    store = open_store(tmp_path, clock)
    for number in range(8):
        put_ok(store, keyed("k", body=b"%d" % number))
        clock.now_ms += 300
    index_all(store)
    begin = 1_700_000_000_000
    assert found(store, "k", begin_ms=begin + 600, end_ms=begin + 1200) == [b"4", b"3", b"2"]
    assert found(store, "k", begin_ms=begin + 2101) == []
    assert found(store, "k", end_ms=begin - 1) == []
    store.close()


def test_only_what_is_visible_is_found(tmp_path: Path) -> None:
    store = open_store(tmp_path, flush_mode=FlushMode.SYNC)
    put_ok(store, keyed("k", body=b"waits"))
    index_all(store)
    assert found(store, "k") == []
    store.durability.flush()
    assert store.keys.behind_bytes > 0
    index_all(store)
    assert found(store, "k") == [b"waits"]
    store.close()


def test_what_the_newest_file_knows(tmp_path: Path) -> None:
    clock = FakeClock(7_000_000)
    store = open_store(tmp_path, clock)
    assert store.keys.query(TOPIC, "k").index_last_ms == 0
    put_ok(store, keyed("k"), keyed("k"))
    index_all(store)
    result = store.keys.query(TOPIC, "k")
    assert result.index_last_ms == 7_000_000
    assert result.index_last_physical == decode_record(result.buffers[0]).physical_offset
    store.close()


def test_without_an_index(tmp_path: Path) -> None:
    store = open_store(tmp_path, key_index=False)
    put_ok(store, keyed("k", body=b"0"))
    assert store.keys.index_step() == 0 and store.keys.behind_bytes == 0
    with pytest.raises(StoreError, match="messageIndexEnable"):
        store.keys.query(TOPIC, "k")
    store.close()
    assert not (tmp_path / "index").exists()
    store = open_store(tmp_path)
    index_all(store)
    assert found(store, "k") == [b"0"]
    store.close()


# ------------------------------------------------------------------------- stops and crashes


def test_large_records_and_ends_of_segments(tmp_path: Path) -> None:
    sizes = {"segment_bytes": 2 << 20, "message_bytes_max": 1 << 20, "queue_file_bytes": 2000}
    store = open_store(tmp_path, **sizes)
    for number in range(6):
        put_ok(store, keyed(f"k{number}", body=900_000), keyed("both", body=b"%d" % number))
    index_all(store)
    assert found(store, "both") == [b"%d" % number for number in range(5, -1, -1)]
    assert [len(found(store, f"k{number}")) for number in range(6)] == [1] * 6
    assert len(log_files(tmp_path)) > 2
    store.close()


def test_closing_indexes_the_rest(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_ok(store, keyed("k", body=b"0"))
    assert not (tmp_path / "index").exists()
    store.close()
    assert contents(tmp_path) == expected_contents(tmp_path)
    store = open_store(tmp_path)
    assert store.keys.behind_bytes == 0 and found(store, "k") == [b"0"]
    store.close()


@pytest.mark.parametrize("repeat", range(4))
def test_after_a_crash_at_any_moment(tmp_path: Path, seed: int, repeat: int) -> None:
    """What was written stays written: a SIGKILL. The index ends as if nothing had happened."""
    dice, clock = seeded(seed + repeat), FakeClock()
    root = tmp_path / "0"
    store = open_store(root, clock)
    for turn in range(1, 9):
        put_many(store, clock, dice, dice.randrange(1, 40))
        for _ in range(dice.randrange(3)):
            store.keys.index_step()
        if dice.randrange(2):
            store.durability.flush_queues()
        put_many(store, clock, dice, dice.randrange(10))
        store.keys.index_step()
        root = crashed_copy(root, tmp_path / str(turn))
        store.close()
        store = open_store(root, clock)
        index_all(store)
        keep = crashed_copy(root, tmp_path / "look")
        store.close()
        assert contents(root) == expected_contents(root)
        shutil.rmtree(root)
        shutil.move(keep, root)
        store = open_store(root, clock)
    store.close()


def test_lost_and_damaged_files_are_made_again(tmp_path: Path, seed: int) -> None:
    dice, clock = seeded(seed), FakeClock()
    store = open_store(tmp_path / "s", clock)
    put_many(store, clock, dice, 200)
    store.close()
    wanted = contents(tmp_path / "s")
    assert len(wanted) > 2

    def lose_all(paths: list[Path]) -> None:
        shutil.rmtree(paths[0].parent)

    def lose_the_last(paths: list[Path]) -> None:
        paths[-1].unlink()

    def break_a_header(paths: list[Path]) -> None:
        paths[0].write_bytes(b"\x7f" * 40 + paths[0].read_bytes()[40:])

    def an_empty_one(paths: list[Path]) -> None:
        paths[-1].with_name("99991231235959999").touch()

    def one_without_header(paths: list[Path]) -> None:
        paths[-1].with_name("99991231235959999").write_bytes(bytes(len(wanted[0])))

    for damage in (lose_all, lose_the_last, break_a_header, an_empty_one, one_without_header):
        root = crashed_copy(tmp_path / "s", tmp_path / damage.__name__)
        damage(index_files(root))
        store = open_store(root, clock)
        index_all(store)
        store.close()
        assert contents(root) == wanted, damage.__name__


def test_a_lost_file_with_only_keys_of_the_last_message_is_made_again(tmp_path: Path) -> None:
    store = open_store(tmp_path, FakeClock())
    put_ok(store, keyed(*(f"k{n}" for n in range(LIMIT + 1))))
    index_all(store)
    store.close()
    wanted = contents(tmp_path)
    assert len(wanted) == 2
    index_files(tmp_path)[1].unlink()
    store = open_store(tmp_path, FakeClock())
    index_all(store)
    store.close()
    assert contents(tmp_path) == wanted


def test_lost_files_in_the_middle_are_made_again_after_an_unclean_stop(tmp_path: Path) -> None:
    clock = FakeClock()
    store = open_store(tmp_path, clock)
    put_many(store, clock, random.Random(1), 200)
    store.close()
    wanted = contents(tmp_path)
    (tmp_path / "abort").touch()
    (tmp_path / "checkpoint").unlink()
    index_files(tmp_path)[1].unlink()
    store = open_store(tmp_path, clock)
    index_all(store)
    store.close()
    assert contents(tmp_path) == wanted


@pytest.mark.parametrize("damage", ["a header", "the last file", "all files"])
def test_a_damaged_index_is_made_again_after_an_unclean_stop(tmp_path: Path, damage: str) -> None:
    clock = FakeClock()
    store = open_store(tmp_path, clock)
    for _ in range(4):
        put_many(store, clock, random.Random(1), 200)
        clock.now_ms += 60_000
    store.close()
    assert len(log_files(tmp_path)) > 2
    wanted = contents(tmp_path)
    (tmp_path / "abort").touch()
    if damage == "a header":
        overwrite(index_files(tmp_path)[0], 0, b"\x7f" * 40)
    else:
        for path in index_files(tmp_path)[-1 if damage == "the last file" else 0 :]:
            path.unlink()
    store = open_store(tmp_path, clock)
    index_all(store)
    store.close()
    assert contents(tmp_path) == wanted


def test_stale_slots_of_a_killed_process_do_no_harm(tmp_path: Path) -> None:
    """Header saved, slots not: whoever opens the file must not follow old slots."""
    clock = FakeClock()
    store = open_store(tmp_path / "s", clock)
    put_ok(store, keyed("a", body=b"0"))
    index_all(store)
    store.durability.flush_queues()
    clock.now_ms += 60_000
    put_ok(store, keyed("a", body=b"1"))
    store.close()
    (path,) = index_files(tmp_path / "s")
    data = bytearray(path.read_bytes())
    data[40:ENTRIES_START] = bytes(4 * SLOTS)
    path.write_bytes(data)
    (tmp_path / "s" / "abort").touch()
    store = open_store(tmp_path / "s", clock)
    index_all(store)
    assert found(store, "a") == [b"1", b"0"]
    store.close()


def test_after_recovery_the_queues_time_is_not_behind_the_index(tmp_path: Path) -> None:
    """Killed again before it is made up for, an official broker must find where to begin.

    It adds to queues and index from the queues' time on.
    """
    clock = FakeClock()
    store = open_store(tmp_path / "0", clock)
    begun_ms = clock.now_ms
    put_ok(store, keyed("a"))
    index_all(store)
    store.durability.flush_queues()
    clock.now_ms += 60_000
    put_ok(store, keyed("b"))
    killed = crashed_copy(tmp_path / "0", tmp_path / "1")
    store.close()
    store = open_store(killed, clock)  # recovers the queues, but has not indexed yet
    store.durability.flush()
    again = crashed_copy(killed, tmp_path / "2")
    store.close()
    _, queues_ms, index_ms = struct.unpack_from(">3q", (again / "checkpoint").read_bytes())
    assert queues_ms <= begun_ms and index_ms <= begun_ms


def test_after_a_clean_stop_of_another_broker_the_index_is_taken_as_it_is(tmp_path: Path) -> None:
    """RocketMQ's checkpoint knows of full index files only; that must not cost a long recovery."""
    clock = FakeClock()
    store = open_store(tmp_path, clock)
    put_ok(store, keyed("a"))
    store.close()
    (tmp_path / "queues.json").unlink()
    overwrite(tmp_path / "checkpoint", 16, bytes(8))
    store = open_store(tmp_path, clock)
    _, queues_ms, index_ms = struct.unpack_from(">3q", (tmp_path / "checkpoint").read_bytes())
    store.close()
    assert queues_ms == index_ms == clock.now_ms


def test_other_sizes_than_the_store_was_written_with(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_ok(store, keyed("k"))
    store.close()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with pytest.raises(StoreMismatch, match=r"index/\d+: 2240 B, expected 2244 B .*maxHashSlotNum"):
        open_store(tmp_path, index_slot_count=51)
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert {path: after[path] for path in before if path.name != "lock"} == {
        path: before[path] for path in before if path.name != "lock"
    }


def test_a_chain_that_leads_nowhere(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_ok(store, keyed("k"), keyed("k"))
    store.close()
    (path,) = index_files(tmp_path)
    data = bytearray(path.read_bytes())
    at = ENTRIES_START + 2 * ITEM.itemsize + 16
    assert data[at : at + 4] == b"\0\0\0\1"
    data[at : at + 4] = b"\0\0\0\2"
    path.write_bytes(data)
    store = open_store(tmp_path)
    with pytest.raises(CorruptRecord, match="item 2 leads to item 2"):
        store.keys.query(TOPIC, "k")
    store.close()


# --------------------------------------------------------------------------------- retention


def test_old_files_go_with_the_log(tmp_path: Path) -> None:
    index = KeyIndex(Files(), tmp_path / "index", IndexLayout(10, 3))
    times = np.full(7, 1_700_000_000_000)
    index.add(np.arange(7, dtype=np.int32), np.arange(7) * 100, times, 1_700_000_000_000)
    assert len(index) == 4
    paths = sorted((tmp_path / "index").iterdir())
    assert index.take_old(100) == []
    assert index.take_old(101) == paths[:1]
    assert index.take_old(10_000) == paths[1:3]  # the newest stays
    assert len(index) == 1
    index.close()


# ------------------------------------------------------------------------------------ faults


@pytest.mark.parametrize("where", ["create", "write"])
def test_a_full_disk_stops_indexing_only(tmp_path: Path, where: str) -> None:
    files, clock = FailingFiles(), FakeClock()
    store = open_store(tmp_path, clock, files)
    put_ok(store, keyed("k", body=b"0"))
    if where == "write":
        index_all(store)
        put_ok(store, keyed("k", body=b"1"))
    setattr(files, f"on_{where}", failing_in("index", errno.ENOSPC))
    with pytest.raises(StoreError, match="space"):
        store.keys.index_step()
    put_ok(store, keyed("k", body=b"2"))
    assert store.not_writable_reason is None
    setattr(files, f"on_{where}", never)
    index_all(store)
    assert found(store, "k")[0] == b"2" and found(store, "k")[-1] == b"0"
    store.close()
    assert contents(tmp_path) == expected_contents(tmp_path)


def test_an_index_that_cannot_be_written_at_the_close(tmp_path: Path) -> None:
    files = FailingFiles()
    store = open_store(tmp_path, files=files)
    files.on_create = failing_in("index", errno.ENOSPC)
    put_ok(store, keyed("k", body=b"0"))
    store.close()
    assert (tmp_path / "abort").exists()
    store = open_store(tmp_path)
    index_all(store)
    assert found(store, "k") == [b"0"]
    store.close()


def test_what_a_full_disk_kept_from_being_saved_is_saved_later(tmp_path: Path) -> None:
    files = FailingFiles()
    store = open_store(tmp_path, files=files)
    put_ok(store, keyed("k", body=b"0"))
    index_all(store)
    files.on_write = failing_in("index", errno.ENOSPC)
    job = store.durability.begin_queue_flush()
    job.run()
    with pytest.raises(StoreError):
        store.durability.finish_queue_flush(job)
    files.on_write = never
    assert found(store, "k") == [b"0"]
    store.close()
    assert contents(tmp_path) == expected_contents(tmp_path)


def test_closing_on_a_full_disk_leaves_the_index_to_the_next_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The file is there, the blocks of its header are not."""
    files = FailingFiles()
    store = open_store(tmp_path, files=files)
    put_ok(store, keyed("k", body=b"0"))
    index_all(store)
    files.on_write = failing_in("index", errno.ENOSPC)
    store.close()
    assert "the next start does it" in caplog.text
    assert (tmp_path / "abort").exists()
    store = open_store(tmp_path)
    index_all(store)
    assert found(store, "k") == [b"0"]
    store.close()


def test_pieces_of_large_records_are_larger(tmp_path: Path) -> None:
    store = open_store(tmp_path, segment_bytes=16 << 20)
    for _ in range(400):
        put_ok(store, record(20_000))
    sizes = []
    while size := store.keys.index_step():
        sizes.append(size)
    assert sizes[0] <= STEP_BYTES_LEAST < sizes[1] <= STEP_BYTES_MAX
    assert sum(sizes) > 400 * 20_000
    store.close()
