"""Topics, tags and bodies of the shop's messages.

==============  ===================  =======  ===============================================
topic           tag                  key      means
==============  ===================  =======  ===============================================
``orderTopic``  ``order_confirmed``  orderId  this order was confirmed: no service acts on it
``orderTopic``  ``order_cancel``     orderId  give back what was taken for this order
``orderTopic``  ``order_timeout``    orderId  delayed: cancel this order unless it is paid
``payTopic``    ``paid``             payId    this payment was paid
==============  ===================  =======  ===============================================

What an outbox sends has the property ``createTime``: when that happened, in milliseconds since
1970, the same in each copy of the message. ``shop-figures`` has what ``shop.figures`` makes of
these topics, a ``Figure`` in each message.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from shop.money import ZERO, Amount

ORDER_TOPIC = "orderTopic"
PAY_TOPIC = "payTopic"
FIGURES_TOPIC = "shop-figures"
ORDER_CONFIRMED = "order_confirmed"
ORDER_CANCEL = "order_cancel"
ORDER_TIMEOUT = "order_timeout"
PAID = "paid"
#: A property of messages.
CREATE_TIME = "createTime"
#: In a figure; no id of goods can be this.
NO_GOODS = "?"


class Wire(BaseModel):
    """What is sent between processes: JSON with camelCase names; an unknown name is refused."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", from_attributes=True
    )

    def json_text(self) -> str:
        """Return it as a message body."""
        return self.model_dump_json(by_alias=True)


class OrderConfirmed(Wire):
    """Body of ``order_confirmed``; the time in milliseconds since 1970."""

    order_id: str
    goods_id: str
    goods_number: int
    user_id: str
    pay_amount: Amount
    confirm_time: int


class OrderCancelled(Wire):
    """Body of ``order_cancel``."""

    order_id: str
    coupon_id: str | None
    goods_id: str
    goods_number: int
    user_id: str
    user_money: Amount


class OrderTimedOut(Wire):
    """Body of ``order_timeout``."""

    order_id: str


class Paid(Wire):
    """Body of ``paid``.

    Goods and time of the confirmation are for figures; payments that were created before there
    were any do not have them.
    """

    pay_id: str
    order_id: str
    user_id: str
    pay_amount: Amount
    pay_time: int
    goods_id: str | None = None
    confirm_time: int | None = None


class Figure(Wire):
    """Body of a message of ``shop-figures``: what is known so far of a minute and goods.

    Attributes:
        minute: its beginning, in milliseconds since 1970.
        goods_id: which goods; ``NO_GOODS`` for messages that do not say it.
        confirmed: orders that were confirmed in this minute.
        converted: and how many of these are paid, whenever that was.
        cancelled: orders that were cancelled in this minute, confirmed before or not.
        paid, turnover: payments that were paid in this minute, and their sum.
        unreadable: messages that were stored in this minute and could not be read.
        unreadable_at: where some of them are: ``topic/broker/queue/offset``.
        as_of: when this was found out, in milliseconds since 1970; the latest figure counts.
    """

    minute: Annotated[int, Field(ge=0, multiple_of=60_000)]
    goods_id: str
    confirmed: int = 0
    converted: int = 0
    cancelled: int = 0
    paid: int = 0
    turnover: Amount = ZERO
    unreadable: int = 0
    unreadable_at: list[str] = []
    as_of: int = 0
