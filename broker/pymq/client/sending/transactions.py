"""Transactional messages: nobody sees them before their transaction is committed.

``begin`` stores a half message. What happens then is the user's local transaction; ``commit`` has
the broker deliver the message, ``rollback`` has it dropped. Of a transaction of which the broker
hears nothing (this process was killed, the answer was lost) it asks some producer of the group
after a while, and again and again: the check. So *every* producer of a group must be able to say
what became of *every* transaction of the group, usually by a look into a database that the local
transaction wrote to.

A half message whose outcome is unknown is not sent a second time: its copy would be checked, too,
and a check that finds the transaction committed would deliver the message twice.

Source: RocketMQ TransactionMQProducer, DefaultMQProducerImpl.checkTransactionState.
"""

import asyncio
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pymq.client.cluster.patience import patiently
from pymq.client.cluster.pool import ClientPool
from pymq.client.operations import TransactionStatus, end_transaction
from pymq.client.sending.placement import Placement
from pymq.client.sending.producer_config import ProducerConfig
from pymq.client.sending.receipts import SendReceipt
from pymq.client.sending.send_attempt import MessageSend
from pymq.client.sending.send_maker import SendMaker
from pymq.client.sending.send_retry import pause_s
from pymq.client.sending.sender import Sender
from pymq.errors import (
    BrokerError,
    ConfigurationError,
    DurabilityUnknown,
    LocalProtocolError,
    ProtocolError,
    PymqError,
    StoreError,
)
from pymq.net.channel import AsyncChannel
from pymq.net.said_once import SaidOnce
from pymq.net.tasks import calling, is_cancelled
from pymq.net.threads import in_thread
from pymq.protocol.codes import MessageFlag, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.transactions import CheckTransactionRequest
from pymq.protocol.message import (
    PRODUCER_GROUP,
    TRANSACTION_PREPARED,
    Message,
    ReceivedMessage,
)
from pymq.protocol.message_keys import split_keys
from pymq.protocol.names import DEFAULT_PRODUCER_GROUP
from pymq.protocol.record import decode_record, parse_offset_message_id

_log = logging.getLogger(__name__)

#: Says what became of a transaction. A coroutine function runs in the event loop, any other in a
#: thread. What it raises is logged, and counts as ``UNKNOWN``.
TransactionCheck: TypeAlias = Callable[
    [ReceivedMessage], TransactionStatus | Awaitable[TransactionStatus]
]

#: Checks that may run at a time; the broker asks again about those beyond.
CHECKS_MAX = 100
_PREPARED = int(MessageFlag.TRANSACTION_PREPARED)
#: So earlier brokers of pymq answer an end that is stored, and answer it with SUCCESS the next
#: time; so slaves of RocketMQ's answer one that they refuse. (Its masters never do.)
_STORED_OR_NOT = frozenset(
    (
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    )
)


@dataclass(slots=True)
class TransactionEnd:
    """What a broker was told of a transaction.

    Attributes:
        status: that.
        topic, message_id, tags, keys: of its message.
        broker_address: ``host:port`` of the broker.
        is_checked: had it asked?
    """

    status: TransactionStatus
    topic: str
    message_id: str
    tags: str | None
    keys: list[str]
    broker_address: str
    is_checked: bool


class HalfSend(MessageSend):
    """The send of a half message."""

    __slots__ = ()

    MAY_REPEAT = False
    IS_HALF = True


