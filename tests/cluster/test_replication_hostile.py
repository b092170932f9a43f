"""Hostile peers at the HA port; ``tests/crash/test_replication_hostile.py`` has many more."""

import random
import resource
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.hostile_slaves import (
    WRONG,
    Attacked,
    flood,
    lie,
    send_mutated,
    slow_readers,
    still_open,
)
from tests.cluster.replicated import Pair, eventually, pair_of, status_of

from pymq.broker.replication_config import Role
from pymq.client.operations import SendStatus
from pymq.protocol.message import Message
from pymq.protocol.replication_secret import FRAME_BYTES, encode_hello, encode_proof

SECRET: dict[str, Any] = {"secret": "a secret of the tests", "handshake_ms": 1_000}
MUTATED = 20_000
CONNECTIONS_MAX = 64
#: Connections that the kernel has taken and nobody has accepted yet.
IN_KERNEL = 140


@pytest.fixture
def many_files() -> Iterator[int]:
    """How many connections a test may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4_096 if hard == resource.RLIM_INFINITY else min(4_096, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield min(3_000, max(soft, wanted) - 500)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("settings", [{}, SECRET], ids=["plain", "secret"])
def test_mutated_frames_confirm_nothing(
    tmp_path: Path, seed: int, settings: dict[str, Any]
) -> None:
    dice = random.Random(seed)
    with ExitStack() as stack:
        attacked = Attacked(tmp_path, stack, **settings)
        with attacked.under_attack():
            send_mutated(attacked, dice, MUTATED, with_bogus=not settings)
        attacked.check_nothing_confirmed()


def test_who_claims_to_have_the_log_is_not_believed(tmp_path: Path) -> None:
    with ExitStack() as stack:
        attacked = Attacked(tmp_path, stack)
        with attacked.under_attack():
            lie(attacked, 50)
        attacked.check_nothing_confirmed()


def test_slow_readers_take_no_memory_and_no_time(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    with ExitStack() as stack:
        # However long they take, they are slaves that say something now and then.
        attacked = Attacked(tmp_path, stack, silence_ms=600_000)
        # 34 MiB; if each of them had all of it in a buffer of the master, that were 544 MiB.
        for _ in range(600):
            attacked._client.send(Message(topic="T", body=dice.randbytes(60_000)))
        with (
            attacked.under_attack(growth=200 << 20) as check,
            slow_readers(attacked, 16) as read,
        ):
            for _ in range(10):
                read()
                check()
        attacked.check_nothing_confirmed()


@pytest.mark.parametrize("settings", [{}, SECRET], ids=["plain", "secret"])
def test_a_flood_of_connections_leaves_room_for_slaves(
    tmp_path: Path, seed: int, settings: dict[str, Any], many_files: int
) -> None:
    dice = random.Random(seed)
    with ExitStack() as stack:
        attacked = Attacked(tmp_path, stack, connection_count_max=CONNECTIONS_MAX, **settings)
        with attacked.under_attack() as check, flood(attacked, many_files, dice) as peers:
            check()
            eventually(lambda: still_open(peers) <= CONNECTIONS_MAX + IN_KERNEL)
        attacked.check_nothing_confirmed()


def test_the_slave_comes_in_during_a_flood_and_is_the_one_who_confirms(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every acknowledged message is at the slave, whatever others say meanwhile."""
    monkeypatch.setattr("pymq.broker.ha.slave.RETRY_S", 0.1)
    monkeypatch.setattr("pymq.broker.ha.slave.REFUSED_RETRY_S", 0.1)
    rules = {"role": Role.SYNC_MASTER, "slave_timeout_ms": 500, **SECRET}
    with pair_of(tmp_path, replication=rules, slave_replication=SECRET) as pair:
        pair.admin.topics.create("T", queue_count=1)
        stop = threading.Event()
        attackers = [
            threading.Thread(target=attack, args=(pair, stop, random.Random(seed + n)))
            for n in range(2)
        ]
        for attacker in attackers:
            attacker.start()
        try:
            for _ in range(3):
                pair.slave.stop_broker()
                pair.slave.start_broker()
                eventually(lambda: status_of(pair) is SendStatus.OK)
                for _ in range(100):
                    if status_of(pair) is SendStatus.OK:
                        assert pair.slave_end() >= pair.end
        finally:
            stop.set()
            for attacker in attackers:
                attacker.join()
        pair.wait_equal()


def attack(pair: Pair, stop: threading.Event, dice: random.Random) -> None:
    """Connect again and again, say something and hang up, or not yet."""
    assert pair.master._broker is not None
    found = pair.master._broker._ha_socket
    assert found is not None
    address = found.getsockname()
    peers: list[socket.socket] = []
    while not stop.is_set():
        try:
            peer = socket.create_connection(address, timeout=10.0)
        except OSError:  # so many wait to be accepted
            time.sleep(0.01)
            continue
        peers.append(peer)
        try:
            hello = encode_hello(dice.randbytes(28))
            peer.sendall(dice.choice((b"", hello, struct.pack(">q", 1 << 10), hello[:20])))
            if dice.randrange(2):
                challenge = peer.recv(FRAME_BYTES, socket.MSG_DONTWAIT)
                peer.sendall(encode_proof(WRONG, hello, challenge))
        except OSError:
            pass
        if len(peers) > 200:
            peers.pop(dice.randrange(len(peers))).close()
        time.sleep(0.001)
    for peer in peers:
        peer.close()
