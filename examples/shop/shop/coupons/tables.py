"""Tables of the service *coupons*."""

from decimal import Decimal

from sqlalchemy import BigInteger, Boolean, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from shop.columns import ID_LENGTH_MAX, ConsumedColumns, StepColumns, Versioned
from shop.money import Money


class Base(DeclarativeBase):
    """The tables of this service."""


class Coupon(Versioned, Base):
    """What takes something off the price of one order of one user."""

    __tablename__ = "coupon"

    coupon_id: Mapped[str] = mapped_column(String(ID_LENGTH_MAX), primary_key=True)
    coupon_price: Mapped[Decimal] = mapped_column(Money)
    user_id: Mapped[str] = mapped_column(String(ID_LENGTH_MAX))
    order_id: Mapped[str | None] = mapped_column(String(ID_LENGTH_MAX))
    is_used: Mapped[bool] = mapped_column(Boolean)
    used_time: Mapped[int | None] = mapped_column(BigInteger)


class Step(StepColumns, Base):
    """Orders for which a coupon was used."""

    __tablename__ = "coupon_step"


class Consumed(ConsumedColumns, Base):
    """Messages that were consumed."""

    __tablename__ = "coupon_consumed"
