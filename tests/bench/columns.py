"""Rows a second of ``send_columns`` and ``batches()``, against a broker in a process of its own.

``python -m tests.bench.columns`` prints them for bodies of 128 B and 1 KiB at a pymq broker;
``--name-server`` for another one.
"""

import argparse
import os
import platform
import tempfile
import time
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
from tests.bench.load import create_topic, run_loop
from tests.crash.servers import broker_process, name_server_process

from pymq.client.pulling.pull_consumer import PullConsumer
from pymq.client.sending.producer import Producer

QUEUE_COUNT = 8


def table_of(count: int, size: int) -> pa.Table:
    """Return a table of random bodies of one size, and tags."""
    data = np.random.default_rng(1).integers(0, 255, count * size, np.uint8)
    offsets = np.arange(0, (count + 1) * size, size, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    bodies = pa.Array.from_buffers(pa.binary(), count, buffers)
    tags = pa.array(["a", "b"]).take(pa.array(np.arange(count) % 2))
    return pa.table({"body": bodies, "tags": tags})


def measure(name_server: str, *, size: int, count: int, rounds: int) -> tuple[float, float]:
    """Return rows a second sent, and read.

    Args:
        name_server: of the cluster.
        size: of a body, bytes.
        count: rows of a table.
        rounds: tables sent.
    """
    topic = f"columns-{uuid.uuid4().hex[:12]}"
    create_topic(name_server, topic, QUEUE_COUNT)
    table = table_of(count, size)

    async def work() -> tuple[float, float]:
        async with Producer(name_server) as producer:
            await producer.send_columns(table, topic=topic)
            started = time.perf_counter()
            for _ in range(rounds):
                await producer.send_columns(table, topic=topic)
            sent_s = time.perf_counter() - started
            queues = await producer.queues(topic)
        total = read = (rounds + 1) * count
        started = time.perf_counter()
        consumer = PullConsumer(name_server, f"g-{topic}", from_where="earliest")
        async with consumer.assign(queues):
            async for batch in consumer.batches():
                assert batch["body"].lengths[0] == size
                read -= len(batch)
                if read <= 0:
                    break
        return rounds * count / sent_s, total / (time.perf_counter() - started)

    return run_loop(work)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name-server")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory(prefix="pymq-bench-columns-") as home:
        processes = []
        name_server = given.name_server
        if name_server is None:
            folders = [Path(home, name) for name in ("namesrv", "broker")]
            for folder in folders:
                folder.mkdir()
            processes.append(name_server_process(folders[0]))
            name_server = processes[0].address
            large = {"mappedFileSizeCommitLog": 256 << 20, "mappedFileSizeConsumeQueue": 6_000_000}
            processes.append(
                broker_process(folders[1], name_server, folders[1] / "store", **large)
            )
        try:
            for process in processes:
                process.start()
            for size in (128, 1024):
                sent, read = measure(
                    name_server, size=size, count=given.rows, rounds=given.rounds
                )
                print(f"{size} B: send_columns {sent:,.0f} rows/s, batches() {read:,.0f} rows/s")
        finally:
            for process in processes:
                process.kill()


if __name__ == "__main__":
    main()
