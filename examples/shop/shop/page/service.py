"""A server-rendered page that shows the shop from the outside, through its HTTP interface only.

It also is the payment platform: who pays here has it called back several times, in any order.
"""

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import httpx
from fastapi import FastAPI, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.templating import Jinja2Templates
from markupsafe import Markup

from pymq import Consumer, ReceivedMessage
from shop.calls import Peer
from shop.columns import new_id
from shop.errors import Refused, ShopError, shown
from shop.money import text
from shop.orders.tables import OrderStatus, PayStatus
from shop.page import chart
from shop.page.figures import Figures, FiguresReader
from shop.parts import Id
from shop.platform import Platform
from shop.settings import PATIENT, Settings
from shop.topics import ORDER_TOPIC, PAY_TOPIC

TEMPLATES = Path(__file__).parents[1] / "templates"
GROUP = "page"
SHOWN_COUNT = 40


class Watcher:
    """Keeps the newest messages of the shop.

    Args:
        broker: name servers.
    """

    def __init__(self, broker: str) -> None:
        self.messages: deque[dict[str, str]] = deque(maxlen=SHOWN_COUNT)
        self._broker = broker

    async def run(self) -> None:
        """Watch until this is cancelled."""
        member = Consumer(self._broker, GROUP, network=PATIENT)
        async with member.subscribe(ORDER_TOPIC).subscribe(PAY_TOPIC):
            await member.run(self._keep)

    async def _keep(self, message: ReceivedMessage) -> None:
        self.messages.appendleft(
            {
                "time": f"{datetime.now(UTC):%H:%M:%S}",
                "topic": message.topic,
                "tag": message.tags or "",
                "key": " ".join(message.keys),
                "body": message.body.decode("utf-8", "replace"),
            }
        )


class Desk:
    """Does for a visitor what the forms of the page say.

    Args:
        peers: the services, by name.
        platform: where visitors pay.
        settings: of the shop.
    """

    def __init__(self, peers: dict[str, Peer], platform: Platform, settings: Settings) -> None:
        self.told = ""  # what came of the last form
        self._peers = peers
        self._platform = platform
        self._settings = settings
        self._paying: set[asyncio.Task[None]] = set()

    async def place(self, user_id: str, goods_id: str, number: int, coupon: str, money: str) -> str:
        """Order something at the price that the shop says."""
        goods = await self._peers["goods"].get(f"/goods/{goods_id}")
        amount = Decimal(goods["goodsPrice"]) * number
        is_free = amount >= self._settings.free_from
        fee = Decimal(0) if is_free else self._settings.shipping_fee
        body = {
            "userId": user_id,
            "goodsId": goods_id,
            "goodsNumber": number,
            "goodsPrice": goods["goodsPrice"],
            "shippingFee": text(fee),
            "orderAmount": text(amount + fee),
            "couponId": coupon or None,
            "moneyPaid": money or "0",
            "address": "1 Market Street",
            "consignee": user_id,
        }
        order = await self._peers["orders"].post(
            "/order/confirm", body, {"Idempotency-Key": new_id()}
        )
        return f"order {order['orderId']} is confirmed; {order['payAmount']} are to be paid"

    async def pay(self, order_id: str) -> str:
        """Pay an order; the platform calls back a moment later."""
        payment = await self._peers["payments"].post("/pay/createPayment", {"orderId": order_id})
        if not payment["isPaid"]:
            task = asyncio.create_task(self._platform.pay(payment))
            self._paying.add(task)
            task.add_done_callback(self._paying.discard)
        return f"payment {payment['payId']} of {payment['payAmount']} is under way"

    async def close(self) -> None:
        """Give up the calls that are still to come: the platform ends with the page."""
        for task in self._paying:
            task.cancel()
        await asyncio.gather(*self._paying, return_exceptions=True)

    async def cancel(self, order_id: str) -> str:
        """Cancel an order."""
        await self._peers["orders"].post(f"/order/{order_id}/cancel", {})
        return f"order {order_id} is cancelled; what it took is given back"

    async def rows(self) -> dict[str, Any]:
        """Return what the tables of the page show."""
        goods, users, orders = await asyncio.gather(
            self._peers["goods"].get("/goods"),
            self._peers["users"].get("/users"),
            self._peers["orders"].get("/order"),
        )
        for order in orders["orders"]:
            order["status"] = OrderStatus(order["orderStatus"]).name.lower()
            order["pay"] = PayStatus(order["payStatus"]).name.lower()
        return {
            "goods": goods["goods"],
            "users": users["users"],
            "orders": orders["orders"],
        }


def create_page(settings: Settings, *, http: httpx.AsyncClient | None = None) -> FastAPI:
    """Return the application of the page.

    Args:
        settings: of the shop.
        http: reaches the services; closed at the end. By default over the network.
    """
    http = http or httpx.AsyncClient(timeout=None, trust_env=False)
    peers = {
        name: Peer(
            http, name, url.split(","), settings.call_deadline_s, settings.call_deadline_s
        )
        for name, url in settings.urls.items()
    }
    payments = settings.urls["payments"].split(",")
    platform = Platform(http, payments, settings.secret, random.Random())
    desk = Desk(peers, platform, settings)
    watcher = Watcher(settings.broker)
    figures = Figures()
    reader = FiguresReader(settings.broker, figures)
    templates = Jinja2Templates(TEMPLATES)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(run()) for run in (watcher.run, reader.run)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await desk.close()
            await http.aclose()

    app = FastAPI(title="pymq shop", lifespan=lifespan)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ready"}

    @app.get("/", response_class=HTMLResponse)
    async def page(request: Request) -> Response:
        try:
            rows = await desk.rows()
        except ShopError as error:
            desk.told, rows = shown(str(error)), {"goods": [], "users": [], "orders": []}
        told = {
            "told": desk.told,
            "messages": list(watcher.messages),
            "chart": Markup(chart.svg(figures.all())),  # it has escaped what it was told
            "unreadable": figures.unreadable,
        }
        return templates.TemplateResponse(request, "shop.html", rows | told)

    _add_forms(app, desk)
    return app


def _add_forms(app: FastAPI, desk: Desk) -> None:
    async def do(doing: Awaitable[str]) -> Response:
        try:
            desk.told = await doing
        except Refused as error:
            desk.told = f"refused ({error.status}): {error}"
        except ShopError as error:
            desk.told = f"not now: {error}"
        return RedirectResponse("/", status_code=303)

    @app.post("/place")
    async def place(
        user_id: Annotated[Id, Form()],
        goods_id: Annotated[Id, Form()],
        number: Annotated[int, Form()],
        coupon_id: Annotated[str, Form()] = "",
        money: Annotated[str, Form()] = "",
    ) -> Response:
        return await do(desk.place(user_id, goods_id, number, coupon_id, money))

    @app.post("/pay")
    async def pay(order_id: Annotated[Id, Form()]) -> Response:
        return await do(desk.pay(order_id))

    @app.post("/cancel")
    async def cancel(order_id: Annotated[Id, Form()]) -> Response:
        return await do(desk.cancel(order_id))
