"""Sends: SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320), SEND_RECORDS.

Also STAGE_RECORDS, a send of records that no consumer sees yet.

Each is checked and handed to the log writer; its response leaves when the flush mode's promise
holds.

Source: RocketMQ SendMessageProcessor, AbstractSendMessageProcessor.
"""

import base64
import functools
import random
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from pymq.broker.config import BrokerConfig
from pymq.broker.log_writer import LogWriter, Outcome
from pymq.broker.message_hooks import MessageHooks
from pymq.broker.put_answer import is_in_log, send_answer
from pymq.broker.retry import Retries
from pymq.broker.sent_properties import SentProperties
from pymq.broker.sinks.staged_layouts import StagedLayouts
from pymq.broker.state.topics import TopicTable
from pymq.errors import (
    BrokerError,
    ProtocolError,
    RemoteProtocolError,
    refusal,
)
from pymq.net.dispatcher import Answer, Handler, Request
from pymq.protocol import names
from pymq.protocol.bodies import TopicConfig
from pymq.protocol.codes import (
    MQ_VERSION_RETRIES,
    PART_FIELD,
    RECORD_SIZES_FIELD,
    SEND_RECORDS,
    Permission,
    RequestCode,
    ResponseCode,
    SinkRequest,
)
from pymq.protocol.command import Command, HeaderForm
from pymq.protocol.headers.send import REGION, SendRequest, SendResponse, encode_success
from pymq.protocol.headers.sinks import StageResponse
from pymq.protocol.message import (
    DELAY,
    REAL_TOPIC,
    TAGS,
    UNIQUE_KEY,
    WAIT,
    decode_properties,
    find_property,
    parse_properties,
)
from pymq.protocol.new_batch import NewBatch
from pymq.protocol.new_records import NewRecords, SharedFields
from pymq.protocol.parking import TIMER_DUE_MS, with_properties
from pymq.protocol.preencoded_records import PreencodedRecords, unpack_sizes
from pymq.protocol.recall_handles import RecallHandle
from pymq.protocol.record import NewRecord
from pymq.protocol.staged_records import StagedRecords
from pymq.protocol.tag_codes import tag_code
from pymq.store import Put, PutResult

_WRITE = int(Permission.WRITE)
_STAGE = int(SinkRequest.STAGE_RECORDS)
_BATCH_CODES = frozenset((int(RequestCode.SEND_BATCH_MESSAGE), SEND_RECORDS, _STAGE))
_OK = int(ResponseCode.SUCCESS)
#: Whoever sends to other topics and has messages parked here is told more about them.
_TOLD_MORE = frozenset((names.HALF_TOPIC, names.TIMER_TOPIC))
_STORED, _JSON = Outcome.STORED, HeaderForm.JSON
_ERROR_FIELDS = {"MSG_REGION": REGION, "TRACE_ON": "true"}


