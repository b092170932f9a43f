"""What an order must be like; pure, with the facts as arguments."""

from dataclasses import dataclass
from decimal import Decimal

from shop.errors import Refused
from shop.money import ZERO
from shop.orders.models import OrderRequest


@dataclass(frozen=True, slots=True)
class Shipping:
    """What shipping costs: ``fee``, and nothing for goods of ``free_from`` or more."""

    fee: Decimal
    free_from: Decimal

    def of(self, goods_amount: Decimal) -> Decimal:
        """Return the fee of an order."""
        return ZERO if goods_amount >= self.free_from else self.fee


@dataclass(frozen=True, slots=True)
class Facts:
    """What the other services say about an order.

    Attributes:
        goods_price, goods_number: price and stock.
        user_money: balance.
        coupon_price, coupon_user, coupon_is_used: of the coupon; ``None`` without one.
    """

    goods_price: Decimal
    goods_number: int
    user_money: Decimal
    coupon_price: Decimal | None = None
    coupon_user: str | None = None
    coupon_is_used: bool | None = None


@dataclass(frozen=True, slots=True)
class Amounts:
    """What an order costs, and who pays it: the three last ones add up to ``order``."""

    goods: Decimal
    shipping: Decimal
    order: Decimal
    coupon: Decimal
    money: Decimal
    pay: Decimal


def check(request: OrderRequest, facts: Facts, shipping: Shipping) -> Amounts:
    """Check an order.

    Raises:
        Refused: with the first field that is wrong.
    """
    _equal("goodsPrice", request.goods_price, facts.goods_price, "the price of the goods")
    if request.goods_number > facts.goods_number:
        raise Refused(
            422, "goodsNumber", request.goods_number, f"at most the stock, {facts.goods_number}"
        )
    goods = request.goods_price * request.goods_number
    fee = shipping.of(goods)
    _equal("shippingFee", request.shipping_fee, fee, f"the fee for goods of {goods:.2f}")
    order = goods + fee
    _equal("orderAmount", request.order_amount, order, "price x number + fee")
    coupon = min(_coupon(request, facts), order)
    left = order - coupon
    if request.money_paid > facts.user_money:
        raise Refused(
            *(422, "moneyPaid", f"{request.money_paid:.2f}"),
            f"at most the balance, {facts.user_money:.2f}",
        )
    if request.money_paid > left:
        raise Refused(
            422, "moneyPaid", f"{request.money_paid:.2f}", f"at most what is to be paid, {left:.2f}"
        )
    return Amounts(goods, fee, order, coupon, request.money_paid, left - request.money_paid)


def _coupon(request: OrderRequest, facts: Facts) -> Decimal:
    if request.coupon_id is None or facts.coupon_price is None:
        return ZERO
    if facts.coupon_user != request.user_id:
        raise Refused(422, "couponId", request.coupon_id, "a coupon of this user")
    if facts.coupon_is_used:
        raise Refused(422, "couponId", request.coupon_id, "a coupon that is not used")
    return facts.coupon_price


def _equal(field: str, found: Decimal, expected: Decimal, what: str) -> None:
    if found != expected:
        raise Refused(422, field, f"{found:.2f}", f"{what}, {expected:.2f}")
