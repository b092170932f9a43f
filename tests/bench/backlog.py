"""What a long backlog costs those who send, and a start."""

import time

from tests.bench import load, machine
from tests.bench.idle import costs, sends
from tests.bench.serving import serving

from pymq.client.sockets.batch_targets import BatchTarget
from pymq.client.sockets.bulk_client import BulkClient
from pymq.protocol.batch_body import encode_batch

COUNT = 100_000_000
#: One request: about 250 KiB.
BATCH, BODY_BYTES = 2_000, 100
IN_FLIGHT = 3


def run(scale: float) -> None:
    """Measure sends to a topic, then store a backlog in another one, and measure them again."""
    count = int(COUNT * scale) // BATCH * BATCH
    print(f"\na backlog of {count:,} messages, {BODY_BYTES} B")
    with serving("async") as server:
        for topic in ("busy", "backlog"):
            load.create_topic(server.name_server, topic, 4)
        alone = sends(server, 1.0)
        begun = time.perf_counter()
        _fill(server.name_server, count)
        machine.line("stored", count / (time.perf_counter() - begun))
        machine.line("broker, resident", server.resident_bytes() / 1e6, "MB")
        costs(alone, sends(server, 1.0), "beside it")


def _fill(name_server: str, count: int) -> None:
    body = encode_batch([(0, b"x" * BODY_BYTES, b"")] * BATCH)
    with BulkClient(name_server) as client:
        pipeline = client.batch_pipeline(in_flight_max=IN_FLIGHT, retry_s=60.0)
        for _ in range(count // BATCH):
            pipeline.send(BatchTarget("backlog"), body)
        pipeline.flush()
