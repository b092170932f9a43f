"""Messages that wait for a time of their own: what a million cost a start, and beside sends."""

import asyncio
import statistics
import subprocess
import sys
import time

from tests.bench import load, machine
from tests.bench.serving import Serving, serving
from tests.bench.store import BATCH, HOST, batch, directory, open_store

from pymq.client.sockets.blocking_client import BlockingClient
from pymq.net.channel import AsyncChannel
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.send import SendRequest
from pymq.protocol.names import TIMER_TOPIC
from pymq.store import MessageStore, PutStatus

HELD_COUNT, BESIDE_COUNT, DUE_COUNT = 1_000_000, 100_000, 20_000
#: The messages are due over this time, which begins when nothing else is measured any more.
LATER_S, SPREAD_S = 3_600, 36_000
DELIVERY_TIMEOUT_S, _TIMEOUT_S = 120.0, 30.0
ROUNDS = 3
_OPENING = """
import sys, time
from tests.bench.store import open_store
from pathlib import Path
begun = time.perf_counter()
store = open_store(Path(sys.argv[1]))
seconds = time.perf_counter() - begun
rows = Path("/proc/self/status").read_text().splitlines()
peak = next(row.split()[1] for row in rows if row.startswith("VmHWM"))
print(seconds, int(peak) * 1024, store.timers.waiting_count)
store.close()
"""


def run(scale: float) -> None:
    """All figures."""
    held(int(HELD_COUNT * scale))
    beside(scale)


def held(count: int) -> None:
    """Have messages wait, and start with them: as they were left, and without the wheel."""
    print(f"\n{count:,} messages wait for a time of their own")
    with directory() as root:
        store = open_store(root, key_index=False)
        begun = time.perf_counter()
        _park(store, count)
        machine.line("stored", count / (time.perf_counter() - begun))
        begun = time.perf_counter()
        _take_up(store)
        machine.line("taken up into timer log and wheel", count / (time.perf_counter() - begun))
        store.close()
        for what in ("start", "start without the wheel"):
            if what != "start":
                (root / "timerwheel").unlink()
            command = [sys.executable, "-c", _OPENING, str(root)]
            text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            seconds, peak, waiting = text.split()
            assert int(waiting) == count, waiting
            machine.line(f"{what}, the store alone", float(seconds), "s", goal="goal below 5")
            machine.line("... most memory", int(peak) / 1e6, "MB")


def _park(store: MessageStore, count: int) -> None:
    """Store messages the way they wait."""
    now_ms = time.time_ns() // 1_000_000
    for first in range(0, count, BATCH):
        texts = [
            b"UNIQ_KEY\x01%032X\x02TIMER_OUT_MS\x01%d\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02"
            % (number, now_ms + 1000 * (LATER_S + number * 7919 % SPREAD_S))
            for number in range(first, min(first + BATCH, count))
        ]
        (result,) = store.put([batch(b"x" * 128, texts, TIMER_TOPIC, 0)], HOST)
        assert result.status is PutStatus.OK, result


def _take_up(store: MessageStore) -> None:
    timers = store.timers
    assert timers is not None
    write_ms = timers.slot_ms(time.time_ns() // 1_000_000)
    while (read := timers.begin_queue_read(1000, 4 << 20)) is not None:
        read.run()
        timers.add(timers.finish_queue_read(read).waiting, write_ms)
        timers.progress(queue_offset=read.end)


def beside(scale: float) -> None:
    """Send with and without messages that wait; then have some become due at once."""
    print("\nbroker with messages that wait for a time of their own, 100 sends in flight, 128 B")
    with serving("async") as server:
        load.create_topic(server.name_server, "T", 4)

        def rate() -> float:
            count = int(50_000 * scale)
            return statistics.median(
                load.single_sends(server.name_server, "T", 128, count, 100) for _ in range(ROUNDS)
            )

        rate()
        without = rate()
        count = int(BESIDE_COUNT * scale)
        timed = _send_timed(server, count, LATER_S * 1000)
        machine.line("sends to a time of their own", timed)
        waiting = rate()
        machine.line(f"sends beside {count:,} that wait", waiting)
        machine.line("... beside none", waiting / without, "x", goal="goal 0.9")
        machine.line("broker, resident", server.resident_bytes() / 1e6, "MB")
        due = int(DUE_COUNT * scale)
        load.create_topic(server.name_server, "Due", 1)
        machine.line(f"deliveries, {due:,} due at once", _deliver(server, due))


def _send_timed(server: Serving, count: int, delay_ms: int, topic: str = "T") -> float:
    """Send messages that are all due at one moment; return messages per second."""
    due = f"TIMER_DELIVER_MS\x01{time.time_ns() // 1_000_000 + delay_ms}\x02"
    request = SendRequest(
        "bench", topic, "TBW102", 4, 0, 0, 0, 0, due, 0, False, None, False
    ).to_v2()

    async def work() -> float:
        channel = await AsyncChannel.connect(server.broker, _TIMEOUT_S)
        numbers = iter(range(count))

        async def some() -> None:
            for _ in numbers:
                command = Command(RequestCode.SEND_MESSAGE_V2, request, b"x" * 128)
                answer = await channel.request(command, _TIMEOUT_S)
                assert answer.code == ResponseCode.SUCCESS, answer

        begun = time.perf_counter()
        await asyncio.gather(*(some() for _ in range(100)))
        rate = count / (time.perf_counter() - begun)
        channel.close()
        return rate

    return load.run_loop(work)


def _deliver(server: Serving, count: int) -> float:
    """Return how many messages a second are delivered of a slot, from the first to the last."""
    _send_timed(server, count, 1000 + count // 5, "Due")
    with BlockingClient(server.name_server) as client:
        queues = client.read_queues("Due")
        deadline = time.monotonic() + DELIVERY_TIMEOUT_S
        begun = done = 0.0
        while not done:
            assert time.monotonic() < deadline, "they are not delivered"
            ((first, end),) = client.bounds(queues).values()
            if end > first and not begun:
                begun, before = time.perf_counter(), end - first
            if end - first == count:
                done = time.perf_counter()
            time.sleep(0.002)
    return (count - before) / max(done - begun, 1e-9)
