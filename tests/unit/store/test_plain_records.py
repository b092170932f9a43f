"""Plain records: many messages of one sender in one put, each in its own queue."""

import errno
from pathlib import Path

from tests.unit.store.stores import (
    HOST,
    FailingFiles,
    FakeClock,
    bodies,
    failing_in,
    never,
    open_store,
    put_ok,
    record,
    record_of_size,
)

from pymq.protocol.hashes import java_hash
from pymq.protocol.plain_records import PlainRecords, StoredPlain, read_plain
from pymq.protocol.record import decode_records
from pymq.store import PutStatus


def plain(*messages: tuple[int, bytes], topic: str = "T", tag_code: int = 0) -> PlainRecords:
    """Return records of (queue id, body)."""
    count = len(messages)
    return PlainRecords(
        topic,
        [queue_id for queue_id, _ in messages],
        [body for _, body in messages],
        [b"a\x01%d\x02" % number for number in range(count)],
        born_host=HOST,
        born_timestamps=[1700000000000 + number for number in range(count)],
        flags=list(range(count)),
        sys_flag=1,
        tag_codes=[tag_code] * count,
    )


def test_each_record_has_its_place_in_its_queue_and_in_the_log(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_ok(store, record(b"before", topic="T", queue_id=1))
    put = plain((1, b"a"), (0, b""), (1, b"ccc"))
    start = store.log_end
    (result,) = put_ok(store, put)
    assert (result.physical_offset, result.queue_offset, result.count) == (start, 1, 3)
    assert result.physical_end == store.log_end == start + put.record_bytes
    assert put.queue_offsets == [1, 0, 2]
    read = store.read("T", 1, 1, count_max=9, bytes_max=1 << 20)
    found = [one for buffer in read.buffers for one in decode_records(buffer, verify=True)]
    assert [(one.body, one.properties, one.flag) for one in found] == [
        (b"a", b"a\x010\x02", 0),
        (b"ccc", b"a\x012\x02", 2),
    ]
    assert [one.physical_offset for one in found] == [put.physical_offsets[n] for n in (0, 2)]
    assert {one.sys_flag for one in found} == {1}
    assert bodies(store, "T", 0) == [b""]
    assert store.statistics.put_count == 4
    store.close()


def test_copies_say_whose_half_message_they_come_from(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put = PlainRecords(
        "T", [0, 1], [b"a", b"b"], [b"", b""], born_host=HOST, born_timestamps=[1, 2],
        flags=[0, 0], sys_flag=8, tag_codes=[0, 0], prepared_offsets=[1 << 40, 77],
    )  # fmt: skip
    put_ok(store, put)
    read = [store.read("T", queue_id, 0, count_max=1, bytes_max=1 << 20) for queue_id in (0, 1)]
    found = [one for result in read for one in decode_records(result.buffers[0], verify=True)]
    assert [one.prepared_transaction_offset for one in found] == [1 << 40, 77]
    store.close()


def test_a_stored_plain_record_is_read_as_it_was_sent(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put = plain((1, b"a"), (0, b""), (1, b"ccc"))
    put_ok(store, put)
    views = [store.record_view(offset) for offset in put.physical_offsets]
    found = [read_plain(view, b"\x01T") for view in views]
    assert found == [
        StoredPlain(offset, n, 1, 1700000000000 + n, HOST, body, b"a\x01%d\x02" % n)
        for n, (offset, body) in enumerate([(0, b"a"), (0, b""), (1, b"ccc")])
    ]
    assert read_plain(views[0], b"\x01U") is None
    assert read_plain(views[0], b"\x02Ta") is None
    data = bytes(views[2])
    for position in (4, 10, 39, 62, 90, len(data) - 1):  # magic, CRC, flag, times, body, nothing
        broken = data[:position] + bytes([data[position] ^ 0x30]) + data[position + 1 :]
        assert (read_plain(memoryview(broken), b"\x01T") is None) == (
            position not in (62, len(data) - 1)
        )
    store.close()


def test_their_tags_select_them(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_ok(store, plain((0, b"x"), (0, b"y"), tag_code=java_hash("t")), plain((0, b"z")))
    assert bodies(store, "T", 0, ["t"]) == [b"x", b"y"]
    store.close()


def test_what_does_not_fit_begins_the_next_segment_as_a_whole(tmp_path: Path) -> None:
    store = open_store(tmp_path)  # 4096 B each
    put_ok(store, record_of_size(3900))
    put = plain((0, b"x" * 50), (1, b"y" * 50), topic="P")
    put_ok(store, put)
    assert put.physical_offsets[0] == 4096
    assert bodies(store, "P", 1) == [b"y" * 50]
    store.close()


def test_a_failed_write_takes_them_back(tmp_path: Path) -> None:
    files, clock = FailingFiles(), FakeClock()
    store = open_store(tmp_path, clock, files=files)
    put_ok(store, plain((0, b"1")))
    files.on_write = failing_in("commitlog", errno.ENOSPC)
    put = plain((0, b"2"), (3, b"3"), (0, b"4"))
    (result,) = store.put([put], HOST)
    assert result.status is PutStatus.NOT_WRITABLE
    files.on_write = never
    clock.now_ms += 60_000
    put_ok(store, put)
    assert put.queue_offsets == [1, 0, 2]
    assert bodies(store, "T", 0) == [b"1", b"2", b"4"]
    store.close()


def test_they_are_there_after_a_restart(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_ok(store, *(plain((n % 3, b"%d" % n), (1, b"-")) for n in range(20)))
    before = [bodies(store, "T", queue_id) for queue_id in range(3)]
    store.close()
    store = open_store(tmp_path)
    assert [bodies(store, "T", queue_id) for queue_id in range(3)] == before
    store.close()
