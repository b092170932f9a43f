"""Official producers and consumers that join and leave while messages flow: nothing is lost."""

import subprocess
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from tests.administration import admin_of
from tests.interop.conftest import require_peers, some
from tests.interop.jars import class_path, java_executable
from tests.interop.processes import OPEN_MODULES

from pymq import blocking
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.testing import Cluster

pytestmark = pytest.mark.interop

PROGRAM: Final = Path(__file__).parent / "java" / "MovingGroup.java"
VERSIONS: Final = ("4.5.1", "4.9.7", "5.3.3", "5.4.0", "5.5.0")
QUEUE_COUNT: Final = 8
TIMEOUT_S: Final = 400.0
COMMITTED_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message that one consumer got; time in ms since the start."""

    number: int
    consumer: int
    queue_id: int
    queue_offset: int
    time_ms: int


def run_group(
    version: str, home: Path, name_server: str, topic: str, count: int
) -> tuple[list[Delivery], str]:
    """Return all deliveries, by time, and what the program printed."""
    (home / "logback.xml").write_text('<configuration><root level="WARN"/></configuration>')
    deliveries = home / "deliveries"
    command = [
        str(java_executable()), "-Xms64m", "-Xmx400m", "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1", *OPEN_MODULES,
        f"-Duser.home={home}", f"-Drocketmq.client.logRoot={home / 'logs'}",
        f"-Dlogback.configurationFile={home / 'logback.xml'}",
        "-cp", class_path(version), str(PROGRAM),
        name_server, topic, f"group-{topic}", str(count), str(deliveries),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr[-4000:]
    rows = [Delivery(*map(int, line.split())) for line in deliveries.read_text().splitlines()]
    return rows, done.stdout


def unexplained(deliveries: list[Delivery]) -> list[tuple[Delivery, Delivery]]:
    """Return pairs of deliveries of one message that no move of its queue explains.

    A queue that moves to another consumer goes on at the offset that is committed, so what is
    under way comes again: to the other one. To the same consumer a message comes again only if its
    queue was away meanwhile.
    """
    by_queue: dict[int, list[Delivery]] = {}
    for one in deliveries:
        by_queue.setdefault(one.queue_id, []).append(one)
    found = []
    for rows in by_queue.values():
        last: dict[int, tuple[int, Delivery]] = {}
        changes = 0
        owner = rows[0].consumer
        for one in rows:
            if one.consumer != owner:
                owner, changes = one.consumer, changes + 1
            before = last.get(one.number)
            if before is not None and before[0] == changes:
                found.append((before[1], one))
            last[one.number] = changes, one
    return found


def committed_count(admin: blocking.Admin, topic: str) -> int:
    """Return what the group's offsets in the topic add up to."""
    return sum(one.consumer_offset for one in admin.offsets.lag(f"group-{topic}", topic))


@pytest.mark.parametrize(
    ("version", "count"),
    some(
        [(v, str(n)) for v in VERSIONS for n in (10_000, 100_000)],
        ("5.3.3", "10000"),
    ),
)
def test_consumers_join_and_leave_while_messages_flow(
    tmp_path: Path, version: str, count: str
) -> None:
    require_peers(version)
    topic, total = "moving", int(count)
    with Cluster() as cluster, BlockingClient(cluster.name_server) as client:
        admin = admin_of(client)
        admin.topics.create(topic, queue_count=QUEUE_COUNT)
        deliveries, printed = run_group(version, tmp_path, cluster.name_server, topic, total)
        deadline = time.monotonic() + COMMITTED_S
        # The last offsets were sent, and nobody waited for an answer.
        while (committed := committed_count(admin, topic)) != total:
            assert time.monotonic() < deadline, f"{committed} of {total} are committed"
            time.sleep(0.05)
    assert printed.splitlines()[-1] == "failed 0 joined 4 left 2"
    times = Counter(one.number for one in deliveries)
    assert set(times) == set(range(total)), "lost"
    assert len({(one.queue_id, one.queue_offset) for one in deliveries}) == total
    assert not unexplained(deliveries)
    # The second one may have gone before it got anything.
    assert {one.consumer for one in deliveries} >= {0, 2, 3}
    again = len(deliveries) - total
    print(f"{version}: {total} messages, {again} deliveries again")
    assert again < total / 2
