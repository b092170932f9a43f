"""Our consumer with official brokers: what becomes of messages, also while a broker restarts."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final

import pytest
from tests.cluster.outcome_scenarios import (
    WAYS,
    nothing_is_lost_while_a_broker_restarts,
    outcomes_by_name,
    outcomes_from_another_thread,
)
from tests.handling import handle_until_async
from tests.interop.conftest import require_peers
from tests.interop.jvm import JavaClient
from tests.interop.mqadmin import Mqadmin
from tests.interop.peers import RealBroker, RealNameServer

from pymq import Consumer, Message, Producer, ReceivedMessage

pytestmark = [pytest.mark.interop, pytest.mark.by_turns("name_server")]

VERSIONS: Final = ("5.3.3", "4.9.7")
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
DELAYS: Final = " ".join(["1s"] * 18)


@pytest.fixture(scope="module", params=VERSIONS)
def name_server(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a name server whose broker has short delays."""
    require_peers(request.param)
    with ExitStack() as stack:
        server = stack.enter_context(RealNameServer(request.param))
        stack.enter_context(
            RealBroker(
                request.param,
                [server.address],
                messageDelayLevel=DELAYS,
                traceTopicEnable="true",
            )
        )
        yield server.address


@pytest.fixture
def topic() -> str:
    return f"consumer-{uuid.uuid4().hex[:12]}"


@pytest.mark.parametrize("way", WAYS)
def test_outcomes_by_name(name_server: str, topic: str, way: str) -> None:
    asyncio.run(outcomes_by_name(name_server, topic, way))


def test_outcomes_from_another_thread(name_server: str, topic: str) -> None:
    outcomes_from_another_thread(name_server, topic)


def test_official_tools_read_our_trace(
    name_server: str, topic: str, java_client: Callable[[str], JavaClient]
) -> None:
    """RocketMQ's own decoder takes every line, and its command line finds the message."""
    client = java_client("5.3.3")
    decode = client.jvm.org.apache.rocketmq.client.trace.TraceDataEncoder
    found: list[tuple[str, ...]] = []
    group = f"g-{topic}"
    handled: list[int] = []

    async def handler(message: ReceivedMessage) -> None:
        handled.append(message.reconsume_times)
        if message.reconsume_times == 0:
            raise ValueError("not the first time")

    async def work() -> str:
        async with Producer(name_server) as producer:
            sent = await producer.send(Message(topic, b"x", keys=["k1", "k2"]))
        consumer = Consumer(name_server, group, from_where="earliest", trace_topic=TRACE_TOPIC)
        async with consumer.subscribe(topic):
            await handle_until_async(consumer, handler, lambda: len(handled) == 2)
        reader = Consumer(name_server, f"t-{topic}", from_where="earliest")
        async with asyncio.timeout(120), reader.subscribe(TRACE_TOPIC):
            async for trace in reader:
                for context in decode.decoderFromTraceDataString(trace.body.decode()):
                    bean = context.getTraceBeans().get(0)
                    if bean.getMsgId() != sent.message_id:
                        continue
                    kind = str(context.getTraceType())
                    last = bean.getRetryTimes() if kind == "SubBefore" else context.isSuccess()
                    found.append(
                        (kind, context.getRequestId(), context.getGroupName(), bean.getKeys(),
                         str(context.getContextCode()), str(last))
                    )  # fmt: skip
                if len(found) >= 4:
                    break
        return sent.message_id

    message_id = asyncio.run(work())
    attempts = {one[-1]: one[1] for one in found if one[0] == "SubBefore"}
    first, second = attempts["0"], attempts["1"]
    assert sorted(found) == sorted(
        [
            ("SubBefore", first, group, "k1 k2", "0", "0"),
            ("SubAfter", first, group, "k1 k2", "2", "False"),
            ("SubBefore", second, group, "k1 k2", "0", "1"),
            ("SubAfter", second, group, "k1 k2", "0", "True"),
        ]
    )
    shown = Mqadmin(client).run(
        name_server, "queryMsgTraceById", "-i", message_id, "-t", TRACE_TOPIC
    )
    assert "Sub" in shown and group in shown and "success" in shown, shown


@pytest.mark.by_turns("version")
@pytest.mark.parametrize("version", VERSIONS)
def test_two_brokers_one_of_which_is_killed_and_restarted(version: str, topic: str) -> None:
    require_peers(version)
    with ExitStack() as stack:
        server = stack.enter_context(RealNameServer(version))
        brokers = [
            stack.enter_context(
                RealBroker(
                    version,
                    [server.address],
                    brokerName=f"broker-{letter}",
                    messageDelayLevel=DELAYS,
                    flushDiskType="SYNC_FLUSH",
                )
            )
            for letter in "ab"
        ]

        def restart() -> None:
            brokers[1].kill()
            brokers[1].start()

        nothing_is_lost_while_a_broker_restarts(server.address, topic, restart)
