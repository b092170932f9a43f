"""Producers over a link that takes longer for what is in flight than an answer may take."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest
from tests.cluster.fake_broker import FakeBroker
from tests.cluster.running import run
from tests.cluster.slow_link import SlowLink

from pymq.client.sending.producer import Producer
from pymq.errors import RequestTimeout
from pymq.protocol.message import Message

#: Twelve times what passes within the time of an answer.
BODY, COUNT, BYTES_PER_S, ANSWER_S = bytes(1 << 18), 48, 4 << 20, 0.25

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
