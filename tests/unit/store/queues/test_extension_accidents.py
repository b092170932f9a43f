"""Extensions of queues that are lost, torn, deleted or not written: what becomes of their units."""

import errno
import logging
import shutil
from pathlib import Path

import pytest
from tests.unit.store.queues.extended import (
    COUNT,
    EXTENDED,
    NOW,
    OF_TAG_A,
    PLAIN,
    TAGS,
    TEXTS,
    addresses,
    assert_as_if_never_harmed,
    assert_whole,
    bit_map_of,
    extension_files,
    fill,
    unit,
)
from tests.unit.store.stores import (
    TOPIC,
    FailingFiles,
    FakeClock,
    QuickFiles,
    bodies,
    config,
    crashed_copy,
    failing_in,
    log_files,
    never,
    open_store,
    overwrite,
    put_ok,
    queue_path,
    record,
    record_of_size,
)

from pymq.errors import DiskFull, StoreError
from pymq.store import MessageStore


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
