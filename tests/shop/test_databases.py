"""Orders on servers: stories with kills, also of the database itself."""

import asyncio
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text
from tests.shop.in_process import open_shop_on
from tests.shop.servers import SERVERS, Server
from tests.shop.test_story import QUICK

from shop.database import open_engine
from shop.goods.tables import Good
from shop.story.__main__ import lines
from shop.story.tale import Plan, tell

ORDERS = int(os.environ.get("PYMQ_SHOP_ORDERS", "200"))


@pytest.mark.crash
@pytest.mark.parametrize("name", SERVERS)
def test_orders_with_kills(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, seed: int
) -> None:
    server: Server = request.getfixturevalue(name)
    pay_by = random.Random(seed).choice(["outbox", "transaction"])
    plan = Plan(
        orders=ORDERS,
        kills=ORDERS // 50,
        late_rate=0.01,
        seed=seed,
        settings=replace(QUICK, pay_by=pay_by, database=server.create()),
        at_once=20,
    )
    outcome = asyncio.run(tell(plan, tmp_path))
    print(name, f"PAY_BY={pay_by}", *lines(plan, outcome), sep="\n")
    assert not outcome.problems, "\n".join(outcome.problems)
    assert outcome.report.orders["paid"] > ORDERS // 3


@pytest.mark.parametrize("kind", SERVERS, indirect=True)
def test_the_server_is_killed_under_load(
    kind: str, url: str, request: pytest.FixtureRequest
) -> None:
    """Twice, while customers order and pay; nobody restarts a service."""
    server: Server = request.getfixturevalue(kind)

    async def main() -> None:
        async with open_shop_on(url) as shop:
            await shop.load(users=30, coupons=1)

            async def live(number: int) -> None:
                answer = await shop.confirm(
                    f"key-{number}", userId=f"u{number}", couponId=f"c-u{number}-0"
                )
                if answer.status_code == 200:
                    await shop.pay(answer.json()["orderId"])

            customers = [asyncio.create_task(live(number)) for number in range(30)]
            for _ in range(2):
                await asyncio.sleep(0.3)
                await asyncio.to_thread(server.kill)
                await asyncio.sleep(0.3)
                await asyncio.to_thread(server.start)
            await asyncio.gather(*customers)
            report = await shop.settle()
            assert not report.findings, "\n".join(map(str, report.findings))
            assert report.orders.get("paid", 0) > 0

    asyncio.run(main())


@pytest.mark.parametrize("kind", SERVERS, indirect=True)
def test_texts_and_ids_are_kept_as_they_are(kind: str, url: str) -> None:
    """Ids that differ in case, characters beyond the BMP, and cents that a float would lose."""

    async def main() -> None:
        async with open_shop_on(url) as shop:
            several = [
                {
                    "goodsId": goods_id,
                    "goodsName": "\N{TEACUP WITHOUT HANDLE} 茶",
                    "goodsNumber": 1,
                    "goodsPrice": "999999999999.99",
                    "goodsDesc": "é",
                }
                for goods_id in ("tea", "Tea", "TEA")
            ]
            answer = await shop.post("goods/goods", {"goods": several})
            assert answer.status_code == 200, answer.text
            rows = shop.select("goods", Good.goods_id, Good.goods_name, Good.goods_price)
            assert {row.goods_id for row in rows} == {"tea", "Tea", "TEA"}
            assert {row.goods_name for row in rows} == {"\N{TEACUP WITHOUT HANDLE} 茶"}
            assert {str(row.goods_price) for row in rows} == {"999999999999.99"}

    asyncio.run(main())
    engine = open_engine(url)
    with engine.connect() as connection:
        isolation = connection.get_isolation_level()
        assert connection.scalar(text("SELECT 1")) == 1
    engine.dispose()
    assert isolation == "READ COMMITTED"
