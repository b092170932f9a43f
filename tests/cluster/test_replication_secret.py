"""A secret and TLS on the HA port: who has them follows, and everybody else is told why not."""

import json
import random
import shutil
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.administration import admin_of
from tests.cluster.replicated import (
    SEGMENT_BYTES,
    TABLES,
    TIMEOUT_S,
    Pair,
    ask,
    bodies_at,
    eventually,
    ha_socket,
    make_tables,
    make_topic,
    own_port,
    pair_of,
    send,
    slaves_of,
    status_of,
    tables_at_slave,
    wait_refused,
)

from pymq.broker.replication_config import Role
from pymq.client.operations import SendStatus
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
from pymq.protocol.message import Message
from pymq.protocol.replication_secret import (
    FRAME_BYTES,
    Refusal,
    encode_challenge,
    encode_hello,
    encode_proof,
    encode_refusal,
    encode_welcome,
)
from pymq.store import StoreConfig
from pymq.store.inspection import check_store
from pymq.testing import Cluster

SECRET, OTHER_SECRET = "a secret of the tests", "another one of the tests"
TLS = Path(__file__).parent / "tls"
WITH_SECRET: dict[str, Any] = {"secret": SECRET}
MASTER_TLS = WITH_SECRET | {
    "tls": True,
    "tls_certificate": TLS / "master.pem",
    "tls_key": TLS / "master-key.pem",
}
SLAVE_TLS = WITH_SECRET | {"tls": True, "tls_authority": TLS / "authority.pem"}
MUTUAL_MASTER = MASTER_TLS | {"tls_authority": TLS / "authority.pem"}
MUTUAL_SLAVE = SLAVE_TLS | {
    "tls_certificate": TLS / "slave.pem",
    "tls_key": TLS / "slave-key.pem",
}
KINDS = {
    "secret": (WITH_SECRET, WITH_SECRET),
    "TLS": (MASTER_TLS, SLAVE_TLS),
    "TLS, by name": (MASTER_TLS, SLAVE_TLS | {"tls_name": "broker-a.test"}),
    "TLS, mutual": (MUTUAL_MASTER, MUTUAL_SLAVE),
}
LOOPBACK = {"networks": ("127.0.0.0/8",)}
#: A hello on a busy machine takes a while.
PATIENT: dict[str, Any] = {"handshake_ms": 60_000}


@pytest.mark.parametrize("kind", KINDS)
def test_a_pair_replicates_restarts_and_its_slave_is_promoted(
    tmp_path: Path, kind: str, seed: int
) -> None:
    """With more data than is sent from memory."""
    master, slave = KINDS[kind]
    dice = random.Random(seed)
    sent = [dice.randbytes(30_000) for n in range(400)]
    rules = {"role": Role.SYNC_MASTER, **master}
    with pair_of(tmp_path, replication=rules, slave_replication=slave) as pair:
        pair.admin.topics.create("T", queue_count=1)
        eventually(lambda: status_of(pair) is SendStatus.OK)
        pair.slave.stop_broker()
        send(pair, sent)
        assert pair.end > 10 << 20
        pair.slave.start_broker()
        pair.wait_equal()
        eventually(lambda: status_of(pair) is SendStatus.OK)
        pair.master.restart_broker()
        eventually(lambda: status_of(pair) is SendStatus.OK)
        assert pair.slave_end() >= pair.end
        bodies = bodies_at(pair.master)
        assert [body for body in bodies if body != b"x"] == sent
    with Cluster(
        pair.roots["slave"],
        store_settings={"segment_bytes": SEGMENT_BYTES},
        replication=master,
    ) as promoted:
        assert bodies_at(promoted) == bodies
    report = check_store(StoreConfig(root_path=pair.roots["slave"], segment_bytes=SEGMENT_BYTES))
    assert [group for group in report.findings.groups() if group[0].name != "NOTE"] == []


