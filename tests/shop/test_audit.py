"""The audit fails when the tables are wrong: each rule is broken on purpose."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import create_engine, select, text
from tests.shop.conftest import with_tables
from tests.shop.in_process import QUICK, open_shop_on

from shop.audit import RULES, copy_tables, examine
from shop.database import open_engine
from shop.definitions import DEFINITIONS
from shop.orders.tables import Order


@pytest.fixture(scope="module")
def good(
    kind: str,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    template: Path,
) -> str:
    """The databases of a shop with a paid, a confirmed and a cancelled order; all is well."""
    if kind == "sqlite":
        folder = tmp_path_factory.mktemp("good")
        shutil.copytree(template, folder, dirs_exist_ok=True)
        url = f"sqlite:///{folder}/{{service}}.db"
    else:
        url = with_tables(request.getfixturevalue(kind))

    async def main() -> None:
        async with open_shop_on(url) as shop:
            await shop.load(users=3, coupons=2)
            for number in range(3):
                answer = await shop.confirm(
                    f"key-{number}",
                    userId=f"u{number}",
                    couponId=f"c-u{number}-0",
                    moneyPaid="7.50",
                )
                order_id = answer.json()["orderId"]
                if number == 0:
                    await shop.pay(order_id)
                elif number == 2:
                    await shop.post(f"orders/order/{order_id}/cancel", {})
                    await shop.wait_status(order_id, 2)
            report = await shop.settle()
            assert not report.findings, "\n".join(map(str, report.findings))
            assert report.orders == {"paid": 1, "confirmed": 1, "cancelled": 1}

    asyncio.run(main())
    return url


BROKEN = [
    # the rule that must find it, the service, what is done to its tables
    (
        "the stock is the sum of its log",
        "goods",
        "UPDATE goods SET goods_number = goods_number + 1",
    ),
    ("the stock is the sum of its log", "goods", "DELETE FROM goods_number_log"),
    ("a balance is the sum of its log", "users", "UPDATE users SET user_money = user_money - 1"),
    ("the points are the sum of their log", "users", "UPDATE users SET user_score = 1"),
    (
        "a confirmed order has its stock, any other none",
        "goods",
        "DELETE FROM goods_number_log WHERE order_id = :open",
    ),
    (
        "a confirmed order has its stock, any other none",
        "goods",
        "DELETE FROM goods_number_log WHERE order_id = :cancelled AND goods_number > 0",
    ),
    (
        "stock is taken for orders only, and of their goods",
        "goods",
        "UPDATE goods_number_log SET order_id = 'x' WHERE order_id = :open",
    ),
    (
        "stock is taken at most once, and given back at most once",
        "goods",
        "INSERT INTO goods_number_log (goods_id, order_id, goods_number, log_time) "
        "SELECT goods_id, order_id, goods_number, 0 FROM goods_number_log WHERE order_id = :open",
    ),
    (
        "a confirmed order has used its coupon",
        "coupons",
        "UPDATE coupon SET is_used = FALSE, order_id = NULL WHERE order_id = :open",
    ),
    (
        "a coupon is used by a confirmed order only",
        "coupons",
        "UPDATE coupon SET is_used = TRUE, order_id = :cancelled WHERE coupon_id = 'c-u2-0'",
    ),
    (
        "a coupon is used by a confirmed order only",
        "coupons",
        "UPDATE coupon SET is_used = TRUE WHERE coupon_id = 'c-u2-1'",
    ),
    ("a coupon is used by one order", "orders", "UPDATE orders SET coupon_id = 'c-u0-0'"),
    (
        "a confirmed order has used its balance, any other none",
        "users",
        "DELETE FROM user_money_log WHERE order_id = :cancelled AND money_log_type = 2",
    ),
    (
        "a confirmed order has used its balance, any other none",
        "users",
        "UPDATE user_money_log SET use_money = use_money + 1 WHERE order_id = :paid",
    ),
    (
        "balance is used for orders only, and of their users",
        "users",
        "UPDATE user_money_log SET user_id = 'u1' WHERE order_id = :paid",
    ),
    (
        "balance is used at most once, and refunded at most once",
        "users",
        "INSERT INTO user_money_log (user_id, order_id, money_log_type, use_money, create_time) "
        "SELECT user_id, order_id, 2, use_money, 0 FROM user_money_log "
        "WHERE order_id = :cancelled AND money_log_type = 2",
    ),
    ("the amounts of an order add up", "orders", "UPDATE orders SET pay_amount = pay_amount + 1"),
    (
        "a paid order is confirmed, and has one journal entry with its amount",
        "journal",
        "DELETE FROM journal",
    ),
    (
        "a paid order is confirmed, and has one journal entry with its amount",
        "journal",
        "UPDATE journal SET pay_amount = pay_amount - 1",
    ),
    ("a paid order has its points once", "users", "UPDATE user_score_log SET user_score = 36"),
    ("a paid order has its points once", "users", "DELETE FROM user_score_log"),
    (
        "a paid order has one paid payment with its amount",
        "payments",
        "UPDATE payment SET is_paid = FALSE",
    ),
    (
        "what was paid belongs to a paid order",
        "orders",
        "UPDATE orders SET pay_status = 1 WHERE pay_status = 2",
    ),
    (
        "what was paid belongs to a paid order",
        "journal",
        "INSERT INTO journal SELECT 'x', :cancelled, user_id, pay_amount, 0, 0 FROM journal",
    ),
    (
        "an order has one entry in the journal, and one paid payment",
        "journal",
        "INSERT INTO journal SELECT 'x', order_id, user_id, pay_amount, 0, 0 FROM journal",
    ),
    (
        "an order has one entry in the journal, and one paid payment",
        "payments",
        "INSERT INTO payment (pay_id, order_id, user_id, pay_amount, is_paid, create_time, version)"
        " SELECT 'x', order_id, user_id, pay_amount, TRUE, 0, 1 FROM payment",
    ),
    ("no order is stuck", "orders", "UPDATE orders SET order_status = 0 WHERE pay_status = 0"),
    ("no order is stuck", "orders", "UPDATE orders SET cancel_time = 1"),
    (
        "what a service has done for an order fits its status",
        "coupons",
        "UPDATE coupon_step SET state = 'taken'",
    ),
    (
        "what a service has done for an order fits its status",
        "goods",
        "INSERT INTO goods_step VALUES ('x', 'taken', 0, 1)",
    ),
    (
        "the outboxes are empty",
        "payments",
        "INSERT INTO payment_outbox VALUES (1, 'g', 't', 't', 'k', '{}', 0, 0, 0, 0)",
    ),
    (
        "every message that was begun is done",
        "users",
        "UPDATE user_consumed SET state = 'processing' WHERE msg_tag = 'paid'",
    ),
    (
        "every message that was begun is done",
        "journal",
        "UPDATE journal_consumed SET state = 'dead'",
    ),
]


def test_each_rule_is_broken_by_somebody() -> None:
    assert {rule for rule, _, _ in BROKEN} == set(RULES)


@pytest.mark.parametrize(("rule", "service", "change"), BROKEN)
def test_the_audit_finds_it(rule: str, service: str, change: str, good: str) -> None:
    """The change is seen by its own transaction only, which is rolled back."""
    settings = replace(QUICK, database=good)
    memory = create_engine("sqlite://")
    with memory.begin() as target:
        for name, definition in DEFINITIONS.items():
            definition.base.metadata.create_all(target)
            engine = open_engine(settings.database_of(name))
            with engine.connect() as source:
                if name == service:
                    ids = user_orders(settings.database_of("orders"))
                    named = {"paid": ids["u0"], "open": ids["u1"], "cancelled": ids["u2"]}
                    assert source.execute(text(change), named).rowcount > 0
                copy_tables(source, name, target)
                source.rollback()
            engine.dispose()
        findings = examine(target).findings
    assert rule in [finding.rule for finding in findings], findings


def user_orders(url: str) -> dict[str, str]:
    """User -> the order of the shop that is well."""
    engine = open_engine(url)
    with engine.execution_options(shop_reads=True).connect() as connection:
        found = {row.user_id: row.order_id for row in connection.execute(select(Order))}
    engine.dispose()
    return found
