"""What the store's tests share: a clock to set, records to put, a store to look at."""

import errno
import os
import random
import resource
import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from pymq.clock import Clock
from pymq.errors import DiskFull, FlushFailed, PymqError, StoreError
from pymq.protocol.hashes import java_hash
from pymq.protocol.new_batch import NewBatch
from pymq.protocol.new_records import SharedFields
from pymq.protocol.record import NewRecord, Record, decode_records
from pymq.store import Files, MessageStore, PutStatus, Selection, StoreConfig
from pymq.store.config import ENTRY_BYTES
from pymq.store.files import DiskUsage
from pymq.testing.faulty_files import Crashed

HOST = bytes((127, 0, 0, 1)) + struct.pack(">i", 31911)
BORN = bytes((10, 1, 2, 3)) + struct.pack(">i", 5555)
TOPIC = "TopicTest"


def open_paths(root: Path) -> list[str]:
    """Return the files below a directory that this process holds open, deleted ones included.

    Of the whole process they could not be counted: other threads open files when they like.
    """
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # closed since the listing
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return [path for path in found if path.startswith(str(root))]


class FakeClock(Clock):
    """Stands still until a test moves it."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic_s(self) -> float:
        return self.now_ms / 1000


class QuickFiles(Files):
    """Does not flush: these tests lose no power, and an fsync takes milliseconds.

    Its disk is nearly empty, however full this machine's is.
    """

    def disk_usage(self, path: Path) -> DiskUsage:
        return DiskUsage(10 << 30, 90 << 30)

    def fsync(self, fd: int) -> None:
        os.fstat(fd)

    def start_writeback(self) -> None:
        pass

    def fsync_directory(self, path: Path) -> None:
        if not path.is_dir():
            raise StoreError(f"{path}: no such directory")


class FailingFiles(QuickFiles):
    """Fails where a test wants it to; ``half`` writes a part of the data before it does."""

    def __init__(self) -> None:
        self.on_write: Callable[[Path], int] = lambda path: 0
        self.on_fsync: Callable[[Path], int] = lambda path: 0
        self.on_create: Callable[[Path], int] = lambda path: 0
        self.half = False
        self.calls = 0
        self.fail_at = -1

    def _path(self, fd: int) -> Path:
        return Path(os.readlink(f"/proc/self/fd/{fd}"))

    def _count(self) -> None:
        self.calls += 1
        if self.calls == self.fail_at:
            raise DiskFull("the n-th call: no space left on the device")

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> None:
        self._count()
        path = self._path(fd)
        code = self.on_write(path)
        if code:
            if self.half:
                super().pwrite(fd, data[: len(data) // 2 + 1], position)
            if code == errno.EIO:
                raise FlushFailed(f"{path}: {os.strerror(code)}")
            raise DiskFull(f"{path}: {os.strerror(code)}")
        super().pwrite(fd, data, position)

    def fsync(self, fd: int) -> None:
        code = self.on_fsync(self._path(fd))
        if code:
            raise FlushFailed(f"fsync: {os.strerror(code)}")
        super().fsync(fd)

    def create(self, path: Path, size_bytes: int, *, reserve: bool) -> int:
        self._count()
        if self.on_create(path):
            raise DiskFull(f"{path}: no space")
        return super().create(path, size_bytes, reserve=reserve)


def failing_in(name: str, code: int) -> Callable[[Path], int]:
    return lambda path: code if name in path.parts else 0


def never(path: Path) -> int:
    return 0


def config(root: Path, **changes: Any) -> StoreConfig:
    """Return settings with small files."""
    values: dict[str, Any] = {
        "segment_bytes": 4096,
        "queue_file_bytes": 200,
        "index_slot_count": 50,
        "index_item_limit": 100,
    }
    return StoreConfig(root_path=root, **(values | changes))


_opened: list[MessageStore] = []


def open_store(
    root: Path, clock: Clock | None = None, files: Files | None = None, **changes: Any
) -> MessageStore:
    """Open a store. If the test does not close it, its end does."""
    store = MessageStore.open(
        config(root, **changes), clock or FakeClock(), files=files or QuickFiles()
    )
    _opened.append(store)
    return store


def close_left_stores() -> None:
    """Give back the descriptors of stores whose process "died".

    In a process with more than 1,023 of them, whatever uses ``select`` fails: py4j's server of
    callbacks, for one, whose Spark then waits for ever.
    """
    while _opened:
        with suppress(PymqError, OSError, Crashed):
            _opened.pop().close()


def record(
    body: bytes | int = b"body",
    *,
    topic: str = TOPIC,
    queue_id: int = 0,
    tag: str | None = None,
    **changes: Any,
) -> NewRecord:
    """Return a record to put; a number as body means this many bytes."""
    if isinstance(body, int):
        body = bytes(body)
    properties = b"" if tag is None else b"TAGS\x01" + tag.encode()
    return NewRecord(
        topic,
        queue_id,
        body,
        properties,
        BORN,
        1_700_000_000_000,
        tag_code=0 if tag is None else java_hash(tag),
        **changes,
    )


def record_of_size(size: int, **changes: Any) -> NewRecord:
    """Return a record that takes this many bytes in the log."""
    new = record(b"", **changes)
    rest = size - 91 - len(new.topic) - len(new.properties)
    assert rest >= 0, size
    new.body = b"b" * rest
    return new


def batch(bodies: list[bytes], *, topic: str = TOPIC, queue_id: int = 0) -> NewBatch:
    """Return a batch as a client sends it."""
    body = b"".join(
        struct.pack(">iIIiI", 22 + len(text), 0, 0, 0, len(text)) + text + b"\0\0"
        for text in bodies
    )
    return NewBatch(
        body,
        SharedFields(
            topic=topic,
            queue_id=queue_id,
            born_timestamp=1_700_000_000_000,
            born_host=BORN,
            store_host=HOST,
        ),
    )


def put_ok(store: MessageStore, *entries: Any) -> list[Any]:
    """Put entries and insist that each is stored."""
    results = store.put(entries, HOST)
    assert [result.status for result in results] == [PutStatus.OK] * len(entries), results
    return results


def read_all(
    store: MessageStore,
    topic: str = TOPIC,
    queue_id: int = 0,
    tags: Sequence[str] | None = None,
    *,
    first: int = 0,
) -> list[Record]:
    """Return every visible record of a queue from an offset on, or all of some tags.

    They are read the way a consumer does.
    """
    if tags is not None:
        return _read_tagged(store, topic, queue_id, sorted(map(java_hash, tags)))
    low, end = store.queue_bounds(topic, queue_id)
    found: list[Record] = []
    offset = max(low, first)
    while offset < end:
        result = store.read(topic, queue_id, offset, count_max=7, bytes_max=1000)
        assert result.count and result.next_queue_offset == offset + result.count, result
        records = [one for buffer in result.buffers for one in decode_records(buffer, verify=True)]
        assert result.sizes is not None and result.sizes.tolist() == [r.size for r in records]
        assert [one.queue_offset for one in records] == [*range(offset, result.next_queue_offset)]
        assert {(one.topic, one.queue_id) for one in records} == {(topic, queue_id)}
        found += records
        offset = result.next_queue_offset
    return found


def _read_tagged(
    store: MessageStore, topic: str, queue_id: int, tag_codes: list[int]
) -> list[Record]:
    offset, end = store.queue_bounds(topic, queue_id)
    found: list[Record] = []
    while offset < end:
        result = store.read(
            topic,
            queue_id,
            offset,
            count_max=7,
            bytes_max=1000,
            selection=Selection(np.array(tag_codes, np.int64)),
        )
        found += [one for buffer in result.buffers for one in decode_records(buffer)]
        assert offset < result.next_queue_offset <= end, result
        offset = result.next_queue_offset
    return found


def bodies(
    store: MessageStore, topic: str = TOPIC, queue_id: int = 0, tags: Sequence[str] | None = None
) -> list[bytes]:
    return [one.body for one in read_all(store, topic, queue_id, tags)]


def crashed_copy(root: Path, target: Path) -> Path:
    """Return what kill -9 leaves behind: everything written, whether flushed or not."""
    shutil.copytree(root, target, copy_function=_copy_with_holes)
    return target


def _copy_with_holes(source: str, target: str) -> None:
    with open(source, "rb", buffering=0) as old, open(target, "wb", buffering=0) as new:
        size = os.fstat(old.fileno()).st_size
        new.truncate(size)
        for start, end in Files().data_ranges(old.fileno(), 0, size):
            os.pwrite(new.fileno(), os.pread(old.fileno(), end - start, start), start)


def log_files(root: Path) -> list[Path]:
    return sorted((root / "commitlog").iterdir())


def queue_path(root: Path, topic: str = TOPIC, queue_id: int = 0) -> Path:
    return root / "consumequeue" / topic / str(queue_id)


def queue_bytes(root: Path, count: int, topic: str = TOPIC, queue_id: int = 0) -> bytes:
    """Return the first entries of a queue, over its files."""
    data = b"".join(
        path.read_bytes() for path in sorted(queue_path(root, topic, queue_id).iterdir())
    )
    return data[: count * ENTRY_BYTES]


def overwrite(path: Path, position: int, data: bytes) -> None:
    """Damage a file in place."""
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Let this process open nothing more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.dup(0)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 1, hard))
    try:
        while True:
            try:
                taken.append(os.dup(0))
            except OSError:
                break
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def seeded(seed: int) -> random.Random:
    print(f"seed {seed}")
    return random.Random(seed)