NOT_TRUSTED = "it does not agree to TLS: it left meanwhile, and may not trust this certificate"
#: What is wrong -> settings of master and slave, and what each of them says.
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "another secret": (
        {"secret": OTHER_SECRET},
        WITH_SECRET,
        "does not prove the secret of this master but another one; set the same pymqHaSecret",
        "its secret is not the one of this slave; set the same pymqHaSecret",
    ),
    "no secret at the slave": (
        WITH_SECRET,
        {},
        "it does not prove that it knows the secret (pymqHaSecret)",
        "it wants a proof of its secret, and this slave has none; set the same pymqHaSecret here",
    ),
    "no secret at the master": (
        {},
        WITH_SECRET,
        "it wants this master to prove a secret, and there is none here; set the same pymqHaSecret",
        "it has no secret, and so cannot prove that it is this slave's master; set the same",
    ),
    "TLS at the slave only": (
        WITH_SECRET,
        SLAVE_TLS,
        "it speaks TLS, and this master does not (pymqHaTls)",
        "it does not agree to TLS",
    ),
    "TLS at the master only": (
        MASTER_TLS,
        WITH_SECRET,
        "it does not agree to TLS",
        "it does not prove that it knows the secret (pymqHaSecret)",
    ),
    "a certificate of another authority": (
        MASTER_TLS,
        SLAVE_TLS | {"tls_authority": TLS / "other.pem"},
        NOT_TRUSTED,
        "its certificate is not to be trusted",
    ),
    "a certificate of another name": (
        MASTER_TLS,
        SLAVE_TLS | {"tls_name": "broker-c.test"},
        NOT_TRUSTED,
        "its certificate is not to be trusted",
    ),
    "no certificate at the slave": (
        MUTUAL_MASTER,
        SLAVE_TLS,
        "it does not agree to TLS: PEER_DID_NOT_RETURN_A_CERTIFICATE",
        "if it wants a certificate of this slave (pymqHaTlsTrustCertPath there), set",
    ),
    "TLS with a listed address": (
        MASTER_TLS | LOOPBACK,
        SLAVE_TLS,
        "it speaks TLS, and this master does not with the addresses in pymqHaNetworks",
        "it does not agree to TLS",
    ),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_both_sides_say_why_nobody_follows(
    tmp_path: Path, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    master, slave, at_master, at_slave = REFUSED[wrong]
    with pair_of(tmp_path, replication=master | PATIENT, slave_replication=slave | PATIENT) as pair:
        send(pair, [b"1"])
        eventually(lambda: at_master in warned(caplog, "ha.door"), f"{at_master}\n{caplog.text}")
        eventually(lambda: at_slave in warned(caplog, "ha.slave"), f"{at_slave}\n{caplog.text}")
        assert slaves_of(pair) == []
        assert pair.slave_end() == 0
        for name in ("ha.door", "ha.slave"):
            assert len(warned(caplog, name).splitlines()) == 1, "once"
        assert SECRET not in caplog.text


def warned(caplog: pytest.LogCaptureFixture, name: str) -> str:
    records = [one for one in caplog.records if one.name.endswith(name)]
    return "\n".join(one.getMessage() for one in records if one.levelname == "WARNING")


def test_a_listed_address_proves_nothing_and_speaks_no_tls(tmp_path: Path) -> None:
    """As RocketMQ's brokers, on both sides."""
    master, slave = MASTER_TLS | LOOPBACK, SLAVE_TLS | LOOPBACK
    with pair_of(tmp_path, replication=master, slave_replication=slave) as pair:
        send(pair, [b"1"])
        pair.wait_equal()
        with ha_socket(pair) as peer:
            peer.sendall(struct.pack(">q", 0))
            sent = b""
            while len(sent) <= 12:  # the first header may be a heartbeat, or come by itself
                sent += (more := peer.recv(1 << 16))
                assert more, "the master closed the connection"


def test_a_slave_with_a_secret_may_come_from_a_listed_address(tmp_path: Path) -> None:
    master = WITH_SECRET | LOOPBACK
    with pair_of(tmp_path, replication=master, slave_replication=WITH_SECRET) as pair:
        send(pair, [b"1"])
        pair.wait_equal()


def test_tools_do_not_see_the_secret(tmp_path: Path) -> None:
    broker = {"allow_config_update": True}
    with Cluster(tmp_path, broker=broker, replication=WITH_SECRET) as cluster:
        answer = ask(cluster.broker_address, Command(RequestCode.GET_BROKER_CONFIG))
        assert b"pymqHaSecret=******" in bytes(answer.body)
        assert SECRET.encode() not in bytes(answer.body)
        change = Command(RequestCode.UPDATE_BROKER_CONFIG, {}, b"pymqHaSecret=" + SECRET.encode())
        refused = ask(cluster.broker_address, change)
        assert "pymqHaSecret is fixed" in (refused.remark or "")
        assert SECRET not in (refused.remark or "")


def received(peer: socket.socket) -> bytes:
    """Return everything until the connection ends."""
    data = b""
    try:
        while more := peer.recv(1 << 16):
            data += more
    except ConnectionResetError:
        pass
    return data


@contextmanager
def master_with_secret(root: Path, **settings: Any) -> Iterator[Pair]:
    """Have a master, its slave, and one message."""
    rules = WITH_SECRET | settings
    with pair_of(root, replication=rules, slave_replication=WITH_SECRET) as pair:
        send(pair, [b"1"])
        pair.wait_equal()
        yield pair


def test_without_a_proof_nothing_of_the_log_is_sent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A slave of RocketMQ that is empty is not sent anything that it would take for a log."""
    wanted = encode_refusal(Refusal.PROOF_WANTED)
    hello = encode_hello(bytes(28))
    with master_with_secret(tmp_path, handshake_ms=3_000) as pair, ExitStack() as stack:
        firsts = {
            struct.pack(">q", 0): b"",
            struct.pack(">q", -1) + struct.pack(">q", 0): wanted,
            struct.pack(">q", 1 << 20): wanted,
            struct.pack(">ihhq", 1, 0, 0, 2): wanted,  # of automatic failover
            b"": b"",
            b"\xfepymqHS": b"",
            hello[:7] + b"\x02": encode_refusal(Refusal.OTHER_VERSION),
            b"\x16\x03\x01" + bytes(200): b"",
        }
        # All at the same time: most of them end when no proof has come in time.
        peers = {first: stack.enter_context(ha_socket(pair)) for first in (*firsts, hello)}
        for first, peer in peers.items():
            peer.sendall(first)
        answers = {first: received(peer) for first, peer in peers.items()}
        assert len(answers.pop(hello)) == FRAME_BYTES  # a challenge
        assert answers == firsts
        assert "pymqHaHandshakeTimeout" in caplog.text
        assert "it is another version of pymq" in caplog.text
        assert len(slaves_of(pair)) == 1


def test_what_was_recorded_is_of_no_use_again(tmp_path: Path) -> None:
    with master_with_secret(tmp_path, **PATIENT) as pair:
        hello = encode_hello(b"n" * 28)

        def answer_to(frames: bytes) -> bytes:
            with ha_socket(pair) as peer:
                peer.sendall(hello)
                challenge = peer.recv(FRAME_BYTES, socket.MSG_WAITALL)
                proof = encode_proof(SECRET.encode(), hello, challenge)
                peer.sendall(frames or proof)
                recorded.append(proof)
                answer = peer.recv(FRAME_BYTES, socket.MSG_WAITALL)
                if len(answer) == FRAME_BYTES:
                    assert answer == encode_welcome(SECRET.encode(), hello, challenge, proof)
                return answer

        recorded: list[bytes] = []
        assert len(answer_to(b"")) == FRAME_BYTES
        assert answer_to(recorded[0]) == encode_refusal(Refusal.WRONG_SECRET)


class FakeMaster:
    """Accepts slaves, and answers them from a script.

    Attributes:
        heard: what each slave has said.
    """

    def __init__(self, stack: ExitStack, *answers: bytes | Callable[[bytes], bytes]) -> None:
        self._answers = answers
        self._listening = socket.create_server(("127.0.0.1", 0))
        stack.callback(self._listening.close)
        stack.callback(self._listening.shutdown, socket.SHUT_RDWR)  # wakes who accepts
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.heard: list[bytes] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listening.accept()
            except OSError:
                return
            with peer:
                peer.settimeout(60.0)
                heard = b""
                try:
                    for answer in self._answers:
                        heard += peer.recv(FRAME_BYTES, socket.MSG_WAITALL)
                        peer.sendall(answer(heard) if callable(answer) else answer)
                    heard += received(peer)
                except OSError:
                    pass
                self.heard.append(heard)


HEARTBEAT = struct.pack(">qi", 0, 0)
CHALLENGE = encode_challenge(b"c" * 32)


def welcome(secret: str) -> Callable[[bytes], bytes]:
    def answer(heard: bytes) -> bytes:
        hello, proof = heard[:FRAME_BYTES], heard[FRAME_BYTES:]
        return encode_welcome(secret.encode(), hello, CHALLENGE, proof)

    return answer


#: What a master that does not know the secret answers -> what the slave says.
IMPOSTORS: dict[str, tuple[list[bytes | Callable[[bytes], bytes]], str]] = {
    "nothing, as RocketMQ's": ([], "it does not prove that it knows the secret"),
    "a heartbeat, as RocketMQ's": ([HEARTBEAT * 4], "it does not prove that it knows the secret"),
    "its own hello": ([lambda heard: heard], "it does not prove that it knows the secret"),
    "its own proof": (
        [CHALLENGE, lambda heard: heard[FRAME_BYTES:]],
        "it proves another secret than this slave's",
    ),
    "another secret": (
        [CHALLENGE, welcome(OTHER_SECRET)],
        "it proves another secret than this slave's",
    ),
    "more than its part": (
        [CHALLENGE, lambda heard: welcome(SECRET)(heard) + HEARTBEAT],
        "it speaks before it is spoken to",
    ),
}


@pytest.mark.parametrize("kind", IMPOSTORS)
def test_a_slave_says_nothing_of_its_log_to_an_impostor(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    answers, said = IMPOSTORS[kind]
    with ExitStack() as stack:
        fake = FakeMaster(stack, *answers)
        settings = {"role": Role.SLAVE, "master_address": fake.address, **PATIENT}
        if not answers:
            settings["handshake_ms"] = 1_000  # it waits in vain
        replication = settings | WITH_SECRET
        stack.enter_context(Cluster(tmp_path, broker={"broker_id": 1}, replication=replication))
        eventually(lambda: said in warned(caplog, "ha.slave"), caplog.text)
        eventually(lambda: bool(fake.heard))
        assert len(fake.heard[0]) == FRAME_BYTES * max(1, len(answers))


@contextmanager
def other_master(root: Path, pair: Pair) -> Iterator[None]:
    """Have a master of the same name with another secret, and a topic and a group like the pair's.

    It registers all the time, so that the name server takes it for the master.
    """
    broker = {"name_servers": (pair.master.name_server,), "register_interval_ms": 50}
    rules = {"role": Role.ASYNC_MASTER, "secret": OTHER_SECRET}
    with Cluster(root / "other", broker=broker | own_port(), replication=rules) as other:
        make_topic(other, "T")
        group = json.dumps({"groupName": "g", "retryMaxTimes": 16}).encode()
        made = Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group)
        assert ask(other.broker_address, made).code == 0
        yield


def test_a_slave_takes_no_tables_of_a_master_without_its_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pymq.broker.ha.slave.REFUSED_RETRY_S", 0.5)
    caplog.set_level("DEBUG", "pymq.broker.ha.slave")
    with pair_of(
        tmp_path,
        replication=WITH_SECRET,
        slave_replication=WITH_SECRET,
        broker={"register_interval_ms": 500},
    ) as pair:
        make_tables(pair)
        pair.master.stop_broker()
        with other_master(tmp_path, pair):
            wait_refused(caplog, "its secret is not the one of this slave")
            assert tables_at_slave(pair) == TABLES


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_tables_follow_no_other_master_than_the_log(
    tmp_path: Path, host: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``haMasterAddress``, whatever name servers say."""
    first = own_port()
    ports = iter([first])
    monkeypatch.setattr(
        "tests.cluster.replicated.own_port", lambda: next(ports, None) or own_port()
    )
    pinned = {"master_address": f"{host}:{first['listen_port'] + 1}"}
    with pair_of(
        tmp_path,
        replication=WITH_SECRET,
        slave_replication=WITH_SECRET | pinned,
        broker={"register_interval_ms": 500},
    ) as pair:
        make_tables(pair)
        with other_master(tmp_path, pair):
            said = "its topics, groups and offsets are not taken over"  # of the other one
            eventually(lambda: said in warned(caplog, "told_master"), caplog.text)
            make_topic(pair.master, "T2")
            eventually(lambda: pair.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "T2"}).code == 0)
            assert tables_at_slave(pair) == TABLES
            assert warned(caplog, "told_master").count(said) == 1


