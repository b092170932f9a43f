"""One transaction: its half message, and what becomes of it. ``transactions`` has the rules."""

import asyncio
import logging
from typing import Self

from pymq.client.checks import check_producer
from pymq.client.operations import TransactionStatus
from pymq.client.sending.placement import QueueSelector, placement
from pymq.client.sending.producer import Producer
from pymq.client.sending.receipts import SendReceipt
from pymq.errors import ClientClosed, LocalProtocolError, PymqError, RequestTimeout
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.message import Message

_log = logging.getLogger(__name__)


class Transaction:
    """A message that nobody sees before its transaction is committed.

    ::

        producer = Producer("127.0.0.1:9876", group="orders", check_transaction=was_booked)
        async with producer, Transaction(producer, Message("orders", b"...")) as transaction:
            await database.book(transaction.message_id)

    Leaving the block commits. An ``Exception`` rolls back. Anything else that ends it, such as a
    cancellation, leaves open what became of the local transaction: the broker will ask. So does
    ``leave_open``, for who does not know.

    Args:
        producer: with a ``group`` of its own and ``check_transaction``.
        message: without a delay.
        queue, selector, sharding_key, deadline_s: as for ``Producer.send``.

    Raises:
        ConfigurationError: it is not the producer's kind of transaction.
        LocalProtocolError: an argument is wrong.
    """

    def __init__(
        self,
        producer: Producer,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        sharding_key: str | None = None,
        deadline_s: float | None = None,
    ) -> None:
        check_producer(producer, Producer, name="pymq.Producer", other="pymq.blocking.Transaction")
        self._transactions = producer._transactions
        self._pool = producer._pool
        self._message = message
        self._where = placement(queue, selector, sharding_key)
        self._deadline_s = deadline_s
        self._receipt: SendReceipt | None = None
        self._status = TransactionStatus.UNKNOWN
        self._is_left_open = False
        self._ending = asyncio.Lock()
        #: Why the broker may not have heard ``_status``.
        self._failure: PymqError | None = None

    @property
    def receipt(self) -> SendReceipt:
        """Where the half message is.

        Raises:
            ClientClosed: the transaction has not begun.
        """
        if self._receipt is None:
            raise ClientClosed("the transaction has not begun: use it inside `with`")
        return self._receipt

    @property
    def message_id(self) -> str:
        """The id by which a check recognizes the transaction: write it where you commit."""
        return self.receipt.message_id

    @property
    def status(self) -> TransactionStatus:
        """What the broker was told; ``UNKNOWN`` as long as nothing was."""
        return self._status

    async def begin(self) -> Self:
        """Store the half message.

        Raises:
            PymqError: as for ``send``. Where ``outcome_known`` is false the broker may ask about
                it; the local transaction must not begin, so the check says ``ROLLBACK``.
            DurabilityUnknown: it was stored, but not as durably as the broker promises.
        """
        if self._receipt is not None:
            raise ClientClosed("the transaction has begun already; make another one")
        self._receipt = await self._transactions.begin(
            self._message, self._where, self._deadline_s
        )
        return self

    async def commit(self) -> None:
        """Have the message delivered. Idempotent; another call waits for the one under way.

        Raises:
            PymqError: the broker may not have heard it; then it asks, and the check must say so.
                Another call tries again if the broker surely has not (``outcome_known``), and
                raises the error again otherwise: a second commit could be a second message.
            LocalProtocolError: the transaction was ended otherwise.
        """
        async with self._ending:
            await self._end(TransactionStatus.COMMIT)

    async def rollback(self) -> None:
        """Have the message dropped. Raises what ``commit`` does."""
        async with self._ending:
            await self._end(TransactionStatus.ROLLBACK)

    async def leave_open(self) -> None:
        """Let ``check_transaction`` say what became of it, when the broker asks.

        For who does not know it: the database was told to commit, and has not answered. Without
        this, checks are answered ``UNKNOWN`` for as long as the producer lives. Idempotent.

        Raises:
            ClientClosed: the transaction has not begun.
            ClientMisplaced: it was begun in another process, thread or event loop.
            LocalProtocolError: it was ended already.
        """
        receipt = self.receipt
        self._pool.home.check()
        if self._status is not TransactionStatus.UNKNOWN:
            raise LocalProtocolError(
                f"leave_open of the transaction of message {receipt.message_id}, whose broker was "
                f"told {self._status.name} before"
            )
        self._is_left_open = True
        self._transactions.forget(receipt)

    async def _end(self, status: TransactionStatus) -> None:
        receipt = self.receipt
        if self._is_left_open:
            raise LocalProtocolError(
                f"{status.name} of the transaction of message {receipt.message_id}, which was left "
                "open: the broker asks what became of it (check_transaction)"
            )
        if self._status is status:
            if self._failure is None:
                return
            if not self._failure.outcome_known:
                raise self._failure.retold(str(self._failure))
        elif self._status is not TransactionStatus.UNKNOWN:
            raise LocalProtocolError(
                f"{status.name} of the transaction of message {receipt.message_id}, whose broker "
                f"was told {self._status.name} before"
            )
        self._status = status
        self._failure = RequestTimeout(  # what is true if this is cancelled
            f"{status.name} of the transaction of message {receipt.message_id} was interrupted; if "
            "the broker did not hear it, it asks what became of it (check_transaction)"
        )
        try:
            await self._transactions.end(receipt, status)
        except PymqError as error:
            self._failure = error
            raise
        self._failure = None

    async def __aenter__(self) -> Self:
        return await self.begin()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._status is not TransactionStatus.UNKNOWN or self._is_left_open:
            return
        if kind is None:
            await self.commit()
        elif issubclass(kind, Exception):
            try:
                await self.rollback()
            except PymqError as error:  # What ended the block is what the caller must see.
                _log.warning("not rolled back: %s", error)
        else:
            self._transactions.forget(self.receipt)
