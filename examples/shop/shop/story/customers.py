"""Customers: they load the shop, place orders, and pay, cancel or forget them.

A customer who gets no answer sends the same request again, with the same key, like any good client.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import httpx

from shop.money import text
from shop.platform import Platform
from shop.settings import Settings
from shop.story.processes import StoryFailed

GOODS_COUNT = 20
USERS_COUNT = 50
COUPONS_OF_USER = 6
#: More of them in a long story, or half of its orders would be refused.
ORDERS_PER_COUPON = 100
STOCK = 1_000
SCARCE_STOCK = 15
ATTEMPT_S = 12.0
DEADLINE_S = 90.0
PAUSE_S = 0.2
PAUSE_MAX_S = 2.0

#: What a customer does with a confirmed order, and how often, in percent.
ENDS = {"pay": 75, "cancel": 10, "forget": 15}
#: What kind of order it is, likewise.
KINDS = {"good": 84, "twice": 8, "wrong": 8}


@dataclass(slots=True)
class Score:
    """What happened to the customers.

    Attributes:
        counts: how often each outcome was.
        confirms_s: how long each first attempt took that was answered.
        failures: what must not happen, as text.
    """

    counts: Counter[str] = field(default_factory=Counter)
    confirms_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


class Customers:
    """Fifty users, or as many as there are, at once.

    Args:
        http: reaches the shop.
        settings: of the shop.
        platform: where they pay.
        dice: decides who does what.
        prefix: of the keys of requests; another one for each run on the same database.
    """

    def __init__(
        self,
        http: httpx.AsyncClient,
        settings: Settings,
        platform: Platform,
        dice: random.Random,
        prefix: str = "story",
    ) -> None:
        self.score = Score()
        self._http = http
        self._urls = {name: urls.split(",") for name, urls in settings.urls.items()}
        self._settings = settings
        self._platform = platform
        self._dice = dice
        self._prefix = prefix
        self._coupons_of_user = COUPONS_OF_USER
        self._prices = {
            f"goods-{number}": Decimal(number * 7 + 3) + Decimal("0.95")
            for number in range(GOODS_COUNT)
        }

    async def load(self, orders: int) -> None:
        """Fill the shop with goods, users and coupons; some goods are scarce."""
        self._coupons_of_user = max(COUPONS_OF_USER, orders // ORDERS_PER_COUPON)
        goods = [
            {
                "goodsId": goods_id,
                "goodsName": f"Article {number}",
                "goodsNumber": SCARCE_STOCK if number % 5 == 4 else STOCK + orders,
                "goodsPrice": text(price),
                "goodsDesc": "as good as the others",
            }
            for number, (goods_id, price) in enumerate(self._prices.items())
        ]
        users = [
            {"userId": f"user-{number}", "userName": f"User {number}", "userMoney": "2000.00"}
            for number in range(USERS_COUNT)
        ]
        coupons = [
            {"couponId": f"coupon-{user}-{number}", "couponPrice": "12.34", "userId": one["userId"]}
            for user, one in enumerate(users)
            for number in range(self._coupons_of_user)
        ]
        for service, name, rows in (
            ("goods", "goods", goods),
            ("users", "users", users),
            ("coupons", "coupons", coupons),
        ):
            answer = await self._post(service, f"/{name}", {name: rows})
            answer.raise_for_status()

    async def place(self, orders: int, at_once: int = USERS_COUNT) -> None:
        """Place that many orders; returns when each has had its end."""
        numbers = iter(range(orders))

        async def one_after_the_other() -> None:
            for number in numbers:
                await self._live(number)

        await asyncio.gather(*(one_after_the_other() for _ in range(at_once)))

    async def _live(self, number: int) -> None:
        kind = self._throw(KINDS)
        request = self._request()
        if kind == "wrong":
            await self._order(number, self._spoilt(request), must_fail=True)
            return
        orders: Sequence[dict[str, Any] | None]
        if kind == "twice" and request["couponId"] is not None:
            # One coupon for two orders at once: both may pass the check, one at most the step.
            orders = await asyncio.gather(
                self._order(number, request), self._order(number, request, "b")
            )
        else:
            orders = [await self._order(number, request)]
        await asyncio.gather(*(self._end(order) for order in orders if order is not None))

    def _request(self) -> dict[str, Any]:
        dice = self._dice
        user = dice.randrange(USERS_COUNT)
        goods_id = dice.choice(list(self._prices))
        number = dice.randint(1, 3)
        price = self._prices[goods_id]
        settings = self._settings
        amount = price * number
        fee = Decimal(0) if amount >= settings.free_from else settings.shipping_fee
        coupon = None
        left = amount + fee
        if dice.random() < 0.3:
            coupon = f"coupon-{user}-{dice.randrange(self._coupons_of_user)}"
            left = max(left - Decimal("12.34"), Decimal(0))
        money = Decimal(0)
        if dice.random() < 0.4:
            money = left if dice.random() < 0.1 else min(left, Decimal(dice.randint(1, 4000)) / 100)
        return {
            "userId": f"user-{user}",
            "goodsId": goods_id,
            "goodsNumber": number,
            "goodsPrice": text(price),
            "shippingFee": text(fee),
            "orderAmount": text(amount + fee),
            "couponId": coupon,
            "moneyPaid": text(money),
            "address": "1 Market Street",
            "consignee": f"User {user}",
        }

    def _spoilt(self, request: dict[str, Any]) -> dict[str, Any]:
        """Make one field of an order wrong."""
        name, value = self._dice.choice(
            [
                ("goodsPrice", "0.01"),
                ("goodsId", "goods-none"),
                ("userId", "user-none"),
                ("couponId", "coupon-none"),
                ("shippingFee", "1.00"),
                ("orderAmount", "-5"),
                ("goodsNumber", 0),
                ("moneyPaid", "999999.00"),
                ("address", ""),
            ]
        )
        return {**request, name: value}

    async def _order(
        self, number: int, request: dict[str, Any], suffix: str = "", *, must_fail: bool = False
    ) -> dict[str, Any] | None:
        """Confirm an order; ``None``: it is refused, or was cancelled."""
        key = f"{self._prefix}-{number}{suffix}"
        begin = time.monotonic()
        answer = await self._post(
            "orders", "/order/confirm", request, {"Idempotency-Key": key}
        )
        if answer.extensions.get("attempts") == 1:
            self.score.confirms_s.append(time.monotonic() - begin)
        if answer.is_success and must_fail:
            self.score.failures.append(f"a wrong order was confirmed: {request}")
        if answer.is_success:
            order: dict[str, Any] = answer.json()
            self.score.counts["confirmed"] += 1
            return order
        told = answer.json()["errors"][0]
        if not told["field"] or not told["expected"]:
            self.score.failures.append(f"{answer.status_code} without a reason: {answer.text}")
        kind = "refused" if answer.status_code == 422 else "refused after a step"
        self.score.counts[kind] += 1
        return None

    async def _end(self, order: dict[str, Any]) -> None:
        end = self._throw(ENDS)
        self.score.counts[end] += 1
        if end == "cancel":
            answer = await self._post("orders", f"/order/{order['orderId']}/cancel", {})
            self._expect(answer, 200)
        elif end == "pay":
            answer = await self._post(
                "payments", "/pay/createPayment", {"orderId": order["orderId"]}
            )
            if answer.status_code == 409:  # it took too long, or an answer was lost
                self.score.counts["came too late to pay"] += 1
                return
            self._expect(answer, 200)
            payment = answer.json()
            if not payment["isPaid"]:
                await self._platform.pay(payment)

    def _expect(self, answer: httpx.Response, status: int) -> None:
        if answer.status_code != status:
            self.score.failures.append(
                f"{answer.request.url}: {answer.status_code}, expected {status}: {answer.text}"
            )

    async def _post(
        self,
        service: str,
        path: str,
        body: dict[str, Any],
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        """Send a request, to any instance, until it is answered with anything but 503."""
        deadline = time.monotonic() + DEADLINE_S
        pause_s = PAUSE_S
        attempts = 0
        while True:
            attempts += 1
            url = self._dice.choice(self._urls[service]) + path
            try:
                async with asyncio.timeout(ATTEMPT_S):
                    answer = await self._http.post(url, json=body, headers=headers)
            except (httpx.TransportError, TimeoutError) as error:
                failure = repr(error)
            else:
                answer.extensions["attempts"] = attempts
                if not answer.is_server_error:
                    return answer
                failure = f"{answer.status_code} {answer.text}"
                if answer.status_code != 503:
                    self.score.failures.append(f"{url}: {failure}")
            if time.monotonic() >= deadline:
                raise StoryFailed(f"{url} did not answer for {DEADLINE_S:g} s, at last {failure}")
            await asyncio.sleep(pause_s * (0.5 + self._dice.random()))
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    def _throw(self, shares: dict[str, int]) -> str:
        return self._dice.choices(list(shares), list(shares.values()))[0]