class Transactions:
    """The transactions of one producer. For one event loop.

    Args:
        pool, sender, maker, config: of the producer.
        check: says what became of a transaction that the broker asks about.
        on_end: told of what the broker is told; ``None``: nobody is.
    """

    def __init__(
        self,
        pool: ClientPool,
        sender: Sender,
        maker: SendMaker,
        config: ProducerConfig,
        check: TransactionCheck | None,
        *,
        on_end: Callable[[TransactionEnd], None] | None = None,
    ) -> None:
        if check is not None and not callable(check):
            raise ConfigurationError(f"check_transaction={check!r:.80}: expected a function")
        if check is not None and config.producer_group == DEFAULT_PRODUCER_GROUP:
            raise ConfigurationError(
                "check_transaction without a group: every producer of a group is asked about its "
                "transactions, so give group= a name of its own"
            )
        self._pool = pool
        self._sender = sender
        self._maker = maker
        self._config = config
        self._check = check
        self._on_end = on_end
        #: Message id -> message, of transactions that this producer has not ended.
        self._open: dict[str, Message] = {}
        self._checks = 0
        self._said = SaidOnce(_log)

    async def announce(self, topics: Sequence[str]) -> None:
        """Tell the brokers of topics that there is a producer of this group.

        Raises:
            RouteNotFound: no name server knows one of them, and it was waited for in vain.
        """
        pool = self._pool
        for topic in topics:
            find = functools.partial(self._sender.topic_queues, topic)
            await patiently(find, pool.network.start_deadline_s, pool.check_open)
        if topics:
            await self._pool.heartbeats.send_all()

    # --- from here

    async def begin(
        self, message: Message, where: Placement | None, deadline_s: float | None
    ) -> SendReceipt:
        """Store a half message. Raises what ``Transaction.begin`` does."""
        if self._check is None:
            raise ConfigurationError(
                "a transaction of a producer without check_transaction=: its broker asks what "
                "became of it when it hears nothing, and nobody could answer"
            )
        if isinstance(message, Message) and (message.delay_level or message.has_timer):
            raise LocalProtocolError(
                f"message to {message.topic!r} with a delay in a transaction: official clients "
                "drop the delay; leave it out"
            )
        group = self._config.producer_group
        left_s = await self._maker.wait_room(deadline_s)
        send = self._maker.prepare(
            message,
            where,
            left_s,
            kind=HalfSend,
            system={TRANSACTION_PREPARED: "true", PRODUCER_GROUP: self._pool.network.wrap(group)},
            sys_flag=_PREPARED,
        )
        self._open[send.message_id] = message
        try:
            receipt = await self._sender.begin(send)
        except BaseException:
            self._open.pop(send.message_id, None)
            raise
        if receipt.durability_unknown:
            end = "its transaction was rolled back before it began"
            try:
                await self.end(receipt, TransactionStatus.ROLLBACK)
            except PymqError as error:
                end = str(error)
            raise DurabilityUnknown(
                f"the half message to topic {message.topic!r} was stored with {receipt.status}, "
                f"and {end}"
            )
        return receipt

    async def end(self, receipt: SendReceipt, status: TransactionStatus) -> None:
        """Tell the broker what became of a transaction.

        Raises:
            PymqError: it may not have heard it; then it will ask.
        """
        try:
            await self._end(receipt, status)
        finally:  # until then, who asks is told to ask later: not two say "commit"
            self._open.pop(receipt.message_id, None)

    async def _end(self, receipt: SendReceipt, status: TransactionStatus) -> None:
        message = self._open.get(receipt.message_id)
        assert receipt.offset_message_id is not None
        _, physical = parse_offset_message_id(receipt.offset_message_id)
        loop, config = self._pool.loop, self._config
        deadline_s = loop.time() + config.deadline_s
        failures, is_doubtful = 0, False
        while True:
            operation = end_transaction(
                status,
                group=config.producer_group,
                topic=receipt.queue.topic,
                message_id=receipt.message_id,
                queue_offset=receipt.queue_offset,
                physical_offset=physical,
                broker_name=receipt.queue.broker_name,
            )
            try:
                channel = await self._channel(receipt)
                await self._pool.ask(channel, operation)
                self._ended(status, receipt.message_id, message, channel)
                return
            except PymqError as error:
                failures += 1
                wait_s = pause_s(failures, has_other=False)
                is_late = loop.time() + wait_s >= deadline_s
                may_repeat = error.retriable and error.outcome_known
                if isinstance(error, BrokerError) and error.code in _STORED_OR_NOT:
                    may_repeat = is_doubtful = True
                # A second commit would be a second message at brokers of RocketMQ.
                if is_late or not may_repeat:
                    told = error.retold(
                        f"{error}; if the broker did not hear it, it asks what became of the "
                        "transaction (check_transaction)"
                    )
                    told.outcome_known = error.outcome_known and not is_doubtful
                    raise told from error
                self._pool.routes.doubt(receipt.queue.topic)  # there may be another master
            await asyncio.sleep(wait_s)

    def forget(self, receipt: SendReceipt) -> None:
        """Let the check say what became of a transaction."""
        self._open.pop(receipt.message_id, None)

    def _ended(
        self,
        status: TransactionStatus,
        message_id: str,
        message: Message | ReceivedMessage | None,
        channel: AsyncChannel,
        *,
        is_checked: bool = False,
    ) -> None:
        if self._on_end is not None and message is not None:
            found = split_keys(message.keys)
            address = channel.address
            self._on_end(
                TransactionEnd(
                    status, message.topic, message_id, message.tags, found, address, is_checked
                )
            )

    async def _channel(self, receipt: SendReceipt) -> AsyncChannel:
        queue = receipt.queue
        route = await self._pool.routes.route(queue.topic)
        address = route.address(queue.broker_name)
        try:
            return await self._pool.broker_channel(queue.topic, queue.broker_name, address)
        except PymqError:
            self._pool.routes.doubt(queue.topic)
            raise

    # --- checks

    def on_check(self, channel: AsyncChannel, request: Command) -> None:
        """Answer a broker's question what became of a transaction (CHECK_TRANSACTION_STATE)."""
        try:
            header = CheckTransactionRequest.from_fields(request.fields)
            record = decode_record(request.body)
            message = ReceivedMessage.from_record(record, header.broker_name)
            message.topic = self._pool.network.unwrap(message.topic)
        except (ProtocolError, StoreError, ConfigurationError) as error:
            self._said.warn(
                "malformed", "%s asked about a transaction with %s", channel.peer, error
            )
            return
        if message.message_id in self._open:
            self._answer(channel, header, message, TransactionStatus.UNKNOWN)
        elif self._check is None:
            self._said.warn(
                "nobody",
                "%s asks what became of transactions of group %r, and this producer of the group "
                "has no check_transaction=: it is asked in vain, in its turn",
                channel.peer,
                self._config.producer_group,
            )
        elif self._checks >= CHECKS_MAX:
            self._said.warn(
                "many",
                "%d checks of transactions run at a time (CHECKS_MAX); %s has to ask again about "
                "others",
                CHECKS_MAX,
                channel.peer,
            )
        elif self._pool.is_open:
            self._checks += 1
            task = self._pool.spawn("check", self._answer_check(channel, header, message))
            task.add_done_callback(self._checked)

    def _checked(self, _: object) -> None:
        self._checks -= 1
        if not self._checks:
            self._said.over("many", "no check of a transaction runs any more: others are answered")

    async def _answer_check(
        self, channel: AsyncChannel, header: CheckTransactionRequest, message: ReceivedMessage
    ) -> None:
        assert self._check is not None
        status = TransactionStatus.UNKNOWN
        try:
            with calling():  # It may close the producer, which waits for this task otherwise.
                if inspect.iscoroutinefunction(self._check):
                    found: object = await self._check(message)
                else:
                    found = await in_thread("pymq check", self._check, message)
                    if inspect.isawaitable(found):
                        found = await found
            if not isinstance(found, TransactionStatus):
                raise TypeError(f"it returned {found!r:.80}, expected a TransactionStatus")
            status = found
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            _log.warning(
                "check_transaction failed for message %s of topic %r, which counts as UNKNOWN: the "
                "broker asks again",
                message.message_id,
                message.topic,
                exc_info=True,
            )
        self._answer(channel, header, message, status)

    def _answer(
        self,
        channel: AsyncChannel,
        header: CheckTransactionRequest,
        message: ReceivedMessage,
        status: TransactionStatus,
    ) -> None:
        operation = end_transaction(
            status,
            group=self._config.producer_group,
            topic=message.topic,
            message_id=message.message_id,
            queue_offset=header.queue_offset,
            physical_offset=header.physical_offset,
            broker_name=header.broker_name,
            is_checked=True,
        )
        try:
            channel.send_one_way(operation.request)
        except PymqError as error:
            _log.debug("%s will ask again: %s", channel.peer, error)
        else:
            self._ended(status, message.message_id, message, channel, is_checked=True)
