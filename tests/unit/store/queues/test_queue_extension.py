"""Units of consume queues: their bytes, their addresses, and what becomes of them in accidents."""

import errno
import logging
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.store.stores import (
    TOPIC,
    FailingFiles,
    FakeClock,
    QuickFiles,
    batch,
    bodies,
    config,
    crashed_copy,
    failing_in,
    log_files,
    never,
    open_store,
    overwrite,
    put_ok,
    queue_bytes,
    queue_path,
    record,
    record_of_size,
)

from pymq.errors import DiskFull, StoreError, StoreMismatch
from pymq.protocol.hashes import java_hash
from pymq.protocol.record import decode_record
from pymq.store import Arrival, FlushMode, MessageStore
from pymq.store.queues.queue_extension import UNIT_BYTES_MAX, QueueExtension
from pymq.store.queues.queue_files import QueueFiles

NOW = 1_700_000_000_000
COUNT = 40
TEXTS = [b"%d" % number for number in range(COUNT)]
TAGS = ["TagA", "TagB", None]
OF_TAG_A = TEXTS[::3]
EXTENDED: dict[str, Any] = {
    "segment_bytes": 1024,
    "queue_extension": True,
    "queue_extension_file_bytes": 150,
}
PLAIN: dict[str, Any] = {"segment_bytes": 1024}


def extension_files(root: Path, queue_id: int = 0) -> list[Path]:
    return sorted((root / "consumequeue_ext" / TOPIC / str(queue_id)).iterdir())


def unit(tag: str | None, time: int = NOW, bit_map: bytes = b"") -> bytes:
    code = 0 if tag is None else java_hash(tag)
    return struct.pack(">hqqh", 20 + len(bit_map), code, time, len(bit_map)) + bit_map


def fill(root: Path, **changes: Any) -> MessageStore:
    """Return an open store with 40 messages in one queue, of two tags and of none."""
    store = open_store(root, **(EXTENDED | changes))
    for number, text in enumerate(TEXTS):
        put_ok(store, record(text, tag=TAGS[number % 3]))
    return store


def assert_whole(store: MessageStore) -> None:
    assert bodies(store) == TEXTS
    assert bodies(store, tags=["TagA"]) == OF_TAG_A
    assert bodies(store, tags=["TagA", "TagB"]) == [t for n, t in enumerate(TEXTS) if n % 3 < 2]
    assert bodies(store, tags=["TagC"]) == []


def addresses(root: Path, count: int = COUNT) -> list[int]:
    """Return where the units of a queue's entries stand; -1 of an entry without one."""
    codes = [code for _, _, code in struct.iter_unpack(">qiq", queue_bytes(root, count))]
    return [code + (1 << 63) if code < -(1 << 31) else -1 for code in codes]


def assert_as_if_never_harmed(root: Path, tmp_path: Path) -> None:
    """Queue and units are those of a store that wrote the same in peace."""
    fill(tmp_path / "peace").close()
    assert queue_bytes(root, COUNT) == queue_bytes(tmp_path / "peace", COUNT)
    harmed, peaceful = extension_files(root), extension_files(tmp_path / "peace")
    assert [path.name for path in harmed] == [path.name for path in peaceful]
    assert [path.read_bytes() for path in harmed] == [path.read_bytes() for path in peaceful]


# -------------------------------------------------------------------------------------- bytes


def test_entries_and_units_vector(tmp_path: Path) -> None:
    store = open_store(tmp_path, queue_extension=True)
    put_ok(store, record_of_size(170, tag="TagA"), record_of_size(170))
    store.close()
    assert queue_bytes(tmp_path, 3) == bytes.fromhex(
        "0000000000000000 000000aa 8000000000000000"
        "00000000000000aa 000000aa 8000000000000014" + "00" * 20
    )
    (path,) = extension_files(tmp_path)
    assert path.name == "0" * 20
    assert path.stat().st_size == 48 << 20 and path.stat().st_blocks * 512 < 1 << 20
    with path.open("rb") as file:
        assert file.read(60) == bytes.fromhex(
            "0014 000000000027a807 0000018bcfe56800 0000"
            "0014 0000000000000000 0000018bcfe56800 0000" + "00" * 20
        )


