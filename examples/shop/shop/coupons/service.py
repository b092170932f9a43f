"""Routes and consumers of the service *coupons*."""

from typing import Any

from fastapi import APIRouter
from sqlalchemy import select
from sqlalchemy.orm import Session

from shop import steps
from shop.columns import now_ms
from shop.consuming import Reaction
from shop.coupons.tables import Base, Consumed, Coupon, Step
from shop.errors import Refused
from shop.money import Amount
from shop.parts import Context, Definition, Id, Parts, PathId
from shop.topics import ORDER_CANCEL, ORDER_TOPIC, OrderCancelled, Wire


class NewCoupon(Wire):
    """A coupon that nobody has used."""

    coupon_id: Id
    coupon_price: Amount
    user_id: Id


class NewCoupons(Wire):
    """Several of them."""

    coupons: list[NewCoupon]


class CouponModel(NewCoupon):
    """A coupon."""

    order_id: str | None
    is_used: bool
    used_time: int | None


class Using(Wire):
    """Who wants to use it, and for what."""

    order_id: Id
    user_id: Id


def load(session: Session, several: list[NewCoupon]) -> None:
    """Add coupons; those that are there stay as they are."""
    for one in several:
        if session.get(Coupon, one.coupon_id) is None:
            session.add(Coupon(**one.model_dump(), order_id=None, is_used=False, used_time=None))


def use(session: Session, coupon_id: str, using: Using) -> Coupon:
    """Use a coupon for an order, once.

    Raises:
        Refused: it is used, or somebody else's, or the order was cancelled.
    """
    coupon = found(session, coupon_id)
    if not steps.take(session, Step, using.order_id):
        return coupon
    if coupon.user_id != using.user_id:
        raise Refused(409, "couponId", coupon_id, "a coupon of this user")
    if coupon.is_used:
        raise Refused(409, "couponId", coupon_id, "a coupon that is not used")
    coupon.is_used, coupon.order_id, coupon.used_time = True, using.order_id, now_ms()
    return coupon


def give_back(session: Session, order: OrderCancelled, _: Any) -> None:
    """Make a coupon unused again, if this order has used one."""
    if not steps.undo(session, Step, order.order_id):
        return
    coupon = session.scalars(select(Coupon).where(Coupon.order_id == order.order_id)).one()
    coupon.is_used, coupon.order_id, coupon.used_time = False, None, None


def found(session: Session, coupon_id: str) -> Coupon:
    """Return a coupon.

    Raises:
        Refused: there is none with this id.
    """
    coupon = session.get(Coupon, coupon_id)
    if coupon is None:
        raise Refused(404, "couponId", coupon_id, "the id of a coupon")
    return coupon


def build(context: Context) -> Parts:
    """Make the parts of the service."""
    router = APIRouter()
    database, faults = context.database, context.faults

    @router.post("/coupons")
    async def add(several: NewCoupons) -> dict[str, int]:
        await database.transaction(lambda session: load(session, several.coupons))
        return {"count": len(several.coupons)}

    @router.get("/coupons/{coupon_id}")
    async def one(coupon_id: PathId) -> CouponModel:
        return await database.read(
            lambda session: CouponModel.model_validate(_fields(found(session, coupon_id)))
        )

    @router.post("/coupons/{coupon_id}/use")
    async def use_coupon(coupon_id: PathId, using: Using) -> CouponModel:
        def work(session: Session) -> CouponModel:
            coupon = use(session, coupon_id, using)
            session.flush()
            faults.point("coupon.before_commit")
            return CouponModel.model_validate(_fields(coupon))

        answer = await database.transaction(work)
        await faults.reach("coupon.after_commit")
        return answer

    cancel = Reaction("coupons-cancel", ORDER_TOPIC, ORDER_CANCEL, OrderCancelled, give_back)
    return Parts(router, [cancel])


def _fields(coupon: Coupon) -> dict[str, object]:
    return {name: getattr(coupon, name) for name in CouponModel.model_fields}


COUPONS = Definition("coupons", Base, Consumed, build)
