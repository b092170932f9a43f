"""Bugs that crashes have found, each made again without chance; see README.md."""

from __future__ import annotations

import errno
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.crash.ledger import Failed
from tests.crash.session import Script, Send, Session, recover

from pymq.clock import Clock
from pymq.errors import DiskFull, FlushFailed
from pymq.protocol.record import NewRecord, pack_host
from pymq.store import FlushMode, MessageStore, PutStatus, StoreConfig
from pymq.store.truncation import truncate_log
from pymq.testing.faulty_files import Crashed, Fault, FaultyFiles, Keep
from pymq.testing.lost_power import Disk

HOST = pack_host("127.0.0.1", 10911)
TOPIC = "found"


def open_store(root: Path, **changes: Any) -> MessageStore:
    values: dict[str, Any] = {"segment_bytes": 1 << 16, "queue_file_bytes": 200} | changes
    return MessageStore.open(StoreConfig(root_path=root, **values), Clock())


def put(store: MessageStore, count: int) -> None:
    store.put([NewRecord(TOPIC, 0, b"%d" % n, b"", HOST, 1) for n in range(count)], HOST)


def killed_copy(root: Path, store: MessageStore) -> Path:
    """Return what a SIGKILL at this moment would leave: all that was written, nothing closed."""
    return Path(shutil.copytree(root, root.with_name("killed")))


def test_killed_while_a_queue_file_is_made(tmp_path: Path) -> None:
    """Killed between the creation of a queue file and the setting of its size.

    Recovery found the empty file where it had to make one, and no start succeeded any more:
    "create: File exists".
    """
    store = open_store(tmp_path / "store")
    put(store, 10)  # entries of a whole file
    put(store, 1)
    killed = killed_copy(tmp_path / "store", store)
    store.close()
    second_file = killed / "consumequeue" / TOPIC / "0" / f"{200:020d}"
    assert second_file.stat().st_size == 200
    second_file.write_bytes(b"")
    again = open_store(killed)
    try:
        assert again.queue_bounds(TOPIC, 0) == (0, 11)
    finally:
        again.close()


# ------------------------------------------------------------------------------- lost power

POWER_LOSSES = 40
#: One unit of the extension to a file.
EXTENDED: dict[str, Any] = {"queue_extension": True, "queue_extension_file_bytes": 24}


def die_at(session: Session, script: Script, place: Path, disk: Disk, operation: str) -> None:
    """Run a script until the process dies before an operation, ``name path`` below ``place``."""
    trial = place.with_name("trial")
    trial.mkdir()
    files = FaultyFiles()
    twin = session.fork()
    twin.start(trial / "store", files)
    script(twin)
    names = [f"{name} {path.relative_to(trial)}" for name, path in files.operations]
    files.abandon()
    shutil.rmtree(trial)
    files = FaultyFiles(Fault(at=names.index(operation) + 1), disk=disk)
    with pytest.raises(Crashed):
        session.start(place / "store", files)
        script(session)
    files.abandon()


def live(session: Session, script: Script, place: Path, disk: Disk) -> None:
    """Run a script on what is there, and die."""
    files = FaultyFiles(disk=disk)
    session.start(place / "store", files)
    script(session)
    files.abandon()


def check_power_losses(session: Session, disk: Disk, place: Path, *, first_seed: int = 0) -> None:
    """Lose the power here in many ways."""
    for seed in range(first_seed, first_seed + POWER_LOSSES):
        lost = place.with_name("lost")
        disk.lose_power(random.Random(seed), lost)
        print(f"lose_power with seed {seed}")
        complaints = recover(session.fork(), lost / "store", FaultyFiles(), lost_power=True)
        assert not complaints, "\n".join([f"{seed=}", *complaints])
        shutil.rmtree(lost)


def put_and_flush(session: Session) -> None:
    session.put(*(Send(TOPIC, number % 2, (20,)) for number in range(30)))
    session.flush()


def put_few(session: Session) -> None:
    session.put(Send(TOPIC, 0, (20,)))
    session.flush()


def save(session: Session) -> None:
    session.save()


@pytest.mark.parametrize(
    ("first", "operation", "then"),
    [
        (put_and_flush, "fsync_directory .", put_and_flush),
        (put_and_flush, "fsync_directory store/commitlog", put_few),
    ],
)
def test_names_that_a_dead_process_left_unsynced(
    memory_path: Path, first: Script, operation: str, then: Script
) -> None:
    """The next process found its directories and files there, and did not flush their names."""
    place = memory_path / "place"
    place.mkdir()
    disk, session = Disk(place), Session(FlushMode.SYNC)
    die_at(session, first, place, disk, operation)
    live(session, then, place, disk)
    check_power_losses(session, disk, place)


