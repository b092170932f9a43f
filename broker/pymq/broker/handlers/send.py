"""Sends: SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320), SEND_RECORDS.

Sends of one turn of the event loop, of all connections, become one append to the log. Their
responses leave when their flush mode's promise holds: at once, or after the sync that covers
them.

Source: RocketMQ SendMessageProcessor, AbstractSendMessageProcessor.
"""

import asyncio
import base64
import binascii
import functools
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pymq.broker.config import BrokerConfig
from pymq.broker.handling import Handler
from pymq.broker.message_hooks import MessageHooks
from pymq.broker.state.groups import GroupTable
from pymq.broker.state.queue_locks import QueueLocks
from pymq.broker.state.topics import TopicTable
from pymq.errors import (
    BrokerError,
    LocalProtocolError,
    ProtocolError,
    RemoteProtocolError,
    refusal,
)
from pymq.net.server import ServerConnection
from pymq.protocol import names
from pymq.protocol.bodies import TopicConfig
from pymq.protocol.codes import (
    RECORD_SIZES_FIELD,
    SEND_RECORDS,
    Permission,
    RequestCode,
    ResponseCode,
)
from pymq.protocol.command import Command, HeaderForm
from pymq.protocol.finished_records import FinishedRecords, unpack_sizes
from pymq.protocol.headers.send import REGION, SendRequest, SendResponse, encode_success
from pymq.protocol.message import (
    CLUSTER,
    POP_CHECK_POINT,
    TAGS,
    WAIT,
    encode_properties,
    parse_properties,
    without_property,
)
from pymq.protocol.new_batch import NewBatch
from pymq.protocol.new_records import NewRecords
from pymq.protocol.record import TOPIC_BYTES_MAX_V1, NewRecord
from pymq.protocol.tag_codes import tag_code
from pymq.store import PutResult, PutStatus

_log = logging.getLogger(__name__)

_WRITE = int(Permission.WRITE)
_ERROR_FIELDS = {"MSG_REGION": REGION, "TRACE_ON": "true"}
_CODES = {
    PutStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.BUSY: ResponseCode.SYSTEM_BUSY,
    PutStatus.NOT_WRITABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
}
#: Stores records in one append; returns one result each.
Put = Callable[[Sequence[NewRecord | NewRecords]], list[PutResult]]
#: Calls back when the log is synced up to an offset, or with the reason why it is not.
WaitSynced = Callable[[int, Callable[[str | None], None]], None]


@dataclass(slots=True)
class _Pending:
    connection: ServerConnection
    command: Command
    entry: NewRecord | NewRecords
    waits: bool  # the sender wants its flush mode's promise (property WAIT)


