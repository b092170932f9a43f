"""Tables of the service *goods*. The numbers of a good's log add up to its stock."""

from decimal import Decimal

from sqlalchemy import BigInteger, Integer, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from shop.columns import ID_LENGTH_MAX, ROW_ID, ConsumedColumns, StepColumns
from shop.money import Money


class Base(DeclarativeBase):
    """The tables of this service."""


class Good(Base):
    """Something that is sold."""

    __tablename__ = "goods"

    goods_id: Mapped[str] = mapped_column(String(ID_LENGTH_MAX), primary_key=True)
    goods_name: Mapped[str] = mapped_column(String(200))
    goods_number: Mapped[int] = mapped_column(Integer)
    goods_price: Mapped[Decimal] = mapped_column(Money)
    goods_desc: Mapped[str] = mapped_column(String(200))
    add_time: Mapped[int] = mapped_column(BigInteger)


class NumberLog(Base):
    """A change of stock; the first one, without an order, is the initial stock."""

    __tablename__ = "goods_number_log"

    id: Mapped[int] = mapped_column(ROW_ID, primary_key=True, autoincrement=True)
    goods_id: Mapped[str] = mapped_column(String(ID_LENGTH_MAX))
    order_id: Mapped[str | None] = mapped_column(String(ID_LENGTH_MAX), index=True)
    goods_number: Mapped[int] = mapped_column(Integer)
    log_time: Mapped[int] = mapped_column(BigInteger)


class Step(StepColumns, Base):
    """Orders for which stock was taken."""

    __tablename__ = "goods_step"


class Consumed(ConsumedColumns, Base):
    """Messages that were consumed."""

    __tablename__ = "goods_consumed"