class SendHandlers:
    """Checks, stores and acknowledges messages.

    Args:
        retries: say where messages for retry topics go.
        completion: of the properties of messages.
        hooks: transform special messages.
        log_writer: stores them.
        staged: remembers how what exactly-once sinks stage lies in the log.
        store_host: our packed address, part of every record and message id.
        record_crc: whether records end with their checksum, according to the store's settings.
    """

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicTable,
        retries: Retries,
        completion: SentProperties,
        *,
        hooks: MessageHooks,
        log_writer: LogWriter,
        staged: StagedLayouts,
        store_host: bytes,
        message_bytes_max: int,
        record_crc: bool,
    ) -> None:
        self._config = config
        self._topics = topics
        self._retries = retries
        self._completion = completion
        self._hooks = hooks
        self._log_writer = log_writer
        self._staged = staged
        self._store_host = store_host
        self._id_prefix = store_host.hex().upper()
        self._message_bytes_max = message_bytes_max
        self._record_crc = record_crc
        self._random = random.Random()

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.SEND_MESSAGE: self.send,
            RequestCode.SEND_MESSAGE_V2: self.send,
            RequestCode.SEND_BATCH_MESSAGE: self.send,
            SEND_RECORDS: self.send,
            SinkRequest.STAGE_RECORDS: self.send,
        }

    def send(self, request: Request) -> Answer:
        """Check a send and append it; its answer follows when it is stored."""
        command = request.command
        if command.code == SEND_RECORDS and not command.body:
            return self._offer_records(request)
        try:
            put, queue_id, wait = self.accept(request)
        except BrokerError as error:
            return command.reply(error.code, error.remark, _ERROR_FIELDS)
        except ProtocolError as error:
            return command.reply(ResponseCode.MESSAGE_ILLEGAL, str(error), _ERROR_FIELDS)
        done = functools.partial(self._stored, request, put, queue_id)
        self._log_writer.append(put, done, wait=wait)
        return None

    def _offer_records(self, request: Request) -> Command:
        """Say whether this connection may send pre-encoded records, which have IPv4 hosts."""
        if len(request.connection.packed_host) + len(self._store_host) == 16:
            return request.response(ResponseCode.SUCCESS)
        cure = "pre-encoded records have IPv4 hosts; send batches instead"
        return request.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, cure)

    # --- checks

    def accept(self, request: Request) -> tuple[Put, int, bool]:
        """Return what is to be stored, its queue for the answer, and whether to wait for the flush.

        The queue of the answer is the one that was chosen, wherever the message is redirected to.

        Raises:
            BrokerError: it may not be stored.
            ProtocolError: its properties or its body are wrong.
        """
        command = request.command
        try:
            header = SendRequest.of(command)
        except ProtocolError as error:
            raise refusal(ResponseCode.SYSTEM_ERROR, str(error)) from error
        topic = header.topic
        config = self._topics.find(topic)
        if config is None or names.takes_no_sends(topic):
            config = self._create_topic(header)
        queue_id = header.queue_id
        if not (
            0 <= queue_id < config.write_queue_count
            and config.perm & _WRITE
            and self._config.is_writable
        ):
            queue_id = self._check(header, config)
        stored_in = queue_id
        properties = parse_properties(header.properties)
        wait = WAIT not in properties or properties[WAIT].lower() != "false"
        if topic.startswith(names.RETRY_PREFIX):
            says_times = command.version >= MQ_VERSION_RETRIES
            topic, stored_in = self._retries.destination(
                topic,
                queue_id,
                header.reconsume_times,
                header.max_reconsume_times if says_times else None,
            )
            if topic != header.topic:  # a dead letter waits for nothing
                properties[DELAY] = "-1"
                text = with_properties(header.properties.encode(), {DELAY: "-1"})
                header.properties = text.decode()
        if command.code in _BATCH_CODES or header.batch:
            more = self._completion.of_batch(properties)
            batch = self._batch(request, header, stored_in, more)
            if isinstance(batch, StagedRecords):
                batch = self._hooks.apply_to_staged(batch, properties)
                batch.stage()
                # The decision about it is flushed, and all before it.
                return batch, queue_id, False
            self._hooks.check_batch(batch, properties)
            return batch, queue_id, wait
        record = self._single(request, header, properties, topic, stored_in)
        return self._hooks.apply(record, properties), queue_id, wait

    def _check(self, header: SendRequest, config: TopicConfig) -> int:
        """Return the queue of a send that needs a closer look, or refuse it."""
        if not (config.perm & _WRITE and self._config.is_writable):
            raise refusal(
                ResponseCode.NO_PERMISSION,
                f"sending to topic {header.topic} on broker {self._config.name} is forbidden: "
                f"topic permission {config.perm}, broker permission {self._config.permission}",
            )
        queue_id = header.queue_id
        if queue_id < 0:
            return self._random.randrange(max(config.write_queue_count, 1))
        if queue_id >= config.write_queue_count and queue_id >= config.read_queue_count:
            raise refusal(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{queue_id}] is illegal, topic {header.topic} has "
                f"{config.write_queue_count} write queues on broker {self._config.name}",
            )
        return queue_id

    def _create_topic(self, header: SendRequest) -> TopicConfig:
        topic = header.topic
        if names.takes_no_sends(topic):
            raise refusal(
                ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden."
            )
        objection = names.topic_objection(topic)
        if objection is not None:
            raise refusal(ResponseCode.INVALID_PARAMETER, objection)
        config = self._topics.create_for_send(
            topic, header.default_topic, header.default_topic_queue_count
        )
        if config is None:
            raise refusal(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{topic}] not exist, apply first please! Topics are not created "
                f"automatically on broker {self._config.name} (autoCreateTopicEnable)",
            )
        return config

    def _single(
        self,
        request: Request,
        header: SendRequest,
        properties: dict[str, str],
        topic: str,
        queue_id: int,
    ) -> NewRecord:
        return NewRecord(
            topic,
            queue_id,
            request.command.body,
            self._completion.complete(header.properties, properties).encode(),
            request.connection.packed_host,
            header.born_timestamp,
            header.flag,
            header.sys_flag,
            header.reconsume_times,
            0,
            tag_code(properties.get(TAGS, "")),
        )

    def _batch(
        self, request: Request, header: SendRequest, queue_id: int, more_properties: bytes
    ) -> NewRecords:
        self._check_batch(request, header)
        shared = SharedFields(
            topic=header.topic,
            queue_id=queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            born_host=request.connection.packed_host,
            store_host=self._store_host,
            reconsume_times=header.reconsume_times,
            record_crc=self._record_crc,
            more_properties=more_properties,
        )
        if request.command.code == _STAGE:
            body, sizes = request.command.body, _record_sizes(request)
            return StagedRecords(body, sizes, shared, _part(request))
        if request.command.code == SEND_RECORDS:
            return PreencodedRecords(request.command.body, _record_sizes(request), shared)
        return NewBatch(bytes(request.command.body), shared)

    def _check_batch(self, request: Request, header: SendRequest) -> None:
        if header.topic.startswith(names.RETRY_PREFIX):
            raise refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"batch request does not support retry group {header.topic}",
            )
        if len(request.command.body) > self._message_bytes_max:
            raise refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"batch body of {len(request.command.body)} B, expected at most "
                f"{self._message_bytes_max} (maxMessageSize); send smaller batches",
            )

    # --- answers

    def _stored(
        self, request: Request, put: Put, queue_id: int, result: PutResult, outcome: Outcome
    ) -> None:
        """Answer a send whose outcome is known."""
        command = request.command
        if isinstance(put, StagedRecords) and is_in_log(outcome):
            self._staged.add(put, result.physical_offset)
            size_bytes = result.physical_end - result.physical_offset
            is_parked = put.real_topic is not None
            place = StageResponse(
                physical_offset=result.physical_offset,
                size_bytes=size_bytes,
                topic=put.topic if is_parked else None,
                queue_id=put.queue_id if is_parked else None,
            )
            request.respond(request.response(_OK, fields=place.to_fields()))
            return
        if outcome is _STORED:
            if command.form is _JSON and result.count == 1 and put.topic not in _TOLD_MORE:
                frame = encode_success(
                    command.opaque,
                    f"{self._id_prefix}{result.physical_offset:016X}",
                    queue_id,
                    result.queue_offset,
                )
                request.respond_encoded(_OK, frame)
            else:
                self._respond_stored(request, put, queue_id, result, _OK)
            return
        topic = SendRequest.of(command).topic  # put.topic is another one if it waits
        code, remark = send_answer(result, outcome, topic)
        if is_in_log(outcome) and code != ResponseCode.SYSTEM_ERROR:
            self._respond_stored(request, put, queue_id, result, code)
        else:
            request.respond(command.reply(code, remark, _ERROR_FIELDS))

    def _respond_stored(
        self, request: Request, put: Put, queue_id: int, result: PutResult, code: int
    ) -> None:
        fields = SendResponse(
            message_id=self._message_ids(put, result.physical_offset),
            queue_id=queue_id,
            queue_offset=result.queue_offset,
            transaction_id=_transaction_id(put),
            recall_handle=self._recall_handle(put),
            region=REGION,
            trace_on=True,
        ).to_fields()
        request.respond(request.response(code, result.remark, fields))

    def _recall_handle(self, put: Put) -> str | None:
        """Return what a timer message that was sent can be cancelled with."""
        if put.topic != names.TIMER_TOPIC or not isinstance(put, NewRecord):
            return None
        properties = decode_properties(put.properties)
        topic, key = properties[REAL_TOPIC], properties.get(UNIQUE_KEY)
        if key is None or topic.startswith(names.RETRY_PREFIX):
            return None
        time_ms = int(properties[TIMER_DUE_MS]) + 1
        return RecallHandle(topic, self._config.name, str(time_ms), key).encode()

    def _message_ids(self, put: Put, physical_offset: int) -> str:
        if not isinstance(put, NewBatch):  # the sender of pre-encoded records can count
            return f"{self._id_prefix}{physical_offset:016X}"
        ids = (put.starts + physical_offset).astype(">i8").tobytes().hex(",", 8).upper()
        return self._id_prefix + ids.replace(",", f",{self._id_prefix}")


def _transaction_id(put: Put) -> str | None:
    """Return the id of the transaction that a half message begins."""
    if put.topic != names.HALF_TOPIC or not isinstance(put, NewRecord):
        return None
    unique_key = find_property(put.properties, UNIQUE_KEY.encode())
    return None if unique_key is None else unique_key.decode()


def _part(request: Request) -> int:
    text = (request.fields or {}).get(PART_FIELD, "")
    if not text.isdecimal() or len(text) > 19 or not 0 < int(text) < 1 << 63:
        raise RemoteProtocolError(f"field {PART_FIELD}: {text[:32]!r}, expected 1..2^63-1")
    return int(text)


def _record_sizes(request: Request) -> npt.NDArray[np.int32]:
    text = (request.fields or {}).get(RECORD_SIZES_FIELD)
    if text is None:
        raise RemoteProtocolError(
            f"field {RECORD_SIZES_FIELD} is missing: the sizes of the records, in base64"
        )
    try:
        packed = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise RemoteProtocolError(
            f"field {RECORD_SIZES_FIELD}: expected sizes of records in base64, {error}"
        ) from error
    return unpack_sizes(packed)
