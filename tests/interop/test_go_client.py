"""The official Go client, which speaks the remoting protocol, at our broker."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from pymq.testing import Cluster

pytestmark = pytest.mark.interop

PROGRAM: Final = Path(__file__).parent / "go"
BUILD_TIMEOUT_S: Final = 300.0
TIMEOUT_S: Final = 480.0
#: Delays of 1 s and 2 s; retries begin at the third.
BROKER: Final = {
    "property_filter": True,
    "transaction_timeout_ms": 1000,
    "transaction_check_interval_ms": 1000,
}
LEVELS: Final = (1000, 2000, 1000, 1000, 1000)
COUNT: Final = 12


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that uses the client, compiled."""
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        pytest.skip("no go on the PATH, so no Go client")
    target = tmp_path_factory.mktemp("go") / "client"
    done = subprocess.run(
        [go, "build", "-o", str(target), "."],
        cwd=PROGRAM,
        env={**os.environ, "GOFLAGS": "-mod=readonly -buildvcs=false", "CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return target


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(broker=BROKER, store_settings={"delay_levels_ms": LEVELS}) as running:
        yield running


def play(program: Path, name_server: str, *scenes: str, home: Path) -> dict[str, Any]:
    """Play scenes, and return the result of each by its name."""
    topic = f"go-{uuid.uuid4().hex[:8]}"
    done = subprocess.run(
        [str(program), name_server, topic, *scenes],
        env={**os.environ, "HOME": str(home)},  # for its logs
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def check_reading(report: dict[str, Any]) -> None:
    """Everything that was sent came, to everybody who wanted it."""
    assert len(set(report["send"])) == 6
    assert report["read"]["keys"] == sorted(f"key-{number}" for number in range(COUNT))
    assert report["read"]["long"] > 10_000
    assert report["read"]["odd"] == COUNT // 2
    assert report["read"]["sql"] == ["03", "04", "05"]
    assert report["pull"] == COUNT


def test_sends_pushes_pulls_and_filters(program: Path, cluster: Cluster, tmp_path: Path) -> None:
    check_reading(play(program, cluster.name_server, "send", "read", "pull", home=tmp_path))


def test_delays_retries_order_and_transactions(
    program: Path, cluster: Cluster, tmp_path: Path
) -> None:
    scenes = "delay", "retry", "order", "transact"
    report = play(program, cluster.name_server, *scenes, home=tmp_path)
    assert report["delay"] >= 2
    assert report["retry"] == [0, 1, 2]
    in_order = {str(key): [f"{n:02d}" for n in range(key, COUNT, 3)] for key in range(3)}
    assert report["order"] == in_order
    assert report["transact"] == ["c-", "uc"]
