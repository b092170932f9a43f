"""Whether the figures that Spark has made agree with the tables."""

import asyncio
import time
from collections.abc import Sequence

from sqlalchemy import select

from pymq import PymqError
from shop.database import open_engine
from shop.orders.tables import Order, OrderStatus, PayStatus
from shop.page.figures import Figures, FiguresReader
from shop.settings import Settings
from shop.topics import Figure

AGREE_S = 120.0
POLL_S = 1.0
MINUTE_MS = 60_000
SHOWN_COUNT = 5
#: More minutes than any story takes.
MINUTES_MAX = 100_000


def of_tables(settings: Settings) -> list[Figure]:
    """Return the figures that the orders say, by minute and goods."""
    engine = open_engine(settings.database_of("orders"), sqlite_sync=settings.sqlite_sync)
    try:
        with engine.execution_options(shop_reads=True).connect() as connection:
            orders = connection.execute(
                select(
                    Order.goods_id,
                    Order.order_status,
                    Order.pay_status,
                    Order.pay_amount,
                    Order.confirm_time,
                    Order.cancel_time,
                    Order.pay_time,
                )
            ).all()
    finally:
        engine.dispose()
    found: dict[tuple[int, str], Figure] = {}

    def figure(at_ms: int, goods_id: str) -> Figure:
        minute = at_ms // MINUTE_MS * MINUTE_MS
        return found.setdefault((minute, goods_id), Figure(minute=minute, goods_id=goods_id))

    for one in orders:
        if one.confirm_time is not None:
            figure(one.confirm_time, one.goods_id).confirmed += 1
        if one.order_status == OrderStatus.CANCELLED:
            figure(one.cancel_time, one.goods_id).cancelled += 1
        if one.pay_status == PayStatus.PAID:
            figure(one.confirm_time, one.goods_id).converted += 1
            paid = figure(one.pay_time, one.goods_id)
            paid.paid += 1
            paid.turnover += one.pay_amount
    return [figure for _, figure in sorted(found.items())]


def differences(expected: Sequence[Figure], found: Sequence[Figure]) -> list[str]:
    """Return what differs, a line for each minute and goods."""
    wanted = {(one.minute, one.goods_id): one for one in expected}
    there = {
        (one.minute, one.goods_id): one.model_copy(update={"as_of": 0}) for one in found
    }
    return [
        f"figures of {goods_id}, minute {minute}: the tables say {wanted.get((minute, goods_id))}, "
        f"shop-figures says {there.get((minute, goods_id))}"
        for minute, goods_id in sorted(wanted.keys() | there.keys())
        if wanted.get((minute, goods_id)) != there.get((minute, goods_id))
    ]


async def agree(settings: Settings, timeout_s: float = AGREE_S) -> tuple[list[str], str]:
    """Wait until figures and tables agree, when nothing changes the tables any more.

    Returns:
        What differs at last, and what was compared.
    """
    expected = await asyncio.to_thread(of_tables, settings)
    begin = time.monotonic()
    while True:
        figures = Figures(MINUTES_MAX)
        try:
            await FiguresReader(settings.broker, figures, None).read_all()
            problems = differences(expected, figures.all())
        except PymqError as error:
            problems = [f"shop-figures cannot be read: {error}"]
        took_s = time.monotonic() - begin
        if not problems or took_s > timeout_s:
            minutes = len({one.minute for one in expected})
            compared = (
                f"{len(expected)} of minute and goods, {minutes} minutes, compared with the tables "
                f"after {took_s:.1f} s"
            )
            return problems[:SHOWN_COUNT], compared
        await asyncio.sleep(POLL_S)
