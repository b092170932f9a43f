"""``pymq doctor``, and what it says of each thing that can be wrong."""

import http.server
import inspect
import json
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.cli_processes import pymq
from tests.cluster.played import closed_address

from pymq import Network, blocking
from pymq.cli.doctor import doctor as doctor_command
from pymq.cli.findings import State
from pymq.cli.group_diagnosis import GroupDiagnosis
from pymq.cli.main import main
from pymq.client.group.group_progress import QueueLag
from pymq.errors import ConnectionFailed, ConsumerNotOnline
from pymq.net.recognition import recognized
from pymq.protocol.bodies import GroupConfig, MessageQueue
from pymq.protocol.codes import Permission
from pymq.protocol.message import Message
from pymq.testing import Cluster

TLS = Path(__file__).parent / "tls"
#: For what comes at once, were the machine not busy.
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


def doctor(
    name_server: str, *more: str, status: int, **environment: Any
) -> dict[str, list[dict[str, Any]]]:
    """Return what is found, by check."""
    limits = ("--timeout", f"{LIMIT_S:g}", "--watch", "1")
    done = pymq("doctor", "-n", name_server, "-o", "json", *limits, *more, **environment)
    assert done.returncode == status, done
    assert done.stderr == ""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in json.loads(done.stdout):
        found.setdefault(row["check"], []).append(row)
    assert (status == 0) == all(one["state"] != "WRONG" for rows in found.values() for one in rows)
    return found


def patience(folder: Path) -> str:
    """Return a PYTHONPATH on which a port that speaks something else is given time for it."""
    (folder / "sitecustomize.py").write_text(
        f"import pymq.cli.diagnosis\npymq.cli.diagnosis.RECOGNIZE_S = {LIMIT_S}\n"
    )
    return str(folder)


@contextmanager
def speaking(answer: bytes, context: ssl.SSLContext | None = None) -> Iterator[str]:
    """Yield the address of a server that says the same to everybody, over TLS if it has to."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                try:
                    if context is not None:
                        connection = context.wrap_socket(connection, server_side=True)
                    connection.recv(100)
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(1000):
                        pass
                except OSError:
                    pass

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        host, port = listener.getsockname()
        yield f"{host}:{port}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def test_no_name_server_there() -> None:
    (found,) = doctor(closed_address(), status=3)["name server"]
    assert found["advice"] == "nothing listens there: start it, or correct the port"


@contextmanager
def page(text: str, status: int = 200) -> Iterator[str]:
    """Yield the URL of a page that says where the name servers are."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *words: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/rocketmq/nsaddr"
        finally:
            server.shutdown()
            thread.join()


def test_name_servers_that_are_looked_up(cluster: Cluster) -> None:
    with page(f"{cluster.name_server}\n") as url:
        found = doctor(url, status=0)
        assert found["look-up"][0]["text"] == f"{url} names {cluster.name_server}"
        assert cluster.name_server in found["name server"][0]["text"]
        assert found["broker"][0]["state"] == "ok"
    for text, status, why in (("gone", 404, "status 404"), ("nonsense", 200, "'nonsense'")):
        with page(text, status) as url:
            (wrong,) = doctor(url, status=3)["look-up"]
            assert url in wrong["text"] and why in wrong["text"]
            assert "one line of host:port;host:port" in wrong["advice"]


