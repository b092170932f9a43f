"""Routes and consumers of the service *goods*."""

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from shop import steps
from shop.columns import now_ms
from shop.consuming import Reaction
from shop.errors import Refused
from shop.goods.tables import Base, Consumed, Good, NumberLog, Step
from shop.money import Amount
from shop.parts import Context, Definition, Id, Line, Parts, PathId
from shop.topics import ORDER_CANCEL, ORDER_TOPIC, OrderCancelled, Wire

STOCK_MAX = 1_000_000_000


class GoodModel(Wire):
    """Something that is sold."""

    goods_id: Id
    goods_name: Line
    goods_number: Annotated[int, Field(ge=0, le=STOCK_MAX)]
    goods_price: Amount
    goods_desc: Line


class GoodsList(Wire):
    """Several of them."""

    goods: list[GoodModel]


class Taking(Wire):
    """Stock for an order."""

    order_id: Id
    goods_number: Annotated[int, Field(ge=1, le=STOCK_MAX)]


class Done(Wire):
    """The answer to what was done, now or before."""

    order_id: str


def load(session: Session, several: list[GoodModel]) -> None:
    """Add goods with their initial stock; those that are there stay as they are."""
    for one in several:
        if session.get(Good, one.goods_id) is None:
            session.add(Good(**one.model_dump(), add_time=now_ms()))
            _log(session, one.goods_id, None, one.goods_number)


def take(session: Session, goods_id: str, taking: Taking) -> None:
    """Take stock for an order, once.

    Raises:
        Refused: there is not enough, or the order was cancelled.
    """
    if not steps.take(session, Step, taking.order_id):
        return
    changed = session.execute(
        update(Good)
        .where(Good.goods_id == goods_id, Good.goods_number >= taking.goods_number)
        .values(goods_number=Good.goods_number - taking.goods_number)
    )
    if not changed.rowcount:  # type: ignore[attr-defined]  # of an UPDATE
        good = found(session, goods_id)
        raise Refused(
            409, "goodsNumber", taking.goods_number, f"at most the stock, {good.goods_number}"
        )
    _log(session, goods_id, taking.order_id, -taking.goods_number)


def give_back(session: Session, order: OrderCancelled, _: Any) -> None:
    """Return what was taken for an order, if anything was."""
    if not steps.undo(session, Step, order.order_id):
        return
    taken = session.scalars(select(NumberLog).where(NumberLog.order_id == order.order_id)).one()
    session.execute(
        update(Good)
        .where(Good.goods_id == taken.goods_id)
        .values(goods_number=Good.goods_number - taken.goods_number)
    )
    _log(session, taken.goods_id, order.order_id, -taken.goods_number)


def found(session: Session, goods_id: str) -> Good:
    """Return a good.

    Raises:
        Refused: there is none with this id.
    """
    good = session.get(Good, goods_id)
    if good is None:
        raise Refused(404, "goodsId", goods_id, "the id of a good")
    return good


def _log(session: Session, goods_id: str, order_id: str | None, number: int) -> None:
    session.add(
        NumberLog(goods_id=goods_id, order_id=order_id, goods_number=number, log_time=now_ms())
    )


def build(context: Context) -> Parts:
    """Make the parts of the service."""
    router = APIRouter()
    database, faults = context.database, context.faults

    @router.post("/goods")
    async def add(several: GoodsList) -> dict[str, int]:
        await database.transaction(lambda session: load(session, several.goods))
        return {"count": len(several.goods)}

    @router.get("/goods")
    async def all_goods() -> GoodsList:
        def read(session: Session) -> GoodsList:
            rows = session.scalars(select(Good).order_by(Good.goods_id))
            return GoodsList(goods=[_model(row) for row in rows])

        return await database.read(read)

    @router.get("/goods/{goods_id}")
    async def one(goods_id: PathId) -> GoodModel:
        return await database.read(lambda session: _model(found(session, goods_id)))

    @router.post("/goods/{goods_id}/take")
    async def take_stock(goods_id: PathId, taking: Taking) -> Done:
        def work(session: Session) -> None:
            take(session, goods_id, taking)
            session.flush()
            faults.point("stock.before_commit")

        await database.transaction(work)
        await faults.reach("stock.after_commit")
        return Done(order_id=taking.order_id)

    cancel = Reaction("goods-cancel", ORDER_TOPIC, ORDER_CANCEL, OrderCancelled, give_back)
    return Parts(router, [cancel])


def _model(good: Good) -> GoodModel:
    return GoodModel(
        goods_id=good.goods_id,
        goods_name=good.goods_name,
        goods_number=good.goods_number,
        goods_price=good.goods_price,
        goods_desc=good.goods_desc,
    )


GOODS = Definition("goods", Base, Consumed, build)
