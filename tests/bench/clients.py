"""Our client beside the official Java client and confluent-kafka, each at its best.

Rates at RocketMQ's broker and at ours, medians of alternating rounds. What Java's client does is
compared for each core it used, for its JVM has as many as there are.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from tests.bench import load, machine
from tests.bench.beside_java import OFFICIAL, OFFICIAL_HEAP, OURS, VERSION
from tests.bench.client_load import Load, measured
from tests.bench.java_load import JavaLoad, unavailable
from tests.bench.kafka import Kafka
from tests.bench.serving import serving
from tests.interop.peers import RealBroker, RealNameServer

QUEUE_COUNT = 4
ROUND_COUNT = 3
IN_FLIGHT = 100
WARM_UP_S, MEASURED_S = 3.0, 6.0
#: Java's client needs longer, the first time.
JAVA_WARM_UP_S = 15.0
BACKLOG = 1_000_000
JAVA_BACKLOG = 400_000
MANY_QUEUES = 64
#: The official Python client, as others measured it: asynchronous sends of 1 KiB.
PYTHON_CLIENT_RATE = 3_300
SIZES = (128, 1024)
#: Of a result: processor time of the client for each message.
CPU = "client_cpu_us"

Rounds = Mapping[str, list[dict[str, float]]]


def run(scale: float) -> None:
    """Measure all of it."""
    if (why := unavailable(VERSION)) is not None:
        print(f"\nclients beside Java's: left out, {why}")
        return
    print(f"\nclients; medians of {ROUND_COUNT} rounds in turns, CPU of the client per message")
    with JavaLoad(VERSION) as java, _brokers() as brokers:
        for broker, name_server in brokers.items():
            print(f"\n at the broker of {broker}")
            _sends(java, name_server, scale)
            _push(java, name_server, scale)
            _memory(name_server)
        _columns(brokers, scale)


@contextmanager
def _brokers() -> Iterator[dict[str, str]]:
    with (
        serving("async") as ours,
        RealNameServer(VERSION) as name_server,
        RealBroker(
            VERSION,
            [name_server.address],
            java_options=OFFICIAL_HEAP,
            flushDiskType="ASYNC_FLUSH",
        ),
    ):
        yield {OURS: ours.name_server, OFFICIAL: name_server.address}


def _in_turns(kinds: Mapping[str, Callable[[], dict[str, float]]]) -> Rounds:
    results: Rounds = {name: [] for name in kinds}
    for _ in range(ROUND_COUNT):
        for name, measure in kinds.items():
            results[name].append(measure())
    for name, rounds in results.items():
        machine.line(
            name, _median(rounds, "per_second"), note=f"CPU {_median(rounds, CPU):.2f} us"
        )
    return results


def _median(rounds: list[dict[str, float]], key: str) -> float:
    return statistics.median(one[key] for one in rounds)


def _ratio(what: str, results: Rounds, ours: str, other: str, goal: str) -> None:
    ratio = _median(results[ours], "per_second") / _median(results[other], "per_second")
    machine.line(what, ratio, "x", goal=f"goal {goal}")


def _per_core(what: str, results: Rounds, ours: str, other: str, goal: str) -> None:
    ratio = _median(results[other], CPU) / _median(results[ours], CPU)
    machine.line(what, ratio, "x", goal=f"goal {goal}")


def _sends(java: JavaLoad, name_server: str, scale: float) -> None:
    for size in SIZES:
        topic = f"client-sends-{size}"
        load.create_topic(name_server, topic, QUEUE_COUNT)

        def java_sends(seconds: float, topic: str = topic, size: int = size) -> dict[str, float]:
            return java.run(
                "async", name_server, topic, size, parallel=IN_FLIGHT, seconds=seconds * scale
            )

        def ours(kind: str, topic: str = topic, size: int = size) -> dict[str, float]:
            return measured(_sending(kind, name_server, topic, size, scale))

        print(f"\n  sends of {size} B")
        java_sends(JAVA_WARM_UP_S)
        results = _in_turns(
            {
                f"Java, asynchronous, {IN_FLIGHT} in flight": lambda: java_sends(MEASURED_S),
                f"ours, asynchronous, {IN_FLIGHT} in flight": lambda: ours("single"),
                "ours, automatic batcher": lambda: ours("batcher"),
            }
        )
        theirs, single, batcher = results
        _per_core("ours / Java, for each core used", results, single, theirs, "0.5")
        _ratio("batcher / Java, asynchronous", results, batcher, theirs, "2")
        rate = _median(results[single], "per_second") / PYTHON_CLIENT_RATE
        what = f"ours / {PYTHON_CLIENT_RATE:,}/s of the Python client"
        machine.line(what, rate, "x", goal="goal 20")


def _sending(kind: str, server: str, topic: str, size: int, scale: float) -> Load:
    return Load(
        kind=kind, server=server, topic=topic, size=size, parallel=IN_FLIGHT,
        warm_up_s=WARM_UP_S * scale, seconds=MEASURED_S * scale,
    )  # fmt: skip


def _push(java: JavaLoad, name_server: str, scale: float) -> None:
    count = int(JAVA_BACKLOG * scale)
    topic = "client-push"
    load.create_topic(name_server, topic, QUEUE_COUNT)
    load.batch_sends(name_server, topic, 128, count // 256 + 4, 256, 4)

    def java_reads() -> dict[str, float]:
        return java.run("push", name_server, topic, 128, parallel=20, argument=count)

    print("\n  push consumer of a backlog, empty handler, 128 B")
    java_reads()
    results = _in_turns(
        {
            "Java": java_reads,
            "ours": lambda: measured(
                Load(kind="push", server=name_server, topic=topic, count=count)
            ),
        }
    )
    _per_core("ours / Java, for each core used", results, "ours", "Java", "0.5")


def _memory(name_server: str) -> None:
    topic = "client-idle"
    load.create_topic(name_server, topic, MANY_QUEUES)
    idle = Load(kind="idle", server=name_server, topic=topic, count=MANY_QUEUES, seconds=2)
    resident_mb = measured(idle)["resident_mb"]
    machine.line(f"resident, {MANY_QUEUES} queues assigned", resident_mb, "MB", goal="goal 60")


def _columns(brokers: Mapping[str, str], scale: float) -> None:
    if importlib.util.find_spec("confluent_kafka") is None:
        print(f"\n confluent-kafka: left out; {sys.executable} -m pip install confluent-kafka")
        return
    count = int(BACKLOG * scale)
    with Kafka(QUEUE_COUNT) as kafka:
        for size in SIZES:
            topic = f"client-columns-{size}"
            for name_server in brokers.values():
                load.create_topic(name_server, topic, QUEUE_COUNT)

            def sent(
                kind: str, server: str, topic: str = topic, size: int = size
            ) -> dict[str, float]:
                return measured(_sending(kind, server, topic, size, scale))

            def read(
                kind: str, server: str, topic: str = topic, size: int = size
            ) -> dict[str, float]:
                return measured(
                    Load(kind=kind, server=server, topic=topic, size=size, count=count)
                )

            print(f"\n columns and confluent-kafka, {size} B: sends")
            sends = {"Kafka, confluent-kafka": lambda: sent("kafka produce", kafka.address)}
            reads = {"Kafka, confluent-kafka": lambda: read("kafka consume", kafka.address)}
            for broker, server in brokers.items():
                sends[f"{broker}, send_columns"] = lambda server=server: sent("columns", server)
                sends[f"{broker}, batcher"] = lambda server=server: sent("batcher", server)
                reads[f"{broker}, batches()"] = lambda server=server: read("batches", server)
            results = _in_turns(sends)
            for name in list(sends)[1:]:
                goal = "1" if "send_columns" in name else "0.5"
                _ratio(f"{name} / Kafka", results, name, "Kafka, confluent-kafka", goal)
            print(f"\n columns and confluent-kafka, {size} B: reads")
            results = _in_turns(reads)
            for name in list(reads)[1:]:
                _ratio(f"{name} / Kafka", results, name, "Kafka, confluent-kafka", "1")