def test_four_bytes_stay_free_and_a_mark_ends_a_file(tmp_path: Path) -> None:
    store = open_store(tmp_path, queue_extension=True, queue_extension_file_bytes=63)
    put_ok(store, *[record(tag="TagA")] * 3)
    store.close()
    first, second = extension_files(tmp_path)
    # 40 B used, 23 left, 20 + 4 needed.
    assert first.read_bytes() == unit("TagA") * 2 + b"\xff\xff" + bytes(21)
    assert second.name == f"{63:020d}"
    assert second.read_bytes() == unit("TagA") + bytes(43)
    assert addresses(tmp_path, 3) == [0, 20, 63]


def test_a_full_file_is_marked_when_the_next_unit_comes(tmp_path: Path) -> None:
    store = open_store(tmp_path, queue_extension=True, queue_extension_file_bytes=44)
    put_ok(store, *[record(tag="TagA")] * 2)
    assert extension_files(tmp_path)[0].read_bytes() == unit("TagA") * 2 + bytes(4)
    put_ok(store, record(tag="TagA"))
    assert extension_files(tmp_path)[0].read_bytes() == unit("TagA") * 2 + b"\xff\xff\0\0"
    store.close()


def test_each_unit_has_its_own_store_time(tmp_path: Path) -> None:
    clock = FakeClock()
    store = open_store(tmp_path, clock, queue_extension=True, flush_mode=FlushMode.SYNC)
    for _ in range(3):
        put_ok(store, batch([b"a", b"b"]))
        clock.now_ms += 1000
    store.durability.flush()  # All of them become visible together.
    store.close()
    written = extension_files(tmp_path)[0].read_bytes()[:120]
    assert written == b"".join(unit(None, NOW + second * 1000) * 2 for second in range(3))


def test_store_times_of_records_with_ipv6_hosts(tmp_path: Path) -> None:
    store = open_store(tmp_path, queue_extension=True)
    host = bytes(15) + b"\x01" + struct.pack(">i", 10911)
    new = record(b"six")
    new.born_host = host
    store.put([new], host)
    put_ok(store, record(b"four"))
    store.close()
    assert extension_files(tmp_path)[0].read_bytes()[:40] == unit(None) * 2


def bit_map_of(topic: str, stored: memoryview) -> bytes | None:
    assert topic == TOPIC
    body = decode_record(stored).body
    return None if body == b"none" else body * 2


def test_bit_maps_stand_in_the_units(tmp_path: Path) -> None:
    settings = config(tmp_path, **EXTENDED)
    store = MessageStore.open(settings, FakeClock(), files=QuickFiles(), bit_map_of=bit_map_of)
    put_ok(store, record(b"\x0f", tag="TagA"), record(b"none"), record(b"", tag="TagB"))
    put_ok(store, record(b"\xff" * 50), record(b"\x55" * 64, tag="TagA"))
    assert bodies(store, tags=["TagA"]) == [b"\x0f", b"\x55" * 64]
    store.close()
    first, second = extension_files(tmp_path)
    # The last one, of 20 + 128 B, would fit no file of 150 B: it has no bit map.
    assert first.read_bytes().startswith(
        unit("TagA", bit_map=b"\x0f\x0f") + unit(None) + unit("TagB") + b"\xff\xff"
    )
    assert second.read_bytes() == (unit(None, bit_map=b"\xff" * 100) + unit("TagA")).ljust(
        150, b"\0"
    )


