"""Orders of the shop in ``examples/shop``: how many a second, how long they take, what takes time.

Each round is a story without faults, in processes of its own and on empty databases that keep what
they commit, as in production.
"""

import asyncio
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.bench import machine
from tests.shop.servers import SERVERS, Server

from shop.definitions import DEFINITIONS
from shop.settings import PAY_WAYS, Settings
from shop.story.__main__ import percentile_ms
from shop.story.tale import CUSTOMERS, Outcome, Plan, hurried, tell

ORDERS = 1_000
#: Customers at once, who order again when they have paid; one of how many orders; rounds.
LOADS = ((50, 1, 3), (5, 2, 1), (1, 10, 1))
SEED = 16
CALLBACK_GOAL_MS = 50
DATABASE = "the database server, with loading and audit"
#: What the processes of a story are.
PARTS = {
    "broker": "the brokers",
    "namesrv": "the name server",
    "relay": "the relay",
    CUSTOMERS: "customers and platform",
}


def run(scale: float) -> None:
    """Measure on each database, with the outbox and with transactional messages."""
    orders = int(ORDERS * scale)
    for database in ("sqlite", *SERVERS):
        if database in SERVERS and (why := SERVERS[database].missing()) is not None:
            print(f"\nshop on {database}: not measured, {why}")
            continue
        for pay_by in PAY_WAYS:
            print(f"\nshop on {database}, {orders:,} orders, PAY_BY={pay_by}")
            _measure(database, pay_by, orders)


def _measure(database: str, pay_by: str, orders: int) -> None:
    settings = hurried(Settings(pay_by=pay_by))
    plan = Plan(orders=orders, kills=0, late_rate=0.0, seed=SEED, settings=settings)
    with _databases(database) as (empty, server):
        for at_once, share, rounds in LOADS:
            part = replace(plan, at_once=at_once, orders=max(orders // share, at_once))
            told = [_told(part, empty, server) for _ in range(rounds)]
            rate = statistics.median(part.orders / outcome.placed_s for outcome, _ in told)
            machine.line(f"{at_once} at once", rate, "orders/s")
            _latencies([outcome for outcome, _ in told])
            if at_once == LOADS[0][0]:
                _parts([cpu for _, cpu in told], part.orders)


def _latencies(rounds: list[Outcome]) -> None:
    confirms = [outcome.score.confirms_s for outcome in rounds]
    callbacks = [outcome.platform.callbacks_s for outcome in rounds]
    for name, several, goal in (
        ("confirm", confirms, ""), ("callback", callbacks, f"goal {CALLBACK_GOAL_MS}")
    ):
        middle = statistics.median(percentile_ms(times, 0.5) for times in several)
        late = statistics.median(percentile_ms(times, 0.99) for times in several)
        machine.line(f"  {name}, p99", late, "ms", goal=goal, note=f"median {middle:.3g} ms")


def _parts(rounds: list[Counter[str]], orders: int) -> None:
    """Print whose processor time it was, of the round in the middle."""
    cpu = sorted(rounds, key=lambda one: one.total())[len(rounds) // 2]
    for name, seconds in cpu.most_common():
        machine.line(
            f"CPU of {name}",
            seconds / orders * 1000,
            "ms/order",
            note=f"{seconds / cpu.total():.0%}",
        )


def _told(
    plan: Plan, empty: Callable[[], str], server: Server | None
) -> tuple[Outcome, Counter[str]]:
    """Tell a story on an empty database; return how it ended, and whose CPU it took."""
    before = 0.0 if server is None else server.host.cpu_s()
    with tempfile.TemporaryDirectory(prefix="pymq-bench-shop-") as folder:
        plan = replace(plan, settings=replace(plan.settings, database=empty()))
        outcome = asyncio.run(tell(plan, Path(folder)))
    assert not outcome.problems, "\n".join(outcome.problems)
    cpu: Counter[str] = Counter()
    for name, seconds in outcome.cpu_s.items():
        cpu[_kind(name)] += seconds
    if server is not None:
        cpu[DATABASE] = server.host.cpu_s() - before
    return outcome, cpu


def _kind(member: str) -> str:
    name = member.partition("-")[0]
    if name in DEFINITIONS:
        return "the services"
    return PARTS.get(name, name)


@contextmanager
def _databases(name: str) -> Iterator[tuple[Callable[[], str], Server | None]]:
    """Yield what makes an empty database, and the server where there is one."""
    if name not in SERVERS:
        yield lambda: Settings().database, None
        return
    server = SERVERS[name](durable=True)
    try:
        yield server.create, server
    finally:
        server.close()
