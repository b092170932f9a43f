"""The audit: what must be true of all tables together when nothing is under way.

``python -m shop.audit --database ...`` prints what is wrong, and ends with status 1 if anything is.

The tables are copied into one SQLite database in memory, wherever the services keep them; then each
rule is a query there that finds the rows that break it. Amounts are cents there.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, create_engine, insert, select, text

from shop.database import open_engine
from shop.definitions import DEFINITIONS
from shop.orders.tables import OrderStatus, PayStatus
from shop.settings import Settings, from_arguments

SHOWN_COUNT = 5
COPY_COUNT = 1_000

_NAMES = {
    "UNCONFIRMED": OrderStatus.UNCONFIRMED,
    "CONFIRMED": OrderStatus.CONFIRMED,
    "CANCELLED": OrderStatus.CANCELLED,
    "PAID": PayStatus.PAID,
}

#: What is true, and a query for what is not. Words in braces are values of ``_NAMES``.
RULES: dict[str, str] = {
    "the stock is the sum of its log": """
        SELECT g.goods_id, g.goods_number, SUM(l.goods_number) AS logged
        FROM goods g LEFT JOIN goods_number_log l USING (goods_id)
        GROUP BY g.goods_id HAVING g.goods_number IS NOT logged OR g.goods_number < 0""",
    "a balance is the sum of its log": """
        SELECT u.user_id, u.user_money,
               SUM(CASE l.money_log_type WHEN 1 THEN -l.use_money ELSE l.use_money END) AS logged
        FROM users u LEFT JOIN user_money_log l USING (user_id)
        GROUP BY u.user_id HAVING u.user_money IS NOT logged OR u.user_money < 0""",
    "the points are the sum of their log": """
        SELECT u.user_id, u.user_score, COALESCE(SUM(l.user_score), 0) AS logged
        FROM users u LEFT JOIN user_score_log l USING (user_id)
        GROUP BY u.user_id HAVING u.user_score <> logged""",
    "a confirmed order has its stock, any other none": """
        SELECT o.order_id, o.order_status, COALESCE(SUM(l.goods_number), 0) AS taken
        FROM orders o LEFT JOIN goods_number_log l
             ON l.order_id = o.order_id AND l.goods_id = o.goods_id
        GROUP BY o.order_id
        HAVING taken <> CASE o.order_status WHEN {CONFIRMED} THEN -o.goods_number ELSE 0 END""",
    "stock is taken for orders only, and of their goods": """
        SELECT l.order_id, l.goods_id FROM goods_number_log l
        LEFT JOIN orders o ON o.order_id = l.order_id AND o.goods_id = l.goods_id
        WHERE l.order_id IS NOT NULL AND o.order_id IS NULL""",
    "stock is taken at most once, and given back at most once": """
        SELECT order_id FROM goods_number_log WHERE order_id IS NOT NULL GROUP BY order_id
        HAVING SUM(goods_number < 0) > 1 OR SUM(goods_number > 0) > 1""",
    "a confirmed order has used its coupon": """
        SELECT o.order_id, o.coupon_id FROM orders o LEFT JOIN coupon c USING (coupon_id)
        WHERE o.order_status = {CONFIRMED} AND o.coupon_id IS NOT NULL
              AND (c.is_used IS NOT 1 OR c.order_id IS NOT o.order_id
                   OR c.user_id IS NOT o.user_id)""",
    "a coupon is used by a confirmed order only": """
        SELECT c.coupon_id, c.order_id FROM coupon c
        LEFT JOIN orders o ON o.order_id = c.order_id AND o.coupon_id = c.coupon_id
        WHERE c.is_used <> (c.order_id IS NOT NULL)
              OR c.is_used AND o.order_status IS NOT {CONFIRMED}""",
    "a coupon is used by one order": """
        SELECT coupon_id, COUNT(*) AS orders FROM orders
        WHERE order_status = {CONFIRMED} AND coupon_id IS NOT NULL
        GROUP BY coupon_id HAVING COUNT(*) > 1""",
    "a confirmed order has used its balance, any other none": """
        SELECT o.order_id, o.order_status, o.money_paid,
               COALESCE(SUM(CASE l.money_log_type WHEN 1 THEN l.use_money
                                                  ELSE -l.use_money END), 0) AS used
        FROM orders o LEFT JOIN user_money_log l
             ON l.order_id = o.order_id AND l.user_id = o.user_id
        GROUP BY o.order_id
        HAVING used <> CASE o.order_status WHEN {CONFIRMED} THEN o.money_paid ELSE 0 END""",
    "balance is used for orders only, and of their users": """
        SELECT l.order_id, l.user_id FROM user_money_log l
        LEFT JOIN orders o ON o.order_id = l.order_id AND o.user_id = l.user_id
        WHERE l.order_id IS NOT NULL AND o.order_id IS NULL""",
    "balance is used at most once, and refunded at most once": """
        SELECT order_id FROM user_money_log WHERE order_id IS NOT NULL GROUP BY order_id
        HAVING SUM(money_log_type = 1) > 1 OR SUM(money_log_type = 2) > 1""",
    "the amounts of an order add up": """
        SELECT order_id, order_amount, pay_amount FROM orders
        WHERE order_amount <> goods_price * goods_number + shipping_fee
              OR goods_amount <> goods_price * goods_number
              OR pay_amount <> order_amount - coupon_paid - money_paid OR pay_amount < 0""",
    "a paid order is confirmed, and has one journal entry with its amount": """
        SELECT o.order_id, o.order_status, COUNT(j.pay_id) AS entries
        FROM orders o LEFT JOIN journal j ON j.order_id = o.order_id AND j.pay_amount = o.pay_amount
        WHERE o.pay_status = {PAID} GROUP BY o.order_id
        HAVING entries <> 1 OR o.order_status <> {CONFIRMED}""",
    "a paid order has its points once": """
        SELECT o.order_id, o.pay_amount / 100 AS points, SUM(s.user_score) AS given
        FROM orders o LEFT JOIN user_score_log s USING (order_id, user_id)
        WHERE o.pay_status = {PAID} GROUP BY o.order_id HAVING given IS NOT points""",
    "a paid order has one paid payment with its amount": """
        SELECT o.order_id, COUNT(p.pay_id) AS payments
        FROM orders o LEFT JOIN payment p
             ON p.order_id = o.order_id AND p.is_paid AND p.pay_amount = o.pay_amount
        WHERE o.pay_status = {PAID} GROUP BY o.order_id HAVING payments <> 1""",
    "what was paid belongs to a paid order": """
        SELECT x.kind, x.order_id FROM (
            SELECT 'payment' AS kind, order_id FROM payment WHERE is_paid
            UNION ALL SELECT 'journal', order_id FROM journal
            UNION ALL SELECT 'points', order_id FROM user_score_log
            UNION ALL SELECT 'gate', order_id FROM payment_gate WHERE state = 'paid') x
        LEFT JOIN orders o USING (order_id)
        WHERE o.pay_status IS NOT {PAID}""",
    "an order has one entry in the journal, and one paid payment": """
        SELECT order_id FROM journal GROUP BY order_id HAVING COUNT(*) > 1
        UNION ALL
        SELECT order_id FROM payment WHERE is_paid GROUP BY order_id HAVING COUNT(*) > 1""",
    "no order is stuck": """
        SELECT order_id, order_status, cancel_time FROM orders
        WHERE order_status = {UNCONFIRMED}
              OR (cancel_time IS NOT NULL) <> (order_status = {CANCELLED})""",
    "what a service has done for an order fits its status": """
        SELECT x.kind, x.order_id, x.state, o.order_status FROM (
            SELECT 'goods' AS kind, order_id, state FROM goods_step
            UNION ALL SELECT 'coupons', order_id, state FROM coupon_step
            UNION ALL SELECT 'users', order_id, state FROM user_step) x
        LEFT JOIN orders o USING (order_id)
        WHERE o.order_status IS NOT CASE x.state WHEN 'taken' THEN {CONFIRMED}
                                                 ELSE {CANCELLED} END""",
    "the outboxes are empty": """
        SELECT 'orders' AS service, id, msg_key FROM order_outbox
        UNION ALL SELECT 'payments', id, msg_key FROM payment_outbox""",
    "every message that was begun is done": """
        SELECT group_name, msg_key, state, error FROM (
            SELECT group_name, msg_key, state, error FROM goods_consumed
            UNION ALL SELECT group_name, msg_key, state, error FROM coupon_consumed
            UNION ALL SELECT group_name, msg_key, state, error FROM user_consumed
            UNION ALL SELECT group_name, msg_key, state, error FROM order_consumed
            UNION ALL SELECT group_name, msg_key, state, error FROM payment_consumed
            UNION ALL SELECT group_name, msg_key, state, error FROM journal_consumed)
        WHERE state <> 'done'""",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that is broken.

    Attributes:
        rule: what should be true.
        count: how many rows break it.
        rows: the first of them, as text.
    """

    rule: str
    count: int
    rows: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.rule}: {self.count} broken\n" + "\n".join(f"    {row}" for row in self.rows)


