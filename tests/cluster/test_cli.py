"""The command ``pymq`` as processes: what it prints, how it stops, how it ends."""

import json
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pymq.client.blocking import BlockingClient
from pymq.protocol.message import Message
from pymq.testing import Cluster

FILES = Path(__file__).parents[1] / "unit/cli/files"
COMMAND = (sys.executable, "-m", "pymq.cli")
DEADLINE_S = 30.0
STOP_S = 3.0


def environment(**more: str) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}
    return clean | {"PYTHONUNBUFFERED": "1"} | more


def pymq(
    *arguments: str | Path, given: bytes | None = None, cwd: Path | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        input=given,
        stdin=subprocess.DEVNULL if given is None else None,
        capture_output=True,
        cwd=cwd,
        env=environment(**more),
        timeout=DEADLINE_S,
        check=False,
    )
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


class Running:
    """A process and what it prints."""

    def __init__(self, *arguments: str | Path, cwd: Path | None = None, **more: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=environment(**more),
        )

    def line(self) -> str:
        """Return the next line of its standard output, waiting for it."""
        stream = self.process.stdout
        assert stream is not None
        read = b""
        deadline = time.monotonic() + DEADLINE_S
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while not read.endswith(b"\n"):
                left = deadline - time.monotonic()
                assert left > 0 and selector.select(left), f"no line in time, only {read!r}"
                byte = os.read(stream.fileno(), 1)
                if not byte:
                    raise AssertionError(f"it ended: {self.finish()}")
                read += byte
        return read.decode().rstrip("\n")

    def finish(self) -> tuple[int, str]:
        """Wait for its end; return its status and its standard error."""
        _, err = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, err.decode()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Stop it, within the time that is promised; return status and standard error."""
        began = time.monotonic()
        self.process.send_signal(number)
        ended = self.finish()
        took = time.monotonic() - began
        assert took < STOP_S, f"stopping took {took:.1f} s"
        return ended

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


@contextmanager
def running(*arguments: str | Path, cwd: Path | None = None, **more: str) -> Iterator[Running]:
    process = Running(*arguments, cwd=cwd, **more)
    try:
        yield process
    finally:
        process.kill()


def up(store: Path, *more: str) -> Any:
    return running(
        "up", "--store", store, "--namesrv-port", "0", "--broker-port", "0", "-o", "json", *more
    )


@dataclass
class Refusal:
    status: int
    line: str


def refusal(done: subprocess.CompletedProcess[str]) -> Refusal:
    """Return status and the one line on standard error; nothing else was printed."""
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1 and done.stderr.endswith("\n"), done.stderr
    return Refusal(done.returncode, done.stderr.rstrip("\n"))


# --------------------------------------------------------------------------------------- servers


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
            BlockingClient(facts["nameServer"]) as client,
            BlockingClient(facts["nameServer"]) as idle,
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
        with BlockingClient(name_server) as client:
            assert client.bounds([sent.queue]) == {sent.queue: (0, 1)}
        assert process.stop() == (0, "")


def _members(name_server: str, group: str) -> int:
    done = pymq("group", "list", "-o", "json", "-n", name_server)
    members = {row["group"]: row["members"] for row in json.loads(done.stdout)}
    return int(members.get(group, 0))


def _missing(folder: Path, module: str) -> str:
    """Return a PYTHONPATH on which a package is as if it were not installed."""
    (folder / f"{module}.py").write_text(f"raise ModuleNotFoundError('none', name='{module}')\n")
    return str(folder)


def test_up_without_uvloop(tmp_path: Path) -> None:
    more = {"PYTHONPATH": _missing(tmp_path, "uvloop")}
    arguments = ("--store", tmp_path / "store", "--namesrv-port", "0", "--broker-port", "0")
    with running("up", *arguments, "-o", "json", **more) as process:
        name_server = json.loads(process.line())["nameServer"]
        assert pymq("send", "t", "x", "-n", name_server).returncode == 0
        assert process.stop() == (0, "")


def test_a_name_server_that_never_answers_does_not_delay_the_end(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        file = _file(tmp_path, "f", f"listenPort=0\nstorePathRootDir={tmp_path}/s\n")
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
    with running("namesrv", "-c", _file(tmp_path, "ns", "listenPort=0"), "-o", "json") as first:
        name_server = json.loads(first.line())["nameServer"]
        file = _file(tmp_path, "broker.conf", text + f"namesrvAddr={name_server}\n")
        with running("broker", "-c", file, "-o", "json") as second:
            facts = json.loads(second.line())
            assert facts["registeredWith"] == name_server
            topic = pymq("topic", "create", "orders", "--queues", "2", "-n", name_server)
            assert topic.returncode == 0, topic.stderr
            sent = pymq("send", "orders", "hello", "-n", name_server)
            assert sent.returncode == 0, sent.stderr
            status, err = second.stop()
            assert status == 0
            assert "Traceback" not in err and "unknown key" not in err
        assert first.stop()[0] == 0


def _file(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_name_servers_from_argument_and_environment(tmp_path: Path) -> None:
    file = _file(tmp_path, "f", f"storePathRootDir={tmp_path}/s\n")
    printed = pymq("broker", "-c", file, "-p", NAMESRV_ADDR="a:1;b:2")
    assert printed.returncode == 0 and "namesrvAddr=a:1;b:2\n" in printed.stdout
    printed = pymq("broker", "-c", file, "-p", "-n", "c:3", NAMESRV_ADDR="a:1")
    assert "namesrvAddr=c:3\n" in printed.stdout
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("command", ["broker", "namesrv"])
def test_printed_configuration_is_a_file_that_prints_the_same(command: str, tmp_path: Path) -> None:
    first = pymq(command, "-p")
    assert (first.returncode, first.stderr) == (0, "")
    second = pymq(command, "-p", "-c", _file(tmp_path, "f", first.stdout))
    assert (second.returncode, second.stderr, second.stdout) == (0, "", first.stdout)


# ------------------------------------------------------------------ servers that do not start


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
        for command in ("namesrv", "broker"):
            text = f"listenPort={port}\nstorePathRootDir={tmp_path}/s\n"
            found = refusal(pymq(command, "-c", _file(tmp_path, "f", text)))
            assert found.status == 2 and "in use" in found.line


def test_a_locked_store(tmp_path: Path) -> None:
    with up(tmp_path / "store") as process:
        process.line()
        text = f"listenPort=0\nstorePathRootDir={tmp_path}/store\n"
        found = refusal(pymq("broker", "-c", _file(tmp_path, "f", text)))
        assert found.status == 2
        assert str(tmp_path / "store") in found.line and "storePathRootDir" in found.line
        assert process.stop() == (0, "")


def test_a_store_of_another_segment_size(tmp_path: Path) -> None:
    with Cluster(store=tmp_path / "store") as cluster, BlockingClient(cluster.name_server) as one:
        one.send(Message("t", b"x"))
    text = f"listenPort=0\nstorePathRootDir={tmp_path}/store\nmappedFileSizeCommitLog=1048576\n"
    found = refusal(pymq("broker", "-c", _file(tmp_path, "f", text)))
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
    file = _file(tmp_path, "f", f"listenPort=0\nstorePathRootDir={tmp_path}/s\n{text}\n")
    found = refusal(pymq("broker", "-c", file))
    assert found.status == 2 and said in found.line


@pytest.mark.parametrize(
    "arguments",
    [
        ("broker", "-c", "absent"),
        ("broker", "-c", "."),
        ("namesrv", "-c", "absent"),
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


# ------------------------------------------------------------------------------- topics, messages


@pytest.fixture(scope="module")
def name_server() -> Iterator[str]:
    with Cluster() as cluster:
        yield cluster.name_server


def rows(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def array(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    (found,) = rows(done)
    assert isinstance(found, list)
    return found


def test_topics(name_server: str) -> None:
    where = ("-n", name_server, "-o", "json")
    assert array(pymq("topic", "create", "made", "--queues", "3", *where)) == [
        {"topic": "made", "queues": 3}
    ]
    assert {"topic": "made"} in array(pymq("topic", "list", *where))
    assert {"topic": "TBW102"} not in array(pymq("topic", "list", *where))
    assert {"topic": "TBW102"} in array(pymq("topic", "list", "--system", *where))
    sent = rows(pymq("send", "made", "hi", "--queue", "2", *where))
    assert [(row["queue"], row["offset"], row["status"]) for row in sent] == [(2, 0, "SEND_OK")]
    found = array(pymq("topic", "status", "made", *where))
    assert [row["messages"] for row in found] == [0, 0, 1]
    table = pymq("topic", "status", "made", NAMESRV_ADDR=name_server)
    assert table.stdout.splitlines()[0].split()[:3] == ["BROKER", "QUEUE", "FIRST"]
    assert array(pymq("topic", "delete", "made", *where)) == [{"topic": "made", "deleted": True}]
    for verb in ("status", "delete"):
        found_nothing = refusal(pymq("topic", verb, "made", *where))
        assert found_nothing.status == 1 and "'made'" in found_nothing.line


def test_send_and_consume(name_server: str, tmp_path: Path) -> None:
    where = ("-n", name_server, "-o", "json")
    groups = array(pymq("group", "list", *where))
    arguments = ("--tags", "A", "--keys", "k1", "--keys", "k2", "--property", "a=b")
    rows(pymq("send", "mail", "one", *arguments, *where))
    lines = "".join(f"line {number}\n" for number in range(300)).encode() + b"\nlast"
    sent = rows(pymq("send", "mail", *where, given=lines))
    assert len(sent) == 301 and len({row["id"] for row in sent}) == 301
    raw = tmp_path / "raw"
    raw.write_bytes(b"\x00\xff\n")
    rows(pymq("send", "mail", "--file", raw, "--tags", "B", "--count", "2", *where))

    found = rows(pymq("consume", "mail", "--no-follow", *where))
    assert len(found) == 304
    assert {(row["queue"], row["offset"]) for row in sent} < {
        (row["queue"], row["offset"]) for row in found
    }
    assert [row["storeTimestamp"] for row in found] == sorted(
        row["storeTimestamp"] for row in found
    )
    (one,) = rows(pymq("consume", "mail", "--no-follow", "--tags", "A", *where))
    assert (one["body"], one["tags"], one["keys"]) == ("one", "A", ["k1", "k2"])
    assert one["properties"]["a"] == "b"
    binary = rows(pymq("consume", "mail", "--no-follow", "--tags", "B || C", *where))
    assert [row["bodyBase64"] for row in binary] == ["AP8K", "AP8K"]
    bodies = pymq("consume", "mail", "--no-follow", "--tags", "A", "--body-only", *where)
    assert bodies.stdout == "one\n"
    some = rows(pymq("consume", "mail", "--no-follow", "--count", "7", *where))
    assert len(some) == 7
    latest = pymq("consume", "mail", "--no-follow", "--from", "latest", *where)
    assert (latest.returncode, latest.stdout) == (0, "")
    assert len(rows(pymq("consume", "mail", "--no-follow", "--from", "1h", *where))) == 304
    assert array(pymq("group", "list", *where)) == groups  # nobody's offsets were touched
    few = pymq("consume", "mail", "--no-follow", "--count", "1000", *where)
    assert few.returncode == 1 and "304 messages" in few.stderr


def test_tail_gets_what_comes(name_server: str) -> None:
    pymq("topic", "create", "news", "-n", name_server)
    pymq("send", "news", "old", "-n", name_server)
    with running("consume", "news", "-n", name_server, "--from", "earliest", "-o", "json") as tail:
        assert json.loads(tail.line())["body"] == "old"
        for number in range(3):
            pymq("send", "news", f"new {number}", "-n", name_server)
            assert json.loads(tail.line())["body"] == f"new {number}"
        status, err = tail.stop(signal.SIGINT)
        assert (status, err) == (130, "")


def test_group(name_server: str) -> None:
    where = ("-n", name_server, "-o", "json")
    rows(pymq("send", "work", *where, given=b"1\n2\n3\n4\n5\n"))
    drain = ("consume", "work", "--group", "crew", "--no-follow")
    assert [row["body"] for row in rows(pymq(*drain, "--count", "2", *where))] == ["1", "2"]
    lag = array(pymq("group", "lag", "crew", *where))
    assert sum(row["lag"] for row in lag) == 3
    with running("consume", "work", "--group", "crew", *where) as member:
        assert [json.loads(member.line())["body"] for _ in range(3)] == ["3", "4", "5"]
        assert {"group": "crew", "members": 1} in array(pymq("group", "list", *where))
        busy = refusal(pymq(*drain, *where))
        assert busy.status == 1 and "are connected (1)" in busy.line
        assert member.stop(signal.SIGINT)[0] == 130
    assert rows(pymq(*drain, *where)) == []
    text = pymq("group", "lag", "crew", "-n", name_server).stdout
    assert text.splitlines()[-1] == "total lag 0"
    nobody = refusal(pymq("group", "lag", "nobody", *where))
    assert nobody.status == 1 and "'nobody'" in nobody.line


def test_messages_are_found_and_shown(name_server: str) -> None:
    where = ("-n", name_server, "-o", "json")
    for number in range(6):
        keys = ("--keys", "all", "--keys", f"k{number % 2}", "--tags", "T")
        rows(pymq("send", "ledger", f"entry {number}", *keys, *where))
    found = rows(pymq("message", "find", "ledger", "k1", *where))
    assert [row["body"] for row in found] == ["entry 1", "entry 3", "entry 5"]
    found = rows(pymq("message", "find", "ledger", "all", "--count", "2", "--from", "1h", *where))
    assert [row["body"] for row in found] == ["entry 4", "entry 5"]
    one = rows(pymq("message", "find", "ledger", found[0]["id"], *where))
    assert one == found[:1]
    none = refusal(pymq("message", "find", "ledger", "all", "--to", "1h", *where))
    assert none.status == 1 and "'all' within these times" in none.line
    wrong = refusal(pymq("message", "find", "ledger", "all", "--to", "noon", *where))
    assert wrong.status == 2 and "--to 'noon'" in wrong.line

    (shown,) = rows(pymq("message", "show", one[0]["id"], "--topic", "ledger", *where))
    assert one[0].items() <= shown.items()
    assert rows(pymq("message", "show", shown["offsetId"], *where)) == [shown]
    text = pymq("message", "show", shown["offsetId"], "-n", name_server).stdout
    lines = dict(line.split(None, 1) for line in text.splitlines())
    assert (lines["body"], lines["tags"], lines["keys"]) == ("entry 4", "T", "all k0")
    for wrong_id in ("0" * 32, one[0]["id"], "no id"):
        assert refusal(pymq("message", "show", wrong_id, *where)).status in (1, 2)


def test_brokers_are_listed_and_shown(name_server: str) -> None:
    where = ("-n", name_server, "-o", "json")
    rows(pymq("send", "counted", "one", *where))
    (broker,) = array(pymq("cluster", "list", *where))
    assert (broker["cluster"], broker["id"], broker["version"]) == ("DefaultCluster", 0, "V5_3_3")
    assert broker["putToday"] >= 1 and broker["putPerSecond"] >= 0
    table = pymq("cluster", "list", "-n", name_server).stdout.splitlines()
    assert table[0].split()[:4] == ["CLUSTER", "BROKER", "ID", "ADDRESS"]
    for name in (broker["broker"], broker["address"]):
        (found,) = rows(pymq("cluster", "state", name, *where))
        assert int(found["putMessageTimesTotal"]) >= 1
    text = pymq("cluster", "state", broker["broker"], "-n", name_server).stdout
    assert any(line.split()[0] == "runtime" for line in text.splitlines())
    stats = array(pymq("cluster", "stats", broker["broker"], *where))
    (sends,) = [row for row in stats if row["request"] == "SEND_MESSAGE_V2"]
    assert sends["code"] == 310 and sends["count"] >= 1 and sends["errors"] == 0
    assert 0 < sends["meanMs"] <= sends["maxMs"]
    table = pymq("cluster", "stats", broker["address"], "-n", name_server).stdout.splitlines()
    assert table[0].split()[:4] == ["REQUEST", "CODE", "COUNT", "ERRORS"]
    for verb in ("state", "stats", "clean"):
        nobody = refusal(pymq("cluster", verb, "nobody", *where))
        assert nobody.status == 2 and broker["broker"] in nobody.line
    for verb in ("state", "stats"):
        other = refusal(pymq("cluster", verb, name_server, *where))
        assert other.status == 2 and f"{name_server} is not a broker" in other.line


def test_a_broker_is_cleaned(tmp_path: Path) -> None:
    with Cluster(store=tmp_path / "store") as cluster:
        where = ("-n", cluster.name_server, "-o", "json")
        rows(pymq("send", "kept", "one", *where))
        (broker,) = array(pymq("cluster", "list", *where))
        (row,) = array(pymq("cluster", "clean", broker["broker"], *where))
        assert row == {
            "broker": broker["broker"], "address": broker["address"], "log": True, "queues": False
        }  # fmt: skip
        (row,) = array(pymq("cluster", "clean", broker["address"], "--queues", *where))
        assert row["queues"] is True
        found = rows(pymq("consume", "kept", "--from", "earliest", "--count", "1", *where))
        assert [record["body"] for record in found] == ["one"]


def test_a_member_with_a_count_finishes_what_it_printed(name_server: str) -> None:
    where = ("-n", name_server, "-o", "json")
    rows(pymq("send", "tasks", *where, given=b"1\n2\n3\n"))
    join = ("consume", "tasks", "--group", "pair", "--from", "earliest", "--count", "1")
    assert rows(pymq(*join, *where))[0]["body"] == "1"
    assert rows(pymq(*join, *where))[0]["body"] == "2"


def test_a_reader_that_has_enough(name_server: str) -> None:
    pymq("send", "flood", "x" * 1000, "--count", "2000", "-n", name_server)
    with running("consume", "flood", "-n", name_server, "--from", "earliest") as process:
        process.line()
        assert process.process.stdout is not None
        process.process.stdout.close()
        status = process.process.wait(DEADLINE_S)
        assert process.process.stderr is not None
        assert (status, process.process.stderr.read()) == (0, b"")


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("topic", "list", "-n", "127.0.0.1:1"), 3, "127.0.0.1:1"),
        (("topic", "list", "-n", "nowhere.invalid:1"), 3, "nowhere.invalid"),
        (("topic", "list", "-n", "nowhere"), 2, "host:port"),
        (("send", "bad topic", "x"), 2, "bad topic"),
        (("send", "t", "x", "--property", "a"), 2, "--property"),
        (("send", "t", "x", "--file", "f"), 2, "--file"),
        (("send", "t", ""), 2, "body"),
        (("send", "t"), 2, "nothing to send"),
        (("send", "known", "x", "--queue", "99"), 2, "broker-a:0"),
        (("consume", "nothere"), 1, "nothere"),
        (("consume", "nothere", "--group", "g"), 1, "nothere"),
        (("consume", "known", "--from", "soon"), 2, "--from"),
        (("consume", "known", "--from", "1", "--group", "g"), 2, "--group"),
        (("topic", "create", "t", "--cluster", "other"), 2, "DefaultCluster"),
    ],
)
def test_errors_are_one_line(
    arguments: tuple[str, ...], status: int, said: str, name_server: str
) -> None:
    if "known" in arguments:
        pymq("topic", "create", "known", "-n", name_server)
    found = refusal(pymq(*arguments, NAMESRV_ADDR=name_server))
    assert found.status == status, found.line
    assert said in found.line
    assert found.line.startswith(f"pymq {arguments[0]}: ")


def test_an_answer_that_does_not_come() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        found = refusal(pymq("topic", "list", "-n", address, "--timeout", "0.3"))
    assert found.status == 3 and address in found.line


# ------------------------------------------------------------------------------------------ help


def test_help_lists_commands_and_exit_status() -> None:
    done = pymq("--help")
    assert (done.returncode, done.stderr) == (0, "")
    for word in ("namesrv", "broker", "up", "send", "consume", "topic", "group"):
        assert f"\n  {word} " in done.stdout
    for status in (0, 1, 2, 3, 130):
        assert f"\n    {status} " in done.stdout
    assert pymq("-h").stdout == done.stdout


@pytest.mark.parametrize(
    "command", ["namesrv", "broker", "up", "send", "consume", "topic", "group"]
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
        ("numpy", "broker", ("up", "--store", "s", "--namesrv-port", "0", "--broker-port", "0")),
    ],
)
def test_what_is_not_installed_is_named(
    module: str, extra: str, command: tuple[str, ...], tmp_path: Path, name_server: str
) -> None:
    more = {"PYTHONPATH": _missing(tmp_path, module), "NAMESRV_ADDR": name_server}
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
    slow = {"asyncio", "numpy", "rich", "uvloop", "pymq.client.blocking", "pymq.broker.broker"}
    assert not slow & _imported("--help")


def test_servers_do_without_typer_and_rich() -> None:
    assert not {"typer", "rich", "pymq.client.blocking"} & _imported("broker", "-p")
    assert not {"asyncio", "numpy"} & _imported("up", "--help")
