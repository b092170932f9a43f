"""One load of a Python client in a process of its own: ``python -m tests.bench.client_load JSON``.

Prints JSON: messages, seconds, per_second, client_cpu_us (for each message, of this process while
the clock runs) and resident_mb.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.bench.load import run_loop

from pymq import (
    Batcher,
    Consumer,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    RebalanceListener,
)
from pymq.errors import TooManyPending

TIMEOUT_S = 300.0
#: Rows of a table that is sent as columns.
ROWS = 100_000
#: Messages that confluent-kafka gives at a time, and may have unanswered.
KAFKA_READ, KAFKA_QUEUED = 10_000, 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is done.

    Attributes:
        kind: one of ``KINDS``.
        server: name server, or Kafka's bootstrap server.
        topic: exists; of the kinds that read, with at least ``count`` messages.
        size: bytes of each body.
        parallel: unanswered sends, where the kind limits them.
        warm_up_s, seconds: for kinds that send.
        count: messages to be read.
    """

    kind: str
    server: str
    topic: str
    size: int = 128
    parallel: int = 100
    warm_up_s: float = 3.0
    seconds: float = 6.0
    count: int = 0


@dataclass(slots=True)
class Meter:
    """The clock, from its last start on."""

    messages: int = 0
    _since_s: float = 0.0
    _cpu_s: float = 0.0

    def start(self) -> None:
        """Start at zero."""
        self.messages = 0
        self._since_s, self._cpu_s = time.perf_counter(), time.process_time()

    @property
    def seconds(self) -> float:
        """Time since the start."""
        return time.perf_counter() - self._since_s

    def result(self) -> dict[str, float]:
        """Stop; return what is printed."""
        seconds, cpu_s = self.seconds, time.process_time() - self._cpu_s
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return {
            "messages": self.messages,
            "seconds": seconds,
            "per_second": self.messages / seconds,
            "client_cpu_us": cpu_s / max(self.messages, 1) * 1e6,
            "resident_mb": pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
        }