def test_the_directory_of_tables_is_made_and_the_process_dies(memory_path: Path) -> None:
    """As above: the second process saves its table into a directory without a durable name."""
    place = memory_path / "place"
    place.mkdir()
    disk, session = Disk(place), Session(FlushMode.SYNC)
    live(session, put_and_flush, place, disk)
    FaultyFiles(disk=disk).make_directory(place / "store" / "config")
    live(session, save, place, disk)
    check_power_losses(session, disk, place)


def test_queue_entries_that_a_dead_process_left_unsynced(memory_path: Path) -> None:
    """Recovery found them right in the page cache, so it called them durable."""
    place = memory_path / "place"
    place.mkdir()
    disk, session = Disk(place), Session(FlushMode.SYNC)

    def work(session: Session) -> None:
        put_and_flush(session)
        session.pass_time(10_000)  # so that the checkpoint counts
        put_and_flush(session)

    live(session, work, place, disk)
    live(session, Session.flush, place, disk)
    check_power_losses(session, disk, place)


def test_entries_lost_in_front_of_others_that_are_too_new(memory_path: Path) -> None:
    """Dropping those behind the log's end uncovered zeros, which were served as entries."""
    place = memory_path / "place"
    place.mkdir()
    disk, session = Disk(place), Session(FlushMode.ASYNC, queue_file_bytes=20)

    def work(session: Session) -> None:
        put_and_flush(session)
        session.flush_queues()
        session.put(*(Send(TOPIC, 0, (20,)) for _ in range(30)))

    live(session, work, place, disk)
    check_power_losses(session, disk, place, first_seed=80)


@pytest.mark.parametrize("queue_file_bytes", [20, 400])
def test_entries_that_a_dead_process_cut_off(memory_path: Path, queue_file_bytes: int) -> None:
    """Recovery had dropped them in the page cache only, and died; the next one saw none.

    So it flushed nothing, and when the power was lost once more they were back: entries of another
    time, which led into the middle of new records.
    """
    settings = {"queue_file_bytes": queue_file_bytes}

    def lost_power(home: Path) -> tuple[Session, Path]:
        """Return a store with entries of records that the log has lost."""
        home.mkdir()
        (home / "0").mkdir()
        session, disk = Session(FlushMode.ASYNC, **settings), Disk(home / "0")

        def work(session: Session) -> None:
            put_few(session)
            session.put(*(Send("gone", 0, (20,)) for _ in range(6)))
            session.flush_queues()

        live(session, work, home / "0", disk)
        disk.lose_power(random.Random(0), home / "1")
        return session, home / "1"

    files = FaultyFiles()
    session, place = lost_power(memory_path / "whole")
    session.start(place / "store", files)
    session.forget_lost()
    assert "gone" not in session.messages()
    files.abandon()
    for number in range(1, len(files.operations) + 1):
        session, place = lost_power(memory_path / str(number))
        disk = Disk(place)
        dying = FaultyFiles(Fault(at=number), disk=disk)
        with pytest.raises(Crashed):
            session.start(place / "store", dying)
        dying.abandon()

        def work(session: Session) -> None:
            session.forget_lost()
            session.put(*(Send(TOPIC, 0, (70,)) for _ in range(20)))
            session.flush()

        live(session, work, place, disk)
        for seed in range(4):
            lost = memory_path / "lost"
            disk.lose_power(random.Random(seed), lost)
            complaints = recover(session.fork(), lost / "store", FaultyFiles(), lost_power=True)
            where = f"operation {number}, {dying.operations[-1]}, {seed=}"
            assert not complaints, "\n".join([where, *complaints])
            shutil.rmtree(lost)


# ----------------------------------------------------------------------------- failing disks


def fault_at(root: Path, script: Script, operation: str, code: int, count: int) -> Fault:
    """Return a failure from the last such operation of a script on, ``name path``."""
    files, session = FaultyFiles(), Session(FlushMode.ASYNC)
    session.start(root, files)
    script(session)
    files.abandon()
    names = [f"{name} {path.relative_to(root.parent)}" for name, path in files.operations]
    shutil.rmtree(root)
    last = len(names) - 1 - names[::-1].index(operation)
    return Fault(at=last + 1, code=code, keep=Keep.SECTORS, count=count)


