"""Commands that cannot do it say why in one line, and with which exit status."""

import asyncio
import errno
import os
import socket
import subprocess
from pathlib import Path

import pytest
from tests.cluster.cli_processes import pymq, refusal, up, write_file
from tests.cluster.fake_broker import FakeBroker

from pymq.cli.main import main
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.net.server import ServerConnection
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
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
            assert found.line.endswith("another port (--namesrv-port, --broker-port)")
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
        ("listenPort=70000", "f: listenPort: listen_port=70000: expected 0..65535"),
        ("mapedFileSizeCommitLog=1", "f: mapedFileSizeCommitLog: segment_bytes=1: expected"),
        ("brokerRole=SLAVE", "brokerRole=SLAVE"),
        ("storePathRootDir=/dev/null/store", "/dev/null/store"),
    ],
)
def test_a_file_that_cannot_work(text: str, said: str, tmp_path: Path) -> None:
    file = write_file(tmp_path, "f", f"listenPort=0\nstorePathRootDir={tmp_path}/s\n{text}\n")
    found = refusal(pymq("broker", "-c", file))
    assert found.status == 2 and said in found.line


def test_a_directory_that_this_user_may_not_enter(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    kept, place = tmp_path / "kept", tmp_path / "kept/store"
    found = Path.stat

    def stat(self: Path, **options: bool) -> os.stat_result:  # root may enter everything
        if kept in self.parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
        return found(self, **options)

    place.mkdir(parents=True)
    file = write_file(tmp_path, "f", f"listenPort=0\nstorePathRootDir={place}\n")
    monkeypatch.setattr(Path, "stat", stat)
    for arguments in (
        ("broker", "-c", str(file)),
        ("store", "show", str(place)),
        ("store", "rebuild", str(place)),
    ):
        assert main(list(arguments)) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.startswith(f"pymq {arguments[0]}") and f"{place}/" in line
        assert "Permission denied; give this user the right to it" in line
    monkeypatch.setenv("HOME", str(kept))
    for name in ("PYMQ_CONFIG", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert main(["topic", "list"]) == 2
    assert f"{kept}/.config/pymq/config.toml: Permission denied" in capsys.readouterr().err


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
        ("up", "--store", ""),
        ("up", "--broker", "1"),  # no abbreviations
    ],
)
def test_arguments_that_cannot_work(arguments: tuple[str, ...], tmp_path: Path) -> None:
    found = refusal(pymq(*arguments, cwd=tmp_path))
    assert found.status == 2
    assert found.line.startswith(f"pymq {arguments[0]}: ")
    assert not list(tmp_path.iterdir())


#: What terminals obey: it sets the title of the window, begins a line, and erases one.
OBEYED = "\x1b]0;owned\x07\nroot# \x1b[2K\x9b2K"
ESCAPED = r"\x1b]0;owned\x07\nroot# \x1b[2K\x9b2K"


class Rude(FakeBroker):
    """Has a name that terminals obey, and refuses with such a remark what is not a send."""

    def on_command(self, connection: ServerConnection, command: Command) -> None:
        is_known = (command.fields or {}).get("topic") == "Known"
        if is_known or command.code == RequestCode.SEND_MESSAGE_V2:
            super().on_command(connection, command)
        else:
            connection.respond(command, command.reply(16, f"no{OBEYED}"))


def at_rude(*arguments: str) -> subprocess.CompletedProcess[str]:
    async def run() -> subprocess.CompletedProcess[str]:
        async with Rude(f"broker{OBEYED}") as rude:
            return await asyncio.to_thread(pymq, *arguments, "-n", rude.address)

    return asyncio.run(run())


def test_what_a_peer_says_cannot_reach_the_terminal() -> None:
    found = refusal(at_rude("topic", "route", "T"))
    assert found.status != 0
    assert f"no{ESCAPED}" in found.line and found.line.isprintable()
    sent = at_rude("send", "Known", "x")
    assert sent.stderr == ""
    assert ESCAPED in sent.stdout and sent.stdout.rstrip("\n").isprintable()


@pytest.mark.parametrize(
    "arguments",
    [
        ("broker", "-c", OBEYED),
        ("store", "check", OBEYED),
        ("resetOffsetByTime", "-g", "g", "-t", "T", "-s", "now", "-f", OBEYED),
    ],
)
def test_what_is_given_cannot_either(arguments: tuple[str, ...], tmp_path: Path) -> None:
    found = refusal(pymq(*arguments, cwd=tmp_path))
    assert found.status == 2
    assert "owned" in found.line and found.line.isprintable()


def test_nor_can_a_file_of_options(tmp_path: Path) -> None:
    found = refusal(pymq("topic", "list", PYMQ_CONFIG=str(tmp_path / OBEYED)))
    assert found.status == 2
    assert "owned" in found.line and found.line.isprintable()
