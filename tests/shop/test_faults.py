"""A fault at every step of confirm, cancel, pay and callback, and everything is right in the end.

The table is steps x faults: each row is one order, which meets one fault at one step. What the
customer does is the scenario; where the order must be in the end stands beside it.
"""

import asyncio
import contextlib
import os
import random

import httpx
import pytest
from tests.shop.in_process import Shop, open_shop_on, order

from shop import outbox
from shop.audit import Report
from shop.faults import ACTIONS
from shop.orders.tables import Order

MET_S = 60.0
IS_LONG = "PYMQ_CRASH_ROUNDS" in os.environ
#: Of the table, in a run that is not for long.
SHARE = 0.5
#: How often time passes until no order is open.
ROUNDS_MAX = 60
STEPS_OF_CONFIRM = [
    *("confirm.stored.before_commit", "confirm.stored.after_commit"),
    *("stock.before_commit", "stock.after_commit", "confirm.stock"),
    *("coupon.before_commit", "coupon.after_commit", "confirm.coupon"),
    *("balance.before_commit", "balance.after_commit", "confirm.balance"),
    *("confirm.confirmed.before_commit", "confirm.confirmed.after_commit"),
]
STEPS_OF_CALLBACK = ["callback.before_commit", "callback.after_commit"]
STEPS_OF_RELAY = ["relay.claimed", "relay.sent"]
STEPS_OF_FAILING = [
    *("confirm.failed", "confirm.cancelled.before_commit", "confirm.cancelled.after_commit"),
]


def steps_of_consumers(*groups: str) -> list[str]:
    moments = ("claimed", "before_commit", "after_commit")
    return [f"{group}.{moment}" for group in groups for moment in moments]


OF_PAID = steps_of_consumers("orders-paid", "users-paid", "journal-paid")
OF_CANCEL = steps_of_consumers("goods-cancel", "coupons-cancel", "users-cancel", "orders-cancel")
OF_TIMEOUT = steps_of_consumers("orders-timeout")

#: Scenario, and the steps at which it meets a fault.
BY_OUTBOX = [
    *(("pays", step) for step in STEPS_OF_CONFIRM),
    *(("pays", step) for step in STEPS_OF_RELAY + STEPS_OF_CALLBACK + OF_PAID),
    *(("vanishes", step) for step in STEPS_OF_CONFIRM),
    *(("fails", step) for step in STEPS_OF_FAILING + OF_CANCEL),
    ("cancels", "close.after_commit"),
]
BY_TRANSACTION = [("pays", step) for step in ("callback.half", *STEPS_OF_CALLBACK)]
#: Scenario -> order status and pay status in the end.
ENDS = {
    "pays": (1, 2),
    "vanishes": (2, 0),  # cancelled by the sweep, or when it is not paid in time
    "fails": (2, 0),
    "cancels": (2, 0),
    "forgets": (2, 0),
}


async def live(shop: Shop, number: int, scenario: str) -> None:
    """Be the customer of one row."""
    changes = {"userId": f"u{number}", "couponId": f"c-u{number}-0", "moneyPaid": "9.00"}
    if scenario == "vanishes":  # sends the order once, and takes no notice of the answer
        with contextlib.suppress(httpx.TransportError):
            await shop.http.post("http://orders/order/confirm", json=order(**changes))
        return
    answer = await shop.confirm(f"row-{number}", **changes)
    if scenario == "fails":
        assert answer.status_code == 409, answer.text
        return
    assert answer.status_code == 200, answer.text
    order_id = answer.json()["orderId"]
    if scenario == "pays":
        assert await shop.pay(order_id) == "paid"
    elif scenario == "cancels":
        cancelled = await shop.post(f"orders/order/{order_id}/cancel", {})
        assert cancelled.status_code == 200, cancelled.text


async def meet(shop: Shop, steps: list[str], action: str) -> None:
    """Wait until the faults at these steps have happened; start again what they have stopped."""
    try:
        async with asyncio.timeout(MET_S):
            while not set(steps) <= set(shop.faults.met):
                await asyncio.sleep(0.01)
    except TimeoutError:
        missing = [step for step in steps if step not in shop.faults.met]
        raise AssertionError(f"nobody came to {missing}") from None
    shop.faults.met.clear()
    if action == "kill" and any(step.startswith("relay.") for step in steps):
        await shop.restart("relay-orders", "relay-payments")
    elif action == "kill" and any(step.startswith("confirm.") for step in steps):
        await shop.restart("orders")


