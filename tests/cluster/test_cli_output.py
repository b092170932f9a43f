"""Output that goes nowhere: a full disk, a closed pipe, a terminal without our letters."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.cli_processes import COMMAND, DEADLINE_S, environment

from pymq import blocking
from pymq.protocol.bodies import GroupConfig
from pymq.protocol.message import Message
from pymq.testing import Cluster

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
#: An encoding of the output that is not UTF-8.
FOREIGN = [
    {"PYTHONIOENCODING": "ascii"},
    {"PYTHONIOENCODING": "latin-1"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running_cluster:
        yield running_cluster


def shell(line: str, cluster: Cluster, **more: str) -> subprocess.CompletedProcess[bytes]:
    """Run a line of a shell in which ``pymq`` is the command."""
    pymq = 'pymq() { "$PYTHON" -m pymq.cli "$@"; }; set -o pipefail; '
    given = {"NAMESRV_ADDR": cluster.name_server, "PYTHON": COMMAND[0], **more}
    return subprocess.run(
        ["bash", "-c", pymq + line],
        capture_output=True,
        env=environment(**given),
        timeout=DEADLINE_S,
        check=False,
    )


@needs_full
def test_what_was_sent_is_told_though_the_disk_of_the_output_is_full(cluster: Cluster) -> None:
    line = '{"topic": "full", "body": "x"}'
    for sending in (
        "printf '1\\n2\\n3\\n' | pymq send full",
        f"printf '%s\\n' '{line}' '{line}' '{line}' | pymq send --from-json -",
    ):
        done = shell(f"{sending} > {FULL}", cluster)
        assert done.returncode == 4
        assert done.stderr.decode().splitlines() == [
            "pymq send: the output cannot be written: No space left on device; "
            "3 messages were sent before"
        ]
    assert len(cluster.messages("full")) == 6


@needs_full
@pytest.mark.parametrize(
    "command",
    ["topic list", "topic list -o json", "group list", "consume told --no-follow"]
    + ["consume told --no-follow --body-only", "consume told --no-follow --format '{body}'"]
    + ["--version", "broker -p", "namesrv -p"],
)
def test_a_full_disk_is_one_line(command: str, cluster: Cluster) -> None:
    with blocking.Producer(cluster.name_server, timeout_s=DEADLINE_S) as producer:
        producer.send(Message("told", b"x"))
    done = shell(f"pymq {command} > {FULL}", cluster)
    assert done.returncode == 4
    (line,) = done.stderr.decode().splitlines()
    assert line.endswith(": the output cannot be written: No space left on device")


def test_streams_that_are_closed(cluster: Cluster) -> None:
    done = shell("pymq topic list >&-; pymq topic list >&- 2>&-; pymq topic list <&-", cluster)
    assert done.returncode == 0 and done.stderr == b""
    assert done.stdout.startswith(b"TOPIC")
    done = shell("pymq send closed <&-", cluster)
    assert done.returncode == 2 and b"nothing to send" in done.stderr


@pytest.mark.parametrize(
    "command", ["topic list", "topic list -o json", "--version", "--help", "topic list --help"]
)
def test_a_reader_that_has_gone(command: str, cluster: Cluster) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [*COMMAND, *command.split()],
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=subprocess.PIPE,
            env=environment(NAMESRV_ADDR=cluster.name_server, PYTHONUNBUFFERED=""),
            timeout=DEADLINE_S,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("number", range(len(FOREIGN)))
def test_letters_that_the_output_cannot_have(number: int, cluster: Cluster) -> None:
    topic, more = f"letters{number}", FOREIGN[number]
    text = "5 € für \U0001f600"
    with (
        blocking.Producer(cluster.name_server, timeout_s=DEADLINE_S) as producer,
        blocking.Admin(cluster.name_server, timeout_s=DEADLINE_S) as admin,
    ):
        producer.send(Message(topic, text.encode()))
        admin.groups.create(GroupConfig(group="readers"))
        admin.offsets.reset("readers", topic, "earliest")
        consume = f"pymq consume {topic} --no-follow"
        done = shell(f"{consume} -o json --group readers", cluster, **more)
        assert (done.returncode, done.stderr) == (0, b"")
        assert json.loads(done.stdout.decode("latin-1"))["body"] == text
        assert sum(one.lag for one in admin.offsets.lag("readers", topic)) == 0
    done = shell(consume, cluster, **more)
    assert done.returncode == 0 and b"5 \\u20ac f" in done.stdout
    again = f"{consume} -o json | pymq send {topic}-again --from-json -"
    done = shell(again, cluster, **more)
    assert (done.returncode, done.stderr) == (0, b"")
    assert [one.body.decode() for one in cluster.messages(f"{topic}-again")] == [text]
