"""Routes and consumers of the service *orders*."""

import re
from typing import Annotated

from fastapi import APIRouter, Header
from sqlalchemy import select
from sqlalchemy.orm import Session

from shop.consuming import Reaction
from shop.errors import Refused
from shop.orders import cancel
from shop.orders.cancel import Cancellation
from shop.orders.confirm import Confirmation
from shop.orders.models import OrderList, OrderModel, OrderRequest
from shop.orders.rules import Shipping
from shop.orders.tables import Base, Consumed, Order, OrderStatus, Outbox, PayStatus
from shop.parts import Context, Definition, Parts, PathId
from shop.topics import (
    ORDER_CANCEL,
    ORDER_TIMEOUT,
    ORDER_TOPIC,
    PAID,
    PAY_TOPIC,
    OrderCancelled,
    OrderTimedOut,
    Paid,
)
from shop.turns import Turns

LIST_COUNT = 50
#: On two cores as many orders a second as with 16, and callbacks are answered in half the time.
CONFIRMS_AT_ONCE = 8
TURN_S = 5.0
_KEY = re.compile(r"[A-Za-z0-9_-]{1,64}")


def paying(session: Session, order_id: str) -> Order:
    """Say that somebody is about to pay an order. Idempotent.

    Raises:
        Refused: it is not confirmed, or paid.
    """
    order = cancel.found(session, order_id)
    if order.order_status != OrderStatus.CONFIRMED or order.cancel_time is not None:
        raise Refused(409, "orderId", order_id, "a confirmed order that is not cancelled")
    if order.pay_status == PayStatus.UNPAID:
        order.pay_status = PayStatus.PAYING
    elif order.pay_status == PayStatus.PAID:
        raise Refused(409, "orderId", order_id, "an order that is not paid")
    return order


def build(context: Context) -> Parts:
    """Make the parts of the service."""
    router = APIRouter()
    settings, database, faults = context.settings, context.database, context.faults
    shipping = Shipping(settings.shipping_fee, settings.free_from)
    confirmation = Confirmation(database, context.peers, shipping, settings.unpaid_s, faults)
    turns = Turns(CONFIRMS_AT_ONCE, TURN_S)
    cancellation = Cancellation(database, context.peers["payments"], settings.stale_s)

    @router.post("/order/confirm")
    async def confirm(
        request: OrderRequest, idempotency_key: Annotated[str | None, Header()] = None
    ) -> OrderModel:
        """Confirm an order; with the same Idempotency-Key, the same order."""
        if idempotency_key is not None and not _KEY.fullmatch(idempotency_key):
            raise Refused(422, "Idempotency-Key", idempotency_key, f"a match of {_KEY.pattern}")
        async with turns.turn():
            return OrderModel.model_validate(await confirmation.confirm(request, idempotency_key))

    @router.get("/order/{order_id}")
    async def one(order_id: PathId) -> OrderModel:
        order = await database.read(lambda session: cancel.found(session, order_id))
        return OrderModel.model_validate(order)

    @router.get("/order")
    async def newest() -> OrderList:
        def read(session: Session) -> OrderList:
            rows = session.scalars(select(Order).order_by(Order.order_id.desc()).limit(LIST_COUNT))
            return OrderList(orders=[OrderModel.model_validate(row) for row in rows])

        return await database.read(read)

    @router.post("/order/{order_id}/cancel")
    async def cancel_order(order_id: PathId) -> OrderModel:
        """Cancel an order that is not paid. What it has taken is given back a little later."""
        return OrderModel.model_validate(await cancellation.cancel(order_id))

    @router.post("/order/{order_id}/paying")
    async def begin_paying(order_id: PathId) -> OrderModel:
        order = await database.transaction(lambda session: paying(session, order_id))
        return OrderModel.model_validate(order)

    return Parts(
        router,
        [
            Reaction(
                "orders-cancel", ORDER_TOPIC, ORDER_CANCEL, OrderCancelled, cancel.cancelled
            ),
            Reaction(
                "orders-timeout",
                ORDER_TOPIC,
                ORDER_TIMEOUT,
                OrderTimedOut,
                cancel.timed_out,
                cancellation.close_timed_out,
            ),
            Reaction("orders-paid", PAY_TOPIC, PAID, Paid, cancel.paid),
        ],
        [cancellation.sweep_always],
    )


ORDERS = Definition("orders", Base, Consumed, build, Outbox)
