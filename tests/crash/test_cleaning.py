"""Deaths and lost power while old files are deleted, and with a transient store pool."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.crash.random_scripts import random_script
from tests.crash.sampling import some_of
from tests.crash.session import Session, fixed_script, recover
from tests.unit.store.stores import FakeClock, bodies, open_store, put_ok, record_of_size

from pymq.protocol.record import NewRecord
from pymq.store import Files, FlushMode, MessageStore
from pymq.store.files import DiskUsage
from pymq.testing.faulty_files import Crashed, Fault, FaultyFiles
from pymq.testing.lost_power import Disk

pytestmark = pytest.mark.crash

TOPIC = "TopicTest"
QUEUES = range(3)
#: Three records to a segment and to a queue file; an index file has three keys.
SIZES: dict[str, Any] = {
    "segment_bytes": 1024,
    "queue_file_bytes": 60,
    "index_slot_count": 4,
    "index_item_limit": 4,
}
RECORD_BYTES = 300
#: Too few buffers, and enough of them.
POOLS: tuple[dict[str, Any], ...] = tuple(
    {"transient_pool": True, "transient_pool_size": size} for size in (1, 5)
)


class FullDisk(FaultyFiles):
    """So full that old segments go at once, but writes are taken."""

    def disk_usage(self, path: Path) -> DiskUsage:
        return DiskUsage(89 << 30, 11 << 30)


def keyed(queue_id: int, number: int) -> NewRecord:
    new = record_of_size(RECORD_BYTES, queue_id=queue_id)
    text = b"%d" % number
    new.properties = b"KEYS\x01k" + text
    new.body = text.ljust(len(new.body) - len(new.properties), b".")
    return new


@dataclass
class Past:
    """What was put, and what of it must still be there."""

    stored: dict[int, list[bytes]] = field(default_factory=lambda: {one: [] for one in QUEUES})
    safe: dict[int, int] = field(default_factory=dict)
    clock: FakeClock = field(default_factory=FakeClock)

    def put(self, store: MessageStore, queue_id: int, count: int) -> None:
        for _ in range(count):
            new = keyed(queue_id, len(self.stored[queue_id]))
            self.stored[queue_id].append(bytes(new.body))
            put_ok(store, new)

    def flush(self, store: MessageStore) -> None:
        store.durability.flush()
        store.durability.flush_queues()
        while store.keys.index_step():
            pass
        self.safe = {one: len(texts) for one, texts in self.stored.items()}


def work(root: Path, files: Files, past: Past) -> None:
    """Fill a store and let it delete what is old, twice; queue 2 loses all of its messages."""
    store = open_store(root, past.clock, files, **SIZES)
    past.put(store, 2, 4)
    for _ in range(2):
        past.clock.now_ms += 4000
        past.put(store, 0, 7)
        past.put(store, 1, 5)
        past.flush(store)
        while store.retention.clean_step():
            pass
        past.put(store, 0, 2)
        store.durability.flush()
    assert store.log_first > 0
    store.close()


def check(root: Path, past: Past) -> None:
    """The store opens; its queues go on where they ended and hold what the log still has."""
    for _ in range(2):
        store = open_store(root, past.clock, **SIZES)
        for queue_id in QUEUES:
            low, end = store.queue_bounds(TOPIC, queue_id)
            texts = past.stored[queue_id]
            assert past.safe.get(queue_id, 0) <= end <= len(texts), (queue_id, low, end)
            assert bodies(store, TOPIC, queue_id) == texts[low:end], queue_id
            del texts[end:]
        names = [int(path.name) for path in sorted((root / "commitlog").glob("*"))]
        assert names == [*range(names[0], names[0] + 1024 * len(names), 1024)] if names else True
        for queue_id in QUEUES:
            past.put(store, queue_id, 1)
            assert store.queue_bounds(TOPIC, queue_id)[1] == len(past.stored[queue_id])
        past.flush(store)
        last = len(past.stored[0]) - 1
        assert store.keys.query(TOPIC, f"k{last}").buffers
        while store.retention.clean_step():
            pass
        store.close()


def test_dies_at_every_operation_of_cleaning(
    memory_path: Path, seed: int, crash_rounds: int
) -> None:
    counting = FullDisk()
    work(memory_path / "counting", counting, Past())
    removals = [path for name, path in counting.operations if name == "remove"]
    for part in ("commitlog", "consumequeue", "index"):
        assert sum(part in path.parts for path in removals) >= 3, part
    every = range(1, len(counting.operations) + 1)
    for at in some_of(every, crash_rounds, random.Random(seed)):
        root, past = memory_path / "store", Past()
        files = FullDisk(Fault(at=at))
        with pytest.raises(Crashed):
            work(root, files, past)
        files.abandon()
        try:
            check(root, past)
        except BaseException as error:
            error.add_note(f"operation {at}: {counting.operations[at - 1]}")
            raise
        shutil.rmtree(root)


def test_loses_power_while_cleaning(memory_path: Path, seed: int, crash_rounds: int) -> None:
    counting = FullDisk()
    work(memory_path / "counting", counting, Past())
    for number in range(max(20, crash_rounds)):
        chance = random.Random(seed + number)
        home, past = memory_path / "home", Past()
        home.mkdir()
        disk = Disk(home)
        files = FullDisk(Fault(at=chance.randint(1, len(counting.operations))), disk=disk)
        with pytest.raises(Crashed):
            work(home / "store", files, past)
        files.abandon()
        left = memory_path / "left"
        disk.lose_power(chance, left)
        try:
            check(left / "store", past)
        except BaseException as error:
            error.add_note(f"seed {seed + number}")
            raise
        shutil.rmtree(home)
        shutil.rmtree(left)


# -------------------------------------------------------------------------- transient pool


@pytest.mark.parametrize("pool", POOLS, ids=lambda pool: f"{pool['transient_pool_size']} buffers")
def test_with_a_pool_it_dies_at_every_operation(
    memory_path: Path, pool: dict[str, Any], seed: int, crash_rounds: int
) -> None:
    """With SYNC_FLUSH the promise is the usual one."""
    counting = FaultyFiles()
    session = Session(FlushMode.SYNC, **pool)
    session.start(memory_path / "counting", counting)
    fixed_script(session)
    every = range(1, len(counting.operations) + 1)
    for at in some_of(every, crash_rounds, random.Random(seed)):
        root = memory_path / "store"
        files, session = FaultyFiles(Fault(at=at)), Session(FlushMode.SYNC, **pool)
        with pytest.raises(Crashed):
            session.start(root, files)
            fixed_script(session)
        files.abandon()
        session.store = None
        complaints = recover(session, root, FaultyFiles())
        assert not complaints, "\n".join([f"{at=} {counting.operations[at - 1]}", *complaints])
        shutil.rmtree(root)


def test_with_a_pool_it_loses_power(memory_path: Path, seed: int, crash_rounds: int) -> None:
    for number in range(max(20, crash_rounds)):
        chance = random.Random(seed + number)
        session = Session(FlushMode.SYNC, **chance.choice(POOLS))
        home, left = memory_path / "home", memory_path / "left"
        home.mkdir()
        disk = Disk(home)
        files = FaultyFiles(Fault(at=chance.randint(1, 250)), disk=disk)
        try:
            session.start(home / "store", files)
            random_script(chance.randrange(1 << 31), 30)(session)
        except Crashed:
            pass
        session.store = None
        files.abandon()
        disk.lose_power(chance, left)
        complaints = recover(session, left / "store", FaultyFiles(), lost_power=True)
        assert not complaints, "\n".join([f"seed {seed + number}", *complaints])
        shutil.rmtree(home)
        shutil.rmtree(left)
