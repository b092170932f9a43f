"""Tables of the service *journal*."""

from decimal import Decimal

from sqlalchemy import BigInteger, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from shop.columns import ID_LENGTH_MAX, ConsumedColumns
from shop.money import Money


class Base(DeclarativeBase):
    """The tables of this service."""


class Entry(Base):
    """A payment that was made."""

    __tablename__ = "journal"

    pay_id: Mapped[str] = mapped_column(String(ID_LENGTH_MAX), primary_key=True)
    order_id: Mapped[str] = mapped_column(String(ID_LENGTH_MAX), index=True)
    user_id: Mapped[str] = mapped_column(String(ID_LENGTH_MAX))
    pay_amount: Mapped[Decimal] = mapped_column(Money)
    pay_time: Mapped[int] = mapped_column(BigInteger)
    create_time: Mapped[int] = mapped_column(BigInteger)


class Consumed(ConsumedColumns, Base):
    """Messages that were consumed."""

    __tablename__ = "journal_consumed"
