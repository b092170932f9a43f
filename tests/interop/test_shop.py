"""The shop on RocketMQ's own brokers, and RocketMQ's own client on what the shop says."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.interop.java_client import JavaPushConsumer
from tests.interop.java_scenarios import ClientFactory
from tests.interop.peers import RealBroker, RealNameServer
from tests.shop.in_process import migrated, open_shop
from tests.shop.patience import patient_story
from tests.shop.test_story import LATE, QUICK

from pymq import Admin, RouteNotFound
from shop.settings import PAY_WAYS
from shop.story.__main__ import lines
from shop.story.tale import Plan, tell
from shop.topics import ORDER_TOPIC, PAY_TOPIC

pytestmark = pytest.mark.interop

VERSION = "5.3.3"
ORDERS = 80
KILLS = 4
#: A broker asks soon what became of a transaction, because the story does not take long.
CHECK_AFTER_MS, CHECK_EACH_MS = 2_000, 3_000


@dataclass(frozen=True, slots=True)
class Pair:
    """Two brokers of RocketMQ, and their name server."""

    name_server: str
    brokers: tuple[RealBroker, ...]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """The first of them is killed in the story.

    Nothing else is there: what was delayed in one story comes when it is over, and another shop
    would be told of orders that it does not have.
    """
    with RealNameServer(VERSION) as server, ExitStack() as stack:
        brokers = [
            stack.enter_context(
                RealBroker(
                    VERSION,
                    [server.address],
                    brokerName=name,
                    transactionTimeOut=CHECK_AFTER_MS,
                    transactionCheckInterval=CHECK_EACH_MS,
                )
            )
            for name in ("broker-a", "broker-b")
        ]
        yield Pair(server.address, tuple(brokers))


@pytest.mark.by_turns(of="stories of the shop", turn="rocketmq")
def test_a_story_on_rocketmq(pair: Pair, tmp_path: Path, seed: int) -> None:
    """Services, the relay and a broker are killed; the seed decides how is paid."""
    pay_by = random.Random(seed).choice(PAY_WAYS)
    plan = Plan(
        orders=ORDERS,
        kills=KILLS,
        late_rate=LATE,
        seed=seed,
        settings=replace(QUICK, pay_by=pay_by, broker=pair.name_server),
        at_once=20,
        brokers=0,
    )

    async def main() -> None:
        story = asyncio.create_task(tell(plan, tmp_path))
        while "broker-a" not in await used_brokers(pair) and not story.done():
            await asyncio.sleep(0.2)
        assert not story.done(), "it was over before the broker died"
        await asyncio.to_thread(pair.brokers[0].kill)
        await asyncio.to_thread(pair.brokers[0].start)
        outcome = await story
        print(f"PAY_BY={pay_by}", *lines(plan, outcome), sep="\n")
        assert not outcome.problems, "\n".join(outcome.problems)
        # On a slow machine a third of the customers come too late to pay.
        assert outcome.report.orders["paid"] > ORDERS // 10
        assert await used_brokers(pair) == {"broker-a", "broker-b"}

    with patient_story():
        asyncio.run(main())


async def used_brokers(pair: Pair) -> set[str]:
    """Return the brokers that have messages of the shop."""
    async with Admin(pair.name_server) as admin:
        try:
            bounds = await admin.topics.status(ORDER_TOPIC) | await admin.topics.status(PAY_TOPIC)
        except RouteNotFound:
            return set()
    return {queue.broker_name for queue, one in bounds.items() if one.max_offset > 0}


def test_javas_client_reads_orders(java_client: ClientFactory, tmp_path: Path) -> None:
    """Of a pymq cluster: bodies, keys and tags are what the README says."""

    async def main() -> None:
        template = migrated(tmp_path / "template")
        async with open_shop(tmp_path / "shop", template) as shop:
            await shop.load(coupons=1)
            kept = (await shop.confirm("kept")).json()
            given_up = (await shop.confirm("given-up", couponId="c-u0-0", moneyPaid="5.00")).json()
            answer = await shop.post(f"orders/order/{given_up['orderId']}/cancel", {})
            assert answer.status_code == 200, answer.text
            await shop.settle_outboxes()
            found = await asyncio.to_thread(_read, java_client, shop.cluster.name_server)
        cancelled = found.pop(("order_cancel", given_up["orderId"]))
        assert cancelled == {
            "orderId": given_up["orderId"],
            "couponId": "c-u0-0",
            "goodsId": "tea",
            "goodsNumber": 2,
            "userId": "u0",
            "userMoney": "5.00",
        }
        confirmed = {("order_confirmed", one["orderId"]) for one in (kept, given_up)}
        assert found.keys() == confirmed
        for (_, order_id), body in found.items():
            assert (body["orderId"], body["goodsId"]) == (order_id, "tea")

    asyncio.run(main())


def _read(java_client: ClientFactory, name_server: str) -> dict[tuple[str, str], dict[str, object]]:
    """Return bodies by tag and key."""
    with JavaPushConsumer(
        java_client(VERSION),
        "java-figures",
        name_server,
        "orderTopic",
        "order_cancel || order_confirmed",
    ) as consumer:
        messages = consumer.wait_count(3)
    return {
        (message.tags or "", message.keys or ""): json.loads(message.body) for message in messages
    }
