"""Checksums of whole records in a store: written by configuration, believed with care."""

import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.stores import (
    BORN,
    HOST,
    TOPIC,
    bodies,
    crashed_copy,
    log_files,
    open_store,
    overwrite,
    put_ok,
    read_all,
    record,
)

from pymq.errors import CorruptRecord
from pymq.protocol.batch_body import encode_batch
from pymq.protocol.new_batch import NewBatch
from pymq.protocol.new_records import SharedFields
from pymq.protocol.preencoded_records import PreencodedRecords
from pymq.protocol.record import NewRecord, Record, decode_record
from pymq.protocol.record_crc import RecordCrc, check_record_crc
from pymq.store import PutStatus

FOREIGN = b"__CRC32#\x011234567890\x02"
SEGMENT = 1 << 16


def with_text(text: bytes, body: bytes = b"body") -> NewRecord:
    return NewRecord(TOPIC, 0, body, text, BORN, 1_700_000_000_000)


def stored(root: Path) -> list[tuple[int, Record, RecordCrc]]:
    """Return (position, record, what its checksum says) of what the first segment holds."""
    data = log_files(root)[0].read_bytes()
    found = []
    at = 0
    while data[at + 4 : at + 7] == b"\xda\xa3\x20":
        one = decode_record(data, at)
        found.append(
            (at, one, check_record_crc(data[at : at + one.size], len(one.properties)))
        )
        at += one.size
    return found


def states(root: Path) -> list[RecordCrc]:
    return [state for _, _, state in stored(root)]


def open_big(root: Path, **changes: Any) -> Any:
    return open_store(root, segment_bytes=SEGMENT, **changes)


def seal(root: Path, position: int) -> None:
    """Give the record there a checksum that fits, whatever was changed in it."""
    path = log_files(root)[0]
    data = path.read_bytes()
    (size,) = struct.unpack_from(">I", data, position)
    crc = zlib.crc32(data[position : position + size - 20]) & 0x7FFFFFFF
    overwrite(path, position + size - 11, str(crc).zfill(10)[::-1].encode())


# ------------------------------------------------------------------------------------ writing


def make_batch(texts: list[bytes], *, record_crc: bool) -> NewBatch:
    return NewBatch(
        encode_batch([(0, b"%d" % n, text) for n, text in enumerate(texts)]),
        SharedFields(
            topic=TOPIC,
            queue_id=0,
            born_timestamp=1_700_000_000_000,
            born_host=BORN,
            store_host=HOST,
            record_crc=record_crc,
        ),
    )


def make_preencoded(texts: list[bytes], *, record_crc: bool) -> PreencodedRecords:
    laid = make_batch(texts, record_crc=False)
    data = bytes(
        laid.encode(physical_offset=0, queue_offset=0, store_timestamp=0, store_host=HOST)
    )
    return PreencodedRecords(
        data,
        laid.sizes,
        SharedFields(
            topic=TOPIC,
            queue_id=0,
            born_timestamp=1_700_000_000_000,
            born_host=BORN,
            store_host=HOST,
            record_crc=record_crc,
        ),
    )


TEXTS = [b"", b"a\x01b", b"TAGS\x01t\x02", b"a\x01b\x02" + FOREIGN]


@pytest.mark.parametrize("written", [False, True])
def test_every_path_ends_records_with_one_or_none(tmp_path: Path, written: bool) -> None:
    store = open_big(tmp_path, append_record_crc=written)
    put_ok(
        store,
        *map(with_text, TEXTS),
        make_batch(TEXTS, record_crc=written),
        make_preencoded(TEXTS, record_crc=written),
        make_batch(TEXTS[:1] * 3, record_crc=written),
        *map(with_text, TEXTS),
    )
    assert len(read_all(store)) == 19
    store.close()
    assert states(tmp_path) == [RecordCrc.FITS if written else RecordCrc.NONE] * 19
    for _, one, _ in stored(tmp_path):
        assert one.properties.count(b"__CRC32#") == written
        assert not written or one.properties[:-20] in (b"", b"a\x01b\x02", b"TAGS\x01t\x02")


def test_one_in_the_middle_is_a_property_like_any_other(tmp_path: Path) -> None:
    """RocketMQ stores it as received while it writes none itself, and drops it when it does."""
    text = FOREIGN + b"a\x01b\x02"
    store = open_big(tmp_path)
    put_ok(store, with_text(text))
    assert [one.properties for one in read_all(store)] == [text]
    store.close()
    store = open_big(tmp_path, append_record_crc=True)
    put_ok(store, with_text(text))
    assert read_all(store)[1].properties[:-20] == b"a\x01b\x02"
    store.close()


