"""Reads whose selection looks into the records."""

import gc
import os
import random
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.unit.store.stores import TOPIC, open_store, overwrite, put_ok, queue_path, record

from pymq.errors import CorruptRecord, StoreClosed
from pymq.protocol.hashes import java_hash
from pymq.protocol.message import encode_properties
from pymq.protocol.record import NewRecord, decode_records
from pymq.store import (
    Arrival,
    Matches,
    MatchingRead,
    MessageStore,
    ReadResult,
    ReadStatus,
    Selection,
    Verdicts,
)
from pymq.store.verdicts import QUEUES_MAX


def numbered(number: int, *, body_bytes: int = 9, tag: str | None = None) -> NewRecord:
    properties = {"n": str(number), **({"TAGS": tag} if tag else {})}
    return replace(
        record(b"b" * body_bytes, queue_id=0, tag=tag), properties=encode_properties(properties)
    )


def divisible_by(divisor: int, seen: list[int] | None = None) -> Matches:
    def matches(messages: Sequence[bytes]) -> list[bool]:
        numbers = [int(text.split(b"n\x01")[1].split(b"\x02")[0]) for text in messages]
        if seen is not None:
            seen.extend(numbers)
        return [number % divisor == 0 for number in numbers]

    return matches


def offsets(result: ReadResult) -> list[int]:
    return [one.queue_offset for buffer in result.buffers for one in decode_records(buffer)]


def read(store: MessageStore, selection: Selection, offset: int = 0) -> ReadResult:
    return store.read(TOPIC, 0, offset, count_max=32, bytes_max=1 << 20, selection=selection)


def _reference_read(
    sizes: list[int], wanted: list[bool], count_max: int, bytes_max: int, scan: int
) -> tuple[list[int], int]:
    """RocketMQ's loop: indexes found, entries consumed."""
    found: list[int] = []
    total = consumed = 0
    for index, size in enumerate(sizes[:scan]):
        if found and (total + size > bytes_max or len(found) >= count_max):
            break
        consumed += 1
        if wanted[index]:
            found.append(index)
            total += size
    return found, consumed


