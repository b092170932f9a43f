"""A paid payment becomes a message, first way: an outbox.

One transaction marks the payment and writes the message into the outbox. The call of the platform
is answered without a broker; a relay sends the message a moment later.
"""

from sqlalchemy.orm import Session

from shop import outbox
from shop.database import Database
from shop.faults import Faults
from shop.payments import rows
from shop.payments.rows import Paying
from shop.payments.tables import Outbox
from shop.topics import PAID, PAY_TOPIC


class OutboxWay:
    """Marks payments as paid.

    Args:
        database: of this service.
        faults: at ``callback.before_commit``, ``callback.after_commit``.
    """

    def __init__(self, database: Database, faults: Faults) -> None:
        self._database = database
        self._faults = faults

    async def pay(self, pay_id: str) -> Paying:
        """Mark a payment as paid. Idempotent."""

        def work(session: Session) -> Paying:
            payment = rows.found(session, pay_id)
            paying = rows.mark_paid(session, payment)
            if paying is Paying.NOW:
                outbox.put(
                    session,
                    Outbox,
                    group="payments",
                    topic=PAY_TOPIC,
                    tag=PAID,
                    key=pay_id,
                    body=rows.paid_body(payment),
                    at_ms=payment.pay_time,
                )
                session.flush()
                self._faults.point("callback.before_commit")
            return paying

        paying = await self._database.transaction(work)
        await self._faults.reach("callback.after_commit")
        return paying
