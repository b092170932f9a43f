"""The official client against our broker and against the official one, each at its best.

The official broker has 1 GiB of heap. All brokers run at the same time, loaded in turns: at least
``FIRST_WARM_UP_S`` before the first measurement of a kind, then ``ROUND_COUNT`` alternating rounds,
whose medians count. Beside each rate stands the CPU time that broker and client spent on a message.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tests.bench import load, machine
from tests.bench.java_load import JavaLoad, unavailable
from tests.bench.serving import serving, serving_with
from tests.interop.peers import RealBroker, RealNameServer

VERSION = "5.3.3"
QUEUE_COUNT = 4
BATCH = 256
FIRST_WARM_UP_S, WARM_UP_S, MEASURED_S = 15.0, 3.0, 6.0
ROUND_COUNT = 3
BACKLOG = 400_000
OFFICIAL_HEAP = ("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=1g")
OURS, OFFICIAL, ECHO = "pymq", f"RocketMQ {VERSION}", "echo"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of load.

    Attributes:
        title: what is printed.
        kind, size, parallel, argument: as in ``JavaLoad.run``.
        goal: least ratio of ours to the official broker's rate.
        echo_goal: least ratio of ours to the rate of the echo broker, if it is asked.
    """

    title: str
    kind: str
    size: int
    parallel: int
    goal: float
    argument: int = 0
    echo_goal: float | None = None