@settings(max_examples=60, deadline=None)
@given(
    file_bytes=st.integers(24, 200),
    writes=st.lists(st.lists(st.binary(max_size=70), max_size=12), max_size=5),
)
def test_units_are_placed_as_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, file_bytes: int, writes: list[list[bytes]]
) -> None:
    path = tmp_path_factory.mktemp("units")
    opened = QueueFiles(QuickFiles(), 100)
    extension = QueueExtension(opened, path / "0", file_bytes)
    files: dict[int, bytes] = {}
    base = 0
    expected = []
    number = 0
    for bit_maps in writes:
        codes = np.arange(number, number + len(bit_maps))
        extension.put(codes, codes, [b"x" * 99] * len(codes))  # As if this try had failed.
        given = extension.put(codes, codes + NOW, bit_maps)
        extension.keep()
        for bit_map in bit_maps:
            kept = bit_map if 20 + len(bit_map) + 4 <= file_bytes else b""
            data = struct.pack(">hqqh", 20 + len(kept), number, number + NOW, len(kept)) + kept
            if len(data) > file_bytes - len(files.get(base, b"")) - 4:
                files[base] += b"\xff\xff"
                base += file_bytes
            place = len(files.setdefault(base, b""))
            files[base] += data
            expected.append(base + place - (1 << 63))
            number += 1
        assert given.tolist() == expected[len(expected) - len(bit_maps) :]
    extension.cut()
    on_disk = {int(one.name): one.read_bytes() for one in path.glob("0/*")}
    assert on_disk == {base: data.ljust(file_bytes, b"\0") for base, data in files.items()}
    units, known = extension.units(np.array(expected[::-1], np.int64))
    assert known.all() and units["tag_code"].tolist() == list(range(number))[::-1]
    assert (units["store_timestamp"] == units["tag_code"] + NOW).all()
    opened.close()


@pytest.mark.parametrize(
    "damaged",
    [
        struct.pack(">hqqh", 0, 7, 7, 0),
        struct.pack(">hqqh", -1, 7, 7, 0),
        struct.pack(">hqqh", 19, 7, 7, -1),
        struct.pack(">hqqh", 21, 7, 7, 0),
        struct.pack(">hqqh", 20, 7, 7, 1),
        struct.pack(">hqqh", -32749, 7, 7, UNIT_BYTES_MAX),
        struct.pack(">hqqh", 120, 7, 7, 100),  # beyond the end of the file
    ],
)
def test_what_is_no_unit(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / ("0" * 20)).write_bytes(unit("TagA") + damaged.ljust(60, b"\0"))
    opened = QueueFiles(QuickFiles(), 100)
    extension = QueueExtension(opened, tmp_path / "0", 80, [0])
    places = np.array([0, 20, 61, 79, 80, 1 << 40]) + -(1 << 63)
    units, known = extension.units(places)
    assert known.tolist() == [True] + [False] * 5
    assert units["tag_code"][0] == java_hash("TagA")
    opened.close()


# ----------------------------------------------------------------------------- reading, waking


@pytest.mark.parametrize("reader", [EXTENDED, PLAIN])
def test_filtering_by_tag(tmp_path: Path, reader: dict[str, Any]) -> None:
    store = fill(tmp_path)
    assert_whole(store)
    store.close()
    files = [path.read_bytes() for path in extension_files(tmp_path)]
    store = open_store(tmp_path, **reader)
    assert_whole(store)
    store.close()
    assert [path.read_bytes() for path in extension_files(tmp_path)] == files


def test_arrivals_have_real_tag_codes(tmp_path: Path) -> None:
    store = open_store(tmp_path, **EXTENDED)
    arrived: list[Arrival] = []
    store.dispatch.listener = arrived.extend
    put_ok(store, record(tag="TagA"), record())
    assert [arrival.tag_codes.tolist() for arrival in arrived] == [[java_hash("TagA"), 0]]
    store.close()


def test_messages_of_unknown_tag_pass(tmp_path: Path) -> None:
    store = fill(tmp_path)
    overwrite(extension_files(tmp_path)[1], 20, bytes(20))  # the unit of entry 8
    assert bodies(store, tags=["TagB"]) == sorted(
        [*TEXTS[1::3], TEXTS[8]], key=lambda text: int(text)
    )
    assert bodies(store, tags=["TagC"]) == [TEXTS[8]]
    store.close()


