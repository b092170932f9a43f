"""Routes of the service *payments*."""

from decimal import Decimal
from typing import Annotated, Literal, Protocol

from fastapi import APIRouter
from pydantic import StringConstraints
from sqlalchemy.orm import Session

from shop.errors import Refused
from shop.money import Amount, text
from shop.parts import Context, Definition, Id, Parts, PathId
from shop.payments import rows
from shop.payments.by_outbox import OutboxWay
from shop.payments.by_transaction import TransactionWay
from shop.payments.rows import Bill, Paying
from shop.payments.tables import Base, Consumed, Outbox, Payment
from shop.signature import is_signed
from shop.topics import Wire


class OrderId(Wire):
    """Which order."""

    order_id: Id


class PaymentModel(Wire):
    """A payment of an order."""

    pay_id: str
    order_id: str
    user_id: str
    pay_amount: Amount
    is_paid: bool
    pay_time: int | None
    create_time: int


class Callback(Wire):
    """What the payment platform says; ``paying`` may arrive after ``paid``."""

    pay_id: Id
    order_id: Id
    pay_amount: Amount
    status: Literal["paying", "paid", "failed"]
    time: int
    signature: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]

    def signed_fields(self) -> dict[str, str]:
        """Return what the signature is about."""
        return {
            "payId": self.pay_id,
            "orderId": self.order_id,
            "payAmount": text(self.pay_amount),
            "status": self.status,
            "time": str(self.time),
        }


class CallbackAnswer(Wire):
    """What has become of it.

    ``result`` is ``paid``, now or before; ``noted`` for any other status; ``closed``: the order is
    cancelled, so the platform has to give the money back.
    """

    result: Literal["paid", "noted", "closed"]


class Way(Protocol):
    """How a paid payment becomes a message."""

    async def pay(self, pay_id: str) -> Paying: ...


def check_callback(payment: Payment, callback: Callback) -> None:
    """Compare what the platform says with the payment.

    Raises:
        Refused: it is about something else.
    """
    if callback.order_id != payment.order_id:
        raise Refused(422, "orderId", callback.order_id, "the order of this payment")
    if callback.pay_amount != payment.pay_amount:
        raise Refused(
            *(422, "payAmount", text(callback.pay_amount)),
            f"what is to be paid, {payment.pay_amount:.2f}",
        )


def build(context: Context) -> Parts:
    """Make the parts of the service."""
    router = APIRouter()
    settings, database, faults = context.settings, context.database, context.faults
    by_transaction = TransactionWay(database, settings.broker, faults)
    by_outbox = OutboxWay(database, faults)
    way: Way = by_outbox if settings.pay_by == "outbox" else by_transaction

    @router.post("/pay/createPayment")
    async def create_payment(request: OrderId) -> PaymentModel:
        """Create the payment of a confirmed order, or return the one it has."""
        order_id = request.order_id
        payment = await database.read(lambda session: rows.find_open(session, order_id))
        if payment is None:
            order = await context.peers["orders"].post(f"/order/{order_id}/paying", {})
            bill = Bill(
                order_id,
                order["userId"],
                Decimal(order["payAmount"]),
                order["goodsId"],
                order["confirmTime"],
            )
            payment = await database.transaction(lambda session: rows.create(session, bill))
        if not payment.pay_amount:  # the balance has paid it all: no platform will call
            await way.pay(payment.pay_id)
            pay_id = payment.pay_id
            payment = await database.read(lambda session: rows.found(session, pay_id))
        return PaymentModel.model_validate(payment)

    @router.post("/pay/callbackPayment")
    async def callback_payment(callback: Callback) -> CallbackAnswer:
        """The payment platform's call; it repeats it until it gets an answer."""
        if not is_signed(callback.signed_fields(), callback.signature, settings.secret):
            raise Refused(401, "signature", callback.signature, "the platform's signature")

        def look(session: Session) -> Paying | None:
            payment = rows.found(session, callback.pay_id)
            check_callback(payment, callback)
            return rows.state(session, payment)

        known = await database.read(look)  # most calls say what an earlier one has said
        if callback.status != "paid":
            return CallbackAnswer(result="noted")
        paying = known or await way.pay(callback.pay_id)
        return CallbackAnswer(result="closed" if paying is Paying.CLOSED else "paid")

    @router.post("/pay/close")
    async def close(request: OrderId) -> dict[str, str]:
        state = await database.transaction(lambda session: rows.close(session, request.order_id))
        await faults.reach("close.after_commit")
        return {"state": state}

    @router.get("/pay/{pay_id}")
    async def one(pay_id: PathId) -> PaymentModel:
        payment = await database.read(lambda session: rows.found(session, pay_id))
        return PaymentModel.model_validate(payment)

    duties = [by_transaction.run] if settings.pay_by == "transaction" else []
    return Parts(router, duties=duties)


PAYMENTS = Definition("payments", Base, Consumed, build, Outbox)
