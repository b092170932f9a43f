"""A log is cut where it begins to differ from its master's; the store opens as if the rest had
never been."""

import os
import random
from pathlib import Path

import pytest
from tests.unit.store.stores import (
    FakeClock,
    QuickFiles,
    config,
    crashed_copy,
    log_files,
    open_store,
    put_ok,
    read_all,
    record,
)

from pymq.errors import StoreLocked, StoreMismatch
from pymq.store import MessageStore
from pymq.store.truncation import truncate_log

SETTINGS = {"segment_bytes": 1 << 14, "queue_file_bytes": 2000}
TOPICS = ("A", "B")


class Filler:
    """Puts messages of random sizes, and knows them."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.ends = [0]
        self.bodies: list[tuple[str, bytes]] = []

    def fill(self, store: MessageStore, count: int, tag: str) -> None:
        for number in range(count):
            topic = self.dice.choice(TOPICS)
            body = f"{tag}-{number}-".encode() + bytes(self.dice.randrange(900))
            (result,) = put_ok(store, record(body, topic=topic))
            self.ends.append(result.physical_end)
            self.bodies.append((topic, body))

    def cut(self, number: int) -> int:
        """Forget all but some messages; return where the last of them ends."""
        del self.bodies[number:], self.ends[number + 1 :]
        return self.ends[-1]

    def check(self, store: MessageStore) -> None:
        for topic in TOPICS:
            wanted = [body for name, body in self.bodies if name == topic]
            assert [one.body for one in read_all(store, topic, 0)] == wanted
        assert store.log_end >= self.ends[-1]


@pytest.mark.parametrize("is_clean", [True, False])
def test_what_is_cut_off_has_never_been(tmp_path: Path, is_clean: bool, seed: int) -> None:
    """Also if what comes next is older, and the next stop is unclean."""
    filler, clock, root = Filler(seed), FakeClock(), tmp_path / "0"

    def stop(store: MessageStore, *, is_clean: bool) -> Path:
        """Return the directory as a clean stop, or a crash, leaves it."""
        if is_clean:
            store.close()
            return root
        copy = crashed_copy(root, root.with_name(f"{int(root.name) + 1}"))
        store.close()
        return copy

    for round_ in range(4):
        store = open_store(root, clock, **SETTINGS)
        filler.check(store)
        clock.now_ms += filler.dice.randint(-50_000, 50_000)
        filler.fill(store, filler.dice.randint(1, 120), f"round {round_}")
        before = store.log_end
        root = stop(store, is_clean=is_clean)
        end = filler.cut(filler.dice.randrange(1, len(filler.bodies) + 1))
        cut = truncate_log(config(root, **SETTINGS), end, files=QuickFiles())
        # A file ends with padding, which is not counted.
        assert 0 <= cut <= before - end
        store = open_store(root, clock, **SETTINGS)
        assert store.log_end == end
        filler.check(store)
        filler.fill(store, filler.dice.randint(0, 60), f"instead {round_}")
        root = stop(store, is_clean=filler.dice.random() < 0.5)
    assert any((root / "recovered").iterdir())


def test_it_is_cut_at_records_only(tmp_path: Path, seed: int) -> None:
    filler = Filler(seed)
    store = open_store(tmp_path, **SETTINGS)
    filler.fill(store, 20, "x")
    with pytest.raises(StoreLocked):
        truncate_log(config(tmp_path, **SETTINGS), filler.ends[3])
    store.close()
    for wrong in (filler.ends[3] + 1, filler.ends[3] - 1, 1 << 30, -1):
        with pytest.raises(StoreMismatch, match="another log"):
            truncate_log(config(tmp_path, **SETTINGS), wrong)
    store = open_store(tmp_path, **SETTINGS)
    filler.check(store)
    store.close()


class ReadUpTo(QuickFiles):
    """Refuses to read the log from a physical offset on; the file begins at 0."""

    def __init__(self, path: Path, end: int) -> None:
        self._path, self._end = path, end

    def pread(self, fd: int, size: int, position: int) -> bytes:
        if Path(os.readlink(f"/proc/self/fd/{fd}")) == self._path:
            assert position + size <= self._end
        return super().pread(fd, size, position)


def test_what_may_be_cut_off_is_not_read_to_find_the_place(tmp_path: Path, seed: int) -> None:
    filler = Filler(seed)
    store = open_store(tmp_path, **SETTINGS)
    filler.fill(store, 12, "x")
    store.close()
    wrong = filler.ends[3] + 1
    files = ReadUpTo(log_files(tmp_path)[0], wrong)
    with pytest.raises(StoreMismatch, match="another log"):
        truncate_log(config(tmp_path, **SETTINGS), wrong, files=files)
