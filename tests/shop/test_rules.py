"""What an order must be like: each rule with an order that keeps it and one that does not."""

from decimal import Decimal
from typing import Any

import pytest
from tests.shop.in_process import order

from shop.errors import Refused
from shop.orders.models import OrderRequest
from shop.orders.rules import Amounts, Facts, Shipping, check

SHIPPING = Shipping(Decimal("10.00"), Decimal("100.00"))


def facts(**changes: Any) -> Facts:
    given: dict[str, Any] = {
        "goods_price": Decimal("20.00"),
        "goods_number": 5,
        "user_money": Decimal("30.00"),
    }
    return Facts(**(given | changes))


def coupon(price: str = "5.00", user: str = "u0", is_used: bool = False) -> dict[str, Any]:
    return {"coupon_price": Decimal(price), "coupon_user": user, "coupon_is_used": is_used}


def checked(found: Facts, **changes: Any) -> Amounts:
    return check(OrderRequest.model_validate(order(**changes)), found, SHIPPING)


GOOD: list[tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]] = [
    # changes of the order, of the facts, then: goods, shipping, order, coupon, money, pay
    ({}, {}, ("40.00", "10.00", "50.00", "0.00", "0.00", "50.00")),
    ({"moneyPaid": "30.00"}, {}, ("40.00", "10.00", "50.00", "0.00", "30.00", "20.00")),
    ({"moneyPaid": 29.99}, {}, ("40.00", "10.00", "50.00", "0.00", "29.99", "20.01")),
    ({"couponId": "c"}, coupon(), ("40.00", "10.00", "50.00", "5.00", "0.00", "45.00")),
    (
        {"couponId": "c", "moneyPaid": "30.00"},
        coupon("20.00"),
        ("40.00", "10.00", "50.00", "20.00", "30.00", "0.00"),
    ),
    # A coupon of more than the order is worth the order, and no money comes back.
    ({"couponId": "c"}, coupon("99.00"), ("40.00", "10.00", "50.00", "50.00", "0.00", "0.00")),
    (
        {"goodsNumber": 5, "shippingFee": "0", "orderAmount": "100.00"},
        {},
        ("100.00", "0.00", "100.00", "0.00", "0.00", "100.00"),
    ),
]


@pytest.mark.parametrize(("changes", "found", "amounts"), GOOD)
def test_a_good_order(
    changes: dict[str, Any], found: dict[str, Any], amounts: tuple[str, ...]
) -> None:
    assert checked(facts(**found), **changes) == Amounts(*map(Decimal, amounts))


BAD: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    # changes of the order, of the facts, the field that is wrong, a piece of what was expected
    ({"goodsPrice": "19.99", "orderAmount": "49.98"}, {}, "goodsPrice", "20.00"),
    ({}, {"goods_number": 1}, "goodsNumber", "stock, 1"),
    ({"shippingFee": "9.99", "orderAmount": "49.99"}, {}, "shippingFee", "10.00"),
    ({"shippingFee": "0.00", "orderAmount": "40.00"}, {}, "shippingFee", "10.00"),
    ({"orderAmount": "50.01"}, {}, "orderAmount", "50.00"),
    ({"moneyPaid": "30.01"}, {}, "moneyPaid", "balance, 30.00"),
    ({"moneyPaid": "50.01"}, {"user_money": Decimal(99)}, "moneyPaid", "to be paid, 50.00"),
    ({"moneyPaid": "0.01", "couponId": "c"}, coupon("50.00"), "moneyPaid", "to be paid, 0.00"),
    ({"couponId": "c"}, coupon(user="u1"), "couponId", "of this user"),
    ({"couponId": "c"}, coupon(is_used=True), "couponId", "not used"),
]


@pytest.mark.parametrize(("changes", "found", "field", "expected"), BAD)
def test_a_bad_order(
    changes: dict[str, Any], found: dict[str, Any], field: str, expected: str
) -> None:
    with pytest.raises(Refused) as caught:
        checked(facts(**found), **changes)
    assert (caught.value.status, caught.value.field) == (422, field)
    assert expected in caught.value.expected
