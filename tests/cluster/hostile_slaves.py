"""Peers of the HA port that are no slaves, or bad ones, and a master that must not mind them.

What must hold: a SYNC_MASTER acknowledges nothing on their word; producers and requests go on
meanwhile; no turn of the event loop takes long; memory and file descriptors stay as they are.
"""

import asyncio
import os
import random
import select
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from tests.administration import admin_of
from tests.cluster.fuzz_run import TURN_S, resident_bytes

from pymq.broker.replication_config import Role
from pymq.client.operations import SendStatus
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.protocol.message import Message
from pymq.protocol.replication_secret import encode_challenge, encode_hello, encode_proof
from pymq.testing import Cluster

SEGMENT_BYTES: Final = 64 << 20
#: While an attack lasts, at least so many messages and answers.
PROGRESS_LEAST: Final = 3
#: What memory may grow by during an attack.
GROWTH_BYTES: Final = 48 << 20
#: Nobody's secret.
WRONG: Final = b"not the secret of the master"
_LOCALHOST: Final = "127.0.0.1"
#: What must come, by then it has come.
DEADLINE_S: Final = 120.0
_ANSWER_S: Final = 30.0


def open_files() -> int:
    """Return how many file descriptors this process has."""
    return len(os.listdir("/proc/self/fd"))


class Attacked:
    """A master that waits for its slaves, one producer, and one that asks how it is.

    Attributes:
        statuses: of what was sent.
        pings: how often it has answered.
    """

    def __init__(self, root: Path, stack: ExitStack, **replication: Any) -> None:
        rules = {"role": Role.SYNC_MASTER, "slave_timeout_ms": 200, **replication}
        self.cluster = stack.enter_context(
            Cluster(root, replication=rules, store_settings={"segment_bytes": SEGMENT_BYTES})
        )
        self._client = stack.enter_context(self._new_client())
        self.admin = admin_of(self._client)
        self.admin.topics.create("T", queue_count=1)
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self._longest_turn_s = 0.0
        self.statuses: Counter[SendStatus] = Counter()
        self.pings = 0
        assert self.cluster._loop is not None
        watching: Future[None] = asyncio.run_coroutine_threadsafe(
            self._watch_turns(), self.cluster._loop
        )
        stack.callback(watching.cancel)
        threads = [
            threading.Thread(target=self._repeat, args=(step,)) for step in (self._send, self._ping)
        ]
        for thread in threads:
            thread.start()
            stack.callback(thread.join)
        stack.callback(self._stop.set)

    async def _watch_turns(self) -> None:
        while True:
            before_s = time.thread_time()
            await asyncio.sleep(0.01)
            self._longest_turn_s = max(self._longest_turn_s, time.thread_time() - before_s)

    def _new_client(self) -> BlockingClient:
        return BlockingClient(self.cluster.name_server, timeout_s=_ANSWER_S)

    def _repeat(self, step: Callable[[BlockingClient], None]) -> None:
        try:
            with self._new_client() as client:
                while not self._stop.is_set():
                    step(client)
        except BaseException as error:
            self._errors.append(error)

    def _send(self, client: BlockingClient) -> None:
        status = client.send(Message(topic="T", body=b"x" * 100)).status
        self.statuses[status] += 1
        time.sleep(0.005)

    def _ping(self, client: BlockingClient) -> None:
        admin_of(client).brokers.state(self.cluster.broker_address)
        self.pings += 1
        time.sleep(0.01)

    @property
    def end(self) -> int:
        """Where the log ends."""
        return int(self.admin.brokers.state(self.cluster.broker_address)["commitLogMaxOffset"])

    @property
    def ha_address(self) -> tuple[str, int]:
        """The HA port."""
        assert self.cluster._broker is not None
        found = self.cluster._broker._ha_socket
        assert found is not None
        host, port = found.getsockname()[:2]
        return host, port

    def connect(self, source: str = _LOCALHOST) -> socket.socket:
        """Return a connection to the HA port."""
        peer = socket.create_connection(
            self.ha_address, timeout=DEADLINE_S, source_address=(source, 0)
        )
        peer.settimeout(10.0)
        return peer

    def check_goes_on(self) -> None:
        """Wait for a few more messages and answers."""
        sent, pings = self.statuses.total(), self.pings
        deadline = time.monotonic() + DEADLINE_S
        while self.statuses.total() < sent + PROGRESS_LEAST or self.pings < pings + PROGRESS_LEAST:
            assert not self._errors, self._errors
            assert time.monotonic() < deadline, "producers or requests are held up"
            time.sleep(0.01)

    @contextmanager
    def under_attack(self, *, growth: int = GROWTH_BYTES) -> Iterator[Callable[[], None]]:
        """Check after the block that everything is as it was; yields what checks it during it."""
        self.check_goes_on()
        memory, files = resident_bytes(), open_files()

        def check() -> None:
            self.check_goes_on()
            more = resident_bytes() - memory
            assert more < growth, f"{more >> 20} MiB more, expected less than {growth >> 20}"

        yield check
        check()
        deadline = time.monotonic() + DEADLINE_S
        while open_files() > files + 8:
            assert time.monotonic() < deadline, f"{open_files()} open files, {files} before"
            time.sleep(0.05)
        assert self._longest_turn_s < TURN_S, f"a turn of {self._longest_turn_s:.2f} s"
        assert not self._errors, self._errors

    def check_nothing_confirmed(self) -> None:
        """Nobody has the messages, and nobody was told so; all are stored here."""
        assert self.statuses[SendStatus.OK] == 0, self.statuses
        assert set(self.statuses) <= {
            SendStatus.SLAVE_NOT_AVAILABLE,
            SendStatus.FLUSH_SLAVE_TIMEOUT,
        }
        sent = self.statuses.total()
        ((first, end),) = self._client.bounds(self._client.read_queues("T")).values()
        assert end - first >= sent > 0


