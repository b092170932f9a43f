"""Transactions: commits or rolls back each prepared message once.

A transactional message is stored as a half message. The end of its transaction is one append: an op
that closes the half message, and before it, if the transaction is committed, the message itself.
So neither a crash nor a restart leaves one without the other, apart from a write that a loss of
power cut off, which the next start recognizes (``start``): the first decision about a transaction
wins, and whoever ends it again changes nothing. (RocketMQ writes the message again, and forgets
decisions of the last seconds when it stops.)

Source: RocketMQ TransactionalMessageServiceImpl, TransactionalMessageBridge,
EndTransactionProcessor.
"""

import asyncio
import functools
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TypeAlias

from pymq.broker.log_writer import Done, LogWriter, Outcome
from pymq.broker.put_answer import is_in_log, send_answer
from pymq.broker.state.offsets import OffsetTable
from pymq.broker.state.transactions import OpenTransactions
from pymq.broker.transactions.discarded import UNKNOWN, DiscardedTransactions
from pymq.broker.transactions.messages import TransactionalMessages
from pymq.broker.transactions.start import find_transactions
from pymq.clock import Clock
from pymq.errors import BrokerError, StoreError
from pymq.protocol.codes import ResponseCode
from pymq.protocol.names import HALF_OP_TOPIC, HALF_TOPIC, TRANSACTION_GROUP
from pymq.protocol.plain_records import PlainRecords
from pymq.protocol.record import NewRecord, Record
from pymq.protocol.transaction_records import (
    QUEUE_ID,
    Identity,
    check_times,
    decision_key,
    identity,
    op_record,
    op_records,
    resumed_copy,
)
from pymq.store import MessageStore, PutResult, PutStatus, RecordGroup

_log = logging.getLogger(__name__)

#: The remark of an end that changed nothing.
_ENDED_BEFORE = "the transaction has ended before; that decision stands"
#: Offsets of ended transactions that are remembered, so that a second end is answered quickly.
_ENDED_COUNT = 50_000

#: Gets the response code and the remark of the end of a transaction.
Ended: TypeAlias = Callable[[int, str | None], None]