def test_the_option_can_be_switched_on_and_off(tmp_path: Path) -> None:
    for turn in range(6):
        store = open_store(tmp_path, **(PLAIN if turn % 2 else EXTENDED))
        put_ok(store, *[record(b"%d" % turn, tag="TagA")] * 5, record(b"no"))
        assert bodies(store, tags=["TagA"]) == [b"%d" % n for n in range(turn + 1) for _ in "five!"]
        if turn == 3:
            store.close()
        # Else as after a kill: the next one opens it beside this one's descriptors.
        else:
            copy = crashed_copy(tmp_path, tmp_path.with_name(f"{tmp_path.name}-{turn}"))
            store.close()
            shutil.rmtree(tmp_path)
            copy.rename(tmp_path)
    has_unit = [address >= 0 for address in addresses(tmp_path, 36)]
    assert has_unit == [turn % 2 == 0 for turn in range(6) for _ in range(6)]
    found = [address for address in addresses(tmp_path, 36) if address >= 0]
    assert found == sorted(found) and len(set(found)) == len(found)


# ----------------------------------------------------------------------------------- accidents


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("lost", ["all", "first", "middle", "last"])
def test_lost_files_are_rebuilt(tmp_path: Path, lost: str, clean: bool, known: bool) -> None:
    root = tmp_path / "store"
    store = fill(root)
    copy = crashed_copy(root, tmp_path / "crashed")
    store.close()
    if not clean:
        root = copy
    if not known:  # as RocketMQ leaves a store
        (root / "queues.json").unlink(missing_ok=True)
    paths = extension_files(root)
    if lost == "all":
        shutil.rmtree(root / "consumequeue_ext")
    else:
        paths[{"first": 0, "middle": 2, "last": -1}[lost]].unlink()
    store = open_store(root, **EXTENDED)
    assert_whole(store)
    store.close()
    assert_as_if_never_harmed(root, tmp_path)


@pytest.mark.parametrize("clean", [False, True])
def test_lost_files_with_the_option_off(tmp_path: Path, clean: bool) -> None:
    root = tmp_path / "store"
    store = fill(root)
    copy = crashed_copy(root, tmp_path / "crashed")
    store.close()
    root = root if clean else copy
    shutil.rmtree(root / "consumequeue_ext")
    store = open_store(root, **PLAIN)
    assert_whole(store)
    store.close()
    assert addresses(root) == [-1] * COUNT
    assert not (root / "consumequeue_ext").exists()


def test_units_that_a_power_loss_took_are_written_again(tmp_path: Path) -> None:
    """Whatever part of the units written since the last flush is zero, all come back."""
    root = tmp_path / "store"
    fill(root).close()
    store = open_store(root, **EXTENDED)
    put_ok(store, *[record(b"more", tag="TagA")] * 12)
    crashed = crashed_copy(root, tmp_path / "crashed")
    store.close()
    expected = [path.read_bytes() for path in extension_files(root)]
    first = addresses(root, COUNT + 12)[COUNT]
    places = [at for at in addresses(root, COUNT + 12) if at >= first]
    for skip in range(len(places)):
        for step in (1, 2, 5):
            copy = crashed_copy(crashed, tmp_path / f"{skip}-{step}")
            for at in places[skip::step]:
                overwrite(
                    copy / "consumequeue_ext" / TOPIC / "0" / f"{at - at % 150:020d}",
                    at % 150,
                    bytes(20),
                )
            store = open_store(copy, **EXTENDED)
            assert bodies(store) == TEXTS + [b"more"] * 12
            assert bodies(store, tags=["TagA"]) == OF_TAG_A + [b"more"] * 12
            store.close()
            assert addresses(copy, COUNT + 12) == addresses(root, COUNT + 12)
            assert [path.read_bytes() for path in extension_files(copy)] == expected


def test_units_that_a_dead_process_did_not_flush_are_flushed(tmp_path: Path) -> None:
    store = fill(tmp_path / "live")
    crashed = crashed_copy(tmp_path / "live", tmp_path / "crashed")
    store.close()
    flushed: set[Path] = set()
    files = FailingFiles()
    files.on_fsync = lambda path: flushed.add(path) or 0
    open_store(crashed, files=files, **EXTENDED).close()
    assert flushed.issuperset(extension_files(crashed))


