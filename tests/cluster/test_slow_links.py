"""Producers over a link that takes longer for what is in flight than an answer may take."""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

import pytest
from tests.cluster.fake_broker import FakeBroker
from tests.cluster.played import PlayedNameServer, route_to
from tests.cluster.running import DEADLINE_S, TIMEOUT_S, run
from tests.cluster.slow_link import SlowLink
from tests.cluster.test_batch_pipeline import FREEZE, Shelf

from pymq.client.sending.producer import Producer
from pymq.client.sending.receipts import SendReceipt
from pymq.client.sockets.batch_targets import BatchTarget
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.client.sockets.bulk_client import BulkClient
from pymq.errors import ConnectionFailed, RequestTimeout
from pymq.net.asking import AskingWire
from pymq.net.connecting import Peer, connect_sockets
from pymq.net.server import ServerConnection
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
from pymq.protocol.message import Message

#: Five times what passes within the time of an answer, which a busy machine must not miss.
BODY, COUNT, BYTES_PER_S, ANSWER_S = bytes(1 << 18), 60, 2 << 20, 1.5

_Work: TypeAlias = Callable[[FakeBroker, SlowLink, Producer], Awaitable[None]]


async def with_producer(work: _Work, *, deadline_s: float, retries: int = 5) -> None:
    async with FakeBroker() as broker, SlowLink(broker.address, bytes_per_s=BYTES_PER_S) as link:
        broker.advertise = link.address
        producer = Producer(
            broker.address,
            timeout_s=ANSWER_S,
            deadline_s=deadline_s,
            retries=retries,
            compress_bytes_min=None,
        )
        async with producer:
            await producer.send(Message("T", b"first"))
            broker.sent.clear()
            await work(broker, link, producer)


def test_each_message_is_sent_once(caplog: pytest.LogCaptureFixture) -> None:
    async def work(broker: FakeBroker, link: SlowLink, producer: Producer) -> None:
        sends = [producer.send_nowait(Message("T", BODY)) for _ in range(COUNT)]
        # They fill the connection, and are not all there are: its heartbeats wait behind them.
        heard = [producer._pool.heartbeats.send(link.address) for _ in range(2)]
        await asyncio.gather(*heard)
        await asyncio.gather(*sends)
        assert len(broker.sent) == COUNT
        assert "given up" not in caplog.text

    run(with_producer(work, deadline_s=300))


def test_a_peer_that_takes_nothing_at_all_is_not_waited_for() -> None:
    async def work(broker: FakeBroker, link: SlowLink, producer: Producer) -> None:
        link.is_frozen = True
        sends = [producer.send_nowait(Message("T", BODY)) for _ in range(COUNT)]
        results = await asyncio.gather(*sends, return_exceptions=True)
        assert {type(result) for result in results} == {RequestTimeout}

    run(with_producer(work, deadline_s=3600, retries=0))