class Between:
    """Somebody between slave and master who changes one bit of what passes.

    Attributes:
        passed: bytes that went to the master, of each connection.
    """

    def __init__(self, stack: ExitStack, to: tuple[str, int]) -> None:
        self._to = to
        self._listening = socket.create_server(("127.0.0.1", 0))
        stack.callback(self._listening.close)
        stack.callback(self._listening.shutdown, socket.SHUT_RDWR)  # wakes who accepts
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.flip: tuple[str, int] | None = None
        self.passed: list[int] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                slave, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._relay, args=(slave,), daemon=True).start()

    def _relay(self, slave: socket.socket) -> None:
        with slave, socket.create_connection(self._to) as master:
            back = threading.Thread(target=self._copy, args=(master, slave, "master", 0))
            back.start()
            self.passed.append(0)
            self._copy(slave, master, "slave", len(self.passed) - 1)
            back.join()

    def _copy(self, source: socket.socket, target: socket.socket, name: str, at: int) -> None:
        count = 0
        try:
            while data := bytearray(source.recv(1 << 16)):
                if self.flip is not None and self.flip[0] == name:
                    byte = self.flip[1] // 8 - count
                    if 0 <= byte < len(data):
                        data[byte] ^= 1 << self.flip[1] % 8
                count += len(data)
                target.sendall(data)
                if name == "slave":
                    self.passed[at] = count
        except OSError:
            pass
        for one in (source, target):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


