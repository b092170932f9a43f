"""A read tells records that are not those its entries stand for."""

import random
import struct
from pathlib import Path

import numpy as np
import pytest
from tests.unit.store.stores import TOPIC, open_store, overwrite, put_ok, queue_path, record

from pymq.errors import CorruptRecord
from pymq.protocol.hashes import java_hash
from pymq.store import FlushMode, MessageStore, ReadResult, ReadStatus, Selection

COUNT = 30
TAGS = np.array([java_hash("TagA")], np.int64)


def fill(root: Path, **settings: object) -> MessageStore:
    """Return a store with 30 messages in queue 0, in runs of 3 between those of queue 1."""
    store = open_store(root, queue_file_bytes=6000, **settings)
    for number in range(COUNT):
        tag = "TagA" if number % 4 else None
        put_ok(store, record(b"%d" % number, queue_id=0, tag=tag))
        if number % 3 == 2:
            put_ok(store, record(b"other", queue_id=1))
    return store


def read(store: MessageStore, offset: int, *, tags: bool = False) -> ReadResult:
    codes = TAGS if tags else None
    return store.read(TOPIC, 0, offset, count_max=7, bytes_max=1 << 16, selection=Selection(codes))


def read_over(store: MessageStore, offset: int, entry: int, *, tags: bool) -> None:
    while offset <= entry:
        result = read(store, offset, tags=tags)
        result.check()
        assert result.next_queue_offset > offset
        offset = result.next_queue_offset


def test_every_read_of_a_whole_store_is_in_order(tmp_path: Path) -> None:
    store = fill(tmp_path)
    for offset in range(COUNT):
        for tags in (False, True):
            result = read(store, offset, tags=tags)
            assert (result.status is ReadStatus.FOUND) == (len(result.heads) > 0)
            assert len(result.heads) == len(result.buffers)
            result.check()
    read(store, COUNT).check()
    store.close()


@pytest.mark.parametrize("tags", [False, True], ids=["all", "tag"])
def test_a_changed_bit_of_an_entry_is_noticed(tmp_path: Path, seed: int, tags: bool) -> None:
    """Of its physical offset and its size, that is: nothing tells of the tag code."""
    chance = random.Random(seed)
    store = fill(tmp_path)
    (path,) = queue_path(tmp_path).iterdir()
    whole = path.read_bytes()
    for entry in range(COUNT):
        if tags and entry % 4 == 0:
            continue
        for bit in chance.sample(range(96), 12):
            at = 20 * entry + bit // 8
            overwrite(path, at, bytes([whole[at] ^ 0x80 >> bit % 8]))
            for offset in {entry, max(0, entry - chance.randrange(6))}:
                with pytest.raises(CorruptRecord, match="pymq store rebuild"):
                    read_over(store, offset, entry, tags=tags)
            overwrite(path, at, whole[at : at + 1])
    store.close()


def test_an_entry_in_front_of_the_log_is_no_expired_message(tmp_path: Path) -> None:
    live = tmp_path / "live"
    fill(live, segment_bytes=1024).close()
    sorted((live / "commitlog").iterdir())[0].unlink()
    store = open_store(live, segment_bytes=1024, queue_file_bytes=6000)
    first, end = store.queue_bounds(TOPIC, 0)
    assert 0 < first < end - 2
    (path,) = queue_path(live).iterdir()
    overwrite(path, 20 * (first + 1), struct.pack(">q", 5))
    with pytest.raises(CorruptRecord, match="before the start of the log"):
        read(store, first)
    with pytest.raises(CorruptRecord, match="before the start of the log"):
        read(store, first + 1)
    store.close()


def test_blank_entries_in_the_middle_are_passed_over(tmp_path: Path) -> None:
    """Recovery fills a gap in a queue with them."""
    store = fill(tmp_path)
    (path,) = queue_path(tmp_path).iterdir()
    overwrite(path, 20 * 10, struct.pack(">qiq", 0, 0x7FFFFFFF, 0) * 3)
    for tags in (False, True):
        result = read(store, 10, tags=tags)
        assert result.status is ReadStatus.FOUND and result.heads[0][0] >= 13
        result.check()
    alone = store.read(TOPIC, 0, 11, count_max=1, bytes_max=100)
    assert alone.status is ReadStatus.MESSAGE_WAS_REMOVING and alone.next_queue_offset == 12
    store.close()


def test_who_is_ahead_of_what_is_visible_and_not_of_what_is_stored_waits(tmp_path: Path) -> None:
    """It has read the rest at a slave, which had that on its disk before this master had."""
    store = open_store(tmp_path, flush_mode=FlushMode.SYNC)
    for is_empty in (True, False):
        put_ok(store, record(b"one", queue_id=0), record(b"two", queue_id=0))
        first = 0 if is_empty else 2
        for offset in (first + 1, first + 2):
            result = read(store, offset)
            assert result.status is ReadStatus.OFFSET_OVERFLOW_ONE
            assert result.next_queue_offset == offset
        assert read(store, first + 3).status in (
            ReadStatus.NO_MESSAGE_IN_QUEUE,
            ReadStatus.OFFSET_OVERFLOW_BADLY,
        )
        store.durability.flush()
        assert read(store, first).count == 2
    store.close()