@pytest.mark.parametrize(
    ("names", "left_s"), [(("broker-a",), 0.0), (("broker-a", "broker-b"), TIMEOUT_S)]
)
def test_time_is_left_for_another_broker_only_where_there_is_one(
    names: tuple[str, ...], left_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a message would be sent again over its slow link, behind itself."""
    limits: list[float] = []
    register = AskingWire.register

    def recorded(self: AskingWire, *of: Any, until_s: float = 0.0, **more: Any) -> int:
        if until_s:
            limits.append(until_s)
        return register(self, *of, until_s=until_s, **more)

    monkeypatch.setattr(AskingWire, "register", recorded)

    async def test() -> None:
        time_s = asyncio.get_running_loop().time
        async with FakeBroker(*names) as broker:
            producer = Producer(broker.address, timeout_s=TIMEOUT_S, deadline_s=DEADLINE_S)
            async with producer:
                for _ in range(2):  # with waiting in between, and at once
                    limits.clear()
                    first_s = time_s()
                    await producer.send(Message("T", b"x"))
                    [until_s] = limits
                    assert first_s <= until_s + left_s - DEADLINE_S <= time_s()

    run(test())


class TricklingBroker(FakeBroker):
    """Takes all at once, and answers sends one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self._held: deque[tuple[ServerConnection, Command]] = deque()

    def on_command(self, connection: ServerConnection, command: Command) -> None:
        if command.code == RequestCode.SEND_MESSAGE_V2:
            self._held.append((connection, command))
        else:
            super().on_command(connection, command)

    async def trickle(self, answers_per_s: float) -> None:
        while True:
            await asyncio.sleep(1 / answers_per_s)
            if self._held:
                super().on_command(*self._held.popleft())


def test_a_broker_that_is_behind_gets_nothing_new_and_is_not_waited_for_forever() -> None:
    """Its link is fast: another broker may have the next messages stored at once."""

    async def test() -> None:
        async with TricklingBroker() as broker:
            producer = Producer(broker.address, timeout_s=ANSWER_S, deadline_s=3600, retries=0)
            async with producer, asyncio.timeout(60):
                trickling = asyncio.create_task(broker.trickle(5))
                sends = [producer.send_nowait(Message("T", b"x")) for _ in range(300)]
                while not producer._sender._health.names:
                    await asyncio.sleep(0.05)
                    sends.append(producer.send_nowait(Message("T", b"x")))
                assert not any(send.done() and send.exception() for send in sends)
                results = await asyncio.gather(*sends, return_exceptions=True)
                trickling.cancel()
        assert {type(result) for result in results} == {SendReceipt, RequestTimeout}
        late = [str(result) for result in results if isinstance(result, RequestTimeout)]
        assert not [text for text in late if f"within {ANSWER_S:g} s" in text]

    run(test())


# --------------------------------------------------------------------------- plain sockets

#: Takes more than twice the time of an answer.
LARGE, SLOW_BYTES_PER_S = os.urandom(7 << 19), 1 << 20


def send_one(name_server: str, timeout_s: float = ANSWER_S) -> None:
    with BlockingClient(name_server, timeout_s=timeout_s, send_retries=0) as client:
        client.send_batch(None, [Message("T", LARGE)])


def send_batches(name_server: str, timeout_s: float = ANSWER_S, count: int = 7) -> None:
    step = len(LARGE) // count
    with BulkClient(name_server, timeout_s=timeout_s) as client:
        pipeline = client.batch_pipeline(in_flight_max=7, retry_s=0.0)
        for start in range(0, len(LARGE), step):
            pipeline.send(BatchTarget("T"), LARGE[start : start + step])
        pipeline.flush()


@pytest.mark.parametrize(("send", "count"), [(send_one, 1), (send_batches, 7)])
def test_each_is_sent_once_over_plain_sockets(send: Callable[[str], None], count: int) -> None:
    async def test() -> None:
        with PlayedNameServer() as name_server, Shelf("broker-a", is_pymq=True) as broker:
            async with SlowLink(broker.address, bytes_per_s=SLOW_BYTES_PER_S) as link:
                name_server.routes["T"] = route_to(link.address)
                await asyncio.to_thread(send, name_server.address)
            assert len(broker.stored) == count

    run(test())


def connect_with_little_room(
    peers: Iterable[Peer], *, timeout_s: float
) -> dict[Peer, socket.socket | OSError | UnicodeError]:
    """Connect as usual; the kernel takes less than a request, as on a link that is not loopback."""
    found = connect_sockets(peers, timeout_s=timeout_s)
    for connection in found.values():
        if isinstance(connection, socket.socket):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 17)
    return found


def test_writing_takes_nothing_of_the_wait_for_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request is written for longer than an answer may take."""
    timeout_s = 3.0
    monkeypatch.setattr("pymq.net.blocking.connect_sockets", connect_with_little_room)

    async def stored(send: Callable[[str], None], *script: int) -> int:
        with PlayedNameServer() as name_server, Shelf("broker-a", is_pymq=True) as broker:
            broker.script = list(script)
            async with SlowLink(broker.address, bytes_per_s=SLOW_BYTES_PER_S / 2) as link:
                name_server.routes["T"] = route_to(link.address)
                await asyncio.to_thread(send, name_server.address)
            return len(broker.stored)

    def send_one_at_once(name_server: str) -> None:
        send_one(name_server, timeout_s)

    def send_one_batch(name_server: str) -> None:
        send_batches(name_server, timeout_s, count=1)

    async def not_answered(send: Callable[[str], None]) -> None:
        with pytest.raises(RequestTimeout, match=r"within ([6-9]|\d\d) s"):
            await stored(send, FREEZE)

    async def test() -> None:
        one, batch, *_ = await asyncio.gather(
            stored(send_one_at_once),
            stored(send_one_batch),
            not_answered(send_one_at_once),
            not_answered(send_one_batch),
        )
        assert one == batch == 1

    run(test())


def test_plain_sockets_do_not_wait_for_a_peer_that_takes_nothing() -> None:
    async def test() -> None:
        with PlayedNameServer() as name_server, Shelf("broker-a", is_pymq=True) as broker:
            async with SlowLink(broker.address, bytes_per_s=SLOW_BYTES_PER_S) as link:
                name_server.routes["T"] = route_to(link.address)
                link.is_frozen = True
                for send in (send_one, send_batches):
                    with pytest.raises((ConnectionFailed, RequestTimeout)):
                        await asyncio.to_thread(send, name_server.address)
            assert not broker.stored

    run(test())
