"""Messages with a delivery time of their own."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.cluster.fake_broker import FakeBroker
from tests.cluster.running import run

from pymq import Batcher, BlockingClient, Consumer, Message, Producer
from pymq.errors import ConfigurationError, LocalProtocolError
from pymq.net.server import ServerConnection
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
from pymq.testing import Cluster


def test_it_is_delivered_when_it_should_be_and_not_before() -> None:
    async def test(cluster: Cluster) -> None:
        async with Producer(cluster.name_server) as producer, Batcher(producer) as batcher:
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
