"""Tables of messages to send: batches that take turns over the queues; one row of results for each.

Batches are pre-encoded records where all brokers of a topic take them (pymq's do), otherwise
plain SEND_BATCH requests. They are made, and the results are put together, without a Python
statement per message (``pymq.columns``).
"""

import asyncio
import base64
import functools
import ipaddress
import logging
import os
import secrets
from typing import TYPE_CHECKING, Any

from pymq.client.operations import SendResult, check_send_topic, read_send
from pymq.client.sending.broker_kinds import BrokerKinds
from pymq.client.sending.column_receipts import FAILED, UNKNOWN, ColumnReceipts
from pymq.client.sending.placement import Placement
from pymq.client.sending.preencoded_records import as_batch
from pymq.client.sending.producer_config import ProducerConfig
from pymq.client.sending.producer_parts import ProducerParts
from pymq.client.sending.send_attempt import SendAttempt
from pymq.client.sending.send_template import SEND_BATCH, SendTemplate
from pymq.errors import ConfigurationError, MessageIllegal, PymqError, RowsNotSent
from pymq.net.channel import AsyncChannel
from pymq.protocol.codes import RECORD_SIZES_FIELD, SEND_RECORDS
from pymq.protocol.command import Command
from pymq.protocol.records_body import RecordsBody
from pymq.protocol.unique_keys import month_around

if TYPE_CHECKING:
    from pymq.columns.table_requests import TableRequest, TableRequests

_log = logging.getLogger(__name__)

#: Bytes of one batch: large enough that requests cost little, and small enough to take turns.
BATCH_BYTES = 512 << 10
#: What to do where a broker refuses batches of that size.
_TOO_LARGE = (
    f"if that is for their size: rows become batches of up to {BATCH_BYTES} B, and of no more than "
    "the producer's body_bytes_max; set that to the broker's maxMessageSize"
)


class ColumnSend(SendAttempt[SendResult]):
    """The send of one batch of a table."""

    __slots__ = ()

    CODE = SEND_BATCH

    def read(self, answer: Command, template: SendTemplate) -> SendResult:
        return read_send(answer, template, None, peer=template.address)


class RecordsSend(ColumnSend):
    """The send of pre-encoded records; of a batch, where a broker is not known to take them.

    Attributes:
        records: what it sends.
        kinds: who takes them.
    """

    __slots__ = ("kinds", "records")

    ASKS_FIRST = True
    records: RecordsBody
    kinds: BrokerKinds

    async def ask_first(self, channel: AsyncChannel) -> None:
        try:
            await self.kinds.takes_records(channel)
        except PymqError as error:
            _log.debug("%s does not say whether it takes records: %s", channel.peer, error)

    def write(
        self, channel: AsyncChannel, template: SendTemplate, opaque: int, command_flag: int = 0
    ) -> None:
        if not self.kinds.takers.get(channel, False):
            self.body = self.body or as_batch(self.records)
            super().write(channel, template, opaque, command_flag)
            return
        sizes = base64.b64encode(self.records.sizes).decode()
        head = template.head(
            opaque,
            len(self.records.body),
            f'{self.properties},"{RECORD_SIZES_FIELD}":"{sizes}"',
            sys_flag=self.sys_flag,
            born_ms=self.born_ms,
            flag=self.flag,
            command_flag=command_flag,
            code=SEND_RECORDS,
        )
        channel.send(head, self.records.body)


