"""Groups: records of several queues that are stored together or not at all."""

import errno
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.stores import (
    HOST,
    FailingFiles,
    FakeClock,
    batch,
    bodies,
    failing_in,
    never,
    open_store,
    put_ok,
    record,
    record_of_size,
    seeded,
)

from pymq.protocol.plain_records import PlainRecords
from pymq.protocol.record import NewRecord, decode_records
from pymq.store import FlushMode, MessageStore, PutStatus, RecordGroup

ILLEGAL = PutStatus.MESSAGE_ILLEGAL


def group(*records: NewRecord) -> RecordGroup:
    return RecordGroup(records)


def test_records_of_a_group_are_adjacent_and_each_knows_its_place(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_ok(store, record(b"before", topic="B"))
    pair = group(record(b"one", topic="A"), record(b"two", topic="B"))
    start = store.log_end
    result, _ = put_ok(store, pair, record(b"after", topic="A"))
    assert (result.physical_offset, result.queue_offset, result.count) == (start, 0, 2)
    assert [(place.queue_offset, place.count) for place in pair.places] == [(0, 1), (1, 1)]
    assert pair.places[0].physical_end == pair.places[1].physical_offset
    assert pair.places[1].physical_end == result.physical_end
    assert bodies(store, "A") == [b"one", b"after"]
    assert bodies(store, "B") == [b"before", b"two"]
    assert store.statistics.put_count == 4
    store.close()


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize(
    ("bad", "status"),
    [
        ({"topic": "no/such"}, ILLEGAL),
        ({"queue_id": -1}, ILLEGAL),
        ({"flag": 1 << 40}, ILLEGAL),
        ({"body": 1001}, ILLEGAL),
    ],
)
def test_one_illegal_record_refuses_all_of_its_group_and_nothing_else(
    tmp_path: Path, at: int, bad: dict[str, Any], status: PutStatus
) -> None:
    store = open_store(tmp_path, message_bytes_max=1000, segment_bytes=1 << 16)
    good = [record(b"x", topic="A"), record(b"y", topic="New"), record(b"z", topic="A")]
    good[at] = record(**{"body": b"bad", **bad})
    results = store.put(
        [record(b"1", topic="A"), group(*good), record(b"2", topic="A"), batch([b"3"], topic="A")],
        HOST,
    )
    assert [result.status for result in results] == [PutStatus.OK, status, *[PutStatus.OK] * 2]
    assert results[1].remark and results[1].physical_offset == -1
    assert results[2].physical_offset == results[0].physical_end
    assert bodies(store, "A") == [b"1", b"2", b"3"]
    assert store.queue_bounds("New", 0) == (0, 0)
    store.close()


def test_a_group_that_does_not_fit_begins_the_next_segment_as_a_whole(tmp_path: Path) -> None:
    store = open_store(tmp_path)  # 4096 B each
    put_ok(store, record_of_size(3500))
    pair = group(record_of_size(400, topic="A"), record_of_size(400, topic="B"))
    put_ok(store, pair)
    assert [place.physical_offset for place in pair.places] == [4096, 4496]
    assert [place.queue_offset for place in pair.places] == [0, 0]
    store.close()


def test_a_group_larger_than_a_segment_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    pair = group(record_of_size(3000, topic="A"), record_of_size(2000, topic="B"))
    results = store.put([record(b"1"), pair, record(b"2")], HOST)
    assert [result.status for result in results] == [PutStatus.OK, ILLEGAL, PutStatus.OK]
    assert "4088 B" in (results[1].remark or "")
    assert bodies(store) == [b"1", b"2"]
    assert bodies(store, "A") == bodies(store, "B") == []
    store.close()


def test_a_record_that_is_not_for_a_queue_may_be_part_of_a_refused_group(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    bad = record(topic="no/such")
    (result,) = store.put([group(record(b"half", sys_flag=0x4), record(b"x"), bad)], HOST)
    assert result.status is ILLEGAL
    assert store.log_end == 0
    put_ok(store, record(b"y"))
    assert bodies(store) == [b"y"]
    store.close()


def plain(*queue_ids: int, topic: str) -> PlainRecords:
    count = len(queue_ids)
    return PlainRecords(
        topic, list(queue_ids), [b"%d" % n for n in range(count)], [b""] * count, born_host=HOST,
        born_timestamps=[0] * count, flags=[0] * count, sys_flag=0, tag_codes=[0] * count,
    )  # fmt: skip


def test_several_records_of_a_topic_may_be_part_of_a_group(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_ok(store, record(b"before", topic="A", queue_id=1))
    many = group(plain(1, 0, 1, topic="A"), plain(0, 0, topic="B"), record(b"last", topic="A"))
    result, _ = put_ok(store, many, record(b"after", topic="B"))
    assert (result.count, result.queue_offset) == (3, 1)
    assert [(place.queue_offset, place.count) for place in many.places] == [(1, 3), (0, 2), (1, 1)]
    assert bodies(store, "A", 1) == [b"before", b"0", b"2"]
    assert bodies(store, "A") == [b"1", b"last"]
    assert bodies(store, "B") == [b"0", b"1", b"after"]
    store.close()


def test_a_refused_group_gives_back_the_places_of_all_its_records(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    bad = group(plain(1, 0, 1, topic="A"), record(topic="no/such"))
    large = group(plain(0, 0, topic="A"), record_of_size(4000, topic="B"))
    later = group(plain(0, topic="A"), record_of_size(3800, topic="B"))
    put_ok(store, record(b"x" * 200, topic="A"))
    refused = store.put([bad, large, later, record(b"y", topic="A")], HOST)
    statuses = [result.status for result in refused]
    assert statuses == [ILLEGAL, ILLEGAL, PutStatus.OK, PutStatus.OK]
    assert later.places[0].physical_offset == 4096  # the next segment
    assert bodies(store, "A") == [b"x" * 200, b"0", b"y"]
    assert bodies(store, "A", 1) == []
    store.close()


def test_a_failed_write_takes_groups_back(tmp_path: Path) -> None:
    files, clock = FailingFiles(), FakeClock()
    store = open_store(tmp_path, clock, files=files)
    put_ok(store, record(b"1", topic="A"))
    files.on_write = failing_in("commitlog", errno.ENOSPC)
    pair = group(record(b"2", topic="A"), record(b"3", topic="B"))
    (result,) = store.put([pair], HOST)
    assert result.status is PutStatus.NOT_WRITABLE
    files.on_write = never
    clock.now_ms += 60_000
    put_ok(store, pair)
    assert [place.queue_offset for place in pair.places] == [1, 0]
    assert bodies(store, "A") == [b"1", b"2"]
    store.close()


@pytest.mark.parametrize("mode", FlushMode)
@pytest.mark.parametrize("record_crc", [False, True])
def test_random_groups(tmp_path: Path, seed: int, mode: FlushMode, record_crc: bool) -> None:
    """Against a model: in each queue what was put, whole groups only, in the order of the log."""
    dice = seeded(seed)
    settings: dict[str, Any] = {
        "segment_bytes": dice.choice([2000, 3000, 4096]),
        "flush_mode": mode,
        "append_record_crc": record_crc,
    }
    print(settings)
    clock = FakeClock()
    store = open_store(tmp_path, clock, **settings)
    model: dict[str, list[bytes]] = {topic: [] for topic in "ABC"}
    number = 0
    for _ in range(60):
        puts: list[NewRecord | RecordGroup] = []
        for _ in range(dice.randint(1, 5)):
            members: list[NewRecord] = []
            for _ in range(dice.randint(1, 3)):
                number += 1
                body = b"%d:" % number + bytes(dice.randint(0, 90))
                members.append(record(body, topic=dice.choice("ABC")))
            if dice.random() < 0.2:
                members.insert(dice.randint(0, len(members)), record(topic="no/such"))
            puts.append(group(*members) if dice.random() < 0.8 else members[0])
        for put, result in zip(puts, store.put(puts, HOST), strict=True):
            members = list(put.records) if isinstance(put, RecordGroup) else [put]
            legal = all(member.topic in model for member in members)
            assert (result.status is PutStatus.OK) == legal, result
            if isinstance(put, RecordGroup) and legal:
                at = result.physical_offset
                for member, place in zip(members, put.places, strict=True):
                    assert place.physical_offset == at
                    assert place.queue_offset == len(model[member.topic])
                    model[member.topic].append(bytes(member.body))
                    at = place.physical_end
                assert at == result.physical_end
            elif legal:
                model[members[0].topic].append(bytes(members[0].body))
        if dice.random() < 0.1:
            store.close()
            store = open_store(tmp_path, clock, **settings)
        else:
            store.durability.flush()
        _check(store, model)
    store.close()


def _check(store: MessageStore, model: dict[str, list[bytes]]) -> None:
    for topic, expected in model.items():
        assert bodies(store, topic) == expected
        if expected:
            result = store.read(topic, 0, 0, count_max=1, bytes_max=1)
            assert next(decode_records(result.buffers[0], verify=True)).body == expected[0]
