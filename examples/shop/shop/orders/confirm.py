"""Confirming an order: a chain of steps, each in one transaction of one service.

1. *check*: ask the services, and compare (``rules``)
2. *store* the order, unconfirmed
3. *stock*, 4. *coupon*, 5. *balance*: each taken by its service, over HTTP
6. *confirmed*; in the outbox are the message that says so, and the delayed one that cancels the
   order if it is not paid

When a step after *store* fails, it is decided to cancel the order (``cancel``). When this process
dies, the order is unconfirmed for ever, so somebody's ``sweep`` does. A customer who repeats the
request with the same ``Idempotency-Key`` gets the same order: finished, or finished now.
"""

import asyncio
import hashlib
from collections.abc import Mapping
from decimal import Decimal

from sqlalchemy import select
from sqlalchemy.orm import Session

from shop import outbox
from shop.calls import Peer
from shop.columns import new_id, now_ms
from shop.database import Database
from shop.errors import Refused, Unavailable
from shop.faults import Faults
from shop.money import text
from shop.orders import cancel
from shop.orders.models import OrderRequest
from shop.orders.rules import Amounts, Facts, Shipping, check
from shop.orders.tables import Order, OrderStatus, Outbox, PayStatus
from shop.topics import (
    ORDER_CONFIRMED,
    ORDER_TIMEOUT,
    ORDER_TOPIC,
    OrderConfirmed,
    OrderTimedOut,
)


