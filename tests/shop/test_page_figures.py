"""Figures on the page: none at first, those from before it started, and those that come."""

import asyncio
import time
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import httpx
from tests.shop.in_process import QUICK, SETTLE_S, quick_cluster

from pymq import Admin, Message, Producer
from pymq.testing import Cluster
from shop.page.figures import Figures, FiguresReader
from shop.page.service import create_page
from shop.topics import FIGURES_TOPIC, Figure

MINUTE = time.time_ns() // 60_000_000_000 * 60_000
NO_FIGURES = "There are no figures yet"


async def write(cluster: Cluster, goods: str, turnover: str, as_of: int = 1) -> None:
    figure = Figure(
        minute=MINUTE, goods_id=goods, turnover=Decimal(turnover), paid=1, as_of=as_of,
        unreadable_at=["payTopic/<b>/0/17"],
    )
    async with Producer(cluster.name_server) as producer:
        body = figure.json_text().encode()
        for one in (body, b"no figure", body):
            await producer.send(Message(FIGURES_TOPIC, one, keys=goods), sharding_key=goods)


async def wait_page(visitor: httpx.AsyncClient, *wanted: str) -> str:
    text = ""
    try:
        async with asyncio.timeout(SETTLE_S):
            while not all(one in text for one in wanted):
                await asyncio.sleep(0.1)
                text = (await visitor.get("http://page/")).text
    except TimeoutError:
        raise AssertionError(f"the page does not show {wanted}:\n{text}") from None
    return text


def test_the_page_with_and_without_figures() -> None:
    async def main() -> None:
        async with quick_cluster() as cluster:
            app = create_page(replace(QUICK, broker=cluster.name_server))
            visitor = httpx.AsyncClient(transport=httpx.ASGITransport(app=app))
            async with app.router.lifespan_context(app), visitor:
                text = await wait_page(visitor, NO_FIGURES)  # and no topic
                assert "<svg" not in text
                async with Admin(cluster.name_server) as admin:
                    await admin.topics.create(FIGURES_TOPIC, queue_count=2)
                await write(cluster, "tea", "12.00")
                text = await wait_page(visitor, "tea: 12.00", "payTopic/&lt;b&gt;/0/17")
                assert NO_FIGURES not in text
                cluster.restart_broker("broker-a")
                await write(cluster, "<script>", "7.00")
                text = await wait_page(visitor, "&lt;script&gt;: 7.00")
                assert "<script>: " not in text

            later = create_page(replace(QUICK, broker=cluster.name_server))
            visitor = httpx.AsyncClient(transport=httpx.ASGITransport(app=later))
            async with later.router.lifespan_context(later), visitor:
                await wait_page(visitor, "tea: 12.00", "&lt;script&gt;: 7.00")

    asyncio.run(main())


def test_all_that_is_there_or_the_newest_of_it() -> None:
    async def main() -> None:
        async with quick_cluster() as cluster:
            async with Admin(cluster.name_server) as admin:
                await admin.topics.create(FIGURES_TOPIC, queue_count=2)
            for as_of, turnover in ((3, "3.00"), (2, "2.00")):
                await write(cluster, "tea", turnover, as_of)
            for since, count in ((None, 1), (timedelta(hours=1), 1), (timedelta(0), 0)):
                figures = Figures()
                async with asyncio.timeout(SETTLE_S):
                    await FiguresReader(cluster.name_server, figures, since).read_all()
                found = figures.all()
                assert len(found) == count
                assert all(one.turnover == Decimal(3) for one in found)

    asyncio.run(main())