def test_limits_count_it(tmp_path: Path) -> None:
    store = open_big(tmp_path, append_record_crc=True, message_bytes_max=1000)
    text = b"n\x01" + b"v" * (32767 - 20 - 3) + b"\x02"
    put_ok(store, with_text(text))
    for too_long in (text[:-1] + b"v\x02", text[:-1] + b"v"):  # the second gets a separator
        (result,) = store.put([with_text(too_long)], HOST)
        assert result.status is PutStatus.PROPERTIES_SIZE_EXCEEDED
        assert result.remark == (
            "properties of 32768 B with the checksum (append_record_crc), expected 0..32767"
        )
    put_ok(store, with_text(b"", bytes(1000)))
    store.close()


def test_the_largest_record_of_a_segment(tmp_path: Path) -> None:
    room = 4096 - 8 - 91 - len(TOPIC) - 20
    store = open_store(tmp_path, append_record_crc=True)
    for _ in range(2):
        put_ok(store, with_text(b"", bytes(room)))
    (result,) = store.put([with_text(b"", bytes(room + 1))], HOST)
    assert result.status is PutStatus.MESSAGE_ILLEGAL
    assert len(log_files(tmp_path)) == 2
    store.close()


def test_runs_that_roll_are_written_once_each(tmp_path: Path) -> None:
    """An entry that does not fit is looked at again for the next segment."""
    store = open_store(tmp_path, append_record_crc=True)
    texts = [b"a\x01%d" % n for n in range(200)]
    put_ok(
        store,
        *(with_text(text) for text in texts),
        *(make_batch([text] * 3, record_crc=True) for text in texts),
    )
    assert len(log_files(tmp_path)) > 20
    found = [one.properties[:-20] for one in read_all(store)]
    assert found == [t + b"\x02" for t in [*texts, *(t for t in texts for _ in range(3))]]
    store.close()


def test_the_broker_and_its_store_agree(tmp_path: Path) -> None:
    store = open_store(tmp_path, append_record_crc=True)
    with pytest.raises(AssertionError, match="another setting"):
        store.put([make_batch([b""], record_crc=False)], HOST)
    store.close()


# ----------------------------------------------------------------------------------- recovery


def crashed(root: Path, kinds: str, **changes: Any) -> Path:
    """Return a crashed store whose records end with: f fitting, w wrong, n no checksum."""
    live = root / "live"
    store = open_big(live, append_record_crc=True)
    for number, kind in enumerate(kinds):
        put_ok(store, with_text(b"kind\x01%c" % kind.encode(), b"%d" % number))
    copy = crashed_copy(live, root / "crashed")
    store.close()
    path = log_files(copy)[0]
    for (at, one, _), kind in zip(stored(copy), kinds, strict=True):
        if kind == "w":
            overwrite(path, at + one.size - 6, b"x")
        elif kind == "n":
            overwrite(path, at + one.size - 20, b"__other_")
    wanted = {"f": RecordCrc.FITS, "w": RecordCrc.WRONG, "n": RecordCrc.NONE}
    assert states(copy) == [wanted[kind] for kind in kinds]
    return copy


@pytest.mark.parametrize(
    ("kinds", "kept"),
    [
        # A broker that wrote checksums, and damage.
        ("ffff", 4),
        ("fffw", 3),
        ("ffwf", 2),
        ("wfff", 0),
        # A broker that wrote none, and clients that sent on what they had read.
        ("w", 1),
        ("wwww", 4),
        ("nwnw", 4),
        ("nnnw", 4),
        ("wnnn", 4),
        # One that began to write them, or left it off.
        ("nnff", 4),
        ("nwff", 4),
        ("wwff", 4),
        ("ffnn", 4),
        ("ffwn", 4),
        ("ffww", 4),
        ("ffwwn", 5),
    ],
)
def test_a_wrong_one_is_damage_among_right_ones(tmp_path: Path, kinds: str, kept: int) -> None:
    store = open_big(crashed(tmp_path, kinds))
    low, end = store.queue_bounds(TOPIC, 0)
    assert (low, end) == (0, kept)
    store.close()
    assert (tmp_path / "crashed" / "recovered").exists() == (kept < len(kinds))


def test_a_lone_one_is_believed_where_we_write_them(tmp_path: Path) -> None:
    store = open_big(crashed(tmp_path, "w"), append_record_crc=True)
    assert store.queue_bounds(TOPIC, 0) == (0, 0)
    store.close()


@pytest.mark.parametrize("kinds", ["fw", "fwf", "wf"])
def test_checksums_are_not_looked_at_unless_asked_for(tmp_path: Path, kinds: str) -> None:
    store = open_big(crashed(tmp_path, kinds), check_crc_on_recover=False, force_record_crc=True)
    assert store.queue_bounds(TOPIC, 0) == (0, len(kinds))
    store.close()


def test_every_flipped_bit_of_a_record_is_noticed_by_recovery(tmp_path: Path) -> None:
    """Also those that neither the body's CRC nor any other rule covers."""
    root = crashed(tmp_path, "fff")
    path = log_files(root)[0]
    good = path.read_bytes()
    at, one, _ = stored(root)[1]
    for position in range(at, at + one.size):
        overwrite(path, position, bytes([good[position] ^ 1 << position % 8]))
        copy = crashed_copy(root, tmp_path / f"at{position}")
        try:
            store = open_big(copy)
        except CorruptRecord:
            pass  # What follows is known to be safe.
        else:
            assert bodies(store) == [b"0"], position
            store.close()
        overwrite(path, position, good[position : position + 1])


