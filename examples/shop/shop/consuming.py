"""Consumers that do once what a message says, however often it comes.

pymq delivers at least once. So each service has a table of what it has consumed, with the key
(group, tag, key of the message):

==============  ====================================================================================
state           when the message comes
==============  ====================================================================================
(none)          processing, until ``lease_ms``; then the effect, and *done* in the same transaction
``processing``  within its lease: later. Afterwards: who had it has died; taken over
``failed``      up to ``FAILURES_MAX`` times: once more
``dead``        to the dead-letter topic ``%DLQ%group``; an alarm is in the log and ``GET /alarms``
``done``        nothing
==============  ====================================================================================

Who was taken for dead and is merely slow cannot do any harm: its effect is in one transaction with
the check that the row is still its own.

What is not the message's fault (a database or service that does not answer) is not counted as a
failure: the message comes again until it is over.
"""

import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from sqlalchemy.orm import Session

from pymq import ReceivedMessage
from shop.columns import now_ms
from shop.database import Database
from shop.errors import Unavailable, shown
from shop.faults import Faults
from shop.topics import Wire

_log = logging.getLogger(__name__)

FAILURES_MAX = 3
PROCESSING = "processing"
FAILED = "failed"
DEAD = "dead"
DONE = "done"

Body = TypeVar("Body", bound=Wire)


async def no_preparation(body: Any) -> None:
    """Nothing is to be asked before the transaction."""


@dataclass(frozen=True, slots=True)
class Reaction(Generic[Body]):
    """What one group does with the messages of one tag.

    Attributes:
        group, topic, tag: what is consumed.
        body: what the messages say.
        effect: changes the database, in the transaction in which the message becomes *done*; is
            given what ``prepare`` returned.
        prepare: asks other services, before the transaction; may be repeated.
    """

    group: str
    topic: str
    tag: str
    body: type[Body]
    effect: Callable[[Session, Body, Any], None]
    prepare: Callable[[Body], Awaitable[Any]] = no_preparation


class Claim(Enum):
    """What is to be done with a message."""

    OURS = "handle it"
    BUSY = "somebody has it"
    DONE = "it is done"
    DEAD = "it has failed too often"


class TakenOver(Exception):
    """The lease ended before the effect, and somebody else has the message."""


class IdempotentConsumer:
    """Handles the messages of one group; ``handle`` is what pymq's ``Consumer.run`` calls.

    Args:
        database, table: where it is kept what was consumed; the effect's database.
        reaction: what to do.
        lease_s, retry_s: see ``Settings``.
        faults: at ``<group>.claimed``, ``<group>.before_commit``, ``<group>.after_commit``.
    """

    def __init__(
        self,
        database: Database,
        table: type[Any],
        reaction: Reaction[Any],
        *,
        lease_s: float,
        retry_s: float,
        faults: Faults,
    ) -> None:
        self.reaction = reaction
        self._database = database
        self._table = table
        self._lease_s = lease_s
        self._retry_s = retry_s
        self._faults = faults

    async def handle(self, message: ReceivedMessage) -> None:
        """Handle one message, and say what becomes of it."""
        owner = secrets.token_hex(8)
        try:
            if len(message.keys) != 1:
                raise ValueError(f"{len(message.keys)} keys, expected one")
            body = self.reaction.body.model_validate_json(message.body)
        except ValueError as error:  # also a body that is not what was expected
            _log.error("ALARM %s: message %s: %s", self.reaction.group, message.message_id, error)
            message.reject(f"not a {self.reaction.body.__name__}: {error}")
            return
        try:
            claim = await self._database.transaction(
                lambda session: self._claim(session, message, owner)
            )
            if claim is Claim.OURS:
                await self._faults.reach(f"{self.reaction.group}.claimed")
                claim = await self._do(message, body, owner)
        except Unavailable as error:
            _log.warning("%s: message %s: %s", self.reaction.group, message.message_id, error)
            claim = Claim.BUSY
        if claim is Claim.BUSY:
            message.retry(after_s=self._retry_s)
        elif claim is Claim.DEAD:
            message.reject("it has failed too often: see GET /alarms")

    async def _do(self, message: ReceivedMessage, body: Wire, owner: str) -> Claim:
        try:
            prepared = await self.reaction.prepare(body)
            await self._database.transaction(
                lambda session: self._effect(session, message, owner, body, prepared)
            )
        except TakenOver:
            return Claim.BUSY
        except Unavailable:
            await self._database.transaction(
                lambda session: self._release(session, message, owner)
            )
            raise
        except Exception as error:  # whatever it is, the next messages have to be handled
            _log.exception("%s: message %s failed", self.reaction.group, message.message_id)
            text = shown(f"{type(error).__name__}: {error}")
            return await self._database.transaction(
                lambda session: self._fail(session, message, owner, text)
            )
        await self._faults.reach(f"{self.reaction.group}.after_commit")
        return Claim.DONE

    def _row(self, session: Session, message: ReceivedMessage) -> Any:
        key = (self.reaction.group, self.reaction.tag, message.keys[0])
        return session.get(self._table, key, with_for_update=True)

    def _claim(self, session: Session, message: ReceivedMessage, owner: str) -> Claim:
        row = self._row(session, message)
        if row is None:
            row = self._table(
                group_name=self.reaction.group,
                msg_tag=self.reaction.tag,
                msg_key=message.keys[0],
                msg_id=message.message_id,
                failures=0,
                error="",
            )
            session.add(row)
        elif row.state == DONE:
            return Claim.DONE
        elif row.state == DEAD:
            return Claim.DEAD
        elif row.state == PROCESSING and row.lease_ms > now_ms():
            return Claim.BUSY
        row.state = PROCESSING
        row.owner = owner
        row.lease_ms = now_ms() + round(self._lease_s * 1000)
        return Claim.OURS

    def _owned(self, session: Session, message: ReceivedMessage, owner: str) -> Any:
        row = self._row(session, message)
        if row is None or row.state != PROCESSING or row.owner != owner:
            raise TakenOver(message.message_id)
        return row

    def _effect(
        self, session: Session, message: ReceivedMessage, owner: str, body: Wire, prepared: Any
    ) -> None:
        row = self._owned(session, message, owner)
        self.reaction.effect(session, body, prepared)
        row.state = DONE
        session.flush()
        self._faults.point(f"{self.reaction.group}.before_commit")

    def _release(self, session: Session, message: ReceivedMessage, owner: str) -> None:
        """Let the next delivery have it at once."""
        row = self._row(session, message)
        if row is not None and row.owner == owner and row.state == PROCESSING:
            row.lease_ms = 0

    def _fail(self, session: Session, message: ReceivedMessage, owner: str, error: str) -> Claim:
        row = self._row(session, message)
        if row is None or row.owner != owner or row.state != PROCESSING:
            return Claim.BUSY
        row.failures += 1
        row.error = error
        if row.failures <= FAILURES_MAX:
            row.state = FAILED
            return Claim.BUSY
        row.state = DEAD
        _log.error(
            "ALARM %s: message %s, key %s, has failed %d times and is a dead letter: %s",
            *(self.reaction.group, message.message_id, message.keys[0], row.failures, error),
        )
        return Claim.DEAD
