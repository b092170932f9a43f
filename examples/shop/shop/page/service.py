"""A server-rendered page that shows the shop from the outside, through its HTTP interface only.

It also is the payment platform: who pays here has it called back several times, in any order.
"""

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import httpx
from fastapi import FastAPI, Form, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.templating import Jinja2Templates
from markupsafe import Markup
from pydantic import Field

from shop.calls import Peer, open_http
from shop.columns import new_id
from shop.errors import Refused, ShopError, shown
from shop.money import text
from shop.orders.models import NUMBER_MAX
from shop.page import chart
from shop.page.figures import Figures, FiguresReader
from shop.page.sight import Sight, Watcher
from shop.page.visitor import remember, tell, visitor_of
from shop.parts import Id
from shop.platform import Platform
from shop.settings import Settings
from shop.web import always

TEMPLATES = Path(__file__).parents[1] / "templates"


class Desk:
    """Does for a visitor what the forms of the page say.

    Args:
        peers: the services, by name.
        platform: where visitors pay.
        settings: of the shop.
    """

    def __init__(self, peers: dict[str, Peer], platform: Platform, settings: Settings) -> None:
        self._peers = peers
        self._platform = platform
        self._settings = settings
        self._paying: set[asyncio.Task[None]] = set()

    async def place(self, form: Mapping[str, str], token: str) -> str:
        """Order something at the price that the shop says.

        Args:
            form: the fields, by name; user, goods and number are checked.
            token: of the form: who sends it twice orders once.
        """
        goods = await self._peers["goods"].get(f"/goods/{form['goods_id']}")
        number = int(form["number"])
        amount = Decimal(goods["goodsPrice"]) * number
        is_free = amount >= self._settings.free_from
        fee = Decimal(0) if is_free else self._settings.shipping_fee
        body = {
            "userId": form["user_id"],
            "goodsId": form["goods_id"],
            "goodsNumber": number,
            "goodsPrice": goods["goodsPrice"],
            "shippingFee": text(fee),
            "orderAmount": text(amount + fee),
            "couponId": form["coupon_id"] or None,
            "moneyPaid": form["money"] or "0",
            "address": "1 Market Street",
            "consignee": form["user_id"],
        }
        # The same form with other fields, after a step back in the browser, is another order.
        sent = repr((token, sorted(form.items())))
        key = hashlib.sha256(sent.encode("utf-8", "backslashreplace")).hexdigest()
        order = await self._peers["orders"].post(
            "/order/confirm", body, {"Idempotency-Key": key}
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


def create_page(settings: Settings, *, http: httpx.AsyncClient | None = None) -> FastAPI:
    """Return the application of the page.

    Args:
        settings: of the shop.
        http: reaches the services; closed at the end. By default over the network.
    """
    http = http or open_http()
    peers = {
        name: Peer(
            http, name, url.split(","), settings.call_deadline_s, settings.call_deadline_s
        )
        for name, url in settings.urls.items()
    }
    payments = settings.urls["payments"].split(",")
    platform = Platform(http, payments, settings.secret, random.Random())
    desk = Desk(peers, platform, settings)
    sight = Sight(peers)
    watcher = Watcher(settings.broker)
    figures = Figures()
    reader = FiguresReader(settings.broker, figures)
    templates = Jinja2Templates(TEMPLATES)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        duties = (watcher.run, watcher.look_at_brokers, reader.run)
        tasks = [asyncio.create_task(always(duty)) for duty in duties]
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
        lists, away = await sight.look()
        seen = {
            "visitor": visitor_of(request),
            "away": [*away, *watcher.sentences],
            "messages": list(watcher.messages),
            "token": new_id(),
            "chart": Markup(chart.svg(figures.all())),  # it has escaped what it was told
            "unreadable": figures.unreadable,
        }
        return templates.TemplateResponse(
            request, "shop.html", lists | seen, headers={"Cache-Control": "no-store"}
        )

    _add_forms(app, desk)
    return app


async def _done(doing: Awaitable[str], form: dict[str, str] | None = None) -> Response:
    """Do what a form says, and send the visitor to the page that says what came of it."""
    response = RedirectResponse("/", status_code=303)
    try:
        told = await doing
        if form is not None:  # the next order is another one, of the same visitor
            form = {name: form[name] for name in ("user_id", "goods_id")}
    except Refused as error:
        told = f"refused ({error.status}): {error}"
    except ShopError as error:
        told = f"not now: try again, or look below whether it was done. {error}"
    if form is not None:
        remember(response, form)
    tell(response, told)
    return response


def _add_forms(app: FastAPI, desk: Desk) -> None:
    @app.post("/place")
    async def place(
        user_id: Annotated[Id, Form()],
        goods_id: Annotated[Id, Form()],
        number: Annotated[int, Field(ge=1, le=NUMBER_MAX), Form()],
        coupon_id: Annotated[str, Form()] = "",
        money: Annotated[str, Form()] = "",
        token: Annotated[str, Form()] = "",
    ) -> Response:
        form = {
            "user_id": user_id,
            "goods_id": goods_id,
            "number": str(number),
            "coupon_id": coupon_id.strip(),
            "money": money.strip(),
        }
        return await _done(desk.place(form, token or new_id()), form)

    @app.post("/pay")
    async def pay(order_id: Annotated[Id, Form()]) -> Response:
        return await _done(desk.pay(order_id))

    @app.post("/cancel")
    async def cancel(order_id: Annotated[Id, Form()]) -> Response:
        return await _done(desk.cancel(order_id))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        """A form that makes no sense: the page says what is wrong with it."""
        response = RedirectResponse("/", status_code=303)
        first: Any = error.errors()[0]
        field = ".".join(map(str, first["loc"][1:])) or "the form"
        tell(response, f"refused: {field}: found {shown(first.get('input'))}; {first['msg']}")
        return response
