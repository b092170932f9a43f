"""The official Node.js client, which speaks gRPC, at our broker through the official proxy."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.administration import admin_of
from tests.interop.conftest import require_peers
from tests.interop.jars import PROXY
from tests.interop.proxy import RealProxy

from pymq import BlockingClient, GroupConfig
from pymq.testing import Cluster

pytestmark = pytest.mark.interop

PROGRAM: Final = Path(__file__).parent / "node"
INSTALL_TIMEOUT_S: Final = 300.0
TIMEOUT_S: Final = 480.0
COUNT: Final = 8


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs the program, its packages installed as they are locked."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("no node or npm on the PATH, so no Node.js client")
    target = tmp_path_factory.mktemp("node")
    for path in PROGRAM.glob("*.js*"):
        shutil.copy(path, target)
    done = subprocess.run(
        [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
        cwd=target,
        capture_output=True,
        text=True,
        timeout=INSTALL_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [node, str(target / "main.js")]


@pytest.fixture(scope="module")
def site() -> Iterator[tuple[Cluster, RealProxy]]:
    require_peers(PROXY)
    with Cluster() as cluster, RealProxy(cluster.name_server, "DefaultCluster") as proxy:
        yield cluster, proxy


def test_sends_receives_retries_orders_and_delays(
    program: list[str], site: tuple[Cluster, RealProxy], tmp_path: Path
) -> None:
    cluster, proxy = site
    topics = {kind: f"node-{kind}-{uuid.uuid4().hex[:8]}" for kind in ("normal", "fifo", "delay")}
    with BlockingClient(cluster.name_server) as client:
        admin = admin_of(client)
        for kind, topic in topics.items():
            admin.topics.create(topic, queue_count=4, attributes={"message.type": kind.upper()})
            in_order = kind == "fifo"
            admin.groups.create(GroupConfig(group=f"{topic}-g", consume_message_orderly=in_order))
            admin.groups.create(f"{topic}-s")
    done = subprocess.run(
        [*program, proxy.address, json.dumps(topics)],
        env={**os.environ, "HOME": str(tmp_path)},  # for its logs
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    report = json.loads(done.stdout.splitlines()[-1])
    everything = [str(number) for number in range(COUNT)]
    assert report["simple"] == {"got": everything[1::2], "again": 0}
    assert report["retried"]["attempts"] == dict.fromkeys(everything, 2)
    assert report["fifo"]["order"] == everything
    assert sorted(report["delayed"]["order"]) == everything
    assert report["delayedMs"] >= 3000