@pytest.mark.parametrize("who", ["slave", "master"])
def test_one_changed_bit_in_between_and_nobody_follows(
    tmp_path: Path, who: str, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A bit of every frame in both directions; and without a change it works."""
    monkeypatch.setattr("pymq.broker.ha.slave.REFUSED_RETRY_S", 0.05)
    monkeypatch.setattr("pymq.broker.ha.slave.RETRY_S", 0.05)
    with ExitStack() as stack:
        rules = {"networks": (), "handshake_ms": 500} | WITH_SECRET
        master = stack.enter_context(Cluster(tmp_path / "master", replication=rules))
        assert master._broker is not None
        assert master._broker._ha_socket is not None
        between = Between(stack, master._broker._ha_socket.getsockname())
        between.flip = who, 0
        settings = {"role": Role.SLAVE, "master_address": between.address, "handshake_ms": 500}
        slave = stack.enter_context(
            Cluster(tmp_path / "slave", broker={"broker_id": 1}, replication=settings | WITH_SECRET)
        )
        for bit in (0, 7, 63, 64, 100, 319, 320, 383, 384, 639):
            between.flip = who, bit
            before = len(between.passed)
            eventually(lambda before=before: len(between.passed) >= before + 3)
        assert all(count <= 2 * FRAME_BYTES for count in between.passed), "a report went through"
        between.flip = None
        with BlockingClient(master.name_server, timeout_s=TIMEOUT_S) as client:
            admin = admin_of(client)
            client.send(Message(topic="T", body=b"1"))

            def end_of(cluster: Cluster) -> int:
                return int(admin.brokers.state(cluster.broker_address)["commitLogMaxOffset"])

            eventually(lambda: end_of(slave) == end_of(master) > 0)


def test_a_renewed_certificate_is_shown_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """While its files do not belong together, as in the midst of a renewal, the old one is."""
    certificate, key = tmp_path / "own.pem", tmp_path / "own-key.pem"
    shutil.copy(TLS / "master.pem", certificate)
    shutil.copy(TLS / "master-key.pem", key)
    rules = MASTER_TLS | PATIENT | {"tls_certificate": certificate, "tls_key": key}
    context = ssl.create_default_context()
    context.check_hostname = False  # nor is the other certificate one for servers
    context.verify_mode = ssl.CERT_NONE
    with pair_of(tmp_path, replication=rules, slave_replication=SLAVE_TLS | PATIENT) as pair:

        def shows(name: str) -> bool:
            wanted = ssl.PEM_cert_to_DER_cert((TLS / name).read_text())
            with ha_socket(pair) as plain, context.wrap_socket(plain) as peer:
                return peer.getpeercert(binary_form=True) == wanted

        assert shows("master.pem")
        shutil.copy(TLS / "slave.pem", certificate)
        assert shows("master.pem")
        assert shows("master.pem")
        assert warned(caplog, "ha.security").count("KEY_VALUES_MISMATCH") == 1, "once"
        shutil.copy(TLS / "slave-key.pem", key)
        assert shows("slave.pem")


def test_tls_hides_the_log_and_the_proofs(tmp_path: Path) -> None:
    """A plain peer gets nothing that is not TLS; one of TLS without a proof gets no log."""
    rules = MASTER_TLS | PATIENT
    with pair_of(tmp_path, replication=rules, slave_replication=SLAVE_TLS) as pair:
        send(pair, [b"plain text"])
        pair.wait_equal()
        with ha_socket(pair) as peer:
            peer.sendall(struct.pack(">q", 5))
            assert received(peer)[:1] in (b"", b"\x15")  # an alert
        context = ssl.create_default_context(cafile=str(TLS / "authority.pem"))
        with (
            ha_socket(pair) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as peer,
        ):
            peer.sendall(struct.pack(">q", 5))
            assert peer.recv(100) == encode_refusal(Refusal.PROOF_WANTED)
