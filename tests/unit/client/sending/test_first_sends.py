"""The first sends of a producer, which all wait for the route of their topic."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pymq.client.cluster.pool import ClientPool
from pymq.client.cluster.routes import Route
from pymq.client.sending import send_template
from pymq.client.sending.producer_config import ProducerConfig
from pymq.client.sending.queue_selection import TopicQueues
from pymq.client.sending.send_template import SEND, SendTemplate
from pymq.client.sending.sender import Sender
from pymq.clock import Clock
from pymq.protocol.bodies import MessageQueue

QUEUES = tuple(MessageQueue("T", "a", number) for number in range(4))
ROUTE = Route("T", QUEUES, QUEUES, {"a": {0: "h:1"}})


def sender(route: Any) -> Sender:
    network = SimpleNamespace(send_address=str, namespace=None)
    pool = SimpleNamespace(network=network, routes=SimpleNamespace(route=route), is_open=True)
    config = ProducerConfig(name_servers=("h:9876",), producer_group="G")
    return Sender(cast(ClientPool, pool), config, clock=Clock())


def test_the_queues_are_made_once_for_all_that_wait() -> None:
    async def test() -> list[TopicQueues]:
        known = asyncio.Event()

        async def route(topic: str, **_: object) -> Route:
            await known.wait()
            return ROUTE

        made = sender(route)
        waiting = [asyncio.create_task(made.topic_queues("T")) for _ in range(50)]
        await asyncio.sleep(0)
        known.set()
        return [*(await asyncio.gather(*waiting)), made.topics["T"]]

    found = asyncio.run(test())
    assert len(found) == 51 and len({id(one) for one in found}) == 1


def test_those_that_wait_take_turns() -> None:
    """Each with queues of its own would begin at a queue by chance."""

    async def test() -> list[int]:
        async def route(topic: str, **_: object) -> Route:
            await asyncio.sleep(0)
            return ROUTE

        made = sender(route)

        async def choose() -> int:
            return (await made.topic_queues("T")).next(()).queue.queue_id

        return list(await asyncio.gather(*(choose() for _ in range(8))))

    assert sorted(asyncio.run(test())) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_header_is_made_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    header_format = send_template._header_format

    def count(code: int, *args: Any) -> str:
        made.append(code)
        return header_format(code, *args)

    monkeypatch.setattr(send_template, "_header_format", count)
    template = SendTemplate(QUEUES[0], "h:1", group="G", default_topic_queue_count=4)
    assert made == []
    for opaque in range(3):
        assert template.head(opaque, 0, '""', sys_flag=0, born_ms=0, flag=0)
    assert made == [SEND]
