"""What figures are made of is in the messages, and the same in each copy of them."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import text
from tests.shop.in_process import QUICK, Shop, open_shop

from pymq import ReceivedMessage
from shop import migrate
from shop.database import Database, open_engine
from shop.faults import Faults
from shop.payments.by_outbox import OutboxWay
from shop.payments.service import PAYMENTS
from shop.payments.tables import Outbox
from shop.topics import Paid


async def wait_told(shop: Shop, topic: str, tag: str) -> ReceivedMessage:
    await shop.settle_outboxes()
    (told,) = {
        one.keys[0]: one for one in shop.cluster.messages(topic) if one.tags == tag
    }.values()
    return told


@pytest.mark.parametrize("pay_by", ["outbox", "transaction"])
def test_a_payment_knows_its_goods(tmp_path: Path, template: Path, pay_by: str) -> None:
    async def main() -> None:
        async with open_shop(tmp_path, template, pay_by=pay_by) as shop:
            await shop.load()
            order = (await shop.confirm("key")).json()
            await shop.pay(order["orderId"])
            await shop.wait_status(order["orderId"], 1, 2)
            body = json.loads((await wait_told(shop, "payTopic", "paid")).body)
            assert (body["goodsId"], body["confirmTime"]) == ("tea", order["confirmTime"])
            paid = await shop.get(f"orders/order/{order['orderId']}")
            assert body["payTime"] == paid["payTime"]

    asyncio.run(main())


def test_times_of_orders_are_in_their_messages(tmp_path: Path, template: Path) -> None:
    async def main() -> None:
        async with open_shop(tmp_path, template) as shop:
            await shop.load()
            order = (await shop.confirm("key")).json()
            answer = await shop.post(f"orders/order/{order['orderId']}/cancel", {})
            told = await wait_told(shop, "orderTopic", "order_confirmed")
            assert told.properties["createTime"] == str(order["confirmTime"])
            told = await wait_told(shop, "orderTopic", "order_cancel")
            assert told.properties["createTime"] == str(answer.json()["cancelTime"])

    asyncio.run(main())


def test_a_payment_from_before_goods_were_known(empty: str) -> None:
    """The tables as the first revision makes them, with a payment; then the upgrade, twice."""
    settings = replace(QUICK, database=empty)
    config = migrate.config_of(PAYMENTS)
    engine = open_engine(empty)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "payments_1")
        connection.execute(
            text("INSERT INTO payment_gate VALUES ('order', 'open', 'pay', 1)")
        )
        connection.execute(
            text(
                "INSERT INTO payment (pay_id, order_id, user_id, pay_amount, is_paid, create_time,"
                " version) VALUES ('pay', 'order', 'u0', 700, FALSE, 1, 1)"
            )
        )
        # One of the columns is there: an upgrade was killed in between.
        connection.execute(text("ALTER TABLE payment ADD COLUMN goods_id VARCHAR(64)"))
    engine.dispose()
    for _ in range(2):
        migrate.upgrade(PAYMENTS, settings)

    async def main() -> list[str]:
        database = Database(empty, sqlite_sync="normal")
        try:
            await OutboxWay(database, Faults(process=False)).pay("pay")
            rows = await database.read(lambda session: session.query(Outbox).all())
            return [row.msg_body for row in rows]
        finally:
            database.close()

    (body,) = asyncio.run(main())
    paid = Paid.model_validate_json(body)
    assert (paid.pay_id, paid.goods_id, paid.confirm_time) == ("pay", None, None)
