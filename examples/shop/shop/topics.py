"""Topics, tags and bodies of the shop's messages.

==============  ===================  =======  ===============================================
topic           tag                  key      means
==============  ===================  =======  ===============================================
``orderTopic``  ``order_confirmed``  orderId  this order was confirmed: no service acts on it
``orderTopic``  ``order_cancel``     orderId  give back what was taken for this order
``orderTopic``  ``order_timeout``    orderId  delayed: cancel this order unless it is paid
``payTopic``    ``paid``             payId    this payment was paid
==============  ===================  =======  ===============================================
"""

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from shop.money import Amount

ORDER_TOPIC = "orderTopic"
PAY_TOPIC = "payTopic"
ORDER_CONFIRMED = "order_confirmed"
ORDER_CANCEL = "order_cancel"
ORDER_TIMEOUT = "order_timeout"
PAID = "paid"


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
    """Body of ``paid``."""

    pay_id: str
    order_id: str
    user_id: str
    pay_amount: Amount
    pay_time: int
