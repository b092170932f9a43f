"""Servers that cannot start say why in one line, and with which exit status."""

import socket
from pathlib import Path

import pytest
from tests.cluster.cli_processes import pymq, refusal, up, write_file

from pymq.client.sockets.blocking_client import BlockingClient
from pymq.protocol.message import Message
from pymq.testing import Cluster


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments in (
            ("--namesrv-port", port, "--broker-port", "0"),
            ("--namesrv-port", "0", "--broker-port", port),
        ):
            found = refusal(pymq("up", *arguments, cwd=tmp_path))
            assert found.status == 2
            assert f"127.0.0.1:{port}" in found.line and "in use" in found.line
        for command in ("namesrv", "broker", "controller"):
            text = f"listenPort={port}\nstorePathRootDir={tmp_path}/s\n"
            text += f"pymqControllerStore=file:{tmp_path}/c\n" * (command == "controller")
            found = refusal(pymq(command, "-c", write_file(tmp_path, "f", text)))
            assert found.status == 2 and "in use" in found.line


def test_a_locked_store(tmp_path: Path) -> None:
    with up(tmp_path / "store") as process:
        process.line()
        text = f"listenPort=0\nstorePathRootDir={tmp_path}/store\n"
        found = refusal(pymq("broker", "-c", write_file(tmp_path, "f", text)))
        assert found.status == 2
        assert str(tmp_path / "store") in found.line and "storePathRootDir" in found.line
        assert process.stop() == (0, "")


def test_a_store_of_another_segment_size(tmp_path: Path) -> None:
    with Cluster(store=tmp_path / "store") as cluster, BlockingClient(cluster.name_server) as one:
        one.send(Message("t", b"x"))
    text = f"listenPort=0\nstorePathRootDir={tmp_path}/store\nmappedFileSizeCommitLog=1048576\n"
    found = refusal(pymq("broker", "-c", write_file(tmp_path, "f", text)))
    assert found.status == 2
    assert "mappedFileSizeCommitLog" in found.line and "1048576" in found.line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bindAddress=nowhere.invalid", "nowhere.invalid"),
        ("bindAddress=192.0.2.1", "not one of this machine"),
        ("listenPort=abc", "listenPort='abc'"),
        ("brokerRole=SLAVE", "brokerRole=SLAVE"),
        ("storePathRootDir=/dev/null/store", "/dev/null/store"),
    ],
)
def test_a_file_that_cannot_work(text: str, said: str, tmp_path: Path) -> None:
    file = write_file(tmp_path, "f", f"listenPort=0\nstorePathRootDir={tmp_path}/s\n{text}\n")
    found = refusal(pymq("broker", "-c", file))
    assert found.status == 2 and said in found.line


@pytest.mark.parametrize(
    "arguments",
    [
        ("broker", "-c", "absent"),
        ("broker", "-c", "."),
        ("namesrv", "-c", "absent"),
        ("controller", "-c", "absent"),
        ("controller",),
        ("controller", "--store", "here"),
        ("controller", "--store", "etcd:ftp://127.0.0.1"),
        ("broker", "-n", "nowhere"),
        ("broker", "--nonsense"),
        ("up", "--namesrv-port", "99999"),
        ("up", "--flush", "never"),
        ("up", "--broker", "1"),  # no abbreviations
    ],
)
def test_arguments_that_cannot_work(arguments: tuple[str, ...], tmp_path: Path) -> None:
    found = refusal(pymq(*arguments, cwd=tmp_path))
    assert found.status == 2
    assert found.line.startswith(f"pymq {arguments[0]}: ")
    assert not list(tmp_path.iterdir())