def ends(shop: Shop) -> dict[str, list[tuple[int, int]]]:
    """User -> where his orders are."""
    found: dict[str, list[tuple[int, int]]] = {}
    columns = (Order.user_id, Order.order_status, Order.pay_status)
    for user, status, pay_status in shop.select("orders", *columns):
        found.setdefault(user, []).append((status, pay_status))
    return found


#: The customer sends the order once, and the fault comes before it is stored.
NEVER_STORED = [("vanishes", "confirm.stored.before_commit", action) for action in ACTIONS]


async def pass_time(shop: Shop, steps: list[str], action: str) -> Report:
    """Let all orders that are not paid time out, with faults at these steps; then settle."""
    await shop.sweep_soon()
    await shop.settle_outboxes()  # else a message that times an order out is sent only later
    if action == "kill":
        await shop.restart()  # a broker asks about transactions when its time passes, and only then
    await asyncio.to_thread(shop.cluster.clock.advance, shop.settings.unpaid_s + 60)
    await meet(shop, steps, action)
    if action == "kill":
        await shop.restart()  # as after a kill: messages in hand are delivered again
    for _ in range(ROUNDS_MAX):
        report = await shop.settle()
        if report.findings or not report.orders.get("confirmed"):
            break
        # Orders whose confirmation was late: their time begins now.
        await shop.settle_outboxes()
        await asyncio.to_thread(shop.cluster.clock.advance, shop.settings.unpaid_s + 60)
        await asyncio.sleep(1)
    return report


async def run_table(url: str, table: list[tuple[str, str]], action: str, pay_by: str) -> None:
    async with open_shop_on(url, pay_by=pay_by) as shop:
        forgets = OF_TIMEOUT if pay_by == "outbox" else []
        await shop.load(users=len(table) + len(forgets), coupons=1)
        failing = {f"u{n}" for n, (scenario, _) in enumerate(table) if scenario == "fails"}
        shop.wires.refuse = lambda request: (
            request.url.path.endswith("/pay") and request.url.path.split("/")[2] in failing
        )
        customers: list[asyncio.Task[None]] = []
        for number, (scenario, step) in enumerate(table):
            if scenario == "vanishes":
                # Somebody who tries again might meet the fault, and the restart after it the only
                # request of the one who vanishes.
                await asyncio.gather(*customers)
                customers.clear()
            shop.faults.plan[step] = action
            customer = asyncio.create_task(live(shop, number, scenario))
            await meet(shop, [step], action)
            if scenario == "vanishes":
                # However slow: what is still under way might meet the next row's fault.
                await asyncio.wait([customer], timeout=MET_S)
                customer.cancel()
            else:
                customers.append(customer)
        await asyncio.gather(*customers)
        for number in range(len(table), len(table) + len(forgets)):
            answer = await shop.confirm(f"row-{number}", userId=f"u{number}", moneyPaid="9.00")
            assert answer.status_code == 200, answer.text
        shop.faults.plan.update(dict.fromkeys(forgets, action))
        report = await pass_time(shop, forgets, action)
        assert not report.findings, "\n".join(map(str, report.findings))
        found = ends(shop)
    rows = [*table, *(("forgets", step) for step in forgets)]
    wrong = []
    for number, (scenario, step) in enumerate(rows):
        states = found.get(f"u{number}", [])
        may_be_none = (scenario, step, action) in NEVER_STORED
        if states != [ENDS[scenario]] and not (may_be_none and not states):
            wrong.append(f"{scenario}, {action} at {step}: {states}, expected {ENDS[scenario]}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.crash
@pytest.mark.by_turns("kind")
@pytest.mark.by_turns("action")
@pytest.mark.parametrize("action", ACTIONS)
def test_a_fault_after_every_step(
    action: str, url: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "CLAIM_S", 1.0)  # of a relay that was killed
    rows = BY_OUTBOX
    if not IS_LONG:  # each action has its own, and those of another run are others
        chance = random.Random(f"{seed} {action}")
        rows = [row for row in rows if chance.random() < SHARE]
    asyncio.run(run_table(url, rows, action, "outbox"))


@pytest.mark.crash
@pytest.mark.by_turns("kind")
@pytest.mark.parametrize("action", ACTIONS)
def test_a_fault_after_every_step_of_a_transaction(action: str, url: str) -> None:
    asyncio.run(run_table(url, BY_TRANSACTION, action, "transaction"))
