"""What clients that are connected and idle, and topics that nobody uses, cost those who send.

The rate of sends says little where load generator and crowd share two cores with the broker: its
own CPU time for each message is what grows with what it has to do besides.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.bench import crowd, load, machine
from tests.bench.serving import Serving, serving

from pymq.client.sending.producer import Producer
from pymq.net.channel import AsyncChannel
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.message import Message

COUNT = 10_000
GROUP_SIZE = 10
SEND_COUNT = 100_000
ROUNDS = 3
REST_S = 5.0
#: Sends while half of the crowd vanishes: one each 5 ms.
PROBE_S = 0.005
PROBE_COUNT = 1000


def run(scale: float) -> None:
    """Measure sends alone and beside a crowd, and the longest wait while half of it vanishes."""
    count = int(COUNT * scale)
    print("\na broker with nothing to do, and with many topics")
    with serving("async") as server:
        load.create_topic(server.name_server, "busy", 4)
        _rest()
        machine.line("CPU of the broker", _idle_share(server) * 100, "%", goal="goal below 2")
        alone = sends(server, scale)
        load.run_loop(lambda: _make_topics(server.broker, count))
        _rest()
        share = _idle_share(server) * 100
        machine.line(f"CPU of the broker, {count:,} topics", share, "%", goal="goal below 2")
        costs(alone, sends(server, scale), f"with {count:,} topics")
    print(f"\n{count:,} idle consumers in groups of {GROUP_SIZE}")
    with serving("async") as server:
        for topic in ("busy", crowd.TOPIC):
            load.create_topic(server.name_server, topic, 4)
        alone = sends(server, scale)
        before = server.resident_bytes()
        with _crowd(server.broker, count) as process:
            machine.line("memory of each", (server.resident_bytes() - before) / count / 1e3, "kB")
            machine.line("CPU of the broker", _idle_share(server) * 100, "%", goal="no sends")
            beside = sends(server, scale)
            costs(alone, beside, "beside them")
            worst_ms, told = load.run_loop(lambda: _half_vanishes(server, process))
            machine.line("longest wait of a send while half of them vanish", worst_ms, "ms")
            machine.line("notices for each that stays", told / (count / 2), "")


def costs(alone: tuple[float, float], beside: tuple[float, float], what: str) -> None:
    """Print what ``sends`` returned, alone and with something else."""
    machine.line("CPU for a send, alone", alone[1], "us")
    machine.line(f"CPU for a send, {what}", beside[1], "us")
    machine.line(f"CPU, {what} / alone", beside[1] / alone[1], "x", goal="goal at most 1.1")
    machine.line("sends alone", alone[0])
    machine.line(f"sends {what}", beside[0])


async def _make_topics(broker: str, count: int) -> None:
    """Send one message to each of many topics, which creates them."""
    channel = await AsyncChannel.connect(broker, crowd.TIMEOUT_S)
    room = asyncio.Semaphore(crowd.COMING)

    async def send(number: int) -> None:
        fields = {"a": "group", "b": f"topic-{number}", "c": "TBW102", "d": "4", "e": "0"}
        fields |= {"f": "0", "g": "0", "h": "0", "i": "", "j": "0", "k": "false"}
        async with room:
            command = Command(RequestCode.SEND_MESSAGE_V2, fields, b"x")
            answer = await channel.request(command, crowd.TIMEOUT_S)
            assert answer.code == ResponseCode.SUCCESS, answer

    await asyncio.gather(*map(send, range(count)))
    channel.abort()


def _rest() -> None:
    """Let what the last requests left behind come to its end."""
    time.sleep(REST_S)


def sends(server: Serving, scale: float) -> tuple[float, float]:
    """Return the best of some rounds: sends per second, and CPU microseconds for each."""
    rates, costs = [], []
    for _ in range(ROUNDS):
        count = int(SEND_COUNT * scale)
        begun_s = machine.cpu_s(server.pid)
        rates.append(load.single_sends(server.name_server, "busy", 128, count, 100))
        warm_up = min(count, 20_000)
        costs.append((machine.cpu_s(server.pid) - begun_s) / (count + warm_up) * 1e6)
    return max(rates), min(costs)


def _idle_share(server: Serving) -> float:
    begun_s, cpu_s = time.monotonic(), machine.cpu_s(server.pid)
    time.sleep(crowd.PULL_S)
    return (machine.cpu_s(server.pid) - cpu_s) / (time.monotonic() - begun_s)


@contextmanager
def _crowd(broker: str, count: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.bench.crowd", broker, str(count), str(GROUP_SIZE)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        yield process
    finally:
        process.kill()
        process.wait()


async def _half_vanishes(server: Serving, process: subprocess.Popen[str]) -> tuple[float, int]:
    """Return the longest wait of a send, ms, and how many notices went out."""
    assert process.stdin is not None and process.stdout is not None
    worst_s = 0.0
    async with Producer(server.name_server) as producer:
        message = Message("busy", b"probe")
        await producer.send(message)
        process.stdin.write("\n")
        process.stdin.flush()
        told = asyncio.get_running_loop().run_in_executor(None, process.stdout.readline)
        for _ in range(PROBE_COUNT):
            begun_s = time.perf_counter()
            await producer.send(message)
            worst_s = max(worst_s, time.perf_counter() - begun_s)
            await asyncio.sleep(PROBE_S)
        return worst_s * 1000, int(await told)