def test_a_forged_one_never_costs_an_acknowledged_record(tmp_path: Path) -> None:
    """A client that guesses offsets and time sends right and wrong ones."""
    live = tmp_path / "live"
    store = open_big(live)
    guessed = decode_record(_guess(tmp_path)).properties
    assert guessed.startswith(b"a\x01b\x02__CRC32#\x01")
    put_ok(store, with_text(guessed), with_text(b"a\x01b\x02" + FOREIGN))
    put_ok(store, make_batch([guessed, b"a\x01b\x02" + FOREIGN], record_crc=False))
    copy = crashed_copy(live, tmp_path / "crashed")
    store.close()
    assert states(copy) == [RecordCrc.NONE] * 4
    for force in (False, True):
        if force:
            with pytest.raises(CorruptRecord, match="has no checksum"):
                open_big(copy, force_record_crc=True)
        else:
            store = open_big(copy)
            assert store.queue_bounds(TOPIC, 0) == (0, 4)
            store.close()


def _guess(root: Path) -> bytes:
    """Return the first record that a store with checksums would write."""
    store = open_big(root / "guess", append_record_crc=True)
    put_ok(store, with_text(b"a\x01b\x02"))
    store.close()
    at, one, _ = stored(root / "guess")[0]
    return log_files(root / "guess")[0].read_bytes()[at : at + one.size]


# ------------------------------------------------------------------------------------- demand


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("kinds", ["n", "fn", "nf", "ffnf"])
def test_a_record_without_a_demanded_one_stops_the_store(
    tmp_path: Path, kinds: str, clean: bool
) -> None:
    root = crashed(tmp_path, kinds)
    if clean:
        open_big(root).close()
    before = log_files(root)[0].read_bytes()
    at = stored(root)[kinds.index("n")][0]
    if clean and kinds[-1] == "f":
        open_big(root, force_record_crc=True).close()  # Nothing had to be read.
    else:
        with pytest.raises(CorruptRecord) as raised:
            open_big(root, force_record_crc=True)
        text = str(raised.value)
        assert str(log_files(root)[0]) in text and f"at position {at} " in text
        assert "forceVerifyPropCRC" in text and "enabledAppendPropCRC" in text
        assert "open it without force_record_crc" in text
    assert log_files(root)[0].read_bytes() == before
    store = open_big(root)
    assert store.queue_bounds(TOPIC, 0) == (0, len(kinds))
    store.close()


def test_a_demanded_one_that_is_wrong_is_damage(tmp_path: Path) -> None:
    store = open_big(crashed(tmp_path, "fww"), force_record_crc=True)
    assert store.queue_bounds(TOPIC, 0) == (0, 1)
    store.close()


def test_with_all_of_them_there_the_demand_is_met(tmp_path: Path) -> None:
    root = crashed(tmp_path, "ffff")
    for _ in range(2):
        store = open_big(root, force_record_crc=True, append_record_crc=True)
        assert len(read_all(store)) >= 4
        put_ok(store, record(b"more"))
        store.close()


@pytest.mark.parametrize("force", [False, True])
def test_a_torn_tail_is_cut_whether_or_not_they_are_demanded(tmp_path: Path, force: bool) -> None:
    root = crashed(tmp_path, "fff")
    at, one, _ = stored(root)[2]
    overwrite(log_files(root)[0], at + one.size - 25, bytes(25))
    store = open_big(root, force_record_crc=force)
    assert bodies(store) == [b"0", b"1"]
    store.close()


def test_a_hole_in_the_properties_of_a_torn_tail_is_noticed(tmp_path: Path) -> None:
    """What no other checksum covers: the end of the record reached the disk, its middle not."""
    live = tmp_path / "live"
    store = open_big(live, append_record_crc=True)
    put_ok(store, with_text(b"a\x01b"), with_text(b"n\x01" + b"v" * 3000 + b"\x02"))
    copy = crashed_copy(live, tmp_path / "crashed")
    store.close()
    overwrite(log_files(copy)[0], 1024, bytes(512))
    store = open_big(copy)
    assert [one.properties[:-20] for one in read_all(store)] == [b"a\x01b\x02"]
    store.close()


def test_what_was_changed_and_sealed_again_is_served(tmp_path: Path) -> None:
    """The tests' own way to make a checksum is right, and nothing else hides a change."""
    root = crashed(tmp_path, "fff")
    at, one, _ = stored(root)[1]
    overwrite(log_files(root)[0], at + 19, b"\x05")
    assert states(root)[1] is RecordCrc.WRONG
    seal(root, at)
    store = open_big(root)
    assert [one.flag for one in read_all(store)] == [0, 5, 0]
    store.close()
