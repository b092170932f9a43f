"""What the command line costs and says before it does anything: help, versions, imports."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.cluster.cli_processes import DEADLINE_S, environment, missing, pymq, refusal

from pymq.testing import Cluster


def test_help_lists_commands_and_exit_status() -> None:
    done = pymq("--help")
    assert (done.returncode, done.stderr) == (0, "")
    for word in ("namesrv", "broker", "controller", "up", "send", "consume", "topic"):
        assert f"\n  {word} " in done.stdout
    for status in (0, 1, 2, 3, 130):
        assert f"\n    {status} " in done.stdout
    assert pymq("-h").stdout == done.stdout


@pytest.mark.parametrize(
    "command", ["namesrv", "broker", "controller", "up", "send", "consume", "topic", "group"]
)
def test_every_command_has_help(command: str) -> None:
    done = pymq(command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"pymq {command}" in done.stdout


def test_version() -> None:
    done = pymq("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, "pymq 0.1.0\n", "")


@pytest.mark.parametrize(
    ("module", "extra", "command"),
    [
        ("typer", "cli", ("topic", "list")),
        ("rich", "cli", ("topic", "list")),
        ("etcd3gw", "controller", ("controller", "--store", "etcd:http://127.0.0.1:1")),
        ("numpy", "broker", ("up", "--store", "s", "--namesrv-port", "0", "--broker-port", "0")),
    ],
)
def test_what_is_not_installed_is_named(
    module: str, extra: str, command: tuple[str, ...], tmp_path: Path, pymq_cluster: Cluster
) -> None:
    more = {"PYTHONPATH": missing(tmp_path, module), "NAMESRV_ADDR": pymq_cluster.name_server}
    found = refusal(pymq(*command, cwd=tmp_path, **more))
    assert found.status == 2
    assert module in found.line and f"pymq-rocketmq[{extra}]" in found.line


def test_mistyped_command() -> None:
    done = pymq("sedn")
    assert done.returncode == 2 and "send" in done.stderr and "Traceback" not in done.stderr


def _imported(*arguments: str) -> set[str]:
    """Return the modules that a run imports."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "pymq.cli", *arguments],
        capture_output=True,
        env=environment(),
        timeout=DEADLINE_S,
        check=True,
    )
    return {line.rpartition("|")[2].strip() for line in done.stderr.decode().splitlines()}


def test_help_stays_quick() -> None:
    """What would make ``--help`` slow, without a clock, which a busy machine would falsify."""
    slow = {"asyncio", "numpy", "rich", "uvloop", "pymq.broker.broker"}
    slow.add("pymq.client.sockets.blocking_client")
    assert not slow & _imported("--help")


def test_servers_do_without_typer_and_rich() -> None:
    assert not {"typer", "rich", "pymq.client.sockets.blocking_client"} & _imported("broker", "-p")
    assert not {"asyncio", "numpy"} & _imported("up", "--help")
