"""500 orders in real processes that are killed at random, and the audit at the end."""

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest

from shop.settings import Settings
from shop.story.__main__ import lines
from shop.story.tale import Plan, tell

QUICK = replace(
    Settings(),
    unpaid_s=7.0,
    stale_s=9.0,
    lease_s=4.0,
    call_deadline_s=8.0,
    sqlite_sync="normal",
)


@pytest.mark.crash
def test_500_orders_with_kills(tmp_path: Path, seed: int) -> None:
    pay_by = random.Random(seed).choice(["outbox", "transaction"])
    plan = Plan(
        orders=500,
        kills=10,
        late_rate=0.01,
        seed=seed,
        settings=replace(QUICK, pay_by=pay_by),
        at_once=20,
    )
    outcome = asyncio.run(tell(plan, tmp_path))
    print(f"PAY_BY={pay_by}", *lines(plan, outcome), sep="\n")
    assert not outcome.problems, "\n".join(outcome.problems)
    orders = outcome.report.orders
    assert orders["paid"] > 200 and orders["cancelled"] > 50
    assert sum(outcome.kills.values()) >= 3