def test_units_of_an_earlier_life_are_not_taken_for_ours(tmp_path: Path) -> None:
    store = fill(tmp_path / "live")
    crashed = crashed_copy(tmp_path / "live", tmp_path / "crashed")
    store.close()
    at = addresses(crashed)[-2]
    path = crashed / "consumequeue_ext" / TOPIC / "0" / f"{at - at % 150:020d}"
    overwrite(path, at % 150, unit(TAGS[(COUNT - 2) % 3], NOW - 1, b""))
    open_store(crashed, **EXTENDED).close()
    assert_as_if_never_harmed(crashed, tmp_path)


def test_bit_maps_are_computed_again(tmp_path: Path) -> None:
    root = tmp_path / "store"
    settings = config(root, **EXTENDED)
    store = MessageStore.open(settings, FakeClock(), files=QuickFiles(), bit_map_of=bit_map_of)
    put_ok(store, *[record(b"%d" % number, tag="TagA") for number in range(20)])
    store.close()
    before = {path.name: path.read_bytes() for path in extension_files(root)}
    shutil.rmtree(root / "consumequeue_ext")
    MessageStore.open(settings, FakeClock(), files=QuickFiles(), bit_map_of=bit_map_of).close()
    assert {path.name: path.read_bytes() for path in extension_files(root)} == before


def test_stale_bytes_behind_the_last_unit_are_zeroed(tmp_path: Path) -> None:
    """RocketMQ leaves what it cut; half a unit of ours over it would look like a size to it."""
    fill(tmp_path / "store").close()
    root = tmp_path / "store"
    last = extension_files(root)[-1]
    used = addresses(root)[-1] % 150 + 20
    overwrite(last, used, b"\x7f" * (150 - used))
    (last.with_name(f"{int(last.name) + 150:020d}")).write_bytes(b"\x7f" * 150)
    open_store(root, **EXTENDED).close()
    assert_as_if_never_harmed(root, tmp_path)


def test_entries_cut_with_the_log_take_their_units_along(tmp_path: Path) -> None:
    root = tmp_path / "live"
    store = fill(root)
    crashed = crashed_copy(root, tmp_path / "crashed")
    cut = store.record_at(store.physical_offset(TOPIC, 0, 30) or 0)
    store.close()
    path = crashed / "commitlog" / f"{cut.physical_offset // 1024 * 1024:020d}"
    for later in log_files(crashed):
        if later > path:
            later.unlink()
    overwrite(path, cut.physical_offset % 1024, bytes(1024 - cut.physical_offset % 1024))
    store = open_store(crashed, **EXTENDED)
    assert bodies(store) == TEXTS[:30]
    for number in range(30, COUNT):
        put_ok(store, record(TEXTS[number], tag=TAGS[number % 3]))
    assert_whole(store)
    store.close()
    assert_as_if_never_harmed(crashed, tmp_path)


def test_leading_files_go_with_retention(tmp_path: Path) -> None:
    clock = FakeClock()
    store = open_store(tmp_path, clock, **EXTENDED, clean_batch_max=4)
    for number in range(90):
        put_ok(store, record(b"%d" % number, tag="TagA"))
    put_ok(store, *[record_of_size(500, queue_id=1)] * 5)
    store.durability.flush()
    store.durability.flush_queues()
    count = len(extension_files(tmp_path))
    clock.now_ms *= 3  # The files are as young as this test.
    store.retention.clean_now()
    while store.retention.clean_step():
        pass
    low, end = store.queue_bounds(TOPIC, 0)
    assert 0 < low < end == 90
    kept = extension_files(tmp_path)
    assert 0 < len(kept) < count
    assert int(kept[0].name) // 150 == low // 7  # seven units of 20 B and a mark in 150 B
    assert bodies(store, tags=["TagA"]) == [b"%d" % number for number in range(low, 90)]
    store.close()


