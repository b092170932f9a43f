"""Topics above 127 bytes, of retries and dead letters: their records are of version 2."""

import shutil
from pathlib import Path

import pytest
from tests.unit.store.inspection.inspected import SIZES, assert_whole
from tests.unit.store.stores import (
    BORN,
    HOST,
    TOPIC,
    FakeClock,
    QuickFiles,
    batch,
    bodies,
    crashed_copy,
    open_store,
    put_ok,
    read_all,
    record,
)

from pymq.protocol.names import dead_letter_topic, pop_retry_topic
from pymq.protocol.plain_records import PlainRecords
from pymq.protocol.record import FIXED_BYTES, MAGIC_V1, MAGIC_V2, NewRecord, pack_host
from pymq.store import MessageStore, PutStatus, RecordGroup, StoreConfig
from pymq.store.rebuild import rebuild_store

LONG = pop_retry_topic("t" * 60, "g" * 100, v2=False)
LONGEST = dead_letter_topic("d" * 250)
ALL = (LONG, LONGEST, TOPIC)


def keyed(topic: str, number: int) -> NewRecord:
    new = record(b"%d" % number, topic=topic, tag="TagA")
    new.properties = b"KEYS\x01k%d\x02" % number + new.properties
    if number % 5 == 0:
        new.born_host = pack_host("::1", number)
    return new


def plain(topic: str, count: int) -> PlainRecords:
    return PlainRecords(
        topic,
        [0] * count,
        [b"plain %d" % number for number in range(count)],
        [b""] * count,
        born_host=BORN,
        born_timestamps=[1] * count,
        flags=[0] * count,
        sys_flag=0,
        tag_codes=[0] * count,
    )


def content(store: MessageStore) -> dict[str, list[bytes]]:
    return {topic: bodies(store, topic) for topic in ALL}


def put_every_way(store: MessageStore, clock: FakeClock, *, alone: bool) -> dict[str, list[bytes]]:
    """Fill a store; return what is in its queues. ``alone``: only single records and groups."""
    expected: dict[str, list[bytes]] = {topic: [] for topic in ALL}
    for number in range(60):
        clock.now_ms += 10
        topic = ALL[number % 3]
        put_ok(store, keyed(topic, number))
        expected[topic].append(b"%d" % number)
        if number % 10 == 0:
            put_ok(store, RecordGroup([keyed(one, number) for one in ALL]))
            for one in ALL:
                expected[one].append(b"%d" % number)
        elif number % 10 == 5 and not alone:
            put_ok(store, plain(topic, 3), batch([b"x", b"yy", b"zz"], topic=topic))
            expected[topic] += [b"plain 0", b"plain 1", b"plain 2", b"x", b"yy", b"zz"]
    return expected


@pytest.mark.parametrize("with_crc", [False, True], ids=["plain", "checksums"])
def test_they_are_read_recovered_found_and_rebuilt(tmp_path: Path, with_crc: bool) -> None:
    clock, root = FakeClock(), tmp_path / "store"
    sizes = SIZES | {"append_record_crc": with_crc}
    store = open_store(root, clock, **sizes)
    expected = put_every_way(store, clock, alone=with_crc)
    assert content(store) == expected
    killed = crashed_copy(root, tmp_path / "killed")
    store.close()
    assert not len(assert_whole(root).findings)
    store = open_store(killed, clock, **sizes)
    assert content(store) == expected
    while store.keys.index_step():
        pass
    for number in range(60):
        buffers = store.keys.query(ALL[number % 3], f"k{number}").buffers
        assert len(buffers) == (1 if number % 10 else 2)
    store.close()
    assert not len(assert_whole(killed).findings)
    shutil.rmtree(killed / "consumequeue")
    shutil.rmtree(killed / "index")
    rebuild_store(StoreConfig(root_path=killed, **sizes), clock, files=QuickFiles())
    assert not len(assert_whole(killed).findings)
    store = open_store(killed, clock, **sizes)
    assert content(store) == expected
    store.close()


@pytest.mark.parametrize("length", [127, 128, 255])
def test_the_length_of_the_topic_decides_the_version(tmp_path: Path, length: int) -> None:
    topic = "%RETRY%" + "g" * (length - 7)
    store = open_store(tmp_path)
    new = record(b"body", topic=topic)
    put_ok(store, new, plain(topic, 2), batch([b"x", b"yyy"], topic=topic))
    found = read_all(store, topic)
    assert found[0].size == FIXED_BYTES + 4 + (1 if length == 127 else 2) + length
    read = store.read(topic, 0, 0, count_max=9, bytes_max=1 << 20)
    data = b"".join(read.buffers)
    starts = [sum(one.size for one in found[:number]) for number in range(len(found))]
    assert {data[at + 4 : at + 8] for at in starts} == {
        (MAGIC_V1 if length == 127 else MAGIC_V2).to_bytes(4, "big")
    }
    store.close()


@pytest.mark.parametrize(
    "topic", ["t" * 128, "%RETRY%" + "g" * 249, "%DLQ%" + "g" * 251, "x%RETRY%" + "g" * 120]
)
def test_longer_ones_are_refused(tmp_path: Path, topic: str) -> None:
    store = open_store(tmp_path)
    (result,) = store.put([record(topic=topic)], HOST)
    assert result.status is PutStatus.MESSAGE_ILLEGAL
    assert f"topic of {len(topic)} B" in str(result.remark)
    store.close()
