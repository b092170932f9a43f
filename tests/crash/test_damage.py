"""Bytes of a store that is not open change: files cut off, and single bits.

Whatever the damage, the store opens and serves what is right, or says that something is wrong
(``CorruptRecord``, ``StoreMismatch``) when it is opened or where it is read. The README says what
no checksum covers, and ``UNCOVERED`` holds it to that.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.crash.checkers import Found
from tests.crash.sampling import some_of
from tests.crash.session import Send, Session, index_complaints

from pymq.errors import CorruptRecord, StoreError, StoreMismatch
from pymq.protocol.record import decode_record, record_place
from pymq.store import Files, FlushMode, StoreConfig
from pymq.store.index.index_format import HEADER_BYTES, IndexLayout
from pymq.store.inspection import check_store
from pymq.store.state.sealed_file import SealedFile

pytestmark = pytest.mark.crash

TOPIC: Final = "damaged"
#: Where the fields of a record with IPv4 hosts begin; behind them body, topic and properties.
FIELDS: Final = {
    0: "size", 4: "magic", 8: "body crc", 12: "queue id", 16: "flag", 20: "queue offset",
    28: "physical offset", 36: "system flag", 40: "born time", 48: "born host",
    56: "store time", 64: "store host", 72: "reconsume times", 76: "transaction offset",
    84: "body size",
}  # fmt: skip
#: What may change without notice in a record without a checksum of its own.
UNCOVERED: Final = {
    "flag", "system flag", "born time", "born host", "store time", "store host",
    "reconsume times", "transaction offset", "topic", "properties",
}  # fmt: skip
def make(root: Path, *, clean: bool, checksum: bool, **settings: int) -> Session:
    """Leave a store with two queues in several segments, closed or killed."""
    session = Session(FlushMode.SYNC, append_record_crc=checksum, **settings)
    session.start(root, Files())
    for number in range(6):
        session.put(Send(TOPIC, 0, (40,)), Send(TOPIC, 1, (120,)), Send(TOPIC, 1, (30,)))
        session.flush()
        session.save()
        if number == 3:
            session.index()
            session.flush_queues()
    if clean:
        session.stop()
    else:
        kept = shutil.copytree(root, root.with_name("kept"))
        session.stop()
        shutil.rmtree(root)
        kept.rename(root)
    session.store = None
    return session


def outcome(session: Session, root: Path, wanted: list[Found]) -> str:
    """Open a damaged store and read everything; return what became of it."""
    after = session.fork()
    try:
        after.start(root, Files())
    except (CorruptRecord, StoreMismatch):
        return "refused"
    try:
        found = after.messages().get(TOPIC, [])
    except CorruptRecord:
        return "unreadable"
    finally:
        with contextlib.suppress(StoreError):
            after.stop()
    if found == wanted:
        return "right"
    return "cut" if is_prefix(found, wanted) else "changed"


def is_noticed(root: Path) -> bool:
    """Tell whether ``pymq store check`` finds something wrong."""
    return not check_store(StoreConfig(root_path=root)).is_whole


def is_prefix(found: list[Found], wanted: list[Found]) -> bool:
    """Tell whether all records below one physical offset are there, and no other."""
    end = max((one.physical_offset for one in found), default=-1)
    return found == [one for one in wanted if one.physical_offset <= end]


def served(session: Session, root: Path) -> list[Found]:
    copy = shutil.copytree(root, root.with_name("served"))
    again = session.fork()
    again.start(copy, Files())
    found = again.messages()[TOPIC]
    again.stop()
    shutil.rmtree(copy)
    return found


@contextlib.contextmanager
def damaged(root: Path, name: str, change: Callable[[bytearray], None]) -> Iterator[Path]:
    """Yield a copy of a store with one file changed."""
    copy = shutil.copytree(root, root.with_name("damaged"))
    data = bytearray((copy / name).read_bytes())
    change(data)
    (copy / name).write_bytes(data)
    yield copy
    shutil.rmtree(copy)


def blank_from(position: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        data[position:] = bytes(len(data) - position)

    return change


def cut_at(position: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        del data[position:]

    return change


def flip(position: int, bit: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        data[position] ^= 1 << bit

    return change


def last_file(root: Path, folder: str) -> Path:
    return max(path for path in (root / folder).iterdir() if any(path.read_bytes()))


@pytest.mark.parametrize("clean", [False, True], ids=["killed", "closed"])
def test_files_cut_off_at_every_byte(
    memory_path: Path, clean: bool, seed: int, crash_rounds: int
) -> None:
    """Zeros from a byte on, which is what a file that was made in full size has."""
    chance = random.Random(seed)
    root = memory_path / "store"
    session = make(root, clean=clean, checksum=False)
    wanted = served(session, root)
    log = last_file(root, "commitlog")
    queue = last_file(root, f"consumequeue/{TOPIC}/1")
    index = last_file(root, "index")
    allowed = {
        log: {"refused"} if clean else {"refused", "cut", "right"},
        queue: {"right"},
        index: {"right"},
        root / "checkpoint": {"right"},
        root / "queues.json": {"right"},
    }
    for path, good in allowed.items():
        if not path.exists():
            continue
        used = len(path.read_bytes().rstrip(b"\0"))
        for position in some_of(range(max(0, used - 250), used), crash_rounds, chance):
            with damaged(root, str(path.relative_to(root)), blank_from(position)) as copy:
                found = outcome(session, copy, wanted)
                assert found in good, f"{path.name} blank from {position}: {found}"
                if found == "right" and index_complaints(copy):
                    # A clean stop vouches for the index, nobody looks before it is asked to.
                    assert clean and is_noticed(copy), f"{path.name} blank from {position}"


@pytest.mark.parametrize("clean", [False, True], ids=["killed", "closed"])
def test_small_files_of_every_length(
    memory_path: Path, clean: bool, seed: int, crash_rounds: int
) -> None:
    chance = random.Random(seed)
    root = memory_path / "store"
    session = make(root, clean=clean, checksum=False)
    wanted = served(session, root)
    for name in ("checkpoint", "queues.json"):
        if not (root / name).exists():
            continue
        lengths = range(min(300, (root / name).stat().st_size))
        for position in some_of(lengths, crash_rounds, chance):
            with damaged(root, name, cut_at(position)) as copy:
                found = outcome(session, copy, wanted)
                assert found == "right", f"{name} of {position} B: {found}"


@pytest.mark.parametrize("name", ["commitlog", f"consumequeue/{TOPIC}/0", "index"])
def test_data_files_of_another_length_are_refused(memory_path: Path, name: str) -> None:
    root = memory_path / "store"
    session = make(root, clean=True, checksum=False)
    path = last_file(root, name)
    size = path.stat().st_size
    for length in (1, size // 2, size - 1):
        with damaged(root, str(path.relative_to(root)), cut_at(length)) as copy:
            before = {one: one.read_bytes() for one in copy.rglob("*") if one.is_file()}
            assert outcome(session, copy, []) == "refused"
            after = {one: one.read_bytes() for one in copy.rglob("*") if one.is_file()}
            assert {one: data for one, data in after.items() if one.name != "lock"} == {
                one: data for one, data in before.items() if one.name != "lock"
            }


@pytest.mark.parametrize("checksum", [False, True], ids=["body-crc", "record-checksum"])
@pytest.mark.parametrize("clean", [False, True], ids=["killed", "closed"])
@pytest.mark.parametrize("number", [4, -1], ids=["middle", "last"])
def test_a_bit_of_a_record(
    memory_path: Path, seed: int, crash_rounds: int, clean: bool, checksum: bool, number: int
) -> None:
    """One bit of every byte: noticed, or of a field that nothing covers."""
    chance = random.Random(seed)
    root = memory_path / "store"
    session = make(root, clean=clean, checksum=checksum)
    wanted = served(session, root)
    victim = sorted(wanted, key=lambda one: one.physical_offset)[number]
    segment, position = divmod(victim.physical_offset, 1024)
    name = f"commitlog/{segment * 1024:020d}"
    data = (root / name).read_bytes()
    record = decode_record(data, position)
    unnoticed = defaultdict(list)
    for offset in some_of(range(record.size), crash_rounds, chance):
        with damaged(root, name, flip(position + offset, chance.randrange(8))) as copy:
            found = outcome(session, copy, wanted)
            if found in ("right", "changed") and not is_noticed(copy):
                unnoticed[field_at(record.body, offset)].append(offset)
    assert unnoticed.keys() <= (set() if checksum else UNCOVERED), dict(unnoticed)


def field_at(body: bytes, offset: int) -> str:
    if offset < 88:
        return FIELDS[max(start for start in FIELDS if start <= offset)]
    offset -= 88 + len(body)
    if offset < 0:
        return "body"
    return "topic" if offset < 1 + len(TOPIC) else "properties"


@pytest.mark.parametrize("name", [f"consumequeue/{TOPIC}/1", "index", "."])
@pytest.mark.parametrize("clean", [False, True], ids=["killed", "closed"])
def test_a_bit_of_what_can_be_made_again(
    memory_path: Path, seed: int, crash_rounds: int, clean: bool, name: str
) -> None:
    """Never a wrong message, nor one less; after a kill, queues are right."""
    chance = random.Random(seed)
    root = memory_path / "store"
    session = make(root, clean=clean, checksum=False)
    wanted = served(session, root)
    for path in sorted((root / name).iterdir()):
        if not path.is_file() or path.name in ("lock", "abort"):
            continue
        used = len(path.read_bytes().rstrip(b"\0"))
        # The sign of a number, and any bit.
        bits = itertools.product(range(used), (7, chance.randrange(8)))
        for position, bit in some_of(bits, crash_rounds, chance):
            with damaged(root, str(path.relative_to(root)), flip(position, bit)) as copy:
                found = outcome(session, copy, wanted)
                # A clean start looks at the ends of files alone.
                good = {"right", "refused", "unreadable"} if clean else {"right", "refused"}
                assert found in good, f"{path.name} at {position}, bit {bit}: {found}"


def test_a_bit_of_the_index(memory_path: Path, seed: int, crash_rounds: int) -> None:
    """A query by key that misses a message says so, whatever bit of a closed store changed.

    But for numbers that lead by chance, or with their only bit gone, to another place in the same
    chain, or to none.
    """
    chance = random.Random(seed)
    root = memory_path / "store"
    layout = IndexLayout(101, 12)  # enough slots for few keys to share one
    session = make(root, clean=True, checksum=False, index_slot_count=layout.slot_count)
    wanted = by_key(session, root)
    assert sum(map(len, wanted.values())) > 10
    tried, unnoticed = 0, []
    for path in sorted((root / "index").iterdir()):
        name = str(path.relative_to(root))
        used = len(path.read_bytes().rstrip(b"\0"))
        bits = itertools.product(range(HEADER_BYTES, used), range(8))
        for position, bit in some_of(bits, crash_rounds, chance, one_in=5):
            tried += 1
            with damaged(root, name, flip(position, bit)) as copy:
                try:
                    found = by_key(session, copy)
                except (CorruptRecord, StoreMismatch):
                    continue
                assert all(map(set.issubset, found.values(), wanted.values()))
                if found != wanted:
                    unnoticed.append(f"{name} at {position}, bit {bit}")
    assert len(unnoticed) <= tried / 100, (tried, unnoticed)


def by_key(session: Session, root: Path) -> dict[str, set[int]]:
    """Return the offsets of what queries find, by key."""
    after = session.fork()
    after.start(root, Files())
    store = after.store
    assert store is not None
    after.index()
    try:
        found = {}
        for key in (f"k{number}" for number in range(5)):
            places = store.keys.query(TOPIC, key).buffers
            found[key] = {record_place(place, 0)[1] for place in places}
        return found
    finally:
        after.stop()


def test_tables_cut_off_and_changed(memory_path: Path) -> None:
    """A table that is not what was saved falls back to its backup, and never to nothing."""
    path = memory_path / "offsets.json"
    table = SealedFile(path)
    older, newer = {"a": [1, 2, 3]}, {"a": [4, 5, 6]}
    table.save(json.dumps(older))
    table.save(json.dumps(newer))
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position])
        assert SealedFile(path).load(json.loads) == older
        path.write_bytes(whole[:position] + bytes(len(whole) - position))
        assert SealedFile(path).load(json.loads) == older
        for bit in range(8):
            path.write_bytes(
                whole[:position] + bytes([whole[position] ^ 1 << bit]) + whole[position + 1 :]
            )
            # A changed name of the checksum is a member that nobody knows.
            found = SealedFile(path).load(lambda text: {"a": json.loads(text)["a"]})
            assert found in (older, newer), f"bit {bit} of byte {position}: {found}"
