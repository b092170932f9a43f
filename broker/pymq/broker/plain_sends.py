"""Stores runs of plain sends: the same outcome as one by one, at a third of the cost.

A run is taken as a whole or not at all; if anything about it is not ordinary, its sends are handled
one by one by ``handlers.send``, which knows the rules.
"""

import functools

from pymq.broker.config import BrokerConfig
from pymq.broker.log_writer import LogWriter, Outcome
from pymq.broker.message_hooks import MessageHooks
from pymq.broker.put_answer import is_in_log, send_answer
from pymq.broker.sent_properties import SentProperties
from pymq.broker.state.topics import TopicTable
from pymq.net.dispatcher import RequestRun
from pymq.protocol import names
from pymq.protocol.codes import COMPRESSION_MASK, MessageFlag, Permission, ResponseCode
from pymq.protocol.headers.send import REGION, SendResponse, encode_successes
from pymq.protocol.message import TAGS, UNIQUE_KEY, WAIT, find_property
from pymq.protocol.plain_records import PlainRecords
from pymq.protocol.plain_sends import SEPARATOR, PlainSends
from pymq.protocol.record import PROPERTIES_BYTES_MAX
from pymq.protocol.record_crc import RECORD_CRC_PREFIX
from pymq.protocol.tag_codes import tag_code
from pymq.store import PutResult, StoreConfig

_WRITE, _OK = int(Permission.WRITE), int(ResponseCode.SUCCESS)
#: Bits of the system flag that say how the body is compressed, nothing at all, or what a hook
#: looks at.
_PLAIN_FLAGS = COMPRESSION_MASK | int(
    MessageFlag.COMPRESSED | MessageFlag.MULTI_TAGS | MessageFlag.TRANSACTION_PREPARED
)
_IPV4_BYTES = 8
_SEPARATOR = SEPARATOR + b"\x02"
_UNIQUE_KEY = UNIQUE_KEY.encode()
_TAGS = f"\x02{TAGS}\x01".encode()
_WAIT, _WAIT_TRUE = f"\x02{WAIT}\x01".encode(), f"\x02{WAIT}\x01true".encode()


class PlainSendStore:
    """Takes the runs of plain sends of a broker."""

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        topics: TopicTable,
        completion: SentProperties,
        hooks: MessageHooks,
        log_writer: LogWriter,
        store_host: bytes,
    ) -> None:
        self._config = config
        self._topics = topics
        self._completion = completion
        self._hooks = hooks
        self._log_writer = log_writer
        self._id_prefix = store_host.hex().upper()
        self._body_bytes_max = store_config.message_bytes_max
        self._run_bytes_max = store_config.together_bytes_max
        self._is_possible = store_config.takes_plain(store_host)

    def take(self, run: RequestRun[PlainSends]) -> bool:
        """Store and answer a run; False, and nothing happens, if not all of it is ordinary."""
        sends = run.plain
        properties = self._properties(sends)
        if (
            properties is None
            or not self._is_allowed(sends)
            or len(run.connection.packed_host) != _IPV4_BYTES
        ):
            return False
        header = sends.header
        records = PlainRecords(
            header.topic,
            sends.queue_ids,
            sends.bodies,
            [self._stored_properties(text) for text in properties],
            born_host=run.connection.packed_host,
            born_timestamps=sends.born_timestamps,
            flags=sends.flags,
            sys_flag=header.sys_flag,
            tag_codes=_tag_codes(sends, properties),
        )
        assert sends.properties is not None
        stored = self._hooks.apply_to_many(records, sends.properties)
        if stored is None:
            return False
        transaction_ids = None
        if stored.topic == names.HALF_TOPIC:
            transaction_ids = _unique_keys(properties)
            if transaction_ids is None:
                return False
        done = functools.partial(self._stored, run, stored, transaction_ids)
        self._log_writer.append(stored, done)
        return True

    def _is_allowed(self, sends: PlainSends) -> bool:
        header, config = sends.header, self._config
        topic = self._topics.find(header.topic)
        return (
            topic is not None
            and topic.perm & _WRITE != 0
            and config.is_writable
            and max(sends.queue_ids) < topic.write_queue_count
            and not names.takes_no_sends(header.topic)
            and not header.topic.startswith(names.RETRY_PREFIX)
            and not header.sys_flag & ~_PLAIN_FLAGS
            and max(map(len, sends.bodies)) <= self._body_bytes_max
            and len(sends.frames) <= self._run_bytes_max
        )

    def _properties(self, sends: PlainSends) -> list[bytes] | None:
        """Return the properties of each message; None if some are not ordinary."""
        joined = sends.properties
        if (
            not self._is_possible
            or joined is None
            or RECORD_CRC_PREFIX in joined
            or not self._completion.is_simple(joined, len(sends))
            or joined.count(_WAIT) != joined.count(_WAIT_TRUE)
        ):
            return None
        properties = joined[1:].split(_SEPARATOR)
        if max(map(len, properties)) + len(self._completion.added) >= PROPERTIES_BYTES_MAX:
            return None
        return properties

    def _stored_properties(self, text: bytes) -> bytes:
        if text and text[-1] != 2:
            text += b"\x02"
        return text + self._completion.added

    def _stored(
        self,
        run: RequestRun[PlainSends],
        records: PlainRecords,
        transaction_ids: list[bytes] | None,
        result: PutResult,
        outcome: Outcome,
    ) -> None:
        """Answer the sends of a run whose outcome is known."""
        if outcome is Outcome.STORED:
            frames = encode_successes(
                self._id_prefix.encode(),
                records.physical_offsets,
                run.plain.queue_ids,
                records.queue_offsets,
                run.plain.opaques,
                transaction_ids,
            )
            run.respond_encoded(_OK, frames)
            return
        code, remark = send_answer(result, outcome)
        fields = {"MSG_REGION": REGION, "TRACE_ON": "true"}
        for number, request in enumerate(run.requests()):
            if is_in_log(outcome):
                fields = SendResponse(
                    message_id=f"{self._id_prefix}{records.physical_offsets[number]:016X}",
                    queue_id=run.plain.queue_ids[number],
                    queue_offset=records.queue_offsets[number],
                    transaction_id=transaction_ids[number].decode() if transaction_ids else None,
                    region=REGION,
                    trace_on=True,
                ).to_fields()
            request.respond(request.response(code, remark, fields))


def _unique_keys(properties: list[bytes]) -> list[bytes] | None:
    """Return the unique key of each message; None if one is not usual."""
    keys = [find_property(text, _UNIQUE_KEY) or b"" for text in properties]
    return keys if all(key.isalnum() for key in keys) else None


def _tag_codes(sends: PlainSends, properties: list[bytes]) -> list[int]:
    assert sends.properties is not None
    if _TAGS not in sends.properties:
        return [0] * len(properties)
    name = TAGS.encode()
    return [tag_code((find_property(text, name) or b"").decode()) for text in properties]
