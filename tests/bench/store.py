"""How fast the store alone is, in one process: appending, indexing, recovering, finding.

Stores lie in a temporary directory on the disk (TMPDIR); they are written with ASYNC_FLUSH, and
read again from the page cache.
"""

import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from operator import truediv
from pathlib import Path
from typing import Any

import numpy as np
from tests.bench import machine

from pymq.clock import Clock
from pymq.protocol.index_keys import key_hash
from pymq.protocol.new_batch import NewBatch
from pymq.protocol.new_records import SharedFields
from pymq.protocol.record import pack_host
from pymq.store import Files, MessageStore, PutStatus, StoreConfig
from pymq.store.index.index_format import IndexLayout
from pymq.store.index.key_index import KeyIndex, candidates

HOST = pack_host("127.0.0.1", 10911)
TOPIC = "TopicTest"
BATCH = 256
QUEUE_COUNT_SMALL, QUEUE_COUNT_LARGE = 4, 10_000
ROUNDS = 7
QUERY_COUNT = 1000


@contextmanager
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="pymq-bench-store-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def open_store(root: Path, **settings: Any) -> MessageStore:
    return MessageStore.open(StoreConfig(root_path=root, **settings), Clock())


def batch(body: bytes, properties: list[bytes], topic: str, queue_id: int) -> NewBatch:
    """Return a batch as it comes from a client."""
    entries = b"".join(
        b"".join(
            (
                (22 + len(body) + len(text)).to_bytes(4, "big"), bytes(12),
                len(body).to_bytes(4, "big"), body, len(text).to_bytes(2, "big"), text,
            )
        )
        for text in properties
    )  # fmt: skip
    return NewBatch(
        entries,
        SharedFields(
            topic=topic,
            queue_id=queue_id,
            born_timestamp=0,
            born_host=HOST,
            store_host=HOST,
        ),
    )


def keys_text(dice: random.Random, count: int) -> bytes:
    """Return properties with this many different keys."""
    if not count:
        return b"TAGS\x01TagA\x02WAIT\x01true"
    unique = b"UNIQ_KEY\x01%032X" % dice.getrandbits(128)
    keys = b" ".join(b"order-%09d" % dice.randrange(10**9) for _ in range(count - 1))
    return unique + (b"\x02KEYS\x01" + keys if keys else b"") + b"\x02TAGS\x01TagA"


def append(scale: float) -> None:
    """Append prepared batches of 128 B to 4 queues and to 10,000, in turn."""
    put_count = int(2_000 * scale)
    with directory() as root:
        store = open_store(root, key_index=False)
        for size in (16, BATCH):
            one = batch(b"x" * 128, [keys_text(random.Random(1), 0)] * size, TOPIC, 0)
            append_round(store, one, QUEUE_COUNT_LARGE, QUEUE_COUNT_LARGE)  # makes their files
            rates: dict[int, list[float]] = {QUEUE_COUNT_SMALL: [], QUEUE_COUNT_LARGE: []}
            for _ in range(ROUNDS):
                for queue_count, runs in rates.items():
                    runs.append(append_round(store, one, queue_count, put_count))
            for queue_count, runs in rates.items():
                machine.line(
                    f"append, batches of {size}, 128 B, {queue_count:,} queues",
                    statistics.median(runs),
                    goal="goal 500,000" if size == BATCH and queue_count < 100 else "",
                )
            ratio = statistics.median(
                map(truediv, rates[QUEUE_COUNT_LARGE], rates[QUEUE_COUNT_SMALL])
            )
            machine.line("... 10,000 queues / 4 queues", ratio, "x", goal="goal 0.8")
        store.close()


def append_round(store: MessageStore, one: NewBatch, queue_count: int, put_count: int) -> float:
    """Put a batch so often, to one queue after the other; return messages per second."""
    begun = time.perf_counter()
    for number in range(put_count):
        one.queue_id = number % queue_count
        (result,) = store.put([one], HOST)
        assert result.status is PutStatus.OK, result
    return put_count * one.count / (time.perf_counter() - begun)


