"""What runs on Windows: every client; and what each server says that does not.

Programs run in a Python that lacks what Windows' lacks, against a cluster in this process.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.cli_processes import environment
from tests.cluster.played import closed_address
from tests.cluster.running import LIMITS

from pymq import blocking
from pymq.testing import Cluster

DEADLINE_S = 300.0
ROOT = Path(__file__).parents[2]
#: More than the kernel takes at once, however well it is compressed.
LARGE_BYTES = 3 << 20
NEEDS = "needs Linux or macOS (on Windows: WSL, or a container): Python has no"

CLIENTS = f"""
import asyncio
import os
import sys

from pymq import BlockingClient, Consumer, Message, Producer, PymqError, blocking

server, nowhere = sys.argv[1:]
limits = {LIMITS}


async def with_asyncio():
    async with Producer(server, **limits) as producer:
        await producer.send(Message("A", b"x"))
    async with Consumer(server, "a", from_where="earliest").subscribe("A") as consumer:
        async for message in consumer:
            return message.body


def with_threads():
    with blocking.Producer(server, **limits) as producer:
        producer.send(Message("B", b"x"))
    with blocking.Consumer(server, "b", from_where="earliest").subscribe("B") as consumer:
        for message in consumer.messages(timeout_s=60):
            return message.body


def with_sockets():
    with BlockingClient(server, timeout_s=60.0) as client:
        client.send(Message("C", os.urandom({LARGE_BYTES})))
        (queue,) = client.write_queues("C")
        return client.pull(queue, 0, count_max=1)


def without_servers():
    try:
        BlockingClient(nowhere, timeout_s=60.0).write_queues("C")
    except PymqError as error:
        return error


assert asyncio.run(with_asyncio()) == b"x"
assert with_threads() == b"x"
found = with_sockets()
assert len(found.body) > {LARGE_BYTES}, found.status
assert "refused" in str(without_servers()), without_servers()
"""

COMMANDS = """
import sys

from pymq.cli.main import main

server = sys.argv[1]
for command in (
    ("topic", "create", "D", "--queues", "1"),
    ("send", "D", "hello"),
    ("consume", "D", "--from", "earliest", "--count", "1"),
    ("message", "at", "D", "0"),
    ("tail", "D"),
    ("copy", "D", "E"),
    ("topic", "status", "D"),
    ("group", "list"),
    ("cluster", "list"),
    ("doctor",),
):
    status = main([*command, "-n", server])
    assert status == 0, (command, status)
"""

PAUSE = """
from pyspark_pymq.retrying import pause

pause(0.01)
"""

SERVE = "import sys; from pymq.cli.main import main; sys.exit(main(sys.argv[1:]))"


def on_windows(text: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in a Python that lacks what Windows' lacks."""
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", f"import tests.cluster.windows\n{text}", *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        cwd=folder,
        env=environment(PYTHONPATH=paths),
    )


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        with blocking.Admin(running.name_server) as admin:
            admin.topics.create("C", queue_count=1)
        yield running


def test_clients_work(cluster: Cluster, tmp_path: Path) -> None:
    done = on_windows(CLIENTS, cluster.name_server, closed_address(), folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_commands_that_are_clients_work(cluster: Cluster, tmp_path: Path) -> None:
    done = on_windows(COMMANDS, cluster.name_server, folder=tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert "hello" in done.stdout


def test_the_connector_waits(tmp_path: Path) -> None:
    done = on_windows(PAUSE, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", ["up", "namesrv", "broker", "controller"])
def test_servers_say_what_they_need(tmp_path: Path, command: str) -> None:
    done = on_windows(SERVE, command, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("pymq: ") and f" {NEEDS} " in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_command_for_stores_says_what_it_needs(tmp_path: Path) -> None:
    done = on_windows(SERVE, "store", "check", ".", folder=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(f"pymq: pymq store {NEEDS} ")


@pytest.mark.parametrize(
    ("text", "who"),
    [
        ("from pymq.testing import Cluster", "the broker"),
        ("from pymq.namesrv import NameServer", "the name server"),
        ("from pymq.controller import Controller", "the controller"),
    ],
)
def test_what_is_embedded_says_what_it_needs(tmp_path: Path, text: str, who: str) -> None:
    done = on_windows(text, folder=tmp_path)
    last = done.stderr.rstrip().split("\n")[-1]
    assert last.startswith(f"pymq.extras.ExtraMissing: {who} {NEEDS} "), done.stderr
