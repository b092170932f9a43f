"""What the fronts answer to bad input: 4xx with field, found, expected; and nothing is changed."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests.shop.in_process import Shop, open_shop, open_shop_on, order

from shop.goods.tables import Step
from shop.orders.tables import Order, Outbox
from shop.payments.tables import Gate, Payment
from shop.platform import callback

BAD_VALUES: list[Any] = [
    *(None, "", " ", "x" * 300, "\x00", "\ud800", "'; DROP TABLE orders; --", "\N{PILE OF POO}"),
    *(0, -1, 1.5, 10**30, -(10**30), 1e308, True, [], {}, [[]], {"a": 1}, "NaN", "1e400", "-0.01"),
    *("0.001", "1_000", "٣"),
]
RAW = [
    *(b"", b"{", b"[]", b"null", b'"order"', b"\xff\xfe", b'{"userId": NaN}', b"[" * 5_000),
    *(b'{"goodsNumber": ' + b"9" * 6_000 + b"}", b'{"userId": "u0", "userId": Infinity}'),
]


def counts(shop: Shop) -> list[int]:
    """How many rows there are of what an order leaves behind."""
    return [
        shop.count(service, table)
        for service, table in (
            *(("orders", Order), ("orders", Outbox), ("goods", Step)),
            *(("payments", Payment), ("payments", Gate)),
        )
    ]


async def check_refused(shop: Shop, path: str, content: bytes) -> None:
    answer = await shop.http.post(
        f"http://{path}", content=content, headers={"Content-Type": "application/json"}
    )
    where = f"{path} {content[:200]!r}: {answer.status_code} {answer.text[:500]}"
    assert 400 <= answer.status_code < 500, where
    errors = answer.json()["errors"]
    assert errors and all(set(one) == {"field", "found", "expected"} for one in errors), where
    assert all(one["expected"] for one in errors), where


def test_each_field_with_each_bad_value(url: str) -> None:
    good = order(couponId="c-u0-0", moneyPaid="1.00")

    async def main() -> None:
        async with open_shop_on(url) as shop:
            await shop.load(coupons=1)
            for field in good:
                for value in BAD_VALUES:
                    if is_fine(field, value):
                        continue
                    body = json.dumps({**good, field: value}).encode()
                    await check_refused(shop, "orders/order/confirm", body)
                without = {name: value for name, value in good.items() if name != field}
                if field != "couponId" and field != "moneyPaid":
                    await check_refused(shop, "orders/order/confirm", json.dumps(without).encode())
            more = json.dumps({**good, "payAmount": "0.00"}).encode()
            await check_refused(shop, "orders/order/confirm", more)
            for content in RAW:
                for path in ("order/confirm", "order/none/cancel"):
                    await check_refused(shop, f"orders/{path}", content)
                for path in ("createPayment", "callbackPayment", "close"):
                    await check_refused(shop, f"payments/pay/{path}", content)
            assert not any(counts(shop))

    asyncio.run(main())


def is_fine(field: str, value: Any) -> bool:
    """Is this value as good as the right one, or better?"""
    if field in ("address", "consignee"):
        return isinstance(value, str) and value not in ("", "x" * 300, "\x00", "\ud800")
    if field == "couponId":
        return value is None
    return field == "moneyPaid" and not isinstance(value, bool) and value in (0, 1.5)


def test_random_bodies(url: str, seed: int) -> None:
    dice = random.Random(seed)
    good = order()

    async def main() -> None:
        async with open_shop_on(url) as shop:
            await shop.load()
            for _ in range(150):
                text = bytearray(json.dumps(good).encode())
                for _ in range(dice.randint(1, 4)):
                    at = dice.randrange(len(text))
                    if dice.random() < 0.5:
                        text[at] = dice.randrange(256)
                    else:
                        del text[at : at + dice.randint(1, 9)]
                answer = await shop.http.post(
                    *("http://orders/order/confirm",),
                    content=bytes(text),
                    headers={"Content-Type": "application/json"},
                )
                assert answer.status_code < 500, (bytes(text), answer.text)

    asyncio.run(main())


def test_paths_and_keys(tmp_path: Path, template: Path) -> None:
    async def main() -> None:
        async with open_shop(tmp_path, template) as shop:
            await shop.load()
            for path in ("order/none", "order/%00", "order/" + "x" * 200, "order/a%20b", "nothing"):
                answer = await shop.http.get(f"http://orders/{path}")
                assert 400 <= answer.status_code < 500 and answer.json()["errors"], path
            first = await shop.confirm("key")
            again = await shop.confirm("key")
            assert (first.status_code, again.json()) == (200, first.json())
            other = await shop.confirm("key", address="2 Market Street")
            assert other.status_code == 409
            assert other.json()["errors"][0]["field"] == "Idempotency-Key"
            bad = await shop.confirm("no key" * 30)
            assert bad.status_code == 422
            assert shop.count("orders", Order) == 1

    asyncio.run(main())


FORGED = [
    # changes after signing, the status, the field that is wrong
    ({"signature": "0" * 64}, 401, "signature"),
    ({"payAmount": "0.01"}, 401, "signature"),
    ({"status": "failed"}, 401, "signature"),
    ({"payId": "other"}, 401, "signature"),
    ({"signature": "short"}, 422, "signature"),
    ({"status": "free"}, 422, "status"),
]


def test_calls_of_somebody_else_are_refused(tmp_path: Path, template: Path) -> None:
    async def main() -> None:
        async with open_shop(tmp_path, template) as shop:
            await shop.load()
            order_id = (await shop.confirm("key")).json()["orderId"]
            payment = (
                await shop.post("payments/pay/createPayment", {"orderId": order_id})
            ).json()
            secret = shop.settings.secret
            good = callback(payment, "paid", secret)
            for changes, status, field in FORGED:
                answer = await shop.post("payments/pay/callbackPayment", {**good, **changes})
                assert (answer.status_code, answer.json()["errors"][0]["field"]) == (status, field)
            for changes, status, field in (
                ({"payAmount": "49.99"}, 422, "payAmount"),
                ({"orderId": "other"}, 422, "orderId"),
                ({"payId": "other"}, 404, "payId"),
            ):
                signed = callback({**payment, **changes}, "paid", secret)
                answer = await shop.post("payments/pay/callbackPayment", signed)
                assert (answer.status_code, answer.json()["errors"][0]["field"]) == (status, field)
            assert not (await shop.get(f"payments/pay/{payment['payId']}"))["isPaid"]

            # "paying" may come before and after "paid", and changes nothing.
            for told, result in (("paying", "noted"), ("paid", "paid"), ("paying", "noted")):
                answer = await shop.post(
                    "payments/pay/callbackPayment", callback(payment, told, secret)
                )
                assert answer.json() == {"result": result}
            await shop.wait_status(order_id, 1, 2)
            for path in ("orders/order/{}/cancel", "orders/order/{}/paying"):
                assert (await shop.post(path.format(order_id), {})).status_code == 409

    asyncio.run(main())


@pytest.mark.parametrize("service", ["orders", "payments"])
def test_there_is_an_openapi_page(service: str, tmp_path: Path, template: Path) -> None:
    async def main() -> None:
        async with open_shop(tmp_path, template) as shop:
            told = await shop.get(f"{service}/openapi.json")
            assert (await shop.http.get(f"http://{service}/docs")).is_success
            names = json.dumps(told["components"]["schemas"])
            assert '"orderId"' in names and '"order_id"' not in names

    asyncio.run(main())
