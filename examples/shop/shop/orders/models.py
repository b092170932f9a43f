"""What customers send to the service *orders*, and what it answers."""

from typing import Annotated

from pydantic import Field

from shop.money import ZERO, Amount
from shop.parts import Id, Line
from shop.topics import Wire

NUMBER_MAX = 10_000


class OrderRequest(Wire):
    """An order as a customer places it, with the amounts that the customer was shown."""

    user_id: Id
    goods_id: Id
    goods_number: Annotated[int, Field(ge=1, le=NUMBER_MAX, strict=True)]
    goods_price: Amount
    shipping_fee: Amount
    order_amount: Amount
    coupon_id: Id | None = None
    money_paid: Amount = ZERO
    address: Line
    consignee: Line


class OrderModel(Wire):
    """An order."""

    order_id: str
    user_id: str
    order_status: int
    pay_status: int
    shipping_status: int
    address: str
    consignee: str
    goods_id: str
    goods_number: int
    goods_price: Amount
    goods_amount: Amount
    shipping_fee: Amount
    order_amount: Amount
    coupon_id: str | None
    coupon_paid: Amount
    money_paid: Amount
    pay_amount: Amount
    add_time: int
    confirm_time: int | None
    pay_time: int | None
    cancel_time: int | None
    cancel_reason: str | None


class OrderList(Wire):
    """Several of them."""

    orders: list[OrderModel]
