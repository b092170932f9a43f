"""A store that receives another one's log: the same log, the same queues, whatever happens."""

import random
import time
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.stores import (
    FailingFiles,
    FakeClock,
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
    record,
    record_of_size,
    seeded,
)

from pymq.errors import CorruptRecord, DiskFull, FlushFailed, StoreError, StoreMismatch
from pymq.protocol.codes import MessageFlag
from pymq.protocol.message import encode_properties
from pymq.protocol.multi_dispatch import DISPATCH, is_light
from pymq.protocol.names import SCHEDULE_TOPIC
from pymq.protocol.record import decode_records
from pymq.store import Arrival, FlushMode, MessageStore
from pymq.store.inspection import check_store

PREPARED = int(MessageFlag.TRANSACTION_PREPARED)


class Link:
    """A connection of a slave to its master that carries pieces of any size.

    Args:
        piece_max: bytes of one piece, at most.
        first: where the master begins for a slave without anything.
    """

    def __init__(
        self, master: MessageStore, slave: MessageStore, *, piece_max: int, first: int | None = None
    ) -> None:
        self.master, self.slave = master, slave
        self._piece_max = piece_max
        self.at = slave.replication.begin()
        if self.at == 0:
            self.at = master.log_first if first is None else first

    def carry(self, dice: random.Random, *, most: int = 1 << 62) -> None:
        """Carry everything, or not more than this many bytes."""
        source, target = self.master.replication, self.slave.replication
        while self.at < source.readable_end and most > 0:
            before, first, parts = target.kept_end, self.at, []
            for _ in range(dice.choice((1, 1, 2, 9))):
                if self.at < source.readable_end and most > 0:
                    part = source.part(self.at, min(dice.randint(1, self._piece_max), most))
                    parts.append(part)
                    self.at += len(part)
                    most -= len(part)
            target.append(first, *parts)
            assert before <= target.kept_end <= self.at == target.received_end


def follow(master: MessageStore, slave: MessageStore, dice: random.Random, **more: Any) -> None:
    Link(master, slave, piece_max=dice.choice((13, 100, 5_000)), **more).carry(dice)


def log_of(store: MessageStore, root: Path, first: int) -> bytes:
    """Return the log from an offset on, with the padding of its files."""
    found, at = b"", first
    files = {int(path.name): path for path in log_files(root)}
    size = len(next(iter(files.values())).read_bytes())
    while at < store.log_end:
        base = at - at % size
        data = files[base].read_bytes()[: store.log_end - base]
        found += data[at - base :]
        at = base + size
    return found


def assert_equal(master: MessageStore, master_root: Path, slave: MessageStore, root: Path) -> None:
    assert slave.log_end == master.log_end
    first = max(master.log_first, slave.log_first)
    assert log_of(slave, root, first) == log_of(master, master_root, first)
    kept = [key for key in slave.queues() if slave.queue_bounds(*key)[1]]
    for key in kept:
        low, end = slave.queue_bounds(*key)
        assert end == master.queue_bounds(*key)[1], key
        low = max(low, master.queue_bounds(*key)[0])
        mine = queue_bytes(root, 1 << 20, *key)
        theirs = queue_bytes(master_root, 1 << 20, *key)
        for number in range(low, end):
            assert entry(mine, root, key, number) == entry(theirs, master_root, key, number)
        if not is_light(key[0]):  # their records belong to other queues
            assert bodies(slave, *key) == bodies(master, *key)[low - end :]


def entry(data: bytes, root: Path, key: tuple[str, int], number: int) -> bytes:
    folder = root / "consumequeue" / key[0] / str(key[1])
    base = min(int(path.name) for path in folder.iterdir())
    at = number * 20 - base
    return data[at : at + 20]


def complaints(root: Path, **changes: Any) -> list[str]:
    report = check_store(config(root, **changes))
    return [str(group) for group in report.findings.groups() if group[0].name != "NOTE"]