class SendHandlers:
    """Checks, stores and acknowledges messages.

    Args:
        hooks: what becomes of messages that are not ordinary ones.
        put: appends to the store and makes visible what is visible at once.
        wait_synced: with SYNC_FLUSH, who to ask for the sync; None with ASYNC_FLUSH.
        store_host: our packed address, part of every record and message id.
        record_crc: whether records end with their checksum, as the store is set.
    """

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicTable,
        groups: GroupTable,
        locks: QueueLocks,
        *,
        hooks: MessageHooks,
        put: Put,
        wait_synced: WaitSynced | None,
        store_host: bytes,
        message_bytes_max: int,
        record_crc: bool,
    ) -> None:
        self._config = config
        self._is_writable = config.is_writable
        self._topics = topics
        self._groups = groups
        self._locks = locks
        self._hooks = hooks
        self._put = put
        self._wait_synced = wait_synced
        self._store_host = store_host
        self._id_prefix = store_host.hex().upper()
        self._message_bytes_max = message_bytes_max
        self._record_crc = record_crc
        self._more_properties = encode_properties({CLUSTER: config.cluster}).decode()
        self._pending: list[_Pending] = []
        self._random = random.Random()

    def table(self) -> Mapping[int, Handler]:
        """Return what each code leads to."""
        return {
            RequestCode.SEND_MESSAGE: self.send,
            RequestCode.SEND_MESSAGE_V2: self.send,
            RequestCode.SEND_BATCH_MESSAGE: self.send,
            SEND_RECORDS: self.send,
        }

    def send(self, connection: ServerConnection, command: Command) -> Command | None:
        """Check a send and queue it for this turn's append."""
        if command.code == SEND_RECORDS and not command.body:
            return self._offer_records(connection, command)
        try:
            pending = self._accept(connection, command)
        except BrokerError as error:
            return command.reply(error.code, error.remark, _ERROR_FIELDS)
        except ProtocolError as error:
            return command.reply(ResponseCode.MESSAGE_ILLEGAL, str(error), _ERROR_FIELDS)
        if not self._pending:
            asyncio.get_running_loop().call_soon(self.store_pending)
        self._pending.append(pending)
        return None

    def _offer_records(self, connection: ServerConnection, command: Command) -> Command:
        """Say whether this connection may send finished records: they have room for IPv4."""
        if len(connection.packed_host) + len(self._store_host) == 16:
            return command.reply(ResponseCode.SUCCESS)
        return command.reply(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            "finished records have IPv4 hosts; send batches instead",
        )

    # --- checks

    def _accept(self, connection: ServerConnection, command: Command) -> _Pending:
        fields = command.fields or {}
        if command.code == RequestCode.SEND_MESSAGE:
            request = SendRequest.from_v1(fields)
        else:
            request = SendRequest.from_v2(fields)
        topic = request.topic
        config = self._topics.find(topic)
        if config is None or topic in names.NO_SEND_TOPICS:
            config = self._create_topic(request)
        if not (config.perm & _WRITE and self._is_writable):
            raise refusal(
                ResponseCode.NO_PERMISSION,
                f"sending to topic {topic} on broker {self._config.name} is forbidden: "
                f"topic permission {config.perm}, broker permission {self._config.permission}",
            )
        queue_id = request.queue_id
        if queue_id < 0:
            queue_id = self._random.randrange(max(config.write_queue_count, 1))
        elif queue_id >= config.write_queue_count and queue_id >= config.read_queue_count:
            raise refusal(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{queue_id}] is illegal, topic {topic} has "
                f"{config.write_queue_count} write queues on broker {self._config.name}",
            )
        properties = parse_properties(request.properties)
        if topic.startswith(names.RETRY_PREFIX):
            topic, queue_id = self._retry(request, queue_id)
        waits = properties.get(WAIT, "").lower() != "false"
        if command.code == SEND_RECORDS:
            batch: NewRecords = self._records(connection, command, request, queue_id)
        elif command.code == RequestCode.SEND_BATCH_MESSAGE or request.batch:
            batch = self._batch(connection, command, request, queue_id)
        else:
            record = self._single(connection, command, request, properties, topic, queue_id)
            record = self._hooks.apply(record, properties)
            return _Pending(connection, command, record, waits)
        self._hooks.check_batch(batch, properties)
        return _Pending(connection, command, batch, waits)

    def _create_topic(self, request: SendRequest) -> TopicConfig:
        topic = request.topic
        if topic in names.NO_SEND_TOPICS:
            raise refusal(
                ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden."
            )
        try:
            names.check_topic(topic)
        except LocalProtocolError as error:
            raise refusal(ResponseCode.INVALID_PARAMETER, str(error)) from error
        if len(topic) > TOPIC_BYTES_MAX_V1:
            raise refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"topic of {len(topic)} B, expected at most {TOPIC_BYTES_MAX_V1}",
            )
        config = self._topics.create_for_send(
            topic, request.default_topic, request.default_topic_queue_count
        )
        if config is None:
            raise refusal(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{topic}] not exist, apply first please! Topics are not created by "
                f"themselves on broker {self._config.name} (autoCreateTopicEnable)",
            )
        return config

    def _retry(self, request: SendRequest, queue_id: int) -> tuple[str, int]:
        """Return where a message for a retry topic goes: there, or to the dead letters."""
        group = request.topic[len(names.RETRY_PREFIX) :]
        config = self._groups.require(group)
        most = request.max_reconsume_times
        if most is None:
            most = config.retry_max_times
        if request.reconsume_times <= most and not (
            request.reconsume_times > 0 and self._locks.is_held(group)
        ):
            return request.topic, queue_id
        return self._topics.create(names.dead_letter_topic(group), queue_count=1).topic, 0

    def _single(
        self,
        connection: ServerConnection,
        command: Command,
        request: SendRequest,
        properties: dict[str, str],
        topic: str,
        queue_id: int,
    ) -> NewRecord:
        text = request.properties
        if POP_CHECK_POINT in properties:
            text = without_property(text, POP_CHECK_POINT)
        if CLUSTER not in properties:
            if text and text[-1] != "\x02":
                text += "\x02"
            text += self._more_properties
        return NewRecord(
            topic,
            queue_id,
            command.body,
            text.encode(),
            connection.packed_host,
            request.born_timestamp,
            request.flag,
            request.sys_flag,
            request.reconsume_times,
            0,
            tag_code(properties.get(TAGS, "")),
        )

    def _batch(
        self,
        connection: ServerConnection,
        command: Command,
        request: SendRequest,
        queue_id: int,
    ) -> NewBatch:
        self._check_batch(command, request)
        return NewBatch(
            bytes(command.body),
            topic=request.topic,
            queue_id=queue_id,
            sys_flag=request.sys_flag,
            born_timestamp=request.born_timestamp,
            born_host=connection.packed_host,
            store_host=self._store_host,
            reconsume_times=request.reconsume_times,
            record_crc=self._record_crc,
        )

    def _records(
        self,
        connection: ServerConnection,
        command: Command,
        request: SendRequest,
        queue_id: int,
    ) -> FinishedRecords:
        self._check_batch(command, request)
        try:
            packed = base64.b64decode((command.fields or {})[RECORD_SIZES_FIELD], validate=True)
        except (KeyError, binascii.Error) as error:
            raise RemoteProtocolError(
                f"field {RECORD_SIZES_FIELD}: expected sizes of records in base64, {error!r}"
            ) from error
        return FinishedRecords(
            command.body,
            unpack_sizes(packed),
            topic=request.topic,
            queue_id=queue_id,
            sys_flag=request.sys_flag,
            born_timestamp=request.born_timestamp,
            born_host=connection.packed_host,
            store_host=self._store_host,
            record_crc=self._record_crc,
        )

    def _check_batch(self, command: Command, request: SendRequest) -> None:
        if request.topic.startswith(names.RETRY_PREFIX):
            raise refusal(
                ResponseCode.MESSAGE_ILLEGAL, "batch request does not support retry group"
            )
        if len(command.body) > self._message_bytes_max:
            raise refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"batch body of {len(command.body)} B, expected at most "
                f"{self._message_bytes_max} (maxMessageSize); send smaller batches",
            )

    # --- storing and answering

    def store_pending(self) -> int:
        """Append what this turn brought; return how many requests that were."""
        pending, self._pending = self._pending, []
        if not pending:
            return 0
        try:
            results = self._put([item.entry for item in pending])
        except Exception as error:
            _log.exception("%d sends could not be stored", len(pending))
            for item in pending:
                self._answer_error(item, ResponseCode.SYSTEM_ERROR, f"{error}")
            return len(pending)
        waiting: list[tuple[_Pending, PutResult]] = []
        for item, result in zip(pending, results, strict=True):
            if result.status is not PutStatus.OK:
                self._answer_error(item, _CODES[result.status], result.remark or "refused")
            elif item.waits and self._wait_synced is not None:
                waiting.append((item, result))
            else:
                self._answer(item, result)
        if waiting:
            assert self._wait_synced is not None
            end = max(result.physical_end for _, result in waiting)
            self._wait_synced(end, functools.partial(self._synced, waiting))
        return len(pending)

    def _synced(self, waiting: list[tuple[_Pending, PutResult]], reason: str | None) -> None:
        for item, result in waiting:
            if reason is None:
                self._answer(item, result)
            else:
                self._answer_slowly(item, result, ResponseCode.FLUSH_DISK_TIMEOUT, reason)

    def _answer(self, item: _Pending, result: PutResult) -> None:
        command = item.command
        if command.is_one_way:
            return
        if command.form is HeaderForm.JSON and result.count == 1:
            item.connection.send(
                encode_success(
                    command.opaque,
                    f"{self._id_prefix}{result.physical_offset:016X}",
                    item.entry.queue_id,
                    result.queue_offset,
                )
            )
        else:
            self._answer_slowly(item, result, ResponseCode.SUCCESS, None)

    def _answer_slowly(
        self, item: _Pending, result: PutResult, code: int, remark: str | None
    ) -> None:
        response = SendResponse(
            message_id=self._message_ids(item.entry, result.physical_offset),
            queue_id=item.entry.queue_id,
            queue_offset=result.queue_offset,
            region=REGION,
            trace_on=True,
        )
        item.connection.respond(
            item.command, item.command.reply(code, remark, response.to_fields())
        )

    def _message_ids(self, entry: NewRecord | NewRecords, physical_offset: int) -> str:
        if not isinstance(entry, NewBatch):  # who sends finished records can count
            return f"{self._id_prefix}{physical_offset:016X}"
        ids = (entry.starts + physical_offset).astype(">i8").tobytes().hex(",", 8).upper()
        return self._id_prefix + ids.replace(",", f",{self._id_prefix}")

    def _answer_error(self, item: _Pending, code: int, remark: str) -> None:
        item.connection.respond(item.command, item.command.reply(code, remark, _ERROR_FIELDS))