class Transactions:
    """The transactions of one broker.

    Args:
        store: to be read.
        offsets: keeps the places of both topics, as those of the group CID_RMQ_SYS_TRANS.
        messages: makes the message of a half message.
        log_writer: writes.
        discarded: knows transactions that were checked too often.
        store_host: our packed address.

    Attributes:
        table: which half messages are open.
    """

    def __init__(
        self,
        clock: Clock,
        store: MessageStore,
        offsets: OffsetTable,
        messages: TransactionalMessages,
        log_writer: LogWriter,
        discarded: DiscardedTransactions,
        store_host: bytes,
    ) -> None:
        self._clock = clock
        self._store = store
        self._offsets = offsets
        self._messages = messages
        self._log_writer = log_writer
        self._discarded = discarded
        self._store_host = store_host
        self.table = OpenTransactions()
        #: What has to wait until the outcome of a write about an open half message is known.
        self._busy: dict[int, list[Callable[[], None]]] = {}
        #: Transactions that are known to have ended, the latest last.
        self._ended: OrderedDict[Identity, None] = OrderedDict()
        #: Cursors to be saved once the log is flushed up to a physical offset.
        self._cursors: tuple[int, int, int] | None = None

    # --- start

    def load(self) -> None:
        """Find the open transactions of the store, which nobody else uses yet."""
        found = find_transactions(
            self._store,
            self._cursor(HALF_TOPIC),
            self._cursor(HALF_OP_TOPIC),
            self._messages.places,
        )
        self.table = found.transactions
        ops = [self._op(offset) for offset, _ in found.unrecorded]
        for (offset, copy), result in zip(
            found.unrecorded, self._store.put(ops, self._store_host) if ops else (), strict=True
        ):
            op_offset = result.queue_offset if result.status is PutStatus.OK else None
            if op_offset is None:
                _log.error("end of transaction %d not recorded: %s", offset, result.remark)
            if copy is None:
                self.table.close(offset, op_offset)
            else:
                self.table.supersede(offset, copy, op_offset)

    def _cursor(self, topic: str) -> int | None:
        return self._offsets.find(TRANSACTION_GROUP, topic, QUEUE_ID)

    # --- end

    def end(self, half: Record, *, commit: bool, ended: Ended) -> None:
        """Commit a transaction, or roll it back, unless it has ended before.

        Args:
            half: its half message, or a copy.
            commit: whether to make the message visible.
            ended: called once, now or later; must not raise.
        """
        own = identity(half)
        offset = self.table.current(half.queue_offset, own)
        if offset is None:
            self._end_closed(half, own, commit, ended)
        elif offset in self._busy:
            again = functools.partial(self.end, half, commit=commit, ended=ended)
            self._busy[offset].append(again)
        else:
            self._decide(half, offset, commit, ended)

    def _decide(self, half: Record, offset: int, commit: bool, ended: Ended) -> None:
        """Write a decision.

        Args:
            half, commit, ended: as for ``end``.
            offset: the open half message, or any of a discarded transaction.
        """
        own = identity(half)
        was_checked = offset != half.queue_offset or check_times(half) is not None
        has_key = own is not None and (was_checked or not self.table.is_open(offset))
        op = self._op(offset, decision_key(own) if has_key and own is not None else None)
        group = RecordGroup((op,))
        if commit:
            try:
                message = self._messages.committed(half)
            except BrokerError as error:
                ended(error.code, error.remark)
                return
            group = RecordGroup((message, op))

        def written(result: PutResult, outcome: Outcome) -> None:
            if is_in_log(outcome):
                self.table.close(offset, group.places[-1].queue_offset)
                self._remember(own)
                ended(ResponseCode.SUCCESS, None)  # also if no slave has it: consumers see it
            else:
                _log.error("the end of transaction %d is not stored: %s", offset, result.remark)
                ended(*send_answer(result, outcome))

        self._write((offset,), group, written)

    def end_many(
        self,
        offsets: Sequence[int],
        owners: Sequence[Identity],
        committed: Sequence[PlainRecords],
        ended: Ended,
    ) -> bool:
        """End transactions that were never checked, all with one write.

        Args:
            offsets: of their half messages.
            owners: identity of each.
            committed: the messages of those that are committed.
            ended: called once, for all of them, as for ``end``.

        Returns:
            False, and nothing happens, if one of them has to be looked at by itself.
        """
        if (
            len(set(offsets)) < len(offsets)
            or not self._busy.keys().isdisjoint(offsets)
            or not self.table.are_open_alone(offsets)
        ):
            return False
        ops = op_records(offsets, store_host=self._store_host, now_ms=self._clock.wall_ms())
        group = RecordGroup((*committed, ops))

        def written(result: PutResult, outcome: Outcome) -> None:
            if is_in_log(outcome):
                self.table.close_many(offsets, group.places[-1].queue_offset)
                for own in owners:
                    self._remember(own)
                ended(ResponseCode.SUCCESS, None)
            else:
                _log.error(
                    "the ends of %d transactions are not stored: %s", len(offsets), result.remark
                )
                ended(*send_answer(result, outcome))

        self._write(offsets, group, written)
        return True

    def _end_closed(self, half: Record, own: Identity | None, commit: bool, ended: Ended) -> None:
        """Carry out a decision about a transaction that is not open only if it was discarded."""
        # On a full disk what ended it may be in the log, but not be found yet.
        if own is None or own in self._ended:
            ended(ResponseCode.SUCCESS, _ENDED_BEFORE)
            return

        async def act(is_undecided: bool | None) -> None:
            if self.table.current(half.queue_offset, own) is not None:  # resumed meanwhile
                self.end(half, commit=commit, ended=ended)
                return
            if own in self._ended:
                is_undecided = False
            if is_undecided is None:
                ended(ResponseCode.SYSTEM_BUSY, UNKNOWN)
                return
            if not is_undecided:
                self._remember(own)
                ended(ResponseCode.SUCCESS, _ENDED_BEFORE)
                return
            _log.warning("a discarded transaction is ended: message %r", own.unique_key)
            told = _Told()
            self._decide(half, half.queue_offset, commit, told)
            ended(*await told.wait())

        refused = self._discarded.ask(half, own, act)
        if refused is not None:
            ended(*refused)

    def _remember(self, own: Identity | None) -> None:
        """Record that a transaction is known to have ended."""
        if own is not None:
            self._ended[own] = None
        if len(self._ended) > _ENDED_COUNT:
            self._ended.popitem(last=False)

    def _write(self, offsets: Sequence[int], group: RecordGroup, written: Done) -> None:
        """Write what changes the state of transactions; others wait until that is known."""
        self._busy.update((offset, []) for offset in offsets)

        def done(result: PutResult, outcome: Outcome) -> None:
            written(result, outcome)
            waiting = [(offset, self._busy.pop(offset)) for offset in offsets]
            for offset, again in ((offset, one) for offset, many in waiting for one in many):
                try:
                    again()
                except Exception:
                    _log.exception("transaction %d: what waited for an outcome failed", offset)

        self._log_writer.append(group, done)

    def _op(self, offset: int, key: str | None = None) -> NewRecord:
        now_ms = self._clock.wall_ms()
        return op_record(offset, store_host=self._store_host, now_ms=now_ms, key=key)

    # --- checks

    def may_write(self, offset: int) -> bool:
        """Is a half message open, and nothing being written about it?"""
        return self.table.is_open(offset) and offset not in self._busy

    def copy(self, offset: int, copy: NewRecord, copied: Done) -> None:
        """Replace a half message by a copy; only after ``may_write``.

        Args:
            offset: of the half message.
            copy: of it.
            copied: called once with the place of the copy, or its refusal, and the outcome.
        """
        group = RecordGroup((copy, self._op(offset)))

        def written(result: PutResult, outcome: Outcome) -> None:
            if is_in_log(outcome):
                place, op = group.places
                self.table.supersede(offset, place.queue_offset, op.queue_offset)
                copied(place, outcome)
            else:
                copied(result, outcome)

        self._write((offset,), group, written)

    def discard(self, half: Record, discarded: NewRecord, moved: Done) -> None:
        """End a transaction without a decision; only after ``may_write``.

        Args:
            half: its open half message.
            discarded: what is stored of it elsewhere.
            moved: called once with the place of that, or its refusal, and the outcome.
        """
        offset = half.queue_offset
        group = RecordGroup((discarded, self._op(offset)))

        def written(result: PutResult, outcome: Outcome) -> None:
            if is_in_log(outcome):
                place, op = group.places
                self.table.close(offset, op.queue_offset)
                moved(place, outcome)
            else:
                moved(result, outcome)

        self._write((offset,), group, written)

    def resume(self, half: Record, resumed: Ended) -> None:
        """Count the checks of a transaction from 0 again, also if it was discarded.

        Args:
            half: its half message, a copy, or what was stored when it was discarded.
            resumed: called once with the outcome; must not raise.
        """
        own = identity(half)
        known_offset = half.queue_offset if half.topic == HALF_TOPIC else -1
        offset = self.table.current(known_offset, own)
        copy = resumed_copy(half)
        if offset is not None:
            if offset in self._busy:
                self._busy[offset].append(functools.partial(self.resume, half, resumed))
            else:
                self.copy(offset, copy, lambda *outcome: resumed(*_answer(*outcome)))
            return
        if own is None or own in self._ended:  # see _end_closed
            resumed(ResponseCode.SYSTEM_ERROR, _ENDED_BEFORE)
            return

        async def act(is_undecided: bool | None) -> None:
            if self.table.current(known_offset, own) is not None:  # somebody else has resumed it
                self.resume(half, resumed)
                return
            if own in self._ended:
                is_undecided = False
            if not is_undecided:
                remark = UNKNOWN if is_undecided is None else _ENDED_BEFORE
                resumed(ResponseCode.SYSTEM_ERROR, remark)
                return
            try:
                place = await self._log_writer.append_and_wait(copy)
            except StoreError as error:
                resumed(ResponseCode.SYSTEM_ERROR, str(error))
                return
            self.table.find_copy(place.queue_offset, own)
            resumed(ResponseCode.SUCCESS, None)

        refused = self._discarded.ask(half, own, act)
        if refused is not None:
            resumed(*refused)

    # --- cursors

    def save_cursors(self) -> None:
        """Commit the cursors of a while ago, once the log is flushed up to what they stand on.

        A cursor that survived a loss of power while the log's end did not would skip transactions
        that are open again.
        """
        if self._cursors is None:
            now = self.table
            self._cursors = now.half_cursor, now.op_cursor, self._store.log_end
        half_cursor, op_cursor, physical_end = self._cursors
        if self._store.durability.flushed_end >= physical_end:
            for topic, cursor in ((HALF_TOPIC, half_cursor), (HALF_OP_TOPIC, op_cursor)):
                self._offsets.commit(TRANSACTION_GROUP, topic, QUEUE_ID, cursor)
            self._cursors = None


class _Told:
    """The outcome of an end, for somebody who waits for it."""

    def __init__(self) -> None:
        self._answer: asyncio.Future[tuple[int, str | None]]
        self._answer = asyncio.get_running_loop().create_future()

    def __call__(self, code: int, remark: str | None) -> None:
        if not self._answer.done():  # it is when the waiting task was cancelled
            self._answer.set_result((code, remark))

    async def wait(self) -> tuple[int, str | None]:
        """Return the response code and the remark."""
        return await self._answer


def _answer(result: PutResult, outcome: Outcome) -> tuple[int, str | None]:
    if is_in_log(outcome):
        return ResponseCode.SUCCESS, None
    return ResponseCode.SYSTEM_ERROR, result.remark
