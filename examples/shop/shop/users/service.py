"""Routes and consumers of the service *users*."""

from decimal import Decimal
from typing import Any

from fastapi import APIRouter
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from shop import steps
from shop.columns import now_ms
from shop.consuming import Reaction
from shop.errors import Refused
from shop.money import Amount
from shop.parts import Context, Definition, Id, Line, Parts, PathId
from shop.topics import (
    ORDER_CANCEL,
    ORDER_TOPIC,
    PAID,
    PAY_TOPIC,
    OrderCancelled,
    Paid,
    Wire,
)
from shop.users import tables
from shop.users.tables import Base, Consumed, MoneyLog, ScoreLog, Step, User


class NewUser(Wire):
    """A customer, with the balance to begin with."""

    user_id: Id
    user_name: Line
    user_money: Amount


class NewUsers(Wire):
    """Several of them."""

    users: list[NewUser]


class UserModel(NewUser):
    """A customer."""

    user_score: int


class UserList(Wire):
    """Several of them."""

    users: list[UserModel]


class Spending(Wire):
    """Balance for an order."""

    order_id: Id
    user_money: Amount


def load(session: Session, several: list[NewUser]) -> None:
    """Add users with their first balance; those that are there stay as they are."""
    for one in several:
        if session.get(User, one.user_id) is None:
            session.add(User(**one.model_dump(), user_score=0))
            _log(session, one.user_id, None, tables.DEPOSITED, one.user_money)


def spend(session: Session, user_id: str, spending: Spending) -> None:
    """Use balance for an order, once.

    Raises:
        Refused: there is not enough, or the order was cancelled.
    """
    if not steps.take(session, Step, spending.order_id):
        return
    changed = session.execute(
        update(User)
        .where(User.user_id == user_id, User.user_money >= spending.user_money)
        .values(user_money=User.user_money - spending.user_money)
    )
    if not changed.rowcount:  # type: ignore[attr-defined]  # of an UPDATE
        user = found(session, user_id)
        raise Refused(
            409, "moneyPaid", spending.user_money, f"at most the balance, {user.user_money:.2f}"
        )
    _log(session, user_id, spending.order_id, tables.PAID, spending.user_money)


def refund(session: Session, order: OrderCancelled, _: Any) -> None:
    """Return the balance that an order has used, if it has used any."""
    if not steps.undo(session, Step, order.order_id):
        return
    paid = session.scalars(select(MoneyLog).where(MoneyLog.order_id == order.order_id)).one()
    session.execute(
        update(User)
        .where(User.user_id == paid.user_id)
        .values(user_money=User.user_money + paid.use_money)
    )
    _log(session, paid.user_id, order.order_id, tables.REFUNDED, paid.use_money)


def add_points(session: Session, paid: Paid, _: Any) -> None:
    """Add a point for each whole unit of money that was paid."""
    points = int(paid.pay_amount)
    found(session, paid.user_id)
    session.execute(
        update(User)
        .where(User.user_id == paid.user_id)
        .values(user_score=User.user_score + points)
    )
    session.add(
        ScoreLog(
            order_id=paid.order_id, user_id=paid.user_id, user_score=points, create_time=now_ms()
        )
    )


def found(session: Session, user_id: str) -> User:
    """Return a user.

    Raises:
        Refused: there is none with this id.
    """
    user = session.get(User, user_id)
    if user is None:
        raise Refused(404, "userId", user_id, "the id of a user")
    return user


def _log(
    session: Session, user_id: str, order_id: str | None, kind: int, money: Decimal
) -> None:
    session.add(
        MoneyLog(
            user_id=user_id,
            order_id=order_id,
            money_log_type=kind,
            use_money=money,
            create_time=now_ms(),
        )
    )


def build(context: Context) -> Parts:
    """Make the parts of the service."""
    router = APIRouter()
    database, faults = context.database, context.faults

    @router.post("/users")
    async def add(several: NewUsers) -> dict[str, int]:
        await database.transaction(lambda session: load(session, several.users))
        return {"count": len(several.users)}

    @router.get("/users")
    async def all_users() -> UserList:
        def read(session: Session) -> UserList:
            rows = session.scalars(select(User).order_by(User.user_id))
            return UserList(users=[_model(row) for row in rows])

        return await database.read(read)

    @router.get("/users/{user_id}")
    async def one(user_id: PathId) -> UserModel:
        return await database.read(lambda session: _model(found(session, user_id)))

    @router.post("/users/{user_id}/pay")
    async def pay(user_id: PathId, spending: Spending) -> dict[str, str]:
        def work(session: Session) -> None:
            spend(session, user_id, spending)
            session.flush()
            faults.point("balance.before_commit")

        await database.transaction(work)
        await faults.reach("balance.after_commit")
        return {"orderId": spending.order_id}

    return Parts(
        router,
        [
            Reaction("users-cancel", ORDER_TOPIC, ORDER_CANCEL, OrderCancelled, refund),
            Reaction("users-paid", PAY_TOPIC, PAID, Paid, add_points),
        ],
    )


def _model(user: User) -> UserModel:
    return UserModel.model_validate({n: getattr(user, n) for n in UserModel.model_fields})


USERS = Definition("users", Base, Consumed, build)