@pytest.mark.parametrize(
    "operation", ["open_emptied store/queues.json.tmp", "rename store/queues.json.tmp"]
)
def test_a_deletion_that_could_not_be_noted_is_not_noted_later(
    memory_path: Path, operation: str
) -> None:
    """It was in memory already, so the next clean stop recorded it, and a later start obeyed."""
    root = memory_path / "store"

    def script(session: Session) -> None:
        put_few(session)
        session.delete(TOPIC)

    files = FaultyFiles(fault_at(root, script, operation, errno.ENOSPC, 1))
    session = Session(FlushMode.ASYNC)
    session.start(root, files)
    with pytest.raises(DiskFull):
        script(session)
    session.stop()
    assert recover(session, root, FaultyFiles()) == []


def test_a_deleted_topic_whose_files_cannot_be_removed(memory_path: Path) -> None:
    """Its files stood where those of its next life had to be made: nothing was visible then."""
    root = memory_path / "store"

    def script(session: Session) -> None:
        put_and_flush(session)
        session.delete(TOPIC)

    operation = f"remove store/consumequeue/{TOPIC}/0/{0:020d}"
    files = FaultyFiles(fault_at(root, script, operation, errno.EIO, 1))
    session = Session(FlushMode.ASYNC)
    session.start(root, files)
    with pytest.raises(FlushFailed, match="the next start removes what is left"):
        script(session)
    assert session.messages() == {}
    session.put(Send("other", 0, (10,)))
    assert isinstance(session.history.lives["other"].events[-1], Failed)
    session.stop()
    session.start(root, files)
    assert session.messages() == {}
    put_few(session)
    assert session.check() == []
    session.stop()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failed_write_that_could_not_be_undone(memory_path: Path, code: int) -> None:
    """What was written of it came back with the next start, although it had been refused."""
    root = memory_path / "store"

    def script(session: Session) -> None:
        put_few(session)
        session.put(*(Send(TOPIC, 0, (100,)) for _ in range(4)))

    fault = fault_at(root, script, f"pwrite store/commitlog/{0:020d}", code, 2)
    files = FaultyFiles(replace(fault, at=fault.at - 1))  # of two writes the one of most of it
    session = Session(FlushMode.ASYNC)
    session.start(root, files)
    script(session)
    assert isinstance(session.history.lives[TOPIC].events[-1], Failed)
    files.mend()
    session.stop()
    assert recover(session, root, FaultyFiles()) == []


def test_killed_in_the_middle_of_a_batch(memory_path: Path) -> None:
    """Its first records were there alone: now all of a write is, or nothing."""
    root = memory_path / "store"

    def script(session: Session) -> None:
        put_few(session)
        session.put(Send(TOPIC, 0, (100,) * 8))

    counting, session = FaultyFiles(), Session(FlushMode.ASYNC, segment_bytes=4096)
    session.start(root, counting)
    script(session)
    counting.abandon()
    shutil.rmtree(root)
    for at in range(1, len(counting.operations) + 1):
        for keep in (Keep.BYTES, Keep.SECTORS):
            files = FaultyFiles(Fault(at=at, keep=keep))
            session = Session(FlushMode.ASYNC, segment_bytes=4096)
            with pytest.raises(Crashed):
                session.start(root, files)
                script(session)
            files.abandon()
            session.store = None
            assert recover(session, root, FaultyFiles()) == []
            shutil.rmtree(root)


# ------------------------------------------------------------------------------ the key index


def test_index_slots_after_two_deaths(memory_path: Path) -> None:
    """Died while recovery cut an index file: its header was new, its slots were old.

    The next recovery found nothing to cut and took the slots as they were, so that whole chains
    of older messages were not found any more.
    """
    template = memory_path / "template"

    def work(session: Session) -> None:
        for _ in range(4):
            session.put(*(Send(TOPIC, 0, (150,)) for _ in range(3)))
            session.index()
            session.flush_queues()
            session.pass_time(5_000)

    session, files = Session(FlushMode.ASYNC), FaultyFiles()
    session.start(template, files)
    work(session)
    files.abandon()
    session.store = None
    counting, root = FaultyFiles(), memory_path / "store"
    shutil.copytree(template, root)
    session.fork().start(root, counting)
    counting.abandon()
    shutil.rmtree(root)
    names = [path.parent.name for _, path in counting.operations]
    assert names.count("index") > 3
    for at in range(1, len(names) + 1):
        shutil.copytree(template, root)
        again, files = session.fork(), FaultyFiles(Fault(at=at))
        with pytest.raises(Crashed):
            again.start(root, files)
        files.abandon()
        assert recover(again, root, FaultyFiles()) == [], f"died before operation {at}"
        shutil.rmtree(root)


