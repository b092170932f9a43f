"""Messages with a delivery time of their own."""

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.cluster.fake_broker import FakeBroker
from tests.cluster.running import run
from tests.cluster.scenarios import TIMEOUT_S

from pymq import Batcher, BlockingClient, Consumer, Message, Producer
from pymq.errors import (
    BrokerError,
    ConfigurationError,
    LocalProtocolError,
    NoPermission,
    RouteNotFound,
)
from pymq.net.server import ServerConnection
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
from pymq.protocol.recall_handles import RecallHandle
from pymq.testing import Cluster, wait_until


def test_it_is_delivered_when_it_should_be_and_not_before() -> None:
    async def test(cluster: Cluster) -> None:
        async with (
            Producer(cluster.name_server, timeout_s=TIMEOUT_S) as producer,
            Batcher(producer) as batcher,
        ):
            await producer.send(Message("T", b"now"))
            sent_s = time.time()
            at = datetime.now(UTC) + timedelta(seconds=2)
            await producer.send(Message("T", b"at", deliver_at=at))
            await producer.send(Message("T", b"after", delay_s=1.5, tags="t"))
            await batcher.send(Message("T", b"batched", delay_s=1.5))
            consumer = Consumer(cluster.name_server, "g", from_where="earliest").subscribe("T")
            stored = {}
            async with consumer:
                async for message in consumer:
                    stored[message.body] = message.store_timestamp_ms / 1000
                    if len(stored) == 4:
                        break
            assert stored[b"at"] >= at.timestamp() - 0.001
            assert min(stored[b"after"], stored[b"batched"]) >= sent_s + 1.5 - 0.001

    with Cluster(store_settings={"timer_precision_ms": 100}) as cluster:
        run(test(cluster))


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"delay_s": -1}, "delay_s=-1, expected seconds, above 0"),
        ({"delay_s": float("inf")}, "delay_s=inf"),
        ({"delay_s": "5"}, "delay_s='5'"),
        ({"deliver_at": datetime(2030, 1, 1)}, "with a time zone"),
        ({"deliver_at": 5}, "deliver_at=5, expected a datetime"),
        ({"delay_s": 5, "delay_level": 1}, "one of them at most"),
        ({"delay_s": 5, "deliver_at": datetime.now(UTC)}, "one of them at most"),
    ],
)
def test_delays_that_are_none_are_refused(wrong: dict[str, Any], reason: str) -> None:
    async def test() -> None:
        async with FakeBroker() as broker, Producer(broker.address) as producer:
            with pytest.raises(LocalProtocolError, match=reason):
                await producer.send(Message("T", b"x", **wrong))
            with pytest.raises(LocalProtocolError, match="cannot be in a batch"):
                await producer.send_batch([Message("T", b"x", delay_s=1)])

    run(test())
    with pytest.raises(LocalProtocolError, match="are for Producer"):
        BlockingClient("127.0.0.1:1").send(Message("T", b"x", delay_s=1))


def test_a_broker_that_would_ignore_the_time_does_not_get_the_message() -> None:
    class Old(FakeBroker):
        def on_command(self, connection: ServerConnection, command: Command) -> None:
            if command.code == RequestCode.HEART_BEAT:
                answer = command.reply(0, fields={})
                answer.version = 400
                connection.respond(command, answer)
            else:
                super().on_command(connection, command)

    async def test() -> None:
        async with Old() as broker, Producer(broker.address) as producer:
            await producer.send(Message("T", b"first"))
            with pytest.raises(ConfigurationError, match="version 400 .* at once"):
                await producer.send(Message("T", b"x", delay_s=1))
            assert len(broker.sent) == 1 and producer.in_flight_count == 0

    run(test())


def test_a_recalled_message_is_not_delivered() -> None:
    """Also when its broker has been started again; what cannot be recalled says why."""

    async def test(cluster: Cluster) -> None:
        async with Producer(cluster.name_server, timeout_s=TIMEOUT_S) as producer:
            kept, gone = [
                await producer.send(Message("T", body, delay_s=600)) for body in (b"kept", b"gone")
            ]
            assert await producer.recall(gone) == gone.message_id
            now = await producer.send(Message("T", b"now"))
            with pytest.raises(LocalProtocolError, match="has no recall_handle: only a message"):
                await producer.recall(now)
            with pytest.raises(LocalProtocolError, match="receipt=None: expected a SendReceipt"):
                await producer.recall(None)  # type: ignore[arg-type]
            with pytest.raises(LocalProtocolError, match="'nonsense' is no recall handle"):
                await producer.recall("nonsense")
            assert kept.recall_handle is not None
            with pytest.raises(RouteNotFound, match="topic 'Other'"):
                await producer.recall(kept.recall_handle, topic="Other")
            handle = RecallHandle.decode(kept.recall_handle)
            elsewhere = replace(handle, broker_name="broker-z").encode()
            with pytest.raises(RouteNotFound, match="no master of broker 'broker-z'"):
                await producer.recall(elsewhere)
            past = replace(handle, time="1").encode()
            with pytest.raises(BrokerError):
                await producer.recall(past)
        cluster.broker("broker-a").restart()
        cluster.clock.advance(700)
        wait_until(lambda: len(cluster.messages("T")) >= 2, timeout_s=60)
        cluster.clock.advance(100)
        assert sorted(one.body for one in cluster.messages("T")) == [b"kept", b"now"]

    with Cluster(broker={"recall_messages": True}) as cluster:
        run(test(cluster))


def test_a_broker_that_recalls_nothing_says_how_it_would() -> None:
    async def test(cluster: Cluster) -> None:
        async with Producer(cluster.name_server) as producer:
            receipt = await producer.send(Message("T", b"x", delay_s=600))
            assert receipt.recall_handle is not None
            with pytest.raises(NoPermission, match="with recallMessageEnable=true"):
                await producer.recall(receipt)

    with Cluster() as cluster:
        run(test(cluster))
