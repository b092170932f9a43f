"""What is done to payments, each function a part of one transaction."""

from dataclasses import dataclass
from enum import Enum

from sqlalchemy.orm import Session

from shop import topics
from shop.columns import new_id, now_ms
from shop.errors import Refused
from shop.money import Amount
from shop.payments.tables import CLOSED, OPEN, PAID, Gate, Payment


class Paying(Enum):
    """What a call that says "paid" has done."""

    NOW = "paid"
    BEFORE = "was paid before"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Bill:
    """What is to be paid, as the service *orders* says."""

    order_id: str
    user_id: str
    pay_amount: Amount
    goods_id: str
    confirm_time: int


def find_open(session: Session, order_id: str) -> Payment | None:
    """Return the payment of an order that is waiting to be paid; ``None``: there is none yet.

    Raises:
        Refused: the order is paid or cancelled.
    """
    gate = session.get(Gate, order_id)
    if gate is None:
        return None
    if gate.state == PAID:
        raise Refused(409, "orderId", order_id, "an order that is not paid")
    if gate.state == CLOSED:
        raise Refused(409, "orderId", order_id, "an order that is not cancelled")
    return session.get(Payment, gate.pay_id)


def create(session: Session, bill: Bill) -> Payment:
    """Make the payment of an order, or return the one that it has. Raises as ``find_open``."""
    payment = find_open(session, bill.order_id)
    if payment is None:
        payment = Payment(
            pay_id=new_id(),
            order_id=bill.order_id,
            user_id=bill.user_id,
            pay_amount=bill.pay_amount,
            goods_id=bill.goods_id,
            confirm_time=bill.confirm_time,
            is_paid=False,
            create_time=now_ms(),
        )
        session.add(Gate(order_id=bill.order_id, state=OPEN, pay_id=payment.pay_id))
        session.add(payment)
        session.flush()
    return payment


def close(session: Session, order_id: str) -> str:
    """Have nobody pay an order any more, unless somebody has.

    Returns:
        ``closed`` or ``paid``.
    """
    gate = session.get(Gate, order_id, with_for_update=True)
    if gate is None:
        session.add(Gate(order_id=order_id, state=CLOSED))
        return CLOSED
    if gate.state == OPEN:
        gate.state = CLOSED
    return gate.state


def found(session: Session, pay_id: str) -> Payment:
    """Return a payment.

    Raises:
        Refused: there is none with this id.
    """
    payment = session.get(Payment, pay_id)
    if payment is None:
        raise Refused(404, "payId", pay_id, "the id of a payment")
    return payment


def state(session: Session, payment: Payment) -> Paying | None:
    """What a call that says "paid" would find; ``None``: it would be the first."""
    return _state(session.get_one(Gate, payment.order_id), payment)


def mark_paid(session: Session, payment: Payment) -> Paying:
    """Make a payment *paid*, unless it is, or its order is cancelled."""
    # Held, not read again: what was found open and what is written must be the same version.
    gate = session.get_one(Gate, payment.order_id)
    if (known := _state(gate, payment)) is not None:
        return known
    gate.state = PAID
    payment.is_paid = True
    payment.pay_time = now_ms()
    session.flush()
    return Paying.NOW


def _state(gate: Gate, payment: Payment) -> Paying | None:
    # The gate alone decides: the payment was read before it, and another call may have committed
    # in between.
    if gate.state == PAID and gate.pay_id == payment.pay_id:
        return Paying.BEFORE
    return None if gate.state == OPEN else Paying.CLOSED


def paid_body(payment: Payment) -> topics.Paid:
    """Return the message about a payment."""
    return topics.Paid(
        pay_id=payment.pay_id,
        order_id=payment.order_id,
        user_id=payment.user_id,
        pay_amount=payment.pay_amount,
        pay_time=payment.pay_time or now_ms(),
        goods_id=payment.goods_id,
        confirm_time=payment.confirm_time,
    )