def test_an_older_entry_with_an_older_address(memory_path: Path) -> None:
    """Lost power left the last entry with the address of an earlier one's unit.

    Everything behind that unit was taken for free, so that another entry's unit was deleted.
    """
    root = memory_path / "store"
    session, files = Session(FlushMode.SYNC, **EXTENDED), FaultyFiles()
    session.start(root, files)
    session.put(Send(TOPIC, 0, (10, 20, 30)))
    session.flush()
    files.abandon()
    session.store = None
    path = root / "consumequeue" / TOPIC / "0" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    assert len({bytes(data[at : at + 8]) for at in (12, 32, 52)}) == 3
    data[52:60] = data[12:20]
    path.write_bytes(data)
    assert recover(session, root, FaultyFiles()) == []


def test_a_segment_that_a_failed_creation_left_behind(tmp_path: Path) -> None:
    """The disk refused to flush the name of the first segment, and to remove it again.

    The next start found nothing else changed since the clean stop, took the file for one of its
    own, and stored in it; but its name was not on the disk, and lost power took it all.
    """
    place = tmp_path / "place"
    place.mkdir()
    disk = Disk(place)
    root = place / "store"
    config = StoreConfig(root_path=root, segment_bytes=1 << 16, queue_file_bytes=200)

    def records(count: int) -> list[NewRecord]:
        return [NewRecord(TOPIC, 0, b"%d" % n, b"", HOST, 1) for n in range(count)]

    MessageStore.open(config, Clock(), files=FaultyFiles(disk=disk)).close()
    trial = Path(shutil.copytree(root, tmp_path / "trial"))
    files = FaultyFiles()
    store = MessageStore.open(replace(config, root_path=trial), Clock(), files=files)
    store.put(records(1), HOST)
    store.close()
    flush = next(
        number
        for number, (name, path) in enumerate(files.operations, 1)
        if name == "fsync_directory" and path.name == "commitlog"
    )
    files = FaultyFiles(Fault(at=flush, code=errno.EIO, count=2), disk=disk)
    store = MessageStore.open(config, Clock(), files=files)
    refused = store.put(records(1), HOST)
    assert refused[0].status is not PutStatus.OK
    files.mend()
    store.close()
    assert list((root / "commitlog").iterdir()), "it was removed, so this test shows nothing"
    store = MessageStore.open(config, Clock(), files=FaultyFiles(disk=disk))
    store.put(records(10), HOST)
    store.close()
    for seed in range(POWER_LOSSES):
        lost = tmp_path / f"lost-{seed}"
        disk.lose_power(random.Random(seed), lost)
        store = MessageStore.open(replace(config, root_path=lost / "store"), Clock())
        try:
            assert store.queue_bounds(TOPIC, 0) == (0, 10), f"{seed=}"
        finally:
            store.close()
        shutil.rmtree(lost)


# ------------------------------------------------------------------------ flushes that failed


class FailingFlushes(FaultyFiles):
    """Every flush of a file below one directory fails while it is set, and loses what it should
    have brought to the disk: the system takes the pages for clean.
    """

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk=disk)
        self.failing: str | None = None

    def fsync(self, fd: int) -> None:
        node = self._nodes.get(fd)
        if node is not None and self.failing in self._paths[fd].parts:
            node.lose_writes()
            raise FlushFailed(f"{self._paths[fd]}: fsync: Input/output error")
        super().fsync(fd)


class NothingReached(random.Random):
    """Of what was not flushed nothing has reached the disk."""

    def __init__(self) -> None:
        super().__init__(0)

    def random(self) -> float:
        return 0.999

    def choice(self, seq: Any) -> Any:
        return seq[0]


def one_session(place: Path, mode: FlushMode) -> tuple[Session, Disk]:
    place.mkdir(parents=True)
    session = Session(mode, segment_bytes=9000, queue_file_bytes=400)
    return session, Disk(place)


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_failed_flush_of_the_log_and_a_restart(memory_path: Path, attempts: int) -> None:
    """The next start vouched for what the page cache held, and acknowledged what stood behind it.

    With two attempts the first start fails in the same way, and is repeated in the same process.
    """
    place = memory_path / "0"
    session, disk = one_session(place, FlushMode.SYNC)
    files = FailingFlushes(disk)
    session.start(place / "store", files)
    put_and_flush(session)
    session.put(*(Send(TOPIC, number % 2, (200,)) for number in range(30)))
    files.failing = "commitlog"
    with pytest.raises(FlushFailed):
        session.flush()
    session.stop()
    for _ in range(attempts - 1):
        with pytest.raises(FlushFailed):
            session.start(place / "store", files)
    files.failing = None
    session.start(place / "store", files)
    put_and_flush(session)
    files.abandon()
    check_power_losses(session, disk, place)