def put_something(store: MessageStore, dice: random.Random, number: int) -> None:
    topic, queue_id = dice.choice((("A", 0), ("A", 1), ("B", 0), ("%RETRY%g", 0)))
    body = b"%d:" % number + bytes(dice.randint(0, 90))
    kind = dice.random()
    if kind < 0.2:
        texts = [body + b"%d" % one for one in range(dice.randint(2, 6))]
        put_ok(store, batch(texts, topic=topic, queue_id=queue_id))
    elif kind < 0.3:
        put_ok(store, record(body, topic="half", sys_flag=PREPARED))
    elif kind < 0.4:
        delayed = record(body, topic=SCHEDULE_TOPIC, queue_id=2)
        delayed.properties = encode_properties({"DELAY": "3"})
        put_ok(store, delayed)
    elif kind < 0.5 and store.light_queues is not None:
        listed = record(body, topic="P")
        listed.properties = encode_properties({DISPATCH: "%LMQ%a,%LMQ%b"})
        put_ok(store, listed)
    elif kind < 0.55:
        put_ok(store, record_of_size(dice.randint(200, 900), topic=topic, queue_id=queue_id))
    else:
        put_ok(store, record(body, topic=topic, queue_id=queue_id, tag=dice.choice((None, "x"))))


@pytest.mark.parametrize("round_", range(25))
def test_a_slave_has_the_log_and_the_queues_of_its_master(
    tmp_path: Path, seed: int, round_: int
) -> None:
    dice = seeded(seed + round_)
    settings: dict[str, Any] = {
        "segment_bytes": dice.choice((1400, 2000, 4096, 1 << 16)),
        "queue_file_bytes": dice.choice((100, 200, 6000)),
        "queue_extension": dice.random() < 0.3,
        "flush_mode": dice.choice(list(FlushMode)),
        "light_queues": True,
        "multi_dispatch": True,
        "timer_wheel": False,
    }
    clock = FakeClock()
    master_root, root = tmp_path / "master", tmp_path / "slave-0"
    master = open_store(master_root, clock, **settings)
    slave = open_store(root, clock, **settings)
    link = Link(master, slave, piece_max=dice.choice((13, 100, 5_000)))
    count = 0
    for number in range(150):
        put_something(master, dice, number)
        clock.now_ms += dice.randint(0, 50)
        link.carry(dice, most=dice.choice((0, 10, 300, 1 << 62)))
        event = dice.random()
        if event < 0.1:
            link = Link(master, slave, piece_max=dice.choice((13, 100, 5_000)))
        elif event < 0.2:
            slave.durability.flush()
        elif event < 0.25:
            slave.durability.flush_queues()
        elif event < 0.3:
            count += 1
            if dice.random() < 0.5:
                slave.close()
            else:
                copy = crashed_copy(root, tmp_path / f"slave-{count}")
                slave.close()
                root = copy
            slave = open_store(root, clock, **settings)
            link = Link(master, slave, piece_max=dice.choice((13, 100, 5_000)))
    link.carry(dice)
    master.durability.flush()
    slave.durability.flush()
    assert_equal(master, master_root, slave, root)
    put_ok(slave, record(b"after the switch", topic="A"))  # a slave that becomes a master
    slave.durability.flush()
    assert bodies(slave, "A")[-1] == b"after the switch"
    master.close()
    slave.close()
    assert not complaints(root, **settings)


def test_only_whole_records_count_as_received(tmp_path: Path) -> None:
    dice = random.Random(1)
    with_two = open_store(tmp_path / "master")
    put_ok(with_two, record(b"one"), record(b"two"))
    middle, end = with_two.log_end // 2, with_two.log_end
    slave = open_store(tmp_path / "slave")
    link = Link(with_two, slave, piece_max=1 << 20)
    link.carry(dice, most=middle + 10)
    assert (slave.log_end, slave.replication.kept_end) == (middle, middle)
    assert bodies(slave) == [b"one"]
    link.carry(dice)
    assert slave.replication.kept_end == end
    assert bodies(slave) == [b"one", b"two"]


