"""Reads and arrivals that are filtered by the bit maps in the extensions of queues."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.stores import TOPIC, FakeClock, QuickFiles, config, put_ok, record

from pymq.protocol.record import decode_record, decode_records
from pymq.store import Arrival, BitMapTest, MessageStore, ReadResult, Selection

NOW = 1_700_000_000_000


def bit_map_of(topic: str, stored: memoryview) -> bytes | None:
    """The map of a message is its body."""
    assert topic == TOPIC
    body = decode_record(stored).body
    return None if body == b"none" else body


def open_extended(path: Path, clock: FakeClock, file_bytes: int = 100) -> MessageStore:
    settings = config(path, queue_extension=True, queue_extension_file_bytes=file_bytes)
    return MessageStore.open(settings, clock, files=QuickFiles(), bit_map_of=bit_map_of)


def read(store: MessageStore, test: BitMapTest, **more: Any) -> ReadResult:
    selection = Selection(bit_maps=test, matches=more.pop("matches", None))
    return store.read(TOPIC, 0, 0, count_max=32, bytes_max=1 << 20, selection=selection, **more)


def bodies(result: ReadResult) -> list[bytes]:
    return [one.body for buffer in result.buffers for one in decode_records(buffer)]


@pytest.mark.parametrize("file_bytes", [30, 50, 100, 1000])
def test_bit_maps_tell_which_messages_may_match(tmp_path: Path, file_bytes: int) -> None:
    store = open_extended(tmp_path, FakeClock(NOW), file_bytes)
    seen: list[Arrival] = []
    store.dispatch.listener = seen.extend
    unknown = [b"none", b"\xff\xff\xff"]  # no bit map, and one of another size
    put_ok(store, *map(record, (b"\x01\x01", b"\x03\x02", b"\x01\x00", *unknown, b"\x80\xff")))
    (arrival,) = seen
    for positions, expected in (
        ((0, 8), [b"\x01\x01", *unknown]),
        ((0, 1, 9), [b"\x03\x02", *unknown]),
        ((7, 15), [*unknown, b"\x80\xff"]),
        ((2,), unknown),
    ):
        test = BitMapTest(positions, 2, NOW - 1)
        assert bodies(read(store, test)) == expected
        assert store.reads.is_selected(arrival, Selection(bit_maps=test))
    only_known = BitMapTest((2,), 2, NOW - 1)
    assert arrival.bit_maps is not None
    arrival.bit_maps, arrival.entries = arrival.bit_maps[:3], arrival.entries[:60]
    assert not store.reads.is_selected(arrival, Selection(bit_maps=only_known))
    store.close()


def test_only_those_that_may_match_are_looked_at(tmp_path: Path) -> None:
    store = open_extended(tmp_path, FakeClock(NOW))
    put_ok(store, *[record(b"\x01" if number % 3 else b"\x00") for number in range(9)])
    looked_at = []

    def matches(messages: Sequence[bytes]) -> list[bool]:
        first = len(looked_at) + 1
        looked_at.extend(messages)
        return [number % 2 == 0 for number in range(first, len(looked_at) + 1)]

    result = read(store, BitMapTest((0,), 1, NOW - 1), matches=matches)
    assert (result.count, result.next_queue_offset, len(looked_at)) == (3, 9, 6)
    store.close()


def test_messages_that_are_not_later_than_a_filter_pass_its_test(tmp_path: Path) -> None:
    clock = FakeClock(NOW)
    store = open_extended(tmp_path, clock)
    put_ok(store, record(b"\x00"))
    clock.now_ms += 1
    put_ok(store, record(b"\x00"), record(b"\x01"))
    assert bodies(read(store, BitMapTest((0,), 1, NOW))) == [b"\x00", b"\x01"]
    assert bodies(read(store, BitMapTest((0,), 1, NOW + 1))) == [b"\x00", b"\x00", b"\x01"]
    store.close()


def test_a_queue_without_bit_maps_passes_every_test(tmp_path: Path) -> None:
    store = MessageStore.open(config(tmp_path), FakeClock(NOW), files=QuickFiles())
    seen: list[Arrival] = []
    store.dispatch.listener = seen.extend
    put_ok(store, record(b"\x00"))
    test = BitMapTest((0,), 1, 0)
    assert bodies(read(store, test)) == [b"\x00"]
    assert store.reads.is_selected(seen[0], Selection(bit_maps=test))
    store.close()