class ColumnSends:
    """What ``Producer`` knows of tables."""

    _config: ProducerConfig
    _parts: ProducerParts

    async def send_columns(
        self, table: Any, *, topic: str | None = None, deadline_s: float | None = None
    ) -> ColumnReceipts:
        """Store the rows of a table as messages; spread over the queues in batches.

        Columns: ``body`` (binary or strings), ``topic`` unless the argument says it, ``tags``,
        ``keys`` (strings, or lists of them), ``sharding_key``, ``properties`` (a map of strings),
        ``flag``. All but ``body`` and ``topic`` may be null. Neighbouring rows go to one queue
        together. Rows with a sharding key go to the queue of its hash, as in ``send``, in the
        order of the table: when some of them fail, or may have, no later ones are sent to that
        queue. Nothing is compressed or delayed.

        Args:
            table: an Arrow table or record batch, a pandas or Polars DataFrame, or a mapping of
                names to columns. (Any: what extras know.)
            topic: of all rows.
            deadline_s: for each batch, with waiting for room, and for finding out a topic's
                queues; in place of the producer's.

        Returns:
            Id, status, queue and offset of each row, in the order of the table.

        Raises:
            RowsNotSent: some rows are not stored, or are not known to be; its ``receipts`` say
                which, and its ``failures`` why.
            ConfigurationError: pyarrow is not installed; or it is no table of messages; or the
                producer has hooks or a trace, which take single messages.
            LocalProtocolError: a row cannot be sent; the text names it. Nothing was sent; but of a
                large table it may be a ``RowsNotSent``.
            RouteNotFound: no broker is known for a topic; nothing was sent.
            ConnectionFailed: no name server answers; likewise.
            TooManyPending: there was no room (``in_flight_max``) until the deadline; likewise.
            ClientClosed: the producer is not open.
        """
        parts = self._parts
        parts.pool.check_open()
        if parts.maker.is_observed:
            raise ConfigurationError(
                "send_columns makes no single messages, which hooks and the trace are called with; "
                "use a producer without them, or send()"
            )
        requests = self._table_requests(table, topic)
        limit_s = parts.maker.limit_s(deadline_s)
        counts: dict[str, int] = {}
        as_records: dict[str, bool] = {}
        for name in requests.topics():
            check_send_topic(name)
            queues = await parts.sender.wait_queues(name, parts.pool.loop.time() + limit_s)
            templates = queues.templates
            counts[name] = len(templates)
            as_records[name] = await self._take_records(templates)
        results = _Results(requests)
        try:
            for part in requests.parts(counts.__getitem__, as_records.__getitem__):
                await self._send_part(part, limit_s, results)
        except PymqError as error:
            if not results.waiting:
                raise
            results.failures.append(error)  # What was sent before has results.
        if results.waiting:
            await asyncio.wait(results.waiting)
        return results.receipts()

    async def _send_part(
        self, part: "list[TableRequest]", limit_s: float, results: "_Results"
    ) -> None:
        """Begin to send requests; those that are bound to queues are answered when it returns."""
        lanes: dict[tuple[str, int], list[TableRequest]] = {}
        for request in part:
            if request.key_hash is None:
                results.add(request, await self._begin(request, None, limit_s))
            else:
                lanes.setdefault((request.topic, request.key_hash), []).append(request)
        # What comes later for a queue must not overtake. All lanes end before one's error ends the
        # sending: what a lane sent after that would be stored, and told to be FAILED.
        ended = await asyncio.gather(
            *(self._lane(lane, limit_s, results) for lane in lanes.values()),
            return_exceptions=True,
        )
        for error in ended:
            if error is not None:
                raise error

    async def _take_records(self, templates: list[SendTemplate]) -> bool:
        """Say whether all brokers that answer take pre-encoded records; who is asked once."""
        pool = self._parts.pool
        if pool.network.namespace is not None:
            return False  # They hold the topic, and would have to be encoded otherwise.
        answers: set[bool] = set()
        for name, template in {one.queue.broker_name: one for one in templates}.items():
            if template.address is None:
                continue
            try:
                channel = await pool.broker_channel(template.queue.topic, name, template.address)
                answers.add(await self._parts.sender.kinds.takes_records(channel))
            except PymqError as error:
                _log.debug("broker %r is not asked for its kind: %s", name, error)
        return answers == {True}

    def _table_requests(self, table: Any, topic: str | None) -> "TableRequests":
        from pymq.columns.table_requests import TableRequests
        from pymq.columns.unique_key_arrays import UniqueKeyArrays

        pool = self._parts.pool
        host = pool.client_id.partition("@")[0]
        now_ms = pool.clock.wall_ms()
        return TableRequests(
            table,
            topic=topic,
            keys=UniqueKeyArrays(
                address=ipaddress.ip_address(host).packed,
                pid=os.getpid(),
                salt=secrets.token_bytes(4),
            ),
            month_ms=now_ms - month_around(now_ms)[0],
            batch_bytes=min(BATCH_BYTES, self._config.body_bytes_max),
            message_bytes_max=self._config.body_bytes_max,
        )

    async def _lane(
        self, requests: "list[TableRequest]", limit_s: float, results: "_Results"
    ) -> None:
        """Send requests of one queue one after the other, unless one of any queue cannot be.

        The first that fails is the last one, also of the parts to come: were later rows of its keys
        stored, it would come behind them when it is sent again.
        """
        for request in requests:
            if results.is_over:
                return
            try:
                self._parts.pool.check_open()
                if results.has_failed(request):
                    results.held_back += len(request.rows)
                    continue
                assert request.key_hash is not None
                until_s = self._parts.pool.loop.time() + limit_s
                queues = await self._parts.sender.wait_queues(request.topic, until_s)
                templates = queues.templates
                queue = templates[request.key_hash % len(templates)].queue
                future = await self._begin(request, Placement(queue, None, None), limit_s)
            except BaseException:
                results.is_over = True
                raise
            results.add(request, future)
            await asyncio.wait([future])

    async def _begin(
        self, request: "TableRequest", where: Placement | None, limit_s: float
    ) -> "asyncio.Future[SendResult]":
        parts = self._parts
        loop, window = parts.pool.loop, parts.sender.window
        started_s = loop.time()
        until_s = started_s + limit_s
        await window.wait_room(parts.pool.check_open, until_s)
        parts.pool.check_open()
        is_batch = isinstance(request.body, bytes)
        send = (ColumnSend if is_batch else RecordsSend)(
            parts.sender,
            loop.create_future(),
            request.topic,
            request.body if isinstance(request.body, bytes) else b"",
            '""' if self._config.wait_stored else '"WAIT\\u0001false\\u0002"',
            parts.pool.clock.wall_ms(),
            0,
            0,
            where,
            started_s,
            until_s,
        )
        if isinstance(send, RecordsSend) and not isinstance(request.body, bytes):
            send.records, send.kinds = request.body, parts.sender.kinds
            send.size_bytes += len(request.body.body)
        return parts.sender.begin(send)