@pytest.mark.parametrize(
    ("attempts", "extended"),
    [(1, {}), (2, {}), (1, EXTENDED)],
    ids=["once", "twice", "units"],
)
def test_a_failed_flush_of_queues_and_a_restart(
    memory_path: Path, attempts: int, extended: dict[str, Any]
) -> None:
    """The next start compared what the page cache held, and recorded that it was on the disk."""
    place = memory_path / "0"
    place.mkdir()
    disk = Disk(place)
    session = Session(FlushMode.SYNC, segment_bytes=9000, queue_file_bytes=400, **extended)
    files = FailingFlushes(disk)
    session.start(place / "store", files)
    put_and_flush(session)
    files.failing = "consumequeue_ext" if extended else "consumequeue"
    with pytest.raises(FlushFailed):
        session.flush_queues()
    session.stop()
    for _ in range(attempts - 1):
        with pytest.raises(FlushFailed):
            session.start(place / "store", files)
    files.failing = None
    session.start(place / "store", files)
    session.put(*(Send("other", 0, (900,)) for _ in range(40)))  # later files of the log
    session.pass_time(10_000)
    session.put(Send("other", 0, (20,)))
    session.flush()
    session.flush_queues()  # The next start reads only these.
    files.abandon()
    check_power_losses(session, disk, place)


def test_a_failed_flush_of_entries_that_are_cut_off(memory_path: Path) -> None:
    """The next start found zeros in the page cache, and took them to be on the disk."""
    session, disk = one_session(memory_path / "0", FlushMode.ASYNC)

    def work(session: Session) -> None:
        session.put(*(Send("gone", 0, (20,)) for _ in range(3)))
        put_few(session)
        session.put(*(Send("gone", 0, (20,)) for _ in range(6)))
        session.flush_queues()  # before the log

    live(session, work, memory_path / "0", disk)
    place = memory_path / "1"
    disk.lose_power(NothingReached(), place)
    disk = Disk(place)
    files = FailingFlushes(disk)
    files.failing = "gone"
    with pytest.raises(FlushFailed):
        session.start(place / "store", files)
    files.failing = None
    session.start(place / "store", files)
    session.forget_lost()
    assert len(session.messages()["gone"]) == 3
    session.put(*(Send(TOPIC, 0, (70,)) for _ in range(20)))
    session.flush()
    files.abandon()
    check_power_losses(session, disk, place)


@pytest.mark.parametrize("way", ["recovery", "truncation"])
def test_a_failed_flush_of_what_the_log_lost_at_its_end(tmp_path: Path, way: str) -> None:
    """The next attempt found only zeros in the page cache; on the disk the old records remained,
    and counted as valid once others led up to them.
    """
    place, lost = tmp_path / "place", tmp_path / "lost"
    place.mkdir()
    config = StoreConfig(root_path=place / "store", segment_bytes=1 << 16, queue_file_bytes=2000)

    def records(first: int, end: int) -> list[NewRecord]:
        return [NewRecord(TOPIC, 0, b"%05d" % n, b"", HOST, 1) for n in range(first, end)]

    store = MessageStore.open(config, Clock())
    store.put(records(0, 10), HOST)
    store.durability.flush()
    results = store.put(records(10, 20), HOST)
    if way == "truncation":
        store.close()
    else:
        shutil.copytree(place, tmp_path / "killed")
        store.close()
        shutil.rmtree(place)
        (tmp_path / "killed").rename(place)
        with (place / "store" / "commitlog" / f"{0:020d}").open("r+b") as file:
            file.seek(results[1].physical_end - 20)
            file.write(b"torn")
    disk = Disk(place)
    files = FailingFlushes(disk)

    def cut() -> MessageStore:
        if way == "truncation":
            assert truncate_log(config, results[1].physical_end, files=files) >= 0
        return MessageStore.open(config, Clock(), files=files)

    files.failing = "commitlog"
    with pytest.raises(FlushFailed):
        cut()
    files.failing = None
    store = cut()
    (_, kept) = store.queue_bounds(TOPIC, 0)
    assert 10 < kept < 20
    store.put(records(20, 22), HOST)
    store.durability.flush()
    files.abandon()
    disk.lose_power(NothingReached(), lost)
    store = MessageStore.open(replace(config, root_path=lost / "store"), Clock())
    try:
        assert store.queue_bounds(TOPIC, 0) == (0, kept + 2)
    finally:
        store.close()