class Confirmation:
    """Confirms orders.

    Args:
        database: of this service.
        peers: goods, coupons, users.
        shipping: what it costs.
        unpaid_s: see ``Settings``.
        faults: at ``confirm.<step>.before_commit`` and ``.after_commit``.
    """

    def __init__(
        self,
        database: Database,
        peers: Mapping[str, Peer],
        shipping: Shipping,
        unpaid_s: float,
        faults: Faults,
    ) -> None:
        self._database = database
        self._goods = peers["goods"]
        self._coupons = peers["coupons"]
        self._users = peers["users"]
        self._shipping = shipping
        self._unpaid_s = unpaid_s
        self._faults = faults

    async def confirm(self, request: OrderRequest, key: str | None) -> Order:
        """Confirm an order.

        Args:
            request: what the customer wants.
            key: the same for the same order, when it is sent again.

        Returns:
            The order, confirmed.

        Raises:
            Refused: it cannot be confirmed; if it was stored, it is cancelled.
            Unavailable: some service does not answer; if it was stored, it is cancelled.
        """
        fingerprint = hashlib.sha256(request.json_text().encode()).hexdigest()
        order = None
        if key is not None:
            order = await self._database.read(lambda session: _known(session, key, fingerprint))
        if order is None:
            amounts = check(request, await self._facts(request), self._shipping)
            order = await self._database.transaction(
                lambda session: self._store(session, request, amounts, key, fingerprint)
            )
            await self._faults.reach("confirm.stored.after_commit")
        if order.cancel_time is None and order.order_status == OrderStatus.UNCONFIRMED:
            order = await self._finish(order)
        if order.cancel_time is not None:
            raise Refused(409, "orderId", order.order_id, f"not cancelled: {order.cancel_reason}")
        return order

    async def _facts(self, request: OrderRequest) -> Facts:
        asked = [
            self._goods.get(f"/goods/{request.goods_id}"),
            self._users.get(f"/users/{request.user_id}"),
        ]
        if request.coupon_id is not None:
            asked.append(self._coupons.get(f"/coupons/{request.coupon_id}"))
        try:
            goods, user, *coupons = await asyncio.gather(*asked)
        except Refused as error:
            if error.status == 404:  # of the thing asked for, not of the order
                error.status = 422
            raise
        facts = Facts(
            goods_price=Decimal(goods["goodsPrice"]),
            goods_number=goods["goodsNumber"],
            user_money=Decimal(user["userMoney"]),
        )
        if not coupons:
            return facts
        return Facts(
            goods_price=facts.goods_price,
            goods_number=facts.goods_number,
            user_money=facts.user_money,
            coupon_price=Decimal(coupons[0]["couponPrice"]),
            coupon_user=coupons[0]["userId"],
            coupon_is_used=coupons[0]["isUsed"],
        )

    def _store(
        self,
        session: Session,
        request: OrderRequest,
        amounts: Amounts,
        key: str | None,
        fingerprint: str,
    ) -> Order:
        if key is not None and (known := _known(session, key, fingerprint)) is not None:
            return known
        order = Order(
            order_id=new_id(),
            user_id=request.user_id,
            order_status=OrderStatus.UNCONFIRMED,
            pay_status=PayStatus.UNPAID,
            shipping_status=0,
            address=request.address,
            consignee=request.consignee,
            goods_id=request.goods_id,
            goods_number=request.goods_number,
            goods_price=request.goods_price,
            goods_amount=amounts.goods,
            shipping_fee=amounts.shipping,
            order_amount=amounts.order,
            coupon_id=request.coupon_id,
            coupon_paid=amounts.coupon,
            money_paid=amounts.money,
            pay_amount=amounts.pay,
            add_time=now_ms(),
            request_key=key,
            request_hash=fingerprint,
        )
        session.add(order)
        session.flush()
        self._faults.point("confirm.stored.before_commit")
        return order

    async def _finish(self, order: Order) -> Order:
        order_id = order.order_id
        try:
            await self._take_all(order)
            order = await self._database.transaction(
                lambda session: self._confirmed(session, order_id)
            )
        except (Refused, Unavailable) as error:
            reason = str(error)
            await self._faults.reach("confirm.failed")
            order = await self._database.transaction(
                lambda session: self._failed(session, order_id, reason)
            )
            await self._faults.reach("confirm.cancelled.after_commit")
            if order.cancel_time is not None:
                raise
        await self._faults.reach("confirm.confirmed.after_commit")
        return order

    async def _take_all(self, order: Order) -> None:
        await self._goods.post(
            f"/goods/{order.goods_id}/take",
            {"orderId": order.order_id, "goodsNumber": order.goods_number},
        )
        await self._faults.reach("confirm.stock")
        if order.coupon_id is not None:
            await self._coupons.post(
                f"/coupons/{order.coupon_id}/use",
                {"orderId": order.order_id, "userId": order.user_id},
            )
            await self._faults.reach("confirm.coupon")
        if order.money_paid:
            await self._users.post(
                f"/users/{order.user_id}/pay",
                {"orderId": order.order_id, "userMoney": text(order.money_paid)},
            )
            await self._faults.reach("confirm.balance")

    def _confirmed(self, session: Session, order_id: str) -> Order:
        order = cancel.found(session, order_id)
        if order.order_status != OrderStatus.UNCONFIRMED or order.cancel_time is not None:
            return order
        order.order_status = OrderStatus.CONFIRMED
        order.confirm_time = now_ms()
        outbox.put(
            session,
            Outbox,
            group=cancel.SERVICE,
            topic=ORDER_TOPIC,
            tag=ORDER_CONFIRMED,
            key=order_id,
            body=OrderConfirmed.model_validate(order),
            at_ms=order.confirm_time,
        )
        outbox.put(
            session,
            Outbox,
            group=cancel.SERVICE,
            topic=ORDER_TOPIC,
            tag=ORDER_TIMEOUT,
            key=order_id,
            body=OrderTimedOut(order_id=order_id),
            deliver_ms=now_ms() + round(self._unpaid_s * 1000),
        )
        session.flush()
        self._faults.point("confirm.confirmed.before_commit")
        return order

    def _failed(self, session: Session, order_id: str, reason: str) -> Order:
        """Cancel the order, unless a repetition of the same request has confirmed it."""
        order = cancel.found(session, order_id)
        if order.order_status == OrderStatus.UNCONFIRMED:
            cancel.decide(session, order, reason)
        session.flush()
        self._faults.point("confirm.cancelled.before_commit")
        return order


def _known(session: Session, key: str, fingerprint: str) -> Order | None:
    order = session.scalars(select(Order).where(Order.request_key == key)).one_or_none()
    if order is not None and order.request_hash != fingerprint:
        raise Refused(409, "Idempotency-Key", key, "another key for another order")
    return order
