"""Tables of the service *users*. The entries of a user's logs add up to balance and points."""

from decimal import Decimal

from sqlalchemy import BigInteger, Integer, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from shop.columns import ID_LENGTH_MAX, ROW_ID, ConsumedColumns, StepColumns
from shop.money import Money

#: Values of ``money_log_type``.
PAID = 1
REFUNDED = 2
DEPOSITED = 3


class Base(DeclarativeBase):
    """The tables of this service."""


class User(Base):
    """A customer."""

    __tablename__ = "users"  # "user" is a word of SQL

    user_id: Mapped[str] = mapped_column(String(ID_LENGTH_MAX), primary_key=True)
    user_name: Mapped[str] = mapped_column(String(200))
    user_score: Mapped[int] = mapped_column(BigInteger)
    user_money: Mapped[Decimal] = mapped_column(Money)


class MoneyLog(Base):
    """A change of a balance: paid is taken off, the others are added."""

    __tablename__ = "user_money_log"

    id: Mapped[int] = mapped_column(ROW_ID, primary_key=True, autoincrement=True)
    user_id: Mapped[str] = mapped_column(String(ID_LENGTH_MAX))
    order_id: Mapped[str | None] = mapped_column(String(ID_LENGTH_MAX), index=True)
    money_log_type: Mapped[int] = mapped_column(Integer)
    use_money: Mapped[Decimal] = mapped_column(Money)
    create_time: Mapped[int] = mapped_column(BigInteger)


class ScoreLog(Base):
    """The points of an order."""

    __tablename__ = "user_score_log"

    order_id: Mapped[str] = mapped_column(String(ID_LENGTH_MAX), primary_key=True)
    user_id: Mapped[str] = mapped_column(String(ID_LENGTH_MAX))
    user_score: Mapped[int] = mapped_column(BigInteger)
    create_time: Mapped[int] = mapped_column(BigInteger)


class Step(StepColumns, Base):
    """Orders for which balance was used."""

    __tablename__ = "user_step"


class Consumed(ConsumedColumns, Base):
    """Messages that were consumed."""

    __tablename__ = "user_consumed"
