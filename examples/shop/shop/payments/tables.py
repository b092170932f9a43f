"""Tables of the service *payments*."""

from decimal import Decimal

from sqlalchemy import BigInteger, Boolean, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from shop.columns import ID_LENGTH_MAX, ConsumedColumns, OutboxColumns, Versioned
from shop.money import Money

#: States of a ``Gate``.
OPEN = "open"
PAID = "paid"
CLOSED = "closed"


class Base(DeclarativeBase):
    """The tables of this service."""


class Gate(Versioned, Base):
    """Whether an order can still be paid: decided here, once, for all who pay or cancel it."""

    __tablename__ = "payment_gate"

    order_id: Mapped[str] = mapped_column(String(ID_LENGTH_MAX), primary_key=True)
    state: Mapped[str] = mapped_column(String(8))
    pay_id: Mapped[str | None] = mapped_column(String(ID_LENGTH_MAX))


class Payment(Versioned, Base):
    """A payment of an order.

    What figures are kept by, ``goods_id`` and ``confirm_time``, old payments do not have.
    """

    __tablename__ = "payment"

    pay_id: Mapped[str] = mapped_column(String(ID_LENGTH_MAX), primary_key=True)
    order_id: Mapped[str] = mapped_column(String(ID_LENGTH_MAX), index=True)
    user_id: Mapped[str] = mapped_column(String(ID_LENGTH_MAX))
    pay_amount: Mapped[Decimal] = mapped_column(Money)
    is_paid: Mapped[bool] = mapped_column(Boolean)
    pay_time: Mapped[int | None] = mapped_column(BigInteger)
    create_time: Mapped[int] = mapped_column(BigInteger)
    goods_id: Mapped[str | None] = mapped_column(String(ID_LENGTH_MAX))
    confirm_time: Mapped[int | None] = mapped_column(BigInteger)


class Decision(Base):
    """What became of a transaction whose half message the broker has; whoever is first decides."""

    __tablename__ = "payment_decision"

    message_id: Mapped[str] = mapped_column(String(ID_LENGTH_MAX), primary_key=True)
    pay_id: Mapped[str] = mapped_column(String(ID_LENGTH_MAX))
    is_committed: Mapped[bool] = mapped_column(Boolean)
    create_time: Mapped[int] = mapped_column(BigInteger)


class Consumed(ConsumedColumns, Base):
    """Messages that were consumed: none by this service."""

    __tablename__ = "payment_consumed"


class Outbox(OutboxColumns, Base):
    """Messages that are to be sent."""

    __tablename__ = "payment_outbox"