def measured(load: Load) -> dict[str, float]:
    """Do it in another process."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.client_load", json.dumps(asdict(load))],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, float] = json.loads(done.stdout)
    return result


async def _single(load: Load, meter: Meter) -> dict[str, float]:
    message = Message(load.topic, b"x" * load.size)
    async with Producer(load.server, in_flight_max=load.parallel) as producer:

        async def send_for(seconds: float) -> dict[str, float]:
            meter.start()
            while meter.seconds < seconds:
                for _ in range(load.parallel):
                    if producer.in_flight_count >= load.parallel:
                        await producer.wait_room()
                    producer.send_nowait(message)
                meter.messages += load.parallel
            await producer.flush()
            return meter.result()

        await send_for(load.warm_up_s)
        return await send_for(load.seconds)


async def _batcher(load: Load, meter: Meter) -> dict[str, float]:
    message = Message(load.topic, b"x" * load.size)
    failed: list[BaseException] = []

    def answered(future: asyncio.Future[Any]) -> None:
        if (error := future.exception()) is not None:
            failed.append(error)

    async with Producer(load.server) as producer, Batcher(producer) as batcher:

        async def send_for(seconds: float) -> dict[str, float]:
            meter.start()
            while meter.seconds < seconds:
                for _ in range(1000):
                    try:
                        future = batcher.send_nowait(message)
                    except TooManyPending:
                        await batcher.wait_room()
                        future = batcher.send_nowait(message)
                    future.add_done_callback(answered)
                meter.messages += 1000
            await batcher.flush()
            return meter.result()

        await send_for(load.warm_up_s)
        result = await send_for(load.seconds)
        assert not failed, failed[0]
        return result


async def _columns(load: Load, meter: Meter) -> dict[str, float]:
    from tests.bench.columns import table_of  # the others need no numpy, which takes memory

    table = table_of(ROWS, load.size)
    async with Producer(load.server) as producer:

        async def send_for(seconds: float) -> dict[str, float]:
            meter.start()
            while meter.seconds < seconds:
                await producer.send_columns(table, topic=load.topic)
                meter.messages += ROWS
            return meter.result()

        await send_for(load.warm_up_s)
        return await send_for(load.seconds)


async def _push(load: Load, meter: Meter) -> dict[str, float]:
    is_done = asyncio.Event()

    async def handle(_: object) -> None:
        if meter.messages == 0:
            meter.start()
        meter.messages += 1
        if meter.messages == load.count:
            is_done.set()

    group = f"bench-{os.getpid()}"
    async with Consumer(load.server, group, from_where="earliest").subscribe(load.topic) as one:
        running = asyncio.create_task(one.run(handle))
        await is_done.wait()
        result = meter.result()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return result


async def _batches(load: Load, meter: Meter) -> dict[str, float]:
    async with Producer(load.server) as producer:
        queues = await producer.queues(load.topic)
    consumer = PullConsumer(load.server, f"bench-{os.getpid()}", from_where="earliest")
    async with consumer.assign(queues):
        meter.start()
        async for batch in consumer.batches():
            assert batch["body"].lengths[0] == load.size
            meter.messages += len(batch)
            if meter.messages >= load.count:
                return meter.result()
    raise AssertionError("the consumer has ended")


class Assigned(RebalanceListener):
    """Collects the queues of a consumer."""

    def __init__(self) -> None:
        self.queues: list[MessageQueue] = []

    def assigned(self, queues: list[MessageQueue]) -> None:
        self.queues += queues


async def _idle(load: Load, meter: Meter) -> dict[str, float]:
    """Have all queues of a topic, and nothing to do."""
    taken = Assigned()
    consumer = Consumer(load.server, f"bench-{os.getpid()}", rebalance_listener=taken)
    async with consumer.subscribe(load.topic):
        while len(taken.queues) < load.count:
            await asyncio.sleep(0.05)
        meter.start()
        await asyncio.sleep(load.seconds)
        return meter.result()


def _kafka_produce(load: Load, meter: Meter) -> dict[str, float]:
    from confluent_kafka import Producer as KafkaProducer

    failed: list[Any] = []
    producer = KafkaProducer(
        {
            "bootstrap.servers": load.server,
            "acks": "1",
            "linger.ms": 5,
            "batch.size": 1 << 20,
            "queue.buffering.max.messages": KAFKA_QUEUED,
        }
    )
    body = b"x" * load.size

    def send_for(seconds: float) -> dict[str, float]:
        meter.start()
        while meter.seconds < seconds:
            for _ in range(1000):
                while len(producer) >= KAFKA_QUEUED:
                    producer.poll(0.1)
                producer.produce(load.topic, body, on_delivery=answered)
            producer.poll(0)
            meter.messages += 1000
        producer.flush()
        return meter.result()

    def answered(error: Any, _: Any) -> None:
        if error is not None:
            failed.append(error)

    send_for(load.warm_up_s)
    result = send_for(load.seconds)
    assert not failed, failed[0]
    return result


def _kafka_consume(load: Load, meter: Meter) -> dict[str, float]:
    from confluent_kafka import Consumer as KafkaConsumer

    consumer = KafkaConsumer(
        {
            "bootstrap.servers": load.server,
            "group.id": f"bench-{os.getpid()}",
            "auto.offset.reset": "earliest",
            "fetch.min.bytes": 1,
            "queued.max.messages.kbytes": 1 << 17,
        }
    )
    consumer.subscribe([load.topic])
    found = consumer.consume(1, 60)
    assert found
    meter.start()
    while meter.messages < load.count - 1:
        messages = consumer.consume(KAFKA_READ, 5)
        assert messages, f"{meter.messages} of {load.count}"
        assert len(messages[0].value()) == load.size
        meter.messages += len(messages)
    result = meter.result()
    consumer.close()
    return result


ASYNC_KINDS = {
    "single": _single,
    "batcher": _batcher,
    "columns": _columns,
    "push": _push,
    "batches": _batches,
    "idle": _idle,
}
KAFKA_KINDS: dict[str, Callable[[Load, Meter], dict[str, float]]] = {
    "kafka produce": _kafka_produce,
    "kafka consume": _kafka_consume,
}


def main() -> None:
    """Do what the argument says."""
    load = Load(**json.loads(sys.argv[1]))
    if load.kind in KAFKA_KINDS:
        result = KAFKA_KINDS[load.kind](load, Meter())
    else:
        work = ASYNC_KINDS[load.kind]
        result = run_loop(lambda: work(load, Meter()))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
