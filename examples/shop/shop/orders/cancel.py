"""How orders end without being paid.

Cancelling is decided in one transaction: ``cancel_time`` is set, and the message ``order_cancel``
is in the outbox. From then on the order cannot be confirmed, and it cannot be paid: a payment of a
confirmed order is closed before, by the service *payments*, which knows whether it was paid.
"""

import asyncio
import logging
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from shop import outbox
from shop.calls import Peer
from shop.columns import now_ms
from shop.database import Database
from shop.errors import Refused, shown
from shop.orders.tables import Order, OrderStatus, Outbox, PayStatus
from shop.topics import (
    ORDER_CANCEL,
    ORDER_TOPIC,
    OrderCancelled,
    OrderTimedOut,
    Paid,
)

_log = logging.getLogger(__name__)

SERVICE = "orders"
CLOSED = "closed"
SWEEP_COUNT = 100


def found(session: Session, order_id: str) -> Order:
    """Return an order.

    Raises:
        Refused: there is none with this id.
    """
    order = session.get(Order, order_id)
    if order is None:
        raise Refused(404, "orderId", order_id, "the id of an order")
    return order


def decide(session: Session, order: Order, reason: str) -> None:
    """Cancel an order, whose payment is closed or was never begun. Idempotent."""
    if order.cancel_time is not None:
        return
    order.cancel_time = now_ms()
    order.cancel_reason = shown(reason)
    body = OrderCancelled(
        order_id=order.order_id,
        coupon_id=order.coupon_id,
        goods_id=order.goods_id,
        goods_number=order.goods_number,
        user_id=order.user_id,
        user_money=order.money_paid,
    )
    outbox.put(
        session,
        Outbox,
        group=SERVICE,
        topic=ORDER_TOPIC,
        tag=ORDER_CANCEL,
        key=order.order_id,
        body=body,
        at_ms=order.cancel_time,
    )


def cancelled(session: Session, message: OrderCancelled, _: Any) -> None:
    """Make an order *cancelled*: the part of this service in undoing it."""
    order = found(session, message.order_id)
    order.order_status = OrderStatus.CANCELLED
    if order.pay_status == PayStatus.PAYING:
        order.pay_status = PayStatus.UNPAID


def paid(session: Session, message: Paid, _: Any) -> None:
    """Make an order *paid*."""
    order = found(session, message.order_id)
    if order.order_status != OrderStatus.CONFIRMED or order.cancel_time is not None:
        raise ValueError(
            f"order {order.order_id} was paid with {message.pay_id}, but has status "
            f"{order.order_status}: its payment should have been closed"
        )
    order.pay_status = PayStatus.PAID
    order.pay_time = message.pay_time


class Cancellation:
    """Cancels orders of which the caller does not know how far they are.

    Args:
        database: of this service.
        payments: the service that closes payments.
        stale_s: see ``Settings``.
    """

    def __init__(self, database: Database, payments: Peer, stale_s: float) -> None:
        self._database = database
        self._payments = payments
        self._stale_s = stale_s

    async def cancel(self, order_id: str) -> Order:
        """Cancel an order because its customer wants it. Idempotent.

        Raises:
            Refused: there is none, or it is paid.
            Unavailable: perhaps it is cancelled.
        """
        while True:
            order = await self._database.read(lambda session: found(session, order_id))
            was_confirmed = order.order_status == OrderStatus.CONFIRMED
            if was_confirmed and order.cancel_time is None and not await self.close(order_id):
                raise Refused(409, "payStatus", int(PayStatus.PAID), "an order that is not paid")

            def work(session: Session, was_confirmed: bool = was_confirmed) -> Order | None:
                order = found(session, order_id)
                if order.order_status == OrderStatus.CONFIRMED and not was_confirmed:
                    return None  # confirmed meanwhile: its payment must be closed first
                if order.order_status != OrderStatus.CANCELLED:
                    decide(session, order, "the customer has cancelled it")
                return order

            if (changed := await self._database.transaction(work)) is not None:
                return changed

    async def close(self, order_id: str) -> bool:
        """Have nobody pay an order any more; ``False``: somebody has."""
        answer = await self._payments.post("/pay/close", {"orderId": order_id})
        return bool(answer["state"] == CLOSED)

    async def close_timed_out(self, message: OrderTimedOut) -> bool:
        """Close the payment of an order that may be unpaid after its time; ``False``: leave it."""
        order = await self._database.read(lambda session: found(session, message.order_id))
        if order.order_status != OrderStatus.CONFIRMED or order.cancel_time is not None:
            return False
        return order.pay_status != PayStatus.PAID and await self.close(message.order_id)

    async def sweep(self) -> int:
        """Cancel what is unconfirmed for too long; return how many orders that were."""
        before = now_ms() - round(self._stale_s * 1000)
        stale = select(Order).where(
            Order.order_status == OrderStatus.UNCONFIRMED,
            Order.cancel_time.is_(None),
            Order.add_time < before,
        )

        def work(session: Session) -> int:
            orders = session.scalars(stale.limit(SWEEP_COUNT)).all()
            for order in orders:
                decide(session, order, "its confirmation was not finished")
            return len(orders)

        if await self._database.read(lambda session: session.scalar(stale.limit(1))) is None:
            return 0
        return await self._database.transaction(work)

    async def sweep_always(self) -> None:
        """Sweep again and again."""
        while True:
            if count := await self.sweep():
                _log.warning("%d orders were not confirmed in time and are cancelled", count)
            await asyncio.sleep(self._stale_s / 4)


def timed_out(session: Session, message: OrderTimedOut, is_closed: bool) -> None:
    """Cancel an order that was not paid in time."""
    if is_closed:
        decide(session, found(session, message.order_id), "it was not paid in time")