# ------------------------------------------------------------------------------- what they say


def bogus(dice: random.Random, end: int) -> bytes:
    """Return a word that ends a connection of a master without a secret."""
    match dice.randrange(4):
        case 0:
            value = end + (1 << 20) + dice.randrange(1 << dice.randrange(1, 62))
        case 1:
            value = -dice.randrange(2, 1 << dice.randrange(2, 63))
        case 2:
            value = dice.choice((-2, -(1 << 63), (1 << 63) - 1, 1 << 32))
        case _:
            return dice.choice((b"\x16\x03\x01\x02", encode_hello(bytes(28))[:4])) + b"\xfe" * 4
    return struct.pack(">q", value)


def frame(dice: random.Random, end: int) -> bytes:
    """Return what a peer may say."""
    kind = dice.randrange(8)
    if kind == 0:
        return struct.pack(">q", dice.choice((0, -1, end, dice.randrange(end + 1))))
    if kind in (1, 2):
        return bogus(dice, end)
    if kind == 3:
        return struct.pack(">ihhq", dice.choice((1, 2, 3)), 0, 0, dice.randrange(1 << 16))
    if kind == 4:
        return struct.pack(">iq", 2, -1 - dice.randrange(1 << 40))
    hello = encode_hello(dice.randbytes(28))
    if kind == 5:
        return hello
    challenge = encode_challenge(dice.randbytes(32))
    if kind == 6:
        return hello + encode_proof(WRONG, hello, challenge)
    return dice.choice((hello, challenge, encode_proof(WRONG, hello, challenge)))


def mutated(dice: random.Random, data: bytes) -> bytes:
    """Return it with some change, or none."""
    changed = bytearray(data)
    match dice.randrange(6):
        case 0:
            changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
        case 1:
            del changed[dice.randrange(len(changed)) :]
        case 2:
            changed += dice.randbytes(dice.randrange(1, 8))
        case 3:
            changed *= dice.randrange(2, 5)
    return bytes(changed)


def send_mutated(
    attacked: Attacked, dice: random.Random, count: int, *, with_bogus: bool
) -> None:
    """Send some frames, over many connections, which end in all ways that there are.

    Args:
        with_bogus: whether there is always a word that ends the connection before what might be,
            by chance, the report of a slave.
    """
    end = attacked.end
    while count > 0:
        some = min(count, dice.choice((1, 2, 3, 20)))
        count -= some
        data = b"".join(mutated(dice, frame(dice, end)) for _ in range(some))
        if with_bogus:
            data = bogus(dice, end) + struct.pack(">q", end) + data
        if dice.randrange(2) == 0:  # a good beginning
            data = dice.choice((struct.pack(">q", 0), struct.pack(">qq", -1, 0))) + data
        with attacked.connect() as peer:
            try:
                cut = dice.randrange(len(data) + 1)
                peer.sendall(data[:cut])
                peer.sendall(data[cut:])
                match dice.randrange(3):
                    case 0:
                        peer.shutdown(socket.SHUT_WR)
                    case 1:
                        linger = struct.pack("ii", 1, 0)
                        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)  # a reset
            except OSError:
                pass  # it was faster


def lie(attacked: Attacked, count: int) -> None:
    """Claim to have the whole log, without a byte of it, each time from another address."""
    for number in range(count):
        with attacked.connect(f"127.1.{number // 250}.{number % 250 + 1}") as peer:
            try:
                peer.sendall(struct.pack(">q", attacked.end))
                peer.recv(1)
            except OSError:
                pass


@contextmanager
def slow_readers(attacked: Attacked, count: int) -> Iterator[Callable[[], None]]:
    """Have peers that read little of the log; yields what has each read one byte, and say so."""
    with ExitStack() as stack:
        peers = []
        for _ in range(count):
            peer = socket.socket()
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.settimeout(DEADLINE_S)
            stack.enter_context(peer)
            peer.connect(attacked.ha_address)
            peer.sendall(struct.pack(">qq", -1, 0))
            peers.append(peer)

        def read() -> None:
            for peer in peers:
                peer.recv(1)
                peer.sendall(struct.pack(">q", 0))

        yield read


@contextmanager
def flood(attacked: Attacked, count: int, dice: random.Random) -> Iterator[list[socket.socket]]:
    """Have many connections that say nothing, or the beginning of something."""
    with ExitStack() as stack:
        peers = []
        for _ in range(count):
            peer = socket.socket()
            peer.settimeout(10.0)
            stack.enter_context(peer)
            try:
                peer.connect(attacked.ha_address)
                peer.sendall(dice.choice((b"", b"\x16\x03", encode_hello(dice.randbytes(28))[:39])))
            except OSError:
                pass
            peers.append(peer)
        yield peers


def still_open(peers: list[socket.socket]) -> int:
    """Return how many connections the other side has not closed."""
    poll = select.poll()
    for peer in peers:
        poll.register(peer, select.POLLRDHUP)
    return len(peers) - len(poll.poll(0))