def test_leading_files_go_with_the_log(tmp_path: Path) -> None:
    root = tmp_path / "store"
    fill(root).close()
    for path in log_files(root)[:3]:
        path.unlink()
    (root / "queues.json").unlink()
    before = extension_files(root)
    store = open_store(root, **EXTENDED)
    first = store.queue_bounds(TOPIC, 0)[0]
    assert 0 < first < COUNT
    assert bodies(store) == TEXTS[first:]
    assert bodies(store, tags=["TagA"]) == [text for text in OF_TAG_A if int(text) >= first]
    kept = extension_files(root)
    assert kept == before[-len(kept) :]
    assert int(kept[0].name) <= addresses(root)[first] < int(kept[0].name) + 150
    put_ok(store, record(b"more", tag="TagA"))
    assert bodies(store, tags=["TagA"])[-1] == b"more"
    store.close()


def test_a_deleted_topic_leaves_nothing(tmp_path: Path) -> None:
    store = fill(tmp_path)
    put_ok(store, record(b"other", queue_id=1, tag="TagA"))
    store.retention.delete_queues(TOPIC)
    assert not (tmp_path / "consumequeue_ext" / TOPIC).exists()
    put_ok(store, record(b"again", tag="TagA"))
    assert addresses(tmp_path, 1) == [0]
    crashed = crashed_copy(tmp_path, tmp_path.with_name(f"{tmp_path.name}-crashed"))
    store.close()
    for root in (tmp_path, crashed):
        store = open_store(root, **EXTENDED)
        assert bodies(store, tags=["TagA"]) == [b"again"]
        store.close()
    shutil.rmtree(crashed)


def test_units_without_their_queue_are_in_nobodys_way(tmp_path: Path) -> None:
    root = tmp_path / "store"
    fill(root).close()
    shutil.copytree(root / "consumequeue_ext" / TOPIC / "0", root / "consumequeue_ext" / "Gone/3")
    store = open_store(root, **EXTENDED)
    assert_whole(store)
    assert store.queues() == [(TOPIC, 0)]
    put_ok(store, record(b"new", topic="Gone", queue_id=3, tag="TagA"))
    assert bodies(store, "Gone", 3, tags=["TagA"]) == [b"new"]
    store.close()


def test_new_units_never_stand_where_lost_ones_were_looked_for(tmp_path: Path) -> None:
    """The last entries are plain, so nothing tells of the loss but the older ones' addresses."""
    store = fill(tmp_path)
    store.close()
    store = open_store(tmp_path, **PLAIN)
    put_ok(store, record(b"plain", tag="TagB"))
    store.close()
    shutil.rmtree(tmp_path / "consumequeue_ext")
    lost = max(addresses(tmp_path))
    store = open_store(tmp_path, **EXTENDED)
    put_ok(store, *[record(b"new", tag="TagC")] * COUNT)
    # Messages of unknown tag pass, those of a known one do not.
    assert bodies(store, tags=["TagA"]) == TEXTS
    assert bodies(store, tags=["TagC"]) == TEXTS + [b"new"] * COUNT
    store.close()
    assert addresses(tmp_path, COUNT + 2)[-1] == lost // 150 * 150 + 150