def test_a_slave_may_begin_with_the_masters_last_file(tmp_path: Path) -> None:
    master = open_store(tmp_path / "master")
    put_ok(master, *(record(b"%d" % n) for n in range(200)))
    slave = open_store(tmp_path / "slave")
    first = master.replication.last_file_first
    assert first > 0
    follow(master, slave, random.Random(1), first=first)
    put_ok(master, record(b"more", queue_id=1))
    follow(master, slave, random.Random(1))
    assert slave.log_first == first
    assert bodies(slave) == bodies(master)[-len(bodies(slave)) :]
    assert slave.queue_bounds("TopicTest", 0)[1] == master.queue_bounds("TopicTest", 0)[1]
    slave.close()
    assert not complaints(tmp_path / "slave")
    again = open_store(tmp_path / "slave")
    assert again.queue_bounds("TopicTest", 0)[0] > 0
    assert bodies(again)[-1] == b"199"


@pytest.mark.parametrize("stays", [False, True])
def test_a_queue_that_begins_on_a_full_disk_is_there_once_there_is_space(
    tmp_path: Path, stays: bool
) -> None:
    """Not at the start of a file: the entries before have to be written, and could not be.

    The file that was left behind stood in the way for ever, even if it can be removed only later.
    """
    files, clock = FailingFiles(), FakeClock()
    master = open_store(tmp_path / "master")
    put_ok(master, *(record(b"%d" % n) for n in range(200)))
    slave = open_store(tmp_path / "slave", clock, files)
    first = master.replication.last_file_first
    remove = files.remove

    def fail(path: Path) -> None:
        raise StoreError(f"{path}: read-only")

    if stays:
        files.remove = fail  # type: ignore[method-assign]
    files.on_write = failing_in("consumequeue", 28)
    for _ in range(2):
        with pytest.raises(StoreError):
            slave.replication.begin()
            slave.replication.append(first, master.replication.part(first, 1 << 20))
        clock.now_ms += 100_000
    files.on_write = never
    files.remove = remove  # type: ignore[method-assign]
    slave.replication.begin()
    follow(master, slave, random.Random(1))
    assert slave.queue_bounds("TopicTest", 0)[1] == 200
    assert bodies(slave) == bodies(master)[-len(bodies(slave)) :]
    slave.close()
    assert not complaints(tmp_path / "slave")


@pytest.mark.parametrize("mode", FlushMode)
def test_what_arrives_is_told_when_it_may_be_read(tmp_path: Path, mode: FlushMode) -> None:
    master = open_store(tmp_path / "master", flush_mode=FlushMode.ASYNC)
    put_ok(master, record(b"one", tag="x"), record(b"two", queue_id=3))
    slave = open_store(tmp_path / "slave", flush_mode=mode)
    told: list[Arrival] = []
    slave.dispatch.listener = told.extend
    follow(master, slave, random.Random(1))
    if mode is FlushMode.SYNC:
        assert not told
        assert bodies(slave) == []
        slave.durability.flush()
    assert sorted((one.queue_id, one.queue_first, one.queue_end) for one in told) == [
        (0, 0, 1),
        (3, 0, 1),
    ]
    assert bodies(slave) == [b"one"]


def test_a_topic_that_was_deleted_and_created_again(tmp_path: Path) -> None:
    master, slave = open_store(tmp_path / "master"), open_store(tmp_path / "slave")
    put_ok(master, record(b"old 1"), record(b"old 2"))
    follow(master, slave, random.Random(1))
    master.retention.delete_queues("TopicTest")
    put_ok(master, record(b"new", topic="other"), record(b"new 1"))
    follow(master, slave, random.Random(1))
    assert bodies(slave) == bodies(master) == [b"new 1"]
    slave.close()
    assert not complaints(tmp_path / "slave")


@pytest.mark.parametrize("where", ["commitlog", "consumequeue"])
def test_a_full_disk_loses_nothing(tmp_path: Path, where: str) -> None:
    files = FailingFiles()
    master = open_store(tmp_path / "master")
    slave = open_store(tmp_path / "slave", files=files)
    put_ok(master, record(b"one"))
    follow(master, slave, random.Random(1))
    put_ok(master, *(record(b"%d" % n) for n in range(100)))
    files.on_write = failing_in(where, 28)
    for _ in range(3):
        with pytest.raises(DiskFull if where == "commitlog" else StoreError):
            follow(master, slave, random.Random(1))
        assert slave.not_writable_reason is not None
        assert bodies(slave) == [b"one"]
    files.on_write = never
    follow(master, slave, random.Random(1))
    assert bodies(slave) == bodies(master)
    assert slave.not_writable_reason is None