def dispatch(scale: float) -> None:
    """Make queues, and queues and index, of a log that has neither."""
    for key_count in (0, 2):
        with directory() as root:
            count = fill(root, int(1_000_000 * scale), 100, key_count)
            forget_derived(root)
            begun = time.perf_counter()
            store = open_store(root)
            while store.keys.index_step():
                pass
            rate = count / (time.perf_counter() - begun)
            goal = "goal 150,000" if key_count else "goal 300,000"
            machine.line(f"log to queues and index, {key_count} keys each", rate, goal=goal)
            store.close()


def fill(root: Path, count: int, body_bytes: int, key_count: int, **settings: Any) -> int:
    """Write a store with this many messages over 3 topics and 4 queues each; return how many."""
    dice = random.Random(2)
    store = open_store(root, key_index=False, **settings)
    body = dice.randbytes(body_bytes)
    batches = [
        batch(body, [keys_text(dice, key_count) for _ in range(BATCH)], f"{TOPIC}{n % 3}", n % 4)
        for n in range(min(120, -(-count // BATCH)))
    ]
    written = 0
    while written < count:
        for one in batches:
            (result,) = store.put([one], HOST)
            assert result.status is PutStatus.OK, result
        written += BATCH * len(batches)
    store.close()
    return written


def forget_derived(root: Path) -> None:
    """Leave the log alone, as after a crash."""
    for name in ("consumequeue", "index"):
        shutil.rmtree(root / name, ignore_errors=True)
    for name in ("checkpoint", "queues.json"):
        (root / name).unlink(missing_ok=True)
    (root / "abort").touch()


def recover(scale: float) -> None:
    """Open a killed store of 1 GiB with messages of 1 KiB; nothing is known of it."""
    with directory() as root:
        count = fill(root, int((1 << 20) * scale), 1024 - 91 - len(TOPIC) - 1 - 70, 1)
        forget_derived(root)
        begun = time.perf_counter()
        store = open_store(root)
        opened = time.perf_counter() - begun
        while store.keys.index_step():
            pass
        indexed = time.perf_counter() - begun
        end = store.log_end
        store.close()
        note = f"{count:,} messages, {end / (1 << 30):.2f} GiB"
        machine.line("recovery of 1 KiB messages, ready", opened, "s", note=note, goal="goal 10")
        machine.line("... and all keys indexed", indexed, "s")
        begun = time.perf_counter()
        store = open_store(root)
        machine.line("opening it after a clean stop", time.perf_counter() - begun, "s")
        store.close()


def query(scale: float) -> None:
    """Find one of ten million keys, warm."""
    with directory() as root:
        layout = IndexLayout(5_000_000, 20_000_000)
        index = KeyIndex(Files(), root / "index", layout)
        count = int(10_000_000 * scale)
        now = 1_700_000_000_000
        dice = np.random.default_rng(3)
        begun = time.perf_counter()
        wanted = [key_hash(TOPIC, f"order-{number}") for number in range(QUERY_COUNT)]
        step = 1 << 14
        for first in range(0, count, step):
            hashes = dice.integers(0, 1 << 31, step).astype(np.int32)
            hashes[0] = wanted[first // step % QUERY_COUNT]
            places = np.arange(first, first + step, dtype=np.int64) * 200
            index.add(hashes, places, np.full(step, now + first // 1000), now)
        rate = count / (time.perf_counter() - begun)
        machine.line("keys added to the index, hashes known", rate)
        flush = index.begin_flush()
        flush.run()
        index.finish_flush(flush, is_done=True)
        index.close()
        files = Files()
        index = KeyIndex(files, root / "index", layout)
        index.load()
        times = []
        for _ in range(2):  # the first round warms
            times.clear()
            for value in wanted:
                begun = time.perf_counter()
                chains = index.chains(value, begin_ms=0, end_ms=now * 2)
                sum(1 for _ in candidates(files, chains, begin_ms=0, end_ms=now * 2))
                times.append((time.perf_counter() - begun) * 1000)
        times.sort()
        machine.line(
            f"a key among {count:,}, slowest of {QUERY_COUNT}", times[-1], "ms", goal="goal 5",
            note=f"median {times[len(times) // 2]:.3f} ms",
        )  # fmt: skip
        index.close()


def run(scale: float) -> None:
    """Print all figures of the store."""
    print("\nthe store alone, one core")
    append(scale)
    dispatch(scale)
    recover(scale)
    query(scale)