def test_what_was_found_is_told_when_the_rest_fails(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def gone(self: object, admin: object) -> None:
        raise ConnectionFailed("the broker has gone")

    monkeypatch.setattr("pymq.cli.logs.set_up", lambda level: None)
    monkeypatch.setattr("pymq.cli.diagnosis.Diagnosis._brokers", gone)
    assert main(["doctor", "-n", cluster.name_server, "-o", "json"]) == 3
    told = capsys.readouterr()
    assert [row["check"] for row in json.loads(told.out)] == ["name server"]
    assert told.err == "pymq doctor: the broker has gone\n"


def test_a_broker_that_goes_while_lag_is_watched(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = MessageQueue("goes", cluster.broker_name, 0)
    with (
        blocking.Admin(cluster.name_server, timeout_s=LIMIT_S) as admin,
        blocking.Producer(cluster.name_server, timeout_s=LIMIT_S) as producer,
    ):
        admin.topics.create("goes", queue_count=1)
        admin.groups.create(GroupConfig(group="watched"))
        producer.send(Message("goes", b"x"), queue=queue)
        admin.offsets.reset("watched", "goes", "earliest")
        answers = iter([admin.offsets.lag("watched", "goes"), []])  # and of its retry topic

        def lag(*asked: object) -> list[QueueLag]:
            for answer in answers:
                return answer
            raise ConnectionFailed("the broker has gone")

        monkeypatch.setattr(admin.offsets, "lag", lag)
        *_, last = GroupDiagnosis(admin, "watched", "goes", LIMIT_S).run()
    assert (last.check, last.state) == ("lag", State.WRONG)
    assert last.text == "1 messages are left; whether it moves is not known: the broker has gone"


def test_lag_is_watched_for_longer_than_consumers_keep_what_they_have_done() -> None:
    """Java's commit every 5 s, and not at all in their first 10 s."""
    assert inspect.signature(doctor_command).parameters["watch_s"].default > 10


def test_a_brokers_port_for_the_name_servers(cluster: Cluster) -> None:
    (found,) = doctor(cluster.broker_address, status=3)["name server"]
    assert "is a broker" in found["text"] and "usually 9876" in found["advice"]


def test_a_grpc_port(cluster: Cluster, tmp_path: Path) -> None:
    with speaking(bytes.fromhex("000012040000000000000300000064")) as address:
        assert recognized(address, LIMIT_S) == "gRPC"
        both = f"{address};{cluster.name_server}"
        wrong, well = doctor(both, status=1, PYTHONPATH=patience(tmp_path))["name server"]
        assert "HTTP/2, which gRPC ports speak" in wrong["text"]
        assert "that is a gRPC port" in wrong["advice"]
        assert well["state"] == "ok"


def test_a_tls_port(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "master.pem", TLS / "master-key.pem")
    with speaking(b"", context) as address:
        assert recognized(address, LIMIT_S) == "TLS"
        (found,) = doctor(address, status=3, PYTHONPATH=patience(tmp_path))["name server"]
        assert "speaks TLS only: give one without" in found["advice"]


def test_a_broker_that_advertises_what_cannot_be_reached() -> None:
    with Cluster(broker={"advertised_address": "127.0.0.9"}) as hidden:
        address = hidden.broker_address
        (found,) = doctor(hidden.name_server, status=1)["broker"]
        assert f"advertises {address}, which cannot be used from here: " in found["text"]
        assert "brokerIP1" in found["advice"] and f"--map {address}=HOST:PORT" in found["advice"]
        (mapped,) = doctor(hidden.name_server, "--map", "127.0.0.9=127.0.0.1", status=0)["broker"]
        assert f"{address}, mapped to 127.0.0.1:" in mapped["text"]


def test_a_topic_that_is_missing_or_forbidden(cluster: Cluster) -> None:
    with blocking.Admin(cluster.name_server, timeout_s=LIMIT_S) as admin:
        admin.topics.create("Orders", queue_count=1, perm=int(Permission.READ))
    (missing,) = doctor(cluster.name_server, "--topic", "orders", status=1)["topic"]
    assert "pymq topic create orders" in missing["advice"]
    assert "Did you mean 'Orders'?" in missing["advice"]
    found = doctor(cluster.name_server, "--topic", "Orders", status=1)
    (forbidden,) = found["permission"]
    assert "must not be written on broker-a (perm 4)" in forbidden["text"]
    assert forbidden["advice"] == "pymq topic update Orders --perm 6"


def test_a_group_that_does_not_consume(cluster: Cluster) -> None:
    name_server = cluster.name_server
    queue = MessageQueue("stands", cluster.broker_name, 0)
    with (
        blocking.Admin(name_server, timeout_s=LIMIT_S) as admin,
        blocking.Producer(name_server, timeout_s=LIMIT_S) as producer,
    ):
        admin.topics.create("stands", queue_count=1)
        of_all = ("--topic", "stands", "--group", "readers")
        (unknown,) = doctor(name_server, *of_all, status=1)["group"]
        assert "no broker knows group 'readers'" in unknown["text"]
        admin.groups.create(GroupConfig(group="readers"))
        for _ in range(3):
            producer.send(Message("stands", b"x"), queue=queue)
        admin.offsets.reset("readers", "stands", "earliest")
        found = doctor(name_server, *of_all, status=1)
        assert "has no members" in found["group"][0]["text"]
        assert "broker-a:0 stands at offset 0, 3 messages behind" in found["lag"][0]["text"]
        assert found["lag"][0]["advice"] == "start a consumer of the group"
        with blocking.Consumer(name_server, "readers").subscribe("stands") as consumer:
            hung = next(consumer.messages())
            found = doctor(name_server, *of_all, status=1)
            assert found["group"][0]["text"] == "'readers' has members: 1"
            assert f"pymq message at stands {hung.queue_offset}" in found["lag"][0]["advice"]
            other = doctor(name_server, "--topic", "Orders2", "--group", "readers", status=1)
            assert "none subscribes to 'Orders2' (but to" in other["group"][0]["text"]


def test_members_that_subscribe_differently_or_are_silent(cluster: Cluster) -> None:
    with blocking.Admin(cluster.name_server, timeout_s=LIMIT_S) as admin:
        admin.topics.create("parts", queue_count=2)
    consumers = [
        blocking.Consumer(
            cluster.name_server, "parted", network=Network(instance_name=f"member-{number}")
        ).subscribe("parts", tags)
        for number, tags in enumerate(("a || b", "b||a", "c"))
    ]
    wanted = ("--group", "parted")
    with consumers[0], consumers[1]:
        (well,) = doctor(cluster.name_server, *wanted, status=0)["group"]
        assert well["text"] == "'parted' has members: 2"
        with consumers[2] as other:
            _, wrong = doctor(cluster.name_server, *wanted, status=1)["group"]
            assert "subscribe differently" in wrong["text"]
            assert f"{other.client_id}: parts (c)" in wrong["text"]
            assert all(one.client_id in wrong["text"] for one in consumers)
            assert "groups of their own" in wrong["advice"]


def test_a_member_whose_process_is_stopped(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import sys, pymq.blocking as b\n"
        "with b.Consumer(sys.argv[1], 'stopped').subscribe('parts') as consumer:\n"
        "    print(consumer.client_id, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with (
        blocking.Admin(cluster.name_server, timeout_s=LIMIT_S) as admin,
        subprocess.Popen(
            [sys.executable, "-c", code, cluster.name_server],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as member,
    ):  # fmt: skip
        assert member.stdout is not None
        client_id = member.stdout.readline().strip()
        end_s = time.monotonic() + LIMIT_S
        while not admin.groups.members("stopped").connections:
            assert time.monotonic() < end_s
        with pytest.raises(ConsumerNotOnline, match="has no member 'nobody' now"):
            admin.groups.running_info("stopped", "nobody")
        found = admin.groups.running_info("stopped", client_id, stacks=True)
        assert {one.topic for one in found.subscriptions} == {"parts", "%RETRY%stopped"}
        assert "MainThread" in (found.stacks or "")
        # The broker says it long before the doctor would not wait any longer for the broker.
        monkeypatch.setattr("pymq.broker.handlers.consumers.ANSWER_S", 3.0)
        member.send_signal(signal.SIGSTOP)
        try:
            _, silent = doctor(cluster.name_server, "--group", "stopped", status=1)["group"]
        finally:
            member.send_signal(signal.SIGCONT)
            member.communicate(timeout=LIMIT_S)
    assert silent["text"] == f"member {client_id} of 'stopped' does not answer its broker"
    assert "is stopped, or hangs" in silent["advice"]


def test_all_is_well_in_words(cluster: Cluster) -> None:
    with blocking.Admin(cluster.name_server, timeout_s=LIMIT_S) as admin:
        admin.topics.create("well", queue_count=2)
    limits = ("--timeout", f"{LIMIT_S:g}")
    with blocking.Consumer(cluster.name_server, "well").subscribe("well"):
        done = pymq("doctor", "--topic", "well", *limits, NAMESRV_ADDR=cluster.name_server)
    assert done.returncode == 0, done
    states = [line[:6].strip() for line in done.stdout.splitlines()]
    assert states == ["ok"] * 4
    assert "'well' has 2 queues to write and 2 to read on broker-a" in done.stdout