SENDS = (
    Kind("asynchronous, 100 in flight, 128 B", "async", 128, 100, 1.4, echo_goal=0.65),
    Kind("asynchronous, 100 in flight, 1 KiB", "async", 1024, 100, 1.2, echo_goal=0.65),
    Kind("asynchronous, 1000 in flight, 128 B", "async", 128, 1000, 1.3),
    Kind("64 threads, 128 B", "sync", 128, 64, 1.4),
    Kind("one thread, 128 B", "sync", 128, 1, 1.2),
    Kind(f"batches of {BATCH}, 4 threads, 128 B", "batch", 128, 4, 1.3, BATCH),
    Kind(f"batches of {BATCH}, 4 threads, 1 KiB", "batch", 1024, 4, 1.1, BATCH),
    Kind("orderly, 64 threads, 128 B", "orderly", 128, 64, 1.0),
    Kind("delayed (level 18), 100 in flight, 128 B", "delayed", 128, 100, 1.0, 18),
    Kind("transactions, 64 threads, 128 B", "transaction", 128, 64, 1.0),
)
SYNC_FLUSH = (Kind("SYNC_FLUSH, asynchronous, 100 in flight, 1 KiB", "async", 1024, 100, 1.2),)
READS = (
    Kind("push consumer of a backlog, 128 B", "push", 128, 20, 1.2, BACKLOG),
    Kind("the same with a SQL92 filter", "sql", 128, 20, 1.0, BACKLOG),
    # Each message is acknowledged by a request of its own.
    Kind("push consumer that pops a backlog, 128 B", "pop", 128, 20, 1.0, BACKLOG // 4),
)


@dataclass(frozen=True, slots=True)
class _Peer:
    name: str
    name_server: str
    pid: int


def run(scale: float, only: str = "") -> None:
    """Run all kinds.

    Args:
        scale: of the times and of the backlog.
        only: what the titles of the kinds contain.
    """
    if (reason := unavailable(VERSION)) is not None:
        print(f"\nofficial client: left out, {reason}")
        return
    print(
        f"\nofficial Java client {VERSION}; rates are medians of {ROUND_COUNT} rounds in turns, "
        "CPU is microseconds of broker + client for each message"
    )
    with JavaLoad(VERSION) as client:
        with _peers("async") as peers:
            for kind in (one for one in SENDS if only in one.title):
                _compare(client, kind, peers, scale)
            for kind in (one for one in READS if only in one.title):
                _compare_reads(client, kind, peers, scale)
        sync_kinds = [one for one in SYNC_FLUSH if only in one.title]
        if sync_kinds:
            with _peers("sync") as peers:
                for kind in sync_kinds:
                    _compare(client, kind, peers, scale)


@contextmanager
def _peers(flush: str) -> Iterator[dict[str, _Peer]]:
    with ExitStack() as stack:
        ours = stack.enter_context(serving_with(flush, enablePropertyFilter="true"))
        echo = stack.enter_context(serving(flush, "tests.bench.echo"))
        name_server = stack.enter_context(RealNameServer(VERSION))
        official = stack.enter_context(
            RealBroker(
                VERSION,
                [name_server.address],
                java_options=OFFICIAL_HEAP,
                flushDiskType=f"{flush.upper()}_FLUSH",
                enablePropertyFilter=True,
            )
        )
        yield {
            OURS: _Peer(OURS, ours.name_server, ours.pid),
            OFFICIAL: _Peer(OFFICIAL, name_server.address, official.pid),
            ECHO: _Peer(ECHO, echo.name_server, echo.pid),
        }


def _compare(client: JavaLoad, kind: Kind, peers: Mapping[str, _Peer], scale: float) -> None:
    names = [OURS, OFFICIAL] + [ECHO] * (kind.echo_goal is not None)
    results: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    topic = f"{kind.kind}-{kind.size}-{kind.parallel}"
    for round_number in range(ROUND_COUNT):
        for name in names:
            peer = peers[name]
            if round_number == 0:
                load.create_topic(peer.name_server, topic, QUEUE_COUNT)
            warm_up_s = FIRST_WARM_UP_S if round_number == 0 else WARM_UP_S
            client.run(
                kind.kind, peer.name_server, topic, kind.size, parallel=kind.parallel,
                seconds=warm_up_s * scale, argument=kind.argument,
            )  # fmt: skip
            cpu_s = machine.cpu_s(peer.pid)
            result = client.run(
                kind.kind, peer.name_server, topic, kind.size, parallel=kind.parallel,
                seconds=MEASURED_S * scale, argument=kind.argument,
            )  # fmt: skip
            spent_s = machine.cpu_s(peer.pid) - cpu_s
            result["broker_cpu_us"] = spent_s / max(result["messages"], 1) * 1e6
            results[name].append(result)
    _print(kind, results)


def _compare_reads(client: JavaLoad, kind: Kind, peers: Mapping[str, _Peer], scale: float) -> None:
    count = int(kind.argument * scale)
    results: dict[str, list[dict[str, float]]] = {OURS: [], OFFICIAL: []}
    for round_number in range(ROUND_COUNT):
        for name in results:
            peer = peers[name]
            topic = f"backlog-{kind.kind}"
            if round_number == 0:
                load.create_topic(peer.name_server, topic, QUEUE_COUNT)
                load.batch_sends(peer.name_server, topic, kind.size, count // BATCH + 4, BATCH, 4)
                for _ in range(2):  # the warm-up
                    client.run(
                        kind.kind, peer.name_server, topic, kind.size,
                        parallel=kind.parallel, argument=count,
                    )  # fmt: skip
            cpu_s = machine.cpu_s(peer.pid)
            result = client.run(
                kind.kind, peer.name_server, topic, kind.size,
                parallel=kind.parallel, argument=count,
            )  # fmt: skip
            result["broker_cpu_us"] = (machine.cpu_s(peer.pid) - cpu_s) / result["messages"] * 1e6
            results[name].append(result)
    _print(kind, results)


def _print(kind: Kind, results: Mapping[str, Sequence[Mapping[str, float]]]) -> None:
    print(f"\n {kind.title}")
    rates = {}
    for name, rounds in results.items():
        median = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
        rates[name] = median["per_second"]
        note = f"CPU {median['broker_cpu_us']:.1f} + {median['client_cpu_us']:.1f} us"
        if median["p99_ms"]:
            note += f", p50 {median['p50_ms']:.2f} ms, p99 {median['p99_ms']:.2f} ms"
        if failed := sum(one["failed"] for one in rounds):
            note += f", {failed:.0f} FAILED"
        machine.line(name, median["per_second"], note=note)
    for other, goal in ((OFFICIAL, kind.goal), (ECHO, kind.echo_goal)):
        if goal is not None:
            machine.line(f"ours / {other}", rates[OURS] / rates[other], "x", goal=f"goal {goal}")
