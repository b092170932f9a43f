"""``./build.sh bench``: how fast broker and client are, beside the official ones.

Every figure is printed with its unit and, where the issue named one, its goal. Ratios are of
figures of one run: the machine may be shared, so absolute numbers vary from run to run.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from tests.bench import (
    backlog,
    beside_java,
    clients,
    idle,
    load,
    machine,
    replication,
    shop,
    store,
    timers,
)
from tests.bench.serving import serving

QUEUE_COUNT = 4
IN_FLIGHT = 100
SIZES = (128, 1024)


def our_client(scale: float) -> None:
    """Our client in one process, our broker in another."""
    rates: dict[tuple[str, int], float] = {}
    for flush in ("async", "sync"):
        print(f"\nour client, our broker, {flush.upper()}_FLUSH")
        with serving(flush) as server:
            for size in SIZES:
                topic = f"single-{size}"
                load.create_topic(server.name_server, topic, QUEUE_COUNT)
                rate = load.single_sends(
                    server.name_server, topic, size, int(200_000 * scale), IN_FLIGHT
                )
                rates[flush, size] = rate
                goal = "goal 60,000" if (flush, size) == ("async", 128) else ""
                machine.line(f"single sends, {IN_FLIGHT} in flight, {size} B", rate, goal=goal)
            if flush == "async":
                _batches_and_pulls(server.name_server, scale)
    for size in SIZES:
        ratio = rates["async", size] / rates["sync", size]
        machine.line(f"ASYNC / SYNC, single sends, {size} B", ratio, "x", goal="goal at most 3")


def _batches_and_pulls(name_server: str, scale: float) -> None:
    for size in SIZES:
        topic = f"batch-{size}"
        load.create_topic(name_server, topic, QUEUE_COUNT)
        count = int(6_000 * scale)
        rate = load.batch_sends(name_server, topic, size, count, 256, 4)
        goal = "goal 250,000" if size == 128 else ""
        machine.line(f"batches of 256, {size} B", rate, goal=goal)
    for size in SIZES:
        runs = [load.pull_columns(name_server, f"batch-{size}") for _ in range(3)]
        rate = statistics.median(rate for _, rate in runs)
        goal = "goal 1,000,000" if size == 128 else ""
        machine.line(f"pulls of {runs[0][0]:,} messages to columns, {size} B", rate, goal=goal)


def starting(scale: float) -> None:
    """How soon things are there, and what they take."""
    print("\nstart and memory")
    ready, resident = [], []
    for _ in range(5):
        with serving("sync") as server:
            ready.append(server.ready_s)
            time.sleep(1)
            resident.append(server.resident_bytes() / 1e6)
    machine.line("pymq up, ready", statistics.median(ready), "s", goal="goal below 0.5")
    machine.line("pymq up, resident when idle", max(resident), "MB", goal="goal below 80")
    code = (
        "import time; from pymq.testing import Cluster\n"
        "t = time.perf_counter()\nwith Cluster(): print(time.perf_counter() - t)"
    )
    times = [float(_output([sys.executable, "-c", code])) for _ in range(5)]
    machine.line("pymq.testing.Cluster, ready", statistics.median(times), "s", goal="goal 0.2")
    times = [_seconds([sys.executable, "-m", "pymq.cli", "--help"]) for _ in range(5)]
    machine.line("pymq --help", statistics.median(times), "s", goal="goal below 0.3")
    times = [_seconds([sys.executable, "-c", "import pymq"]) for _ in range(5)]
    bare = [_seconds([sys.executable, "-c", ""]) for _ in range(5)]
    cost = statistics.median(times) - statistics.median(bare)
    machine.line("import pymq", cost * 1000, "ms")


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _seconds(command: Sequence[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - started


PARTS: dict[str, Callable[[float], None]] = {
    "start": starting,
    "store": store.run,
    "client": our_client,
    "idle": idle.run,
    "backlog": backlog.run,
    "timers": timers.run,
    "replication": replication.run,
    "java": beside_java.run,
    "clients": clients.run,
    "shop": shop.run,
}


def main() -> None:
    """Run the parts that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all")
    parser.add_argument(
        "--only",
        default="",
        help="of the part 'java': kinds of load whose titles contain this; of 'replication': sync, "
        "cost, lag or catch-up",
    )
    parser.add_argument("--scale", type=float, default=1.0, help="share of the usual counts")
    options = parser.parse_args()
    print(machine.describe(), flush=True)
    for name in options.parts or PARTS:
        if name == "java":
            beside_java.run(options.scale, options.only)
        elif name == "replication":
            replication.run(options.scale, options.only)
        else:
            PARTS[name](options.scale)


if __name__ == "__main__":
    main()
