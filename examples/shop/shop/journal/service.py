"""Routes and consumers of the service *journal*."""

from typing import Any

from fastapi import APIRouter
from sqlalchemy import select
from sqlalchemy.orm import Session

from shop.columns import now_ms
from shop.consuming import Reaction
from shop.journal.tables import Base, Consumed, Entry
from shop.money import Amount
from shop.parts import Context, Definition, Parts, PathId
from shop.topics import PAID, PAY_TOPIC, Paid, Wire


class EntryModel(Wire):
    """A payment that was made."""

    pay_id: str
    order_id: str
    user_id: str
    pay_amount: Amount
    pay_time: int
    create_time: int


class EntryList(Wire):
    """Several of them."""

    entries: list[EntryModel]


def enter(session: Session, paid: Paid, _: Any) -> None:
    """Write down a payment."""
    session.add(
        Entry(
            pay_id=paid.pay_id,
            order_id=paid.order_id,
            user_id=paid.user_id,
            pay_amount=paid.pay_amount,
            pay_time=paid.pay_time,
            create_time=now_ms(),
        )
    )


def build(context: Context) -> Parts:
    """Make the parts of the service."""
    router = APIRouter()

    @router.get("/journal/{order_id}")
    async def of_order(order_id: PathId) -> EntryList:
        def read(session: Session) -> EntryList:
            rows = session.scalars(select(Entry).where(Entry.order_id == order_id))
            return EntryList(entries=[EntryModel.model_validate(row) for row in rows])

        return await context.database.read(read)

    return Parts(router, [Reaction("journal-paid", PAY_TOPIC, PAID, Paid, enter)])


JOURNAL = Definition("journal", Base, Consumed, build)