def test_reads_stop_where_rocketmqs_loop_stops(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    store = open_store(tmp_path, segment_bytes=1 << 16)
    sizes, tags = [], []
    for number in range(300):
        tags.append(dice.choice(["A", "B", "C"]))
        new = numbered(number, body_bytes=dice.choice([9, 50, 300]), tag=tags[-1])
        put_ok(store, new)
        sizes.append(91 + 9 + len(new.properties) + len(new.body))
        if dice.random() < 0.3:
            put_ok(store, record(b"other", queue_id=1))
    for _ in range(100):
        chosen = dice.choice([None, {"A"}, {"A", "C"}])
        divisor = dice.choice([1, 2, 7, 1000])
        offset = dice.randrange(300)
        count_max, bytes_max = dice.randint(1, 60), dice.choice([1, 500, 4000, 100_000])
        scan_max = dice.choice([1, 20, 800])
        wanted = [
            number % divisor == 0 and (chosen is None or tags[number] in chosen)
            for number in range(offset, 300)
        ]
        found, consumed = _reference_read(sizes[offset:], wanted, count_max, bytes_max, scan_max)
        codes = None if chosen is None else np.array(sorted(map(java_hash, chosen)), np.int64)
        result = store.read(
            TOPIC,
            0,
            offset,
            count_max=count_max,
            bytes_max=bytes_max,
            selection=Selection(codes, divisible_by(divisor)),
            scan_max=scan_max,
        )
        result.check()
        assert offsets(result) == [offset + index for index in found]
        assert result.next_queue_offset == offset + consumed
        assert (result.status is ReadStatus.FOUND) == bool(found)
    store.close()


def test_reads_that_know_verdicts_return_what_others_do(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    store = open_store(tmp_path, segment_bytes=1 << 16, queue_file_bytes=8_000)
    for number in range(1500):
        put_ok(store, numbered(number, body_bytes=dice.choice([9, 50, 300])))
        if dice.random() < 0.3:
            put_ok(store, record(b"other", queue_id=1))
    for _ in range(60):
        divisor = dice.choice([1, 1, 2, 7, 40, 3000])
        seen: list[int] = []
        matches, unseen = divisible_by(divisor, seen), divisible_by(divisor)
        knowing = Selection(matches=matches, verdicts=Verdicts())
        limits = {
            "count_max": dice.choice([1, 8, 32, 100]),
            "bytes_max": dice.choice([1000, 5_000, 1 << 20]),
            "scan_max": dice.choice([20, 800]),
        }
        offset = dice.randrange(1500)
        for _ in range(dice.randint(1, 40)):
            result = store.read(TOPIC, 0, offset, selection=knowing, **limits)
            other = store.read(TOPIC, 0, offset, selection=Selection(matches=unseen), **limits)
            assert (result.status, result.next_queue_offset, offsets(result)) == (
                (other.status, other.next_queue_offset, offsets(other))
            )
            result.check()
            if dice.random() < 0.1:  # others read elsewhere, or the reader goes back
                offset = dice.randrange(1500)
            else:
                offset = result.next_queue_offset
    store.close()


def test_a_read_that_goes_on_looks_ahead_for_the_following_ones(tmp_path: Path) -> None:
    store = open_store(tmp_path, segment_bytes=1 << 20, queue_file_bytes=40_000)
    put_ok(store, *map(numbered, range(1000)))
    seen: list[int] = []
    selection = Selection(matches=divisible_by(1, seen), verdicts=Verdicts())
    for first in range(0, 32 + 256 - 32, 32):
        assert offsets(read(store, selection, first)) == list(range(first, first + 32))
    assert seen == list(range(32 + 256))
    store.close()


def test_damage_ahead_is_met_when_it_is_read(tmp_path: Path) -> None:
    store = open_store(tmp_path, segment_bytes=1 << 20, queue_file_bytes=40_000)
    results = put_ok(store, *map(numbered, range(300)))
    (path,) = (tmp_path / "commitlog").iterdir()
    overwrite(path, results[200].physical_offset + 20, struct.pack(">q", 7))  # its queue offset
    selection = Selection(matches=divisible_by(1), verdicts=Verdicts())
    for first in range(0, 192, 32):
        assert offsets(read(store, selection, first)) == list(range(first, first + 32))
    with pytest.raises(CorruptRecord, match="entry 200 "):
        read(store, selection, 192)
    store.close()


def test_verdicts_of_a_deleted_topic_are_not_those_of_its_successor(tmp_path: Path) -> None:
    store = open_store(tmp_path, segment_bytes=1 << 20, queue_file_bytes=40_000)
    selection = Selection(matches=divisible_by(2), verdicts=Verdicts())
    put_ok(store, *map(numbered, range(100)))
    for first in (0, 64):
        read(store, selection, first)
    store.retention.delete_queues(TOPIC)
    put_ok(store, *[numbered(number) for number in range(1, 101)])
    assert offsets(read(store, selection, 64)) == list(range(65, 100, 2))
    assert offsets(read(store, selection)) == list(range(1, 64, 2))
    store.close()


@pytest.mark.parametrize(("at", "value"), [(0, 1 << 40), (0, 40_000), (8, 1 << 20)])
def test_an_entry_ahead_that_is_damaged_is_met_when_it_is_read(
    tmp_path: Path, at: int, value: int
) -> None:
    store = open_store(tmp_path, segment_bytes=1 << 20, queue_file_bytes=40_000)
    put_ok(store, *map(numbered, range(500)))
    (path,) = queue_path(tmp_path).iterdir()
    overwrite(path, 20 * 200 + at, value.to_bytes(8 if at == 0 else 4, "big"))
    selection = Selection(matches=divisible_by(1), verdicts=Verdicts())
    for first in range(0, 160, 32):
        assert offsets(read(store, selection, first)) == list(range(first, first + 32))
    with pytest.raises(CorruptRecord):
        for first in (160, 192):
            read(store, selection, first)
    store.close()


def test_readers_of_one_queue_keep_their_verdicts(tmp_path: Path) -> None:
    store = open_store(tmp_path, segment_bytes=1 << 20, queue_file_bytes=40_000)
    put_ok(store, *map(numbered, range(1500)))
    seen: list[int] = []
    selection = Selection(matches=divisible_by(1, seen), verdicts=Verdicts())
    for step in range(0, 288, 32):
        for reader in (0, 400, 800, 1200):
            first = reader + step
            assert offsets(read(store, selection, first)) == list(range(first, first + 32))
    assert len(seen) == len(set(seen)) == 4 * 288
    store.close()


def test_a_prefetch_that_is_given_up_keeps_no_file_open(tmp_path: Path) -> None:
    store = open_store(tmp_path, segment_bytes=1 << 20, queue_file_bytes=40_000)
    for number in range(20):  # records that do not lie side by side
        put_ok(store, numbered(number), record(b"other", queue_id=1))
    result = store.read(TOPIC, 0, 0, count_max=32, bytes_max=1 << 20)
    before = len(os.listdir("/proc/self/fd"))
    job = store.begin_prefetch(result.buffers, result.starts)
    assert len(result.starts) == 20 and len(os.listdir("/proc/self/fd")) == before + 1
    del job
    assert len(os.listdir("/proc/self/fd")) == before
    job = store.begin_prefetch(result.buffers, result.starts)
    job.run()
    assert len(os.listdir("/proc/self/fd")) == before
    store.close()


def test_verdicts_are_those_of_one_store(tmp_path: Path) -> None:
    selection = Selection(matches=divisible_by(2), verdicts=Verdicts())
    for name, first in (("even", 0), ("odd", 1)):  # the same places have other messages
        store = open_store(tmp_path / name, segment_bytes=1 << 20, queue_file_bytes=40_000)
        put_ok(store, *[numbered(number) for number in range(10 + first, 90)])
        assert offsets(read(store, selection)) == list(range(first, 80 - first, 2))[:32]
        assert offsets(read(store, selection, 64)) == list(range(64 + first, 80 - first, 2))
        store.close()


def test_verdicts_are_kept_of_few_queues_that_exist(tmp_path: Path) -> None:
    store = open_store(tmp_path, queue_file_bytes=40_000, segment_bytes=1 << 20)
    verdicts = Verdicts()
    selection = Selection(matches=divisible_by(2), verdicts=verdicts)
    for queue_id in range(QUEUES_MAX + 1):
        put_ok(store, replace(numbered(queue_id), queue_id=queue_id))
        store.read(TOPIC, queue_id, 0, count_max=32, bytes_max=1 << 20, selection=selection)
    assert len(verdicts) == 1
    store.retention.delete_queues(TOPIC)
    gc.collect()
    assert not len(verdicts)
    store.close()


def test_one_read_scans_no_more_than_800_records_and_looks_at_few_beyond_a_full_result(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path, segment_bytes=1 << 20, queue_file_bytes=40_000)
    put_ok(store, *map(numbered, range(1, 1001)))
    seen: list[int] = []
    result = read(store, Selection(matches=divisible_by(2000, seen)))
    assert result.status is ReadStatus.NO_MATCHED_MESSAGE
    assert result.next_queue_offset == len(seen) == 800
    seen.clear()
    result = read(store, Selection(matches=divisible_by(1, seen)))
    assert result.count == result.next_queue_offset == 32 == len(seen)
    store.close()


def test_of_large_records_the_bodies_are_not_brought_into_memory(tmp_path: Path) -> None:
    store = open_store(tmp_path, segment_bytes=1 << 21)
    put_ok(store, numbered(1), numbered(2, body_bytes=300_000), numbered(3), numbered(4))
    reading = store.reads.begin(
        TOPIC, 0, 0, count_max=32, bytes_max=1 << 20, selection=Selection(matches=divisible_by(2))
    )
    assert isinstance(reading, MatchingRead)
    buffers, starts = reading.places()
    assert starts == sorted(starts) and sum(map(len, buffers)) < 50_000
    store.begin_prefetch(buffers, starts).run()
    result = store.reads.advance(reading)
    assert result is not None and offsets(result) == [1, 3]
    assert store.statistics.get_count == 2
    store.close()
    with pytest.raises(StoreClosed):
        store.reads.advance(reading)


def test_blank_entries_and_lost_records_are_passed_over(tmp_path: Path) -> None:
    store = open_store(tmp_path, queue_file_bytes=6000)
    put_ok(store, *map(numbered, range(10)))
    (path,) = queue_path(tmp_path).iterdir()
    overwrite(path, 20 * 4, struct.pack(">qiq", 0, 0x7FFFFFFF, 0) * 3)
    for offset, expected in ((0, [0, 2]), (4, [8])):  # a blank entry is too large for a second one
        assert offsets(read(store, Selection(matches=divisible_by(2)), offset)) == expected
    none = store.read(
        TOPIC,
        0,
        4,
        count_max=1,
        bytes_max=1,
        selection=Selection(matches=lambda messages: [True] * len(messages)),
        scan_max=3,
    )
    assert none.status is ReadStatus.MESSAGE_WAS_REMOVING and none.next_queue_offset == 7
    store.close()


@pytest.mark.parametrize(("at", "size"), [(0, 8), (8, 4)])
def test_an_entry_that_does_not_fit_its_record_is_named(tmp_path: Path, at: int, size: int) -> None:
    store = open_store(tmp_path, queue_file_bytes=6000)
    put_ok(store, *map(numbered, range(3)))
    (path,) = queue_path(tmp_path).iterdir()
    old = path.read_bytes()[20 + at : 20 + at + size]
    overwrite(path, 20 + at, (int.from_bytes(old, "big") + 1).to_bytes(size, "big"))
    with pytest.raises(CorruptRecord, match=r"entry .*pymq store rebuild"):
        read(store, Selection(matches=divisible_by(1)))
    store.close()


def test_arrivals_are_for_those_who_select_one_of_them(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    seen: list[Arrival] = []
    store.dispatch.listener = seen.extend
    put_ok(store, numbered(3, tag="A"), numbered(5, tag="B"))
    (arrival,) = seen
    a, b, c = (np.array([java_hash(tag)], np.int64) for tag in "ABC")
    for selection, expected in (
        (Selection(), True),
        (Selection(a), True),
        (Selection(c), False),
        (Selection(matches=divisible_by(5)), True),
        (Selection(matches=divisible_by(2)), False),
        (Selection(a, divisible_by(5)), False),
        (Selection(b, divisible_by(5)), True),
    ):
        assert store.reads.is_selected(arrival, selection) == expected
    arrival.entries = arrival.entries[:8] + b"\0\0\0\x01" + arrival.entries[12:]
    assert store.reads.is_selected(arrival, Selection(matches=divisible_by(2)))
    store.close()


def test_a_filter_may_decide_of_a_few_records_at_a_time(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    store = open_store(tmp_path, segment_bytes=1 << 20, queue_file_bytes=40_000)
    put_ok(store, *map(numbered, range(900)))
    for _ in range(15):
        all_at_once = divisible_by(dice.choice([1, 3, 40, 3000]))

        def few(messages: Sequence[bytes], decide: Matches = all_at_once) -> Sequence[bool]:
            return decide(messages[: dice.randint(1, 70)])

        verdicts = Verdicts() if dice.random() < 0.7 else None
        offset = 0
        while offset < 900:
            result = read(store, Selection(matches=few, verdicts=verdicts), offset)
            other = read(store, Selection(matches=all_at_once), offset)
            assert (result.status, result.next_queue_offset, offsets(result)) == (
                (other.status, other.next_queue_offset, offsets(other))
            )
            offset = result.next_queue_offset
    store.close()


def test_a_read_that_is_stopped_has_what_it_has_found(tmp_path: Path) -> None:
    store = open_store(tmp_path, segment_bytes=1 << 20, queue_file_bytes=40_000)
    put_ok(store, *map(numbered, range(300)))
    for divisor, status, found in (
        (3000, ReadStatus.NO_MATCHED_MESSAGE, []),
        (20, ReadStatus.FOUND, [40, 60]),
    ):
        begun = store.reads.begin(
            *(TOPIC, 0, 30),
            count_max=32,
            bytes_max=1 << 20,
            selection=Selection(matches=divisible_by(divisor)),
        )
        assert isinstance(begun, MatchingRead)
        assert store.reads.advance(begun) is None
        result = store.reads.stop(begun)
        assert (result.status, result.next_queue_offset) == (status, 62)
        assert offsets(result) == found
    store.close()


def test_what_takes_long_to_look_at_counts_as_selected_when_it_arrives(tmp_path: Path) -> None:
    seen: list[Arrival] = []
    store = open_store(tmp_path, segment_bytes=1 << 16)
    store.dispatch.listener = seen.extend
    put_ok(store, numbered(1), numbered(2))
    (arrival,) = seen
    for weight, expected in ((1, False), (1_000, False), (1_001, True)):
        selection = Selection(matches=divisible_by(7), weight=weight)
        assert store.reads.is_selected(arrival, selection) == expected
    store.close()
