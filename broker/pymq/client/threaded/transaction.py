"""The blocking face of Transaction."""

from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from pymq.client.checks import check_producer
from pymq.client.operations import TransactionStatus
from pymq.client.sending import transaction as _transaction
from pymq.client.sending.placement import QueueSelector
from pymq.client.sending.receipts import SendReceipt
from pymq.client.threaded.blocking_face import blocking
from pymq.client.threaded.producer import Producer
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.message import Message

T = TypeVar("T")

_Asyncio = _transaction.Transaction


class Transaction:
    """``pymq.client.sending.transaction.Transaction``, blocking; takes the same arguments.

    ::

        producer = blocking.Producer("127.0.0.1:9876", group="orders", check_transaction=was_booked)
        with producer, blocking.Transaction(producer, Message("orders", b"...")) as transaction:
            database.book(transaction.message_id)
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
        check_producer(producer, Producer, name="pymq.blocking.Producer", other="pymq.Transaction")
        self._face = producer
        self._client = _transaction.Transaction(
            producer._client,
            message,
            queue=queue,
            selector=selector,
            sharding_key=sharding_key,
            deadline_s=deadline_s,
        )

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return self._face._call(work)

    @property
    def receipt(self) -> SendReceipt:
        """See the asyncio Transaction."""
        return self._client.receipt

    @property
    def message_id(self) -> str:
        """See the asyncio Transaction."""
        return self._client.message_id

    @property
    def status(self) -> TransactionStatus:
        """See the asyncio Transaction."""
        return self._client.status

    commit = blocking(_Asyncio.commit)
    rollback = blocking(_Asyncio.rollback)
    leave_open = blocking(_Asyncio.leave_open)
    _leave = blocking(_Asyncio.__aexit__)

    def begin(self) -> Self:
        """See the asyncio Transaction."""
        self._call(self._client.begin())
        return self

    def __enter__(self) -> Self:
        return self.begin()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._leave(kind)
