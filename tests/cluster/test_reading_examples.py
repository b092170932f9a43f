"""The examples of ``examples/reading`` do what they say, as processes."""

import subprocess
import sys
from pathlib import Path

from tests.administration import admin_of
from tests.readme import PROJECT

from pymq import BlockingClient, Message
from pymq.testing.cluster import Cluster

FOLDER = PROJECT / "examples" / "reading"
BODIES = [b"%d" % n for n in range(30)]


def run(*arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=300, cwd=FOLDER
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")


def test_examples(pymq_cluster: Cluster, tmp_path: Path) -> None:
    name_server = pymq_cluster.name_server
    with BlockingClient(name_server) as client:
        for topic in ("orders", "orders-copy"):
            admin_of(client).topics.create(topic, queue_count=4)
        for body in BODIES:
            client.send(Message("orders", body, tags="t", keys="k"))
    file = str(tmp_path / "orders.parquet")
    assert run("archive.py", "save", name_server, "orders", file)[0] == "30 messages"
    assert run("archive.py", "send", name_server, "orders-copy", file)[0] == "30 messages"
    lines = run("worker.py", name_server, "orders-copy")
    assert sorted(lines) == sorted(["", *(body.decode() for body in BODIES)])
