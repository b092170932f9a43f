"""``pymq up``, ``broker`` and ``namesrv`` as processes: what they print, how they stop."""

import json
import resource
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.cli_processes import (
    DEADLINE_S,
    FILES,
    Running,
    missing,
    pymq,
    refusal,
    running,
    up,
    write_file,
)
from tests.interop.peers import free_port

from pymq import blocking
from pymq.cli.temporary import PortsFile
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.protocol.message import Message

TIMEOUT_S = 30.0


def test_up_says_what_listens_where_and_is_ready(tmp_path: Path) -> None:
    arguments = ("up", "--namesrv-port", "0", "--broker-port", "0")
    with running(*arguments, cwd=tmp_path) as process:
        lines = [process.line()]
        while not lines[-1].startswith("ready"):
            lines.append(process.line())
        facts = {line[:14].strip(): line[14:] for line in lines[:-1]}
        assert facts["store"] == str(tmp_path / "pymq-store")
        assert facts["flush"] == "sync"
        assert "power loss" in facts["durability"]
        for server in ("name server", "broker"):
            host, _, port = facts[server].rpartition(":")
            socket.create_connection((host, int(port)), timeout=DEADLINE_S).close()
        assert process.stop() == (0, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_stops_with_clients_and_held_pulls(tmp_path: Path, number: signal.Signals) -> None:
    with up(tmp_path / "store", "--flush", "async") as process:
        facts = json.loads(process.line())
        assert facts["ready"] is True
        assert (facts["flush"], facts["store"]) == ("async", str(tmp_path / "store"))
        with (
            BlockingClient(facts["nameServer"], timeout_s=TIMEOUT_S) as client,
            BlockingClient(facts["nameServer"], timeout_s=TIMEOUT_S) as idle,
        ):
            sent = client.send(Message("t", b"x"))
            idle.route("t")
            socket_of_nobody = socket.create_connection(tuple(facts["broker"].split(":")))
            consumer = Running("consume", "t", "--group", "g", "-n", facts["nameServer"])
            try:
                deadline = time.monotonic() + DEADLINE_S
                while not _members(facts["nameServer"], "g"):
                    assert time.monotonic() < deadline
                assert process.stop(number) == (0, "")
            finally:
                consumer.kill()
                socket_of_nobody.close()
    assert not (tmp_path / "store/abort").exists()
    with up(tmp_path / "store") as process:  # and what was stored is there
        name_server = json.loads(process.line())["nameServer"]
        with BlockingClient(name_server, timeout_s=TIMEOUT_S) as client:
            assert client.bounds([sent.queue]) == {sent.queue: (0, 1)}
        assert process.stop() == (0, "")


def _members(name_server: str, group: str) -> int:
    done = pymq("group", "list", "-o", "json", "-n", name_server)
    members = {row["group"]: row["members"] for row in json.loads(done.stdout)}
    return int(members.get(group, 0))


def test_up_without_uvloop(tmp_path: Path) -> None:
    more = {"PYTHONPATH": missing(tmp_path, "uvloop")}
    arguments = ("--store", tmp_path / "store", "--namesrv-port", "0", "--broker-port", "0")
    with running("up", *arguments, "-o", "json", **more) as process:
        name_server = json.loads(process.line())["nameServer"]
        assert pymq("send", "t", "x", "-n", name_server).returncode == 0
        assert process.stop() == (0, "")


def test_a_name_server_that_never_answers_does_not_delay_the_end(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        file = write_file(tmp_path, "f", f"listenPort=0\nstorePathRootDir={tmp_path}/s\n")
        with running("broker", "-c", file, "-n", address) as process:
            while not process.line().startswith("ready"):
                pass
            status, err = process.stop()
    assert status == 0 and "Traceback" not in err


def test_a_signal_given_twice_is_one_clean_stop(tmp_path: Path) -> None:
    with up(tmp_path / "store") as process:
        process.line()
        process.process.send_signal(signal.SIGINT)
        process.process.send_signal(signal.SIGINT)
        assert process.finish() == (0, "")
    assert not (tmp_path / "store/abort").exists()


def test_up_is_small_and_may_open_all_files(tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with up(tmp_path / "store") as process:
        process.line()
        proc = Path(f"/proc/{process.process.pid}")
        if not proc.exists():
            pytest.skip("no /proc on this system")
        status = dict(
            line.split(":", 1) for line in (proc / "status").read_text().splitlines() if ":" in line
        )
        assert int(status["VmRSS"].split()[0]) < 80 * 1024
        (limit,) = (
            line for line in (proc / "limits").read_text().splitlines() if "open files" in line
        )
        assert limit.split()[3:5] == [str(hard)] * 2
        process.stop()


@pytest.mark.parametrize("version", ["4.5.1", "4.9.7", "5.3.3"])
def test_a_real_file_starts_a_broker(version: str, tmp_path: Path) -> None:
    """Only what this machine cannot have is changed: ports, directories, other hosts."""
    text = (FILES / f"broker-{version}.properties").read_text()
    text += f"\nlistenPort=0\nstorePathRootDir={tmp_path}/store\nbindAddress=127.0.0.1\n"
    text += f"storePathCommitLog={tmp_path}/store/commitlog\nbrokerIP1=127.0.0.1\n"
    with running(
        "namesrv", "-c", write_file(tmp_path, "ns", "listenPort=0"), "-o", "json"
    ) as first:
        name_server = json.loads(first.line())["nameServer"]
        file = write_file(tmp_path, "broker.conf", text + f"namesrvAddr={name_server}\n")
        with running("broker", "-c", file, "-o", "json") as second:
            facts = json.loads(second.line())
            assert facts["registeredWith"] == name_server
            # It says that it is ready before a name server that is held up has answered it.
            with blocking.Admin(name_server, timeout_s=DEADLINE_S) as admin:
                admin.brokers.wait_registered(1, deadline_s=DEADLINE_S)
            topic = pymq("topic", "create", "orders", "--queues", "2", "-n", name_server)
            assert topic.returncode == 0, topic.stderr
            sent = pymq("send", "orders", "hello", "-n", name_server)
            if "SYNC_MASTER" in set(text.replace("=", " ").split()):
                assert sent.returncode == 1 and " SLAVE_NOT_AVAILABLE\n" in sent.stdout
            else:
                assert sent.returncode == 0, sent.stderr
            status, err = second.stop()
            assert status == 0
            assert "Traceback" not in err and "unknown key" not in err
        assert first.stop()[0] == 0


def test_name_servers_from_argument_and_environment(tmp_path: Path) -> None:
    file = write_file(tmp_path, "f", f"storePathRootDir={tmp_path}/s\n")
    printed = pymq("broker", "-c", file, "-p", NAMESRV_ADDR="a:1;b:2")
    assert printed.returncode == 0 and "namesrvAddr=a:1;b:2\n" in printed.stdout
    printed = pymq("broker", "-c", file, "-p", "-n", "c:3", NAMESRV_ADDR="a:1")
    assert "namesrvAddr=c:3\n" in printed.stdout
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("command", ["broker", "namesrv", "controller"])
def test_printed_configuration_is_a_file_that_prints_the_same(command: str, tmp_path: Path) -> None:
    first = pymq(command, "-p")
    assert (first.returncode, first.stderr) == (0, "")
    second = pymq(command, "-p", "-c", write_file(tmp_path, "f", first.stdout))
    assert (second.returncode, second.stderr, second.stdout) == (0, "", first.stdout)


def test_a_controller(tmp_path: Path) -> None:
    """RocketMQ's own file starts it; a second one does not get its directory."""
    port = free_port(0)
    text = (
        f"controllerDLegerGroup=group1\ncontrollerDLegerPeers=n0-127.0.0.1:{port}\n"
        "controllerDLegerSelfId=n0\ncontrollerStorePath=/tmp/DledgerController\n"
        "enableElectUncleanMaster=false\nnotifyBrokerRoleChanged=true\n"
    )
    file, store = write_file(tmp_path, "controller.conf", text), f"file:{tmp_path}/groups"
    with running("controller", "-c", file, "--store", store, "-o", "json") as process:
        facts = json.loads(process.line())
        assert facts["controller"] == f"127.0.0.1:{port}" and facts["store"] == store
        other = write_file(tmp_path, "other.conf", "listenPort=0\n")
        second = refusal(pymq("controller", "-c", other, "--store", store))
        assert second.status == 2 and "another controller uses this directory" in second.line
        status, err = process.stop()
        assert status == 0 and "Traceback" not in err
        assert "no master is replaced" in err and "unknown key" not in err


# ---------------------------------------------------------------------------------- for tests


def wait_file(path: Path) -> dict[str, Any]:
    """Return what a ports file says, as soon as there is one: it is never there in part."""
    deadline = time.monotonic() + DEADLINE_S
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_up_in_memory_tells_its_ports_in_a_file_and_keeps_nothing(tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    file.write_text("{}")  # of one that was killed
    with running("up", "--memory", "--ports-file", file, cwd=tmp_path) as process:
        while process.line() != "ready; Ctrl-C or SIGTERM stops it":
            pass
        facts = wait_file(file)
        assert facts["pid"] == process.process.pid
        assert (facts["flush"], facts["durability"]) == ("memory", "no message outlives pymq")
        root = Path(facts["store"])
        with BlockingClient(facts["nameServer"], timeout_s=TIMEOUT_S) as client:
            sent = client.send(Message("t", b"x"))
            assert client.bounds([sent.queue]) == {sent.queue: (0, 1)}
        assert (root / "commitlog").is_dir()
        assert {path.name for path in tmp_path.iterdir()} == {"ports.json"}
        assert process.stop() == (0, "")
    assert not file.exists() and not root.exists() and not root.parent.exists()


def test_what_a_killed_one_kept_in_memory_is_removed_by_the_next(tmp_path: Path) -> None:
    with running("up", "--memory", "--ports-file", tmp_path / "1") as process:
        first = Path(wait_file(tmp_path / "1")["store"])
        process.kill()
        assert first.exists()
    with running("up", "--memory", "--ports-file", tmp_path / "2") as process:
        wait_file(tmp_path / "2")
        assert not first.exists()
        assert process.stop() == (0, "")


def test_a_ports_file_of_another_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    with running("up", "--memory", "--ports-file", file) as process:
        wait_file(file)
        file.write_text("another's")
        assert process.stop() == (0, "")
    assert file.read_text() == "another's"


def test_a_ports_file_of_one_that_runs_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    with running("up", "--memory", "--ports-file", file) as process:
        facts = wait_file(file)
        found = refusal(pymq("up", "--memory", "--ports-file", file))
        assert found.status == 2
        assert f"process {process.process.pid} " in found.line
        assert wait_file(file) == facts
        assert process.stop() == (0, "")
    assert not file.exists()


@pytest.mark.parametrize(
    "text", ['{"pid": 2147483647}', '{"pid": 0}', '{"pid": -1}', '{"pid": "x"}', "{}", "[", "\xff"]
)
def test_a_ports_file_of_nobody_is_removed(text: str, tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    file.write_bytes(text.encode("latin-1"))
    PortsFile(file)
    assert not file.exists()


def test_two_at_a_time_have_ports_and_stores_of_their_own(tmp_path: Path) -> None:
    with (
        running("up", "--memory", "--ports-file", tmp_path / "1") as one,
        running("up", "--memory", "--ports-file", tmp_path / "2") as two,
    ):
        facts = [wait_file(tmp_path / name) for name in ("1", "2")]
        for key in ("nameServer", "broker", "store"):
            assert facts[0][key] != facts[1][key]
        assert one.stop() == two.stop() == (0, "")


def test_up_on_another_address_says_what_clients_are_told(tmp_path: Path) -> None:
    arguments = ("--bind", "127.0.0.2", "--advertise", "127.0.0.3")
    with running("up", "--memory", "--ports-file", tmp_path / "f", *arguments) as process:
        facts = wait_file(tmp_path / "f")
        for server in ("nameServer", "broker"):  # what clients are told
            host, _, port = facts[server].rpartition(":")
            assert host == "127.0.0.3"
            socket.create_connection(("127.0.0.2", int(port)), timeout=DEADLINE_S).close()
        status, err = process.stop()
        assert status == 0 and "can read, write and delete everything" in err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--memory", "--store", "s"), "not allowed with argument --memory"),
        (("--memory", "--ports-file", "none/f"), "--ports-file none/f: No such file or directory"),
        (("--memory", "--ports-file", "."), "--ports-file"),
        (("--memory", "--advertise", "localhost"), "expected an IP address"),
        (("--memory", "--bind", "192.0.2.1"), "cannot listen on 192.0.2.1"),
    ],
)
def test_what_up_cannot_do_for_tests(arguments: tuple[str, ...], text: str, tmp_path: Path) -> None:
    done = pymq("up", *arguments, "--namesrv-port", "0", "--broker-port", "0", cwd=tmp_path)
    assert done.returncode == 2
    assert text in done.stderr and done.stderr.count("\n") <= 2, done.stderr
    assert not list(tmp_path.iterdir())
