"""Units of consume queues: their bytes, their addresses, and what is no unit."""

import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.store.queues.extended import (
    EXTENDED,
    NOW,
    OF_TAG_A,
    PLAIN,
    TEXTS,
    addresses,
    assert_whole,
    bit_map_of,
    extension_files,
    fill,
    unit,
)
from tests.unit.store.stores import (
    FakeClock,
    QuickFiles,
    batch,
    bodies,
    config,
    crashed_copy,
    open_store,
    overwrite,
    put_ok,
    queue_bytes,
    record,
    record_of_size,
)

from pymq.errors import StoreMismatch
from pymq.protocol.hashes import java_hash
from pymq.store import Arrival, FlushMode, MessageStore
from pymq.store.queues.queue_extension import UNIT_BYTES_MAX, QueueExtension
from pymq.store.queues.queue_files import QueueFiles


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