@pytest.mark.parametrize("half", [False, True])
def test_full_disk_while_writing_units(tmp_path: Path, half: bool) -> None:
    files, clock = FailingFiles(), FakeClock()
    files.half = half
    root = tmp_path / "store"
    store = open_store(root, clock, files, **EXTENDED)
    put_ok(store, *[record(b"%d" % n, tag="TagA") for n in range(5)])
    files.on_write = failing_in("consumequeue_ext", errno.ENOSPC)
    put_ok(store, *[record(b"%d" % n, tag="TagA") for n in range(5, 12)])
    assert store.queue_bounds(TOPIC, 0) == (0, 5)
    assert store.not_writable_reason is not None
    files.on_write = never
    clock.now_ms += 1001
    assert store.dispatch.advance()
    assert bodies(store, tags=["TagA"]) == [b"%d" % n for n in range(12)]
    store.close()
    assert addresses(root, 12) == [n // 7 * 150 + n % 7 * 20 for n in range(12)]


def test_full_disk_at_the_nth_call(tmp_path: Path) -> None:
    for nth in range(1, 60):
        files, clock, root = FailingFiles(), FakeClock(), tmp_path / str(nth)
        files.fail_at = nth
        try:
            store = open_store(root, clock, files, **EXTENDED)
        except DiskFull:
            store = open_store(root, clock, files, **EXTENDED)
        stored = []
        for number in range(15):
            clock.now_ms += 1001
            (result,) = store.put([record(b"%d" % number, tag="TagA")], bytes(8))
            if result.physical_end:
                stored.append(b"%d" % number)
        clock.now_ms += 1001
        store.dispatch.advance()
        crashed = crashed_copy(root, tmp_path / f"{nth} crashed")
        try:
            store.close()
        except StoreError:
            pass
        for path in (crashed, root):
            store = open_store(path, clock, **EXTENDED)
            assert bodies(store) == bodies(store, tags=["TagA"]) == stored, nth
            store.close()


# ----------------------------------------------------------------------------------- bad input


def test_files_of_another_size_are_refused(tmp_path: Path) -> None:
    fill(tmp_path).close()
    with pytest.raises(StoreMismatch, match=r"150 B, expected 151 B.*ConsumeQueueExt"):
        open_store(tmp_path, **(EXTENDED | {"queue_extension_file_bytes": 151}))
    store = open_store(tmp_path, **(PLAIN | {"queue_extension_file_bytes": 151}))
    assert_whole(store)  # Without the option they are only read.
    store.close()


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    fill(tmp_path).close()
    extension_files(tmp_path)[0].with_name("notes.txt").write_text("?")
    with pytest.raises(StoreMismatch, match=r"notes\.txt: not a consume-queue extension file"):
        open_store(tmp_path, **EXTENDED)


def test_a_file_whose_creation_was_cut_short(tmp_path: Path) -> None:
    fill(tmp_path).close()
    last = extension_files(tmp_path)[-1]
    last.with_name(f"{int(last.name) + 150:020d}").write_bytes(b"")
    store = open_store(tmp_path, **EXTENDED)
    put_ok(store, *[record(tag="TagA")] * 9)
    assert len(bodies(store, tags=["TagA"])) == len(OF_TAG_A) + 9
    store.close()


def test_a_lost_queue_file_is_rebuilt_though_nothing_tells_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A store of RocketMQ, cleanly stopped: its log is read from the segment queues reach."""
    store = open_store(tmp_path, segment_bytes=1024)
    put_ok(store, *[record(b"%d" % number) for number in range(25)])
    put_ok(store, *[record_of_size(500, queue_id=1)] * 9)
    store.close()
    (tmp_path / "queues.json").unlink()
    (queue_path(tmp_path) / f"{200:020d}").unlink()
    with caplog.at_level(logging.WARNING):
        store = open_store(tmp_path, segment_bytes=1024)
    assert "a file is missing" in caplog.text
    assert bodies(store) == [b"%d" % number for number in range(25)]
    store.close()


def test_files_go_one_by_one_each_durably(tmp_path: Path) -> None:
    """A power loss between several deletions must not leave a gap."""

    class Recording(QuickFiles):
        def __init__(self) -> None:
            self.done: list[str] = []

        def remove(self, path: Path) -> None:
            self.done.append(path.name)
            super().remove(path)

        def fsync_directory(self, path: Path) -> None:
            self.done.append("synced")
            super().fsync_directory(path)

    files = Recording()
    queue_files = QueueFiles(files, 10)
    extension = QueueExtension(queue_files, tmp_path / "ext", 60)
    codes = np.arange(8)
    addresses = extension.put(codes, codes, None)
    extension.keep()
    files.done.clear()
    extension.trim(int(addresses[6]))
    assert files.done == [f"{0:020d}", "synced", f"{60:020d}", "synced", f"{120:020d}"]
    assert extension.units(addresses[6:])[1].all()
    queue_files.close()
