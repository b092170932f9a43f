"""Messages that are sent if, and only if, a transaction commits.

The transaction writes the message into a table of its own database: both are there, or neither. A
relay sends what it finds there, and deletes each row when the broker has confirmed its message.
When it dies in between, the row is still there and the message is sent again: consumers see some
messages twice, and none is lost.

A row that a relay has in hand is its own for ``CLAIM_S``, so that several relays may work at one
table. Not more than a hint: two relays that send the same row do no harm.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, or_, select, update
from sqlalchemy.orm import Session

from pymq import Message, Producer, PymqError, SendReceipt
from shop.columns import now_ms
from shop.database import Database
from shop.faults import Faults
from shop.topics import CREATE_TIME, Wire

_log = logging.getLogger(__name__)

WAITING = 0
CLAIMED = 1
CLAIM_S = 15.0
SEND_S = 10.0  # less than CLAIM_S
BATCH_COUNT = 200


@dataclass(frozen=True, slots=True)
class Row:
    """A message to send."""

    id: int
    topic: str
    tag: str
    key: str
    body: str
    deliver_ms: int
    create_time: int

    def message(self) -> Message:
        """Return it as pymq sends it; one whose time has come has no delay any more."""
        delay_s = max((self.deliver_ms - now_ms()) / 1000, 0.0)
        return Message(
            self.topic,
            self.body.encode(),
            tags=self.tag,
            keys=self.key,
            properties={CREATE_TIME: str(self.create_time)},
            delay_s=delay_s,
        )


def put(
    session: Session,
    table: type[Any],
    *,
    group: str,
    topic: str,
    tag: str,
    key: str,
    body: Wire,
    deliver_ms: int = 0,
    at_ms: int | None = None,
) -> None:
    """Have a message sent when this transaction commits.

    Args:
        session: of the transaction.
        table: the outbox of its database.
        group: the service that sends it.
        topic, tag, key, body: of the message.
        deliver_ms: when consumers are to get it; 0: at once.
        at_ms: when what it tells has happened, by default now: its property ``createTime``.
    """
    session.add(
        table(
            group_name=group,
            msg_topic=topic,
            msg_tag=tag,
            msg_key=key,
            msg_body=body.json_text(),
            msg_status=WAITING,
            deliver_ms=deliver_ms,
            claimed_ms=0,
            create_time=now_ms() if at_ms is None else at_ms,
        )
    )


class Relay:
    """Sends what is in one outbox.

    Args:
        database, table: where it is.
        producer: started, by the caller.
        faults: at ``relay.claimed``, ``relay.sent``.
    """

    def __init__(
        self, database: Database, table: type[Any], producer: Producer, faults: Faults
    ) -> None:
        self._database = database
        self._table = table
        self._producer = producer
        self._faults = faults

    async def step(self) -> int:
        """Send what is there, at most ``BATCH_COUNT`` messages.

        Returns:
            How many were sent and deleted.
        """
        rows = await self._database.read(self._waiting)
        if not rows:
            return 0
        rows = await self._database.transaction(self._claim)
        await self._faults.reach("relay.claimed")
        receipts = await asyncio.gather(*map(self._send, rows), return_exceptions=True)
        sent, unsent = [], []
        for row, receipt in zip(rows, receipts, strict=True):
            if isinstance(receipt, SendReceipt) and not receipt.durability_unknown:
                sent.append(row.id)
                continue
            unsent.append(row.id)
            if isinstance(receipt, BaseException) and not isinstance(receipt, PymqError):
                raise receipt
            _log.warning("message %s/%s %s: %s", row.topic, row.tag, row.key, receipt)
        await self._faults.reach("relay.sent")
        await self._database.transaction(lambda session: self._settle(session, sent, unsent))
        return len(sent)

    async def _send(self, row: Row) -> SendReceipt:
        return await self._producer.send(row.message(), deadline_s=SEND_S)

    def _waiting(self, session: Session, *, lock: bool = False) -> list[Row]:
        table = self._table
        free = or_(
            table.msg_status == WAITING, table.claimed_ms < now_ms() - round(CLAIM_S * 1000)
        )
        query = select(table).where(free).order_by(table.id).limit(BATCH_COUNT)
        if lock:  # SQLite has no such clause, and needs none
            query = query.with_for_update(skip_locked=True)
        return [
            Row(
                one.id,
                one.msg_topic,
                one.msg_tag,
                one.msg_key,
                one.msg_body,
                one.deliver_ms,
                one.create_time,
            )
            for one in session.scalars(query)
        ]

    def _claim(self, session: Session) -> list[Row]:
        rows = self._waiting(session, lock=True)
        session.execute(
            update(self._table)
            .where(self._table.id.in_([row.id for row in rows]))
            .values(msg_status=CLAIMED, claimed_ms=now_ms())
        )
        return rows

    def _settle(self, session: Session, sent: list[int], unsent: list[int]) -> None:
        session.execute(delete(self._table).where(self._table.id.in_(sent)))
        session.execute(
            update(self._table).where(self._table.id.in_(unsent)).values(msg_status=WAITING)
        )
