"""Replication, beside an official pair of master and slave.

All brokers and their load share one machine, so what a slave costs is measured twice. With the
official client everybody competes for the CPUs, and the slave's own work is part of the figure.
And with the master alone on one CPU, slave and a load of next to nothing on the others: then the
figure is about the master. Brokers that are not measured stay up and have nothing to do.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from tests.bench import load, machine
from tests.bench.bursts import Bursts
from tests.bench.java_load import JavaLoad, unavailable
from tests.bench.log_lag import LagSampler, percentile_ms
from tests.bench.pairs import Pair, address_of, official_pair, our_pair, store_of

VERSION = "5.3.3"
QUEUE_COUNT = 4
SIZES = (128, 1024)
IN_FLIGHT = 100
ROUND_COUNT = 3
FIRST_WARM_UP_S, WARM_UP_S, MEASURED_S = 15.0, 2.0, 6.0
#: What a slave lacks of the log, roughly, by the bytes of a body.
CATCH_UP_BYTES = {1024: 2 << 30, 128: 1 << 29}
#: Bytes of a record without its body.
RECORD_BYTES = 180
FILL_BATCH, FILL_SENDERS = 32, 8
#: Of ``load.batch_sends``, before its clock starts.
WARM_UP_BATCHES = 10
POLL_S = 0.02
TIMEOUT_S = 300.0

#: What was measured in one round.
Round = Mapping[str, float]


def run(scale: float, only: str = "") -> None:
    """Measure replication.

    Args:
        scale: of times and sizes.
        only: which of the four parts, by the beginning of its name.
    """
    if not _is_official_there():
        return
    directory = Path(tempfile.mkdtemp(prefix="pymq-bench-"))
    parts: list[tuple[str, str, Callable[[JavaLoad, Sequence[Pair], float], None]]] = [
        ("sync", "SYNC_MASTER", _sync),
        ("cost", "ASYNC_MASTER", _cost),
        ("lag", "ASYNC_MASTER", _lag),
        ("catch-up", "ASYNC_MASTER", _catch_up),
    ]
    print(f"\nreplication; figures are medians of {ROUND_COUNT} rounds in turns")
    try:
        with JavaLoad(VERSION) as client:
            for name, role, measure in parts:
                if name.startswith(only):
                    with _pairs(directory / name, role) as pairs:
                        measure(client, pairs, scale)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _is_official_there() -> bool:
    if (reason := unavailable(VERSION)) is not None:
        print(f"\nreplication: left out, {reason}")
    return reason is None


@contextmanager
def _pairs(directory: Path, role: str) -> Iterator[list[Pair]]:
    directory.mkdir()
    with ExitStack() as stack:
        yield [
            stack.enter_context(our_pair(directory / "pymq", role)),
            stack.enter_context(official_pair(directory / "official", VERSION, role)),
        ]
    shutil.rmtree(directory)


def _median(rounds: Sequence[Round]) -> dict[str, float]:
    return {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}


# --- messages that wait for a slave


def _sync(client: JavaLoad, pairs: Sequence[Pair], scale: float) -> None:
    for size in SIZES:
        print(f"\n SYNC_MASTER, official client, {IN_FLIGHT} in flight, {size} B")
        rates = _in_turns(client, pairs, size, scale)
        ratio = rates[pairs[0].name] / rates[pairs[1].name]
        machine.line(f"ours / {pairs[1].name}", ratio, "x", goal="goal 1.0")


def _in_turns(
    client: JavaLoad, pairs: Sequence[Pair], size: int, scale: float
) -> dict[str, float]:
    """Have the official client send to one pair after another; return and print the rates."""
    results: dict[str, list[Round]] = {pair.name: [] for pair in pairs}
    for number in range(ROUND_COUNT):
        for pair in pairs:
            if not number:
                load.create_topic(pair.name_server, f"single-{size}", QUEUE_COUNT)
            _send(client, pair, size, (WARM_UP_S if number else FIRST_WARM_UP_S) * scale)
            results[pair.name].append(_send(client, pair, size, MEASURED_S * scale))
    for name, rounds in results.items():
        _print_rate(name, rounds)
    return {name: _median(rounds)["per_second"] for name, rounds in results.items()}


def _send(client: JavaLoad, pair: Pair, size: int, seconds: float) -> Round:
    """Send for so long; the result also has the CPU time of master and slave for a message."""
    pids = [pair.master.pid] + ([pair.slave.pid] if pair.slave else [])
    before = [machine.cpu_s(pid) for pid in pids]
    result = client.run(
        "async", pair.name_server, f"single-{size}", size, parallel=IN_FLIGHT, seconds=seconds
    )
    spent = [machine.cpu_s(pid) - one for pid, one in zip(pids, before, strict=True)] + [0.0]
    count = max(result["messages"], 1)
    return {**result, "master_us": spent[0] / count * 1e6, "slave_us": spent[1] / count * 1e6}


def _print_rate(name: str, rounds: Sequence[Round]) -> None:
    one = _median(rounds)
    note = f"CPU {one['master_us']:.1f} master + {one['slave_us']:.1f} slave"
    if "client_cpu_us" in one:
        note += f" + {one['client_cpu_us']:.1f} us client, p50 {one['p50_ms']:.2f} ms"
        note += f", p99 {one['p99_ms']:.2f} ms"
    if failed := sum(one["failed"] for one in rounds):
        note += f", {failed:.0f} FAILED"
    machine.line(name, one["per_second"], note=note)


# --- what a slave costs its master


def _cost(client: JavaLoad, pairs: Sequence[Pair], scale: float) -> None:
    for pair in pairs:
        for size in SIZES:
            load.create_topic(pair.name_server, f"single-{size}", QUEUE_COUNT)
            print(f"\n {pair.name}, ASYNC_MASTER, {IN_FLIGHT} in flight, {size} B")
            _send(client, pair, size, FIRST_WARM_UP_S * scale)
            _with_and_without("official client", pair, partial(_send, client, pair, size), scale)
            if pair is pairs[0]:  # one CPU is no place for a JVM
                with _alone(pair, size) as send:
                    _with_and_without("master on its own CPU", pair, send, scale, goal="goal 0.85")


_Send = Callable[[float], Round]


def _with_and_without(
    what: str, pair: Pair, send: _Send, scale: float, *, goal: str = ""
) -> None:
    results: dict[str, list[Round]] = {"following": [], "without": []}
    for _ in range(ROUND_COUNT):
        for name, rounds in results.items():
            if name == "without":
                pair.stop_slave()
            send(WARM_UP_S * scale)
            rounds.append(send(MEASURED_S * scale))
        pair.start_slave()
        _wait_followed(pair)
    for name, rounds in results.items():
        _print_rate(f"{what}, {name}", rounds)
    following, without = (_median(rounds) for rounds in results.values())
    ratio = following["per_second"] / without["per_second"]
    cpu = without["master_us"] / following["master_us"]
    machine.line(f"{what}, following / without", ratio, "x", goal=goal)
    # A master is one thread: with a CPU of its own, this is what limits it.
    machine.line("the same, of messages for each second of its CPU", cpu, "x", goal=goal)


@contextmanager
def _alone(pair: Pair, size: int) -> Iterator[_Send]:
    """Give the master one CPU, and the slave and this process the others."""
    cpus = sorted(os.sched_getaffinity(0))
    bursts = Bursts(
        address_of(pair.master),
        f"single-{size}",
        size,
        in_flight=IN_FLIGHT,
        queue_count=QUEUE_COUNT,
    )

    def send(seconds: float) -> Round:
        _pin(pair.master.pid, cpus[:1])
        pids = [pair.master.pid]
        if pair.slave is not None:
            pids.append(pair.slave.pid)
            _pin(pair.slave.pid, cpus[1:])
        before = [machine.cpu_s(pid) for pid in pids]
        count, elapsed_s = bursts.run(seconds)
        spent = [machine.cpu_s(pid) - one for pid, one in zip(pids, before, strict=True)] + [0.0]
        return {
            "per_second": count / elapsed_s,
            "failed": 0,
            "master_us": spent[0] / count * 1e6,
            "slave_us": spent[1] / count * 1e6,
        }

    _pin(os.getpid(), cpus[1:])
    try:
        yield send
    finally:
        bursts.close()
        _pin(os.getpid(), cpus)
        _pin(pair.master.pid, cpus)


def _pin(pid: int, cpus: Sequence[int]) -> None:
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), cpus)


# --- how late a slave is


def _lag(client: JavaLoad, pairs: Sequence[Pair], scale: float) -> None:
    for size in SIZES:
        print(f"\n lag of a slave, ASYNC_MASTER, official client, {IN_FLIGHT} in flight, {size} B")
        lags: dict[str, list[tuple[float, ...]]] = {pair.name: [] for pair in pairs}
        for number in range(ROUND_COUNT):
            for pair in pairs:
                if not number:
                    load.create_topic(pair.name_server, f"single-{size}", QUEUE_COUNT)
                _send(client, pair, size, (WARM_UP_S if number else FIRST_WARM_UP_S) * scale)
                _wait_followed(pair)
                assert pair.slave is not None
                stores = store_of(pair.master), store_of(pair.slave)
                with LagSampler(*stores, pair.master_end()) as sampler:
                    rate = _send(client, pair, size, MEASURED_S * scale)["per_second"]
                found = [percentile_ms(sampler.lags_s, percent) for percent in (50, 99)]
                lags[pair.name].append((*found, percentile_ms(sampler.late_s, 99), rate))
        for pair in pairs:
            columns = zip(*lags[pair.name], strict=True)
            p50, p99, late, rate = (statistics.median(one) for one in columns)
            goal = "goal below 10" if pair is pairs[0] else ""
            note = f"p50 {p50:.2f} ms, at {rate:,.0f} messages/s; a sleeper here wakes up late by "
            note += f"p99 {late:.2f} ms"
            machine.line(f"{pair.name}, p99", p99, "ms", goal=goal, note=note)


# --- how fast a slave catches up


def _catch_up(client: JavaLoad, pairs: Sequence[Pair], scale: float) -> None:
    for size, total in CATCH_UP_BYTES.items():
        print(f"\n a slave catches up with {total * scale / 1e9:.1f} GB, bodies of {size} B")
        results: dict[str, list[Round]] = {pair.name: [] for pair in pairs}
        for number in range(ROUND_COUNT):
            for pair in pairs:
                if not number:
                    load.create_topic(pair.name_server, f"log-{size}", QUEUE_COUNT)
                results[pair.name].append(_one_catch_up(pair, size, total * scale))
        for name, rounds in results.items():
            one = _median(rounds)
            note = f"{one['records_per_s']:,.0f} records/s, CPU {one['master_s']:.2f} master + "
            note += f"{one['slave_s']:.2f} s/GB slave"
            goal = "goal 300" if name == pairs[0].name else ""
            machine.line(name, one["bytes_per_s"] / 1e6, "MB/s", goal=goal, note=note)
        ours, theirs = (_median(rounds)["bytes_per_s"] for rounds in results.values())
        machine.line(f"ours / {pairs[1].name}", ours / theirs, "x", goal="goal 2.0")


def _one_catch_up(pair: Pair, size: int, total: float) -> Round:
    """Have the slave miss some of the log; return how fast it gets it, with its queues.

    The clock starts with the first look at a log that has grown.
    """
    _wait_followed(pair)
    pair.stop_slave()
    begun = pair.master_end()
    count = max(1, int(total / (size + RECORD_BYTES)) // FILL_BATCH // FILL_SENDERS)
    load.batch_sends(
        pair.name_server, f"log-{size}", size, count * FILL_SENDERS, FILL_BATCH, FILL_SENDERS
    )
    end = pair.master_end()
    record_count = (count * FILL_SENDERS + WARM_UP_BATCHES) * FILL_BATCH
    slave = pair.start_slave()
    deadline_s = time.monotonic() + TIMEOUT_S
    first: tuple[float, int, float, float] | None = None
    while True:
        assert time.monotonic() < deadline_s, f"the slave does not get to {end}"
        now_s = time.perf_counter()
        at, behind = pair.position(slave)
        if first is None and at > begun:
            first = now_s, at, machine.cpu_s(pair.master.pid), machine.cpu_s(slave.pid)
        if first is not None and at >= end and not behind:
            break
        time.sleep(POLL_S)
    size_bytes = end - first[1]
    rate = size_bytes / (now_s - first[0])
    return {
        "bytes_per_s": rate,
        "records_per_s": rate * record_count / (end - begun),
        "master_s": (machine.cpu_s(pair.master.pid) - first[2]) / size_bytes * 1e9,
        "slave_s": (machine.cpu_s(slave.pid) - first[3]) / size_bytes * 1e9,
    }


def _wait_followed(pair: Pair) -> None:
    """Wait until the slave has everything."""
    assert pair.slave is not None
    end = pair.master_end()
    deadline_s = time.monotonic() + TIMEOUT_S
    while pair.position(pair.slave)[0] < end:
        assert time.monotonic() < deadline_s, f"the slave does not get to {end}"
        time.sleep(POLL_S)
