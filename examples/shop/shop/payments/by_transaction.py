"""A paid payment becomes a message, second way: RocketMQ's transactional message.

The broker stores a half message, which nobody sees; then the payment is marked; then the broker is
told to deliver the message. When it hears nothing (this process has died, or the broker was away)
it asks some process of the group ``payments``. So that the answer is the same for ever, both sides
write down what they decide, under the id of the half message: the transaction that marks the
payment says *committed*, a check that finds nothing says *rolled back*. Only one of them can
insert the key.

Against the outbox: no relay and no table of messages, but the call of the platform waits for the
broker twice, and is refused while there is none.
"""

import asyncio
import logging

from sqlalchemy.orm import Session

from pymq import Message, Producer, PymqError, ReceivedMessage, Transaction, TransactionStatus
from shop.columns import now_ms
from shop.database import Database
from shop.errors import Refused, Unavailable
from shop.faults import Faults
from shop.payments import rows
from shop.payments.rows import Paying
from shop.payments.tables import Decision, Payment
from shop.settings import PATIENT
from shop.topics import PAID, PAY_TOPIC

_log = logging.getLogger(__name__)

GROUP = "payments"
SEND_S = 3.0


class TransactionWay:
    """Marks payments as paid.

    Args:
        database: of this service.
        broker: name servers.
        faults: at ``callback.half``, ``.before_commit``, ``.after_commit``.
    """

    def __init__(self, database: Database, broker: str, faults: Faults) -> None:
        self._database = database
        self._broker = broker
        self._faults = faults
        self._producer: Producer | None = None

    async def run(self) -> None:
        """Have a producer, until this is cancelled; it also answers the broker's questions."""
        producer = Producer(
            self._broker,
            group=GROUP,
            deadline_s=SEND_S,
            check_transaction=self.check,
            check_topics=[PAY_TOPIC],
            network=PATIENT,
        )
        async with producer:
            self._producer = producer
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self._producer = None

    async def pay(self, pay_id: str) -> Paying:
        """Mark a payment as paid. Idempotent."""
        payment, known = await self._database.read(lambda session: self._look(session, pay_id))
        if known is not None:
            return known
        if self._producer is None:
            raise Unavailable(f"no broker has been reached yet at {self._broker}")
        payment.pay_time = now_ms()
        message = Message(
            PAY_TOPIC, rows.paid_body(payment).json_text().encode(), tags=PAID, keys=pay_id
        )
        transaction = Transaction(self._producer, message)
        try:
            await transaction.begin()
        except PymqError as error:
            raise Unavailable(f"the half message was not stored: {error}") from error
        try:
            await self._faults.reach("callback.half")
            paying = await self._mark(transaction, pay_id)
            await self._faults.reach("callback.after_commit")
        except Refused:
            await self._end(transaction, is_committed=False)
            raise
        except BaseException:  # perhaps it is marked, perhaps not: the table says it when asked
            await transaction.leave_open()
            raise
        await self._end(transaction, is_committed=paying is Paying.NOW)
        return paying

    async def _end(self, transaction: Transaction, *, is_committed: bool) -> None:
        try:
            await (transaction.commit() if is_committed else transaction.rollback())
        except PymqError as error:  # the broker will ask
            _log.warning("transaction of message %s: %s", transaction.message_id, error)

    async def _mark(self, transaction: Transaction, pay_id: str) -> Paying:
        def work(session: Session) -> Paying:
            payment = rows.found(session, pay_id)
            if session.get(Decision, transaction.message_id) is not None:
                raise Unavailable(
                    f"payment {pay_id}: the broker has asked before it was marked, and was told to "
                    "drop the message"
                )
            paying = rows.mark_paid(session, payment)
            if paying is Paying.NOW:
                session.add(_decision(transaction.message_id, pay_id, is_committed=True))
                session.flush()
                self._faults.point("callback.before_commit")
            return paying

        return await self._database.transaction(work)

    def _look(self, session: Session, pay_id: str) -> tuple[Payment, Paying | None]:
        payment = rows.found(session, pay_id)
        return payment, rows.state(session, payment)

    async def check(self, message: ReceivedMessage) -> TransactionStatus:
        """Tell a broker what became of a transaction."""

        def work(session: Session) -> bool:
            decision = session.get(Decision, message.message_id)
            if decision is None:
                decision = _decision(message.message_id, message.keys[0], is_committed=False)
                session.add(decision)
                session.flush()
            return decision.is_committed

        is_committed = await self._database.transaction(work)
        return TransactionStatus.COMMIT if is_committed else TransactionStatus.ROLLBACK


def _decision(message_id: str, pay_id: str, *, is_committed: bool) -> Decision:
    return Decision(
        message_id=message_id, pay_id=pay_id, is_committed=is_committed, create_time=now_ms()
    )
