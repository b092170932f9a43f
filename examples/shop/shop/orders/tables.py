"""Tables of the service *orders*."""

from decimal import Decimal
from enum import IntEnum

from sqlalchemy import BigInteger, Integer, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from shop.columns import ID_LENGTH_MAX, ConsumedColumns, OutboxColumns, Versioned
from shop.money import Money


class OrderStatus(IntEnum):
    """How far an order is."""

    UNCONFIRMED = 0
    CONFIRMED = 1
    CANCELLED = 2
    INVALID = 3
    RETURNED = 4


class PayStatus(IntEnum):
    """How far its payment is."""

    UNPAID = 0
    PAYING = 1
    PAID = 2


class Base(DeclarativeBase):
    """The tables of this service."""


class Order(Versioned, Base):
    """An order.

    ``cancel_time`` is when it was decided to cancel it; from then on nothing else can become of
    it. It is *cancelled* when the message about it has come back.
    """

    __tablename__ = "orders"  # "order" is a word of SQL

    order_id: Mapped[str] = mapped_column(String(ID_LENGTH_MAX), primary_key=True)
    user_id: Mapped[str] = mapped_column(String(ID_LENGTH_MAX))
    order_status: Mapped[int] = mapped_column(Integer, index=True)
    pay_status: Mapped[int] = mapped_column(Integer)
    shipping_status: Mapped[int] = mapped_column(Integer)
    address: Mapped[str] = mapped_column(String(200))
    consignee: Mapped[str] = mapped_column(String(200))
    goods_id: Mapped[str] = mapped_column(String(ID_LENGTH_MAX))
    goods_number: Mapped[int] = mapped_column(Integer)
    goods_price: Mapped[Decimal] = mapped_column(Money)
    goods_amount: Mapped[Decimal] = mapped_column(Money)
    shipping_fee: Mapped[Decimal] = mapped_column(Money)
    order_amount: Mapped[Decimal] = mapped_column(Money)
    coupon_id: Mapped[str | None] = mapped_column(String(ID_LENGTH_MAX))
    coupon_paid: Mapped[Decimal] = mapped_column(Money)
    money_paid: Mapped[Decimal] = mapped_column(Money)
    pay_amount: Mapped[Decimal] = mapped_column(Money)
    add_time: Mapped[int] = mapped_column(BigInteger)
    confirm_time: Mapped[int | None] = mapped_column(BigInteger)
    pay_time: Mapped[int | None] = mapped_column(BigInteger)
    cancel_time: Mapped[int | None] = mapped_column(BigInteger)
    cancel_reason: Mapped[str | None] = mapped_column(String(400))
    request_key: Mapped[str | None] = mapped_column(String(ID_LENGTH_MAX), unique=True)
    request_hash: Mapped[str] = mapped_column(String(64))


class Consumed(ConsumedColumns, Base):
    """Messages that were consumed."""

    __tablename__ = "order_consumed"


class Outbox(OutboxColumns, Base):
    """Messages that are to be sent."""

    __tablename__ = "order_outbox"