class _Results:
    """Puts the results of requests together.

    Attributes:
        waiting: the requests that were sent.
        failures: of requests, and what ended the sending.
        is_over: a request could not be sent, so none is sent any more.
        held_back: rows that were not sent because others, of the same queue, failed before.
    """

    def __init__(self, requests: "TableRequests") -> None:
        import numpy as np

        count = len(requests)
        self._numbers = np.arange
        self._receipts = ColumnReceipts(
            requests.message_ids,
            np.full(count, FAILED, "U19"),
            np.full(count, "", object),
            np.full(count, -1, np.int32),
            np.full(count, -1, np.int64),
        )
        self.waiting: list[asyncio.Future[SendResult]] = []
        self.failures: list[PymqError] = []
        self.is_over = False
        self.held_back = 0
        #: Topics, and numbers of their queues, where rows with a key failed.
        self._failed: set[tuple[str, int]] = set()

    def has_failed(self, request: "TableRequest") -> bool:
        """Has an earlier request with keys of the same queue failed, or may it have?"""
        return (request.topic, request.key_hash) in self._failed

    def add(self, request: "TableRequest", future: "asyncio.Future[SendResult]") -> None:
        """Take up the result of a request when it is there."""
        self.waiting.append(future)
        future.add_done_callback(functools.partial(self._done, request))

    def _done(self, request: "TableRequest", future: "asyncio.Future[SendResult]") -> None:
        rows, receipts = request.rows, self._receipts
        error = None if future.cancelled() else future.exception()
        if future.cancelled() or error is not None:
            if request.key_hash is not None:
                self._failed.add((request.topic, request.key_hash))
            if isinstance(error, PymqError):
                self.failures.append(error)
                if error.outcome_known:
                    return
            receipts.status[rows] = UNKNOWN
            return
        found = future.result()
        receipts.status[rows] = str(found.status)
        receipts.broker_name[rows] = found.queue.broker_name
        receipts.queue_id[rows] = found.queue.queue_id
        receipts.queue_offset[rows] = self._numbers(len(rows)) + found.queue_offset

    def receipts(self) -> ColumnReceipts:
        """Return what became of the rows.

        Raises:
            RowsNotSent: not all are stored.
        """
        receipts = self._receipts
        receipts.broker_name = receipts.broker_name.astype("U")
        lost = len(receipts) - int(receipts.is_stored.sum())
        if lost:
            unknown = int((receipts.status == UNKNOWN).sum())
            why = "; ".join(str(error) for error in self.failures[:2])
            if self.held_back:
                why += f"; {self.held_back} with keys were not sent, others of their queues failed"
            if any(isinstance(error, MessageIllegal) for error in self.failures):
                why += f"; {_TOO_LARGE}"
            raise RowsNotSent(
                f"{lost} of {len(receipts)} rows are not stored, or not known to be ({unknown}): "
                f"{why or 'the producer was closed meanwhile'}",
                receipts,
                self.failures,
            )
        return receipts