@dataclass(frozen=True, slots=True)
class Report:
    """What an audit has found.

    Attributes:
        findings: the broken rules; none when all is well.
        orders: how many orders there are in each state: cancelled, confirmed, paid, ....
    """

    findings: tuple[Finding, ...]
    orders: dict[str, int]


def audit(settings: Settings) -> Report:
    """Look at all tables. What is under way while they are copied counts as broken."""
    memory = create_engine("sqlite://")
    with memory.begin() as connection:
        for definition in DEFINITIONS.values():
            definition.base.metadata.create_all(connection)
        for name in DEFINITIONS:
            _copy(settings, name, connection)
        return examine(connection)


def examine(connection: Connection) -> Report:
    """Check all rules in a database that has all tables.

    Args:
        connection: to an SQLite database.
    """
    findings = []
    for rule, query in RULES.items():
        rows = connection.execute(text(query.format_map(_NAMES))).mappings().all()
        if rows:
            shown = tuple(str(dict(row)) for row in rows[:SHOWN_COUNT])
            findings.append(Finding(rule, len(rows), shown))
    counts = connection.execute(
        text("SELECT order_status, pay_status, COUNT(*) FROM orders GROUP BY 1, 2 ORDER BY 1, 2")
    )
    orders: dict[str, int] = {}
    for status, pay_status, count in counts:
        is_paid = pay_status == PayStatus.PAID
        state = "paid" if is_paid else OrderStatus(status).name.lower()
        orders[state] = orders.get(state, 0) + count
    return Report(tuple(findings), orders)


def _copy(settings: Settings, service: str, target: Connection) -> None:
    engine = open_engine(settings.database_of(service), sqlite_sync=settings.sqlite_sync)
    try:
        with engine.execution_options(shop_reads=True).connect() as source:
            copy_tables(source, service, target)
    finally:
        engine.dispose()


def copy_tables(source: Connection, service: str, target: Connection) -> None:
    """Copy the tables of a service, as this connection sees them.

    Args:
        source: to the service's database.
        service: its name.
        target: to an SQLite database that has all tables, without rows.
    """
    for table in DEFINITIONS[service].base.metadata.sorted_tables:
        found = source.execute(select(table)).mappings()
        while rows := found.fetchmany(COPY_COUNT):
            target.execute(insert(table), [dict(row) for row in rows])


def main(arguments: Sequence[str] | None = None) -> int:
    """Audit, print, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m shop.audit")
    settings, _ = from_arguments(parser, arguments)
    report = audit(settings)
    for finding in report.findings:
        print(finding)
    print(f"{len(RULES)} rules, {len(report.findings)} broken; orders: {report.orders}")
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