def test_queues_that_cannot_be_written_after_the_flush_stop_the_log_and_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With SYNC_FLUSH they are written then: each push was appended, and told the same again."""
    files = FailingFiles()
    master = open_store(tmp_path / "master")
    slave = open_store(tmp_path / "slave", files=files, flush_mode=FlushMode.SYNC)
    follow(master, slave, random.Random(1))
    link = Link(master, slave, piece_max=1_000)
    put_ok(master, record(b"one"))
    link.carry(random.Random(1))
    files.on_write = failing_in("consumequeue", 28)
    slave.durability.flush()
    end = slave.replication.kept_end
    for number in range(3):
        put_ok(master, record(b"more %d" % number))
        with pytest.raises(StoreError, match="consumequeue"):
            link.carry(random.Random(1))
        slave.durability.flush()
        assert slave.replication.kept_end == end
        assert slave.not_writable_reason is not None
    assert [one.levelname for one in caplog.records if one.name.endswith("gate")] == ["ERROR"]
    files.on_write = never
    follow(master, slave, random.Random(1))
    slave.durability.flush()
    assert bodies(slave) == bodies(master)
    assert slave.not_writable_reason is None


def test_a_disk_that_failed_receives_nothing_more(tmp_path: Path) -> None:
    files = FailingFiles()
    master = open_store(tmp_path / "master")
    slave = open_store(tmp_path / "slave", files=files)
    put_ok(master, record(b"one"))
    follow(master, slave, random.Random(1))
    files.on_fsync = failing_in("commitlog", 5)
    with pytest.raises(FlushFailed):
        slave.durability.flush()
    put_ok(master, record(b"two"))
    end = slave.replication.kept_end
    for attempt in (slave.replication.begin, lambda: follow(master, slave, random.Random(1))):
        with pytest.raises(FlushFailed):
            attempt()
    with pytest.raises(FlushFailed):
        slave.replication.append(end, master.replication.part(end, 1_000))
    assert slave.replication.kept_end == end


@pytest.mark.parametrize("received", [0, 10])
def test_a_log_that_begins_late_can_be_opened_before_it_has_a_record(
    tmp_path: Path, received: int
) -> None:
    master = open_store(tmp_path / "master")
    put_ok(master, *(record(b"%d" % n) for n in range(200)))
    first = master.replication.last_file_first
    slave = open_store(tmp_path / "slave")
    slave.replication.begin()
    slave.replication.append(first, master.replication.part(first, 10)[:received])
    slave.close()
    again = open_store(tmp_path / "slave")
    follow(master, again, random.Random(1), first=first)
    assert bodies(again) == bodies(master)[-len(bodies(again)) :]
    assert again.log_end == master.log_end


def test_a_queue_that_cannot_begin_again_loses_nothing(tmp_path: Path) -> None:
    files = FailingFiles()
    master = open_store(tmp_path / "master")
    slave = open_store(tmp_path / "slave", files=files)
    put_ok(master, record(b"old 1"), record(b"old 2"))
    follow(master, slave, random.Random(1))
    master.retention.delete_queues("TopicTest")
    put_ok(master, record(b"first", topic="A"), record(b"new 1"), record(b"last", topic="Z"))
    end = slave.log_end

    def fail(path: Path) -> None:
        raise StoreError(f"{path}: read-only")

    files.remove = fail  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(FlushFailed, match="read-only"):
            Link(master, slave, piece_max=1 << 20).carry(random.Random(1))
        assert slave.log_end == end
    slave.close()
    slave = open_store(tmp_path / "slave")
    Link(master, slave, piece_max=1 << 20).carry(random.Random(1))
    for topic in ("A", "TopicTest", "Z"):
        assert bodies(slave, topic) == bodies(master, topic)


@pytest.mark.parametrize("extension", [False, True])
def test_a_gap_in_a_queue_holds_nothing_up(tmp_path: Path, extension: bool) -> None:
    """Its log does not begin at 0 either, where a blank entry seems to point."""
    master = open_store(tmp_path / "master")
    put_ok(master, *(record(b"%d" % n) for n in range(200)))
    slave = open_store(tmp_path / "slave", queue_extension=extension)
    follow(master, slave, random.Random(1), first=master.replication.last_file_first)
    end = slave.queue_bounds("TopicTest", 0)[1]
    queue = master._queues.find("TopicTest", 0)
    assert queue is not None
    queue.next_offset += 3  # as on a damaged master
    put_ok(master, record(b"after the gap"), record(b"other", topic="B"))
    follow(master, slave, random.Random(1))
    assert slave.queue_bounds("TopicTest", 0)[1] == end + 4
    result = slave.read("TopicTest", 0, end + 3, count_max=1, bytes_max=1 << 16)
    (found,) = decode_records(result.buffers[0])
    assert found.body == b"after the gap"
    assert bodies(slave, "B") == [b"other"]


def test_a_large_record_in_many_pieces_is_not_copied_for_each(tmp_path: Path) -> None:
    master = open_store(tmp_path / "master", segment_bytes=16 << 20)
    slave = open_store(tmp_path / "slave", segment_bytes=16 << 20)
    put_ok(master, record(4 << 20))
    begun = time.thread_time()
    at = slave.replication.begin()
    while at < master.log_end:
        part = master.replication.part(at, 1_000)
        slave.replication.append(at, part)
        at += len(part)
    assert time.thread_time() - begun < 5.0  # a copy for each piece takes ten times as long
    assert bodies(slave) == bodies(master)


def test_another_log_is_not_appended(tmp_path: Path) -> None:
    master, slave = open_store(tmp_path / "master"), open_store(tmp_path / "slave")
    put_ok(master, record(b"one"), record(b"two"))
    put_ok(slave, record(b"mine"))
    slave.replication.begin()
    with pytest.raises(StoreMismatch, match="not the log that this slave has followed"):
        slave.replication.append(0, master.replication.part(0, 100))
    assert bodies(slave) == [b"mine"]


def test_a_damaged_log_is_not_appended(tmp_path: Path) -> None:
    master, slave = open_store(tmp_path / "master"), open_store(tmp_path / "slave")
    put_ok(master, record(b"one"), record(b"two"))
    size = master.log_end // 2
    path = log_files(tmp_path / "master")[0]
    overwrite(path, size + 28, b"\7" * 8)  # where it says it is
    with pytest.raises(CorruptRecord, match="says it is at"):
        Link(master, slave, piece_max=1 << 20).carry(random.Random(1))
    overwrite(path, size, b"\0\0\0\1")
    with pytest.raises(CorruptRecord, match="no record at physical offset"):
        Link(master, slave, piece_max=size + 10).carry(random.Random(1))


@pytest.mark.parametrize(("ours", "theirs"), [(4096, 8192), (8192, 4096)])
def test_files_of_another_size_are_refused(tmp_path: Path, ours: int, theirs: int) -> None:
    master = open_store(tmp_path / "master", segment_bytes=theirs)
    slave = open_store(tmp_path / "slave", segment_bytes=ours)
    put_ok(master, *(record(bytes(100)) for _ in range(100)))
    with pytest.raises(StoreMismatch, match="use the master's size"):
        follow(master, slave, random.Random(1))


def test_a_part_is_read_in_any_thread(tmp_path: Path) -> None:
    master = open_store(tmp_path / "master")
    put_ok(master, *(record(b"%d" % n) for n in range(100)))
    at, found = 0, b""
    while at < master.replication.readable_end:
        job = master.replication.begin_read(at, 1_000)
        job.run()
        assert job.error is None
        assert job.data == bytes(master.replication.part(at, 1_000))
        found += job.data
        at += len(job.data)
    assert found == log_of(master, tmp_path / "master", 0)
