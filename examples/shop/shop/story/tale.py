"""One story from its beginning to its audit."""

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from shop.audit import Report, audit
from shop.calls import open_http
from shop.database import may_succeed_later
from shop.platform import Platform
from shop.settings import Settings
from shop.story import figures
from shop.story.customers import USERS_COUNT, Customers, Score
from shop.story.havoc import Havoc
from shop.story.town import Town

#: In a story nobody waits half an hour.
UNPAID_S = 15.0
STALE_S = 12.0
LEASE_S = 5.0
SETTLE_S = 120.0
POLL_S = 0.5
#: Two brokers, so that messages can be sent while one is away.
BROKERS = 2
#: This process, among the others whose processor time is told: customers and platform.
CUSTOMERS = "customers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What happens in a story.

    Attributes:
        orders: how many.
        kills: how many processes are killed meanwhile.
        late_rate: share of calls whose answer is lost after they took effect.
        seed: of all dice.
        settings: of the services.
        at_once: how many customers there are.
        brokers: how many to start; 0: there is a cluster.
        instances: of each service.
        on_page: called with the address of the page when it runs; ``None``: there is none.
        has_figures: whether Spark keeps figures, which are compared at the end.
    """

    orders: int
    kills: int
    late_rate: float
    seed: int
    settings: Settings
    at_once: int = USERS_COUNT
    brokers: int = BROKERS
    instances: int = 1
    on_page: Callable[[str], None] | None = None
    has_figures: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a story ended.

    Attributes:
        report: of the audit.
        score: of the customers.
        platform: and of whom they paid.
        kills: how often each process was killed.
        cpu_s: processor time of each process, while customers were there; without faults only.
        placed_s: how long the customers were at it.
        settled_s: how long it took after them until the audit was green and no order open.
        figures: what was compared with the tables; ``None``: nobody keeps any.
        wrong_figures: what is wrong with them.
    """

    report: Report
    score: Score
    platform: Platform
    kills: dict[str, int]
    cpu_s: dict[str, float]
    placed_s: float
    settled_s: float
    figures: str | None = None
    wrong_figures: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """What is wrong; empty when all is well."""
        found = [*map(str, self.report.findings), *self.score.failures, *self.wrong_figures]
        if open_orders := self.report.orders.get("confirmed"):
            found.append(f"{open_orders} orders are neither paid nor cancelled")
        found += [f"the platform could not tell about payment {one}" for one in self.platform.lost]
        return found


def hurried(settings: Settings) -> Settings:
    """Return settings with which what waits does not wait long."""
    return replace(settings, unpaid_s=UNPAID_S, stale_s=STALE_S, lease_s=LEASE_S)


async def tell(plan: Plan, folder: Path) -> Outcome:
    """Tell a story, and end every process. Arguments and errors are those of ``telling``."""
    async with telling(plan, folder) as outcome:
        return outcome


@asynccontextmanager
async def telling(plan: Plan, folder: Path) -> AsyncIterator[Outcome]:
    """Tell a story; inside the block everything still runs.

    Args:
        plan: what happens.
        folder: for logs, databases and stores; absolute.

    Raises:
        StoryFailed: a process does not start.
    """
    settings = replace(plan.settings, late_rate=plan.late_rate)
    town = Town(
        folder,
        settings,
        plan.brokers,
        page=plan.on_page is not None,
        figures=plan.has_figures,
        instances=plan.instances,
    )
    async with town.running(), open_http(8 * plan.at_once) as http:
        if plan.on_page is not None:
            plan.on_page(town.page_url)
        settings = town.settings
        urls = settings.urls["payments"].split(",")
        platform = Platform(http, urls, settings.secret, random.Random(plan.seed + 1))
        customers = Customers(http, settings, platform, random.Random(plan.seed))
        await customers.load(plan.orders)
        havoc = Havoc(town, random.Random(plan.seed + 2))
        before = _cpu_s(town)
        begin = time.monotonic()
        breaking = asyncio.create_task(havoc.wreak(plan.kills))
        try:
            await customers.place(plan.orders, plan.at_once)
            placed_s = time.monotonic() - begin
            cpu_s = {name: after - before[name] for name, after in _cpu_s(town).items()}
        finally:
            havoc.end()
            await breaking
        report, settled_s = await settle(settings)
        outcome = Outcome(
            report, customers.score, platform, dict(havoc.kills), cpu_s, placed_s, settled_s
        )
        if plan.has_figures:
            wrong, compared = await figures.agree(settings)
            outcome = replace(outcome, figures=compared, wrong_figures=wrong)
        yield outcome


def _cpu_s(town: Town) -> dict[str, float]:
    return town.cpu_s() | {CUSTOMERS: sum(os.times()[:2])}


async def settle(settings: Settings, timeout_s: float = SETTLE_S) -> tuple[Report, float]:
    """Wait until the audit is green and no order is open; return the last report, and how long.

    Raises:
        DBAPIError: a database is still away.
    """
    begin = time.monotonic()
    while True:
        settled_s = time.monotonic() - begin
        is_last = settled_s > timeout_s
        try:
            report = await asyncio.to_thread(audit, settings)
        except DBAPIError as error:
            if is_last or not may_succeed_later(error):
                raise
        else:
            is_over = not report.findings and not report.orders.get("confirmed")
            if is_over or is_last:
                return report, settled_s
        await asyncio.sleep(POLL_S)
