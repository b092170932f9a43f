"""Messages as users see them, and their properties.

Properties are sent and stored as one string: name, U+0001, value, U+0002, for each. 4.9 leaves out
the last U+0002, so readers accept both. A piece without a name or without a value is ignored; of
two pieces with the same name the later one counts.

Source: RocketMQ MessageDecoder, MessageConst, Message, MessageExt.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Self

from pymq.errors import LocalProtocolError
from pymq.protocol.addresses import join_address
from pymq.protocol.codes import COMPRESSION_MASK, MessageFlag
from pymq.protocol.compression import DECOMPRESSED_BYTES_MAX, decompress
from pymq.protocol.message_keys import join_keys, split_keys
from pymq.protocol.outcomes import Settled
from pymq.protocol.record import PROPERTIES_BYTES_MAX, Record, offset_message_id, unpack_host

# Property names; RocketMQ's MessageConst says what each means.
KEYS = "KEYS"
TAGS = "TAGS"
WAIT = "WAIT"
DELAY = "DELAY"
UNIQUE_KEY = "UNIQ_KEY"
RETRY_TOPIC = "RETRY_TOPIC"
REAL_TOPIC = "REAL_TOPIC"
TRANSACTION_PREPARED = "TRAN_MSG"
PRODUCER_GROUP = "PGROUP"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME = "RECONSUME_TIME"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
REGION = "MSG_REGION"
TRACE_ON = "TRACE_ON"
CLUSTER = "CLUSTER"
TRANSACTION_ID = "__transactionId__"
TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
SHARDING_KEY = "__SHARDINGKEY"
CORRELATION_ID = "CORRELATION_ID"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
TTL = "TTL"
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
MESSAGE_TYPE = "MSG_TYPE"
TIMER_DELAY_S = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVERY_MS = "TIMER_DELIVER_MS"
INNER_COUNT = "INNER_NUM"
#: The namespace that a message was sent in.
INSTANCE_ID = "INSTANCE_ID"
POP_CHECK_POINT = "POP_CK"
#: Why a consumer of pymq has rejected a message; RocketMQ has no name for it.
DEAD_LETTER_REASON = "DLQ_REASON"
FIRST_POP_TIME = "1ST_POP_TIME"

_SYSTEM_NAMES = """
    TRACE_ON MSG_REGION KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP
    MIN_OFFSET MAX_OFFSET BUYER_ID ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG
    RECONSUME_TIME UNIQ_KEY MAX_RECONSUME_TIMES CONSUME_START_TIME POP_CK POP_CK_OFFSET
    1ST_POP_TIME TRAN_PREPARED_QUEUE_OFFSET DUP_INFO EXTEND_UNIQ_INFO INSTANCE_ID
    CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE
    INNER_MULTI_QUEUE_OFFSET TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_ENQUEUE_MS
    TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL
    __BORNHOST BORN_TIMESTAMP __CRC32#
"""
#: Names that only clients and brokers set (MessageConst.STRING_HASH_SET). Users may set other,
#: similar ones: the check immunity time, the sharding key, ``TIMER_DELAY_MS``.
SYSTEM_PROPERTIES = frozenset(_SYSTEM_NAMES.split())

#: System-flag bits that are cleared once a body is decompressed.
_COMPRESSED = int(MessageFlag.COMPRESSED)
_COMPRESSION_BITS = _COMPRESSED | COMPRESSION_MASK


# -------------------------------------------------------------------------------- properties


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Return the encoded properties, with U+0002 after the last value, as 5.x writes it.

    Raises:
        LocalProtocolError: a name or a value is empty or contains U+0001 or U+0002, or the
            text exceeds 32767 bytes.
    """
    parts = [f"{name}\x01{value}\x02" for name, value in properties.items()]
    text = "".join(parts)
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"a property is not Unicode: {error}") from error
    count = len(parts)
    if raw.count(1) != count or raw.count(2) != count or not all(map(_is_whole, parts)):
        raise _bad_property(properties)
    if len(raw) > PROPERTIES_BYTES_MAX:
        raise LocalProtocolError(
            f"properties of {len(raw)} B, expected at most {PROPERTIES_BYTES_MAX}"
        )
    return raw


def _is_whole(piece: str) -> bool:
    """Are there a name before and a value after the separator?"""
    return piece[0] != "\x01" and piece[-2] != "\x01"


def _bad_property(properties: Mapping[str, str]) -> LocalProtocolError:
    for name, value in properties.items():
        for what, text in (("name", name), ("value", value)):
            if not text or "\x01" in text or "\x02" in text:
                return LocalProtocolError(
                    f"property {name!r:.80}: its {what} is {text!r:.80}, expected a "
                    "non-empty string without U+0001 or U+0002"
                )
    raise AssertionError("no property is bad")


def decode_properties(properties: bytes | memoryview) -> dict[str, str]:
    """Decode properties; never fails, malformed UTF-8 is replaced."""
    return parse_properties(str(properties, "utf-8", "replace"))


def parse_properties(text: str) -> dict[str, str]:
    """Decode properties that are a string already, as in request headers."""
    found = {}
    for piece in text.split("\x02"):
        name, _, value = piece.partition("\x01")
        if value and name:
            found[name] = value
    return found


def find_property(properties: bytes, name: bytes) -> bytes | None:
    """Return the value of one property, ``None`` if it is absent, without decoding the rest."""
    needle = b"\x02" + name + b"\x01"
    end = len(properties)
    while (at := properties.rfind(needle, 0, end)) >= 0:
        value = _value_at(properties, at + len(needle))
        if value:
            return value
        end = at  # An empty value is ignored; an earlier one of this name counts.
    if name and properties.startswith(needle[1:]):
        return _value_at(properties, len(needle) - 1) or None
    return None


def _value_at(properties: bytes, start: int) -> bytes:
    end = properties.find(b"\x02", start)
    return properties[start:end] if end >= 0 else properties[start:]


def without_property(text: str, name: str) -> str:
    """Return encoded properties, as some client wrote them, without one property."""
    pieces = text.split("\x02")
    return "\x02".join(piece for piece in pieces if piece.partition("\x01")[0] != name)


# ---------------------------------------------------------------------------------- messages


def check_tag(tag: object) -> str:
    """Return the tag of a message to send.

    Raises:
        LocalProtocolError: it is not a string, or several tags.
    """
    if not isinstance(tag, str):
        raise LocalProtocolError(f"tags is a {type(tag).__name__}, expected one tag, a str")
    if "||" in tag:
        raise LocalProtocolError(
            f"tags {tag[:80]!r}: a message has one tag, '||' joins those that a consumer wants; no "
            "consumer of tags would get this message. Choose one; others may become properties"
        )
    return tag


def check_delay_level(level: object) -> int:
    """Return the delay level of a message to send.

    Raises:
        LocalProtocolError: it is not a whole number, or negative.
    """
    if not isinstance(level, int) or not 0 <= level < 1 << 31:
        raise LocalProtocolError(
            f"delay_level={level!r}, expected 0 for no delay, or a level of 1 or more: the place "
            "of the delay in the broker's messageDelayLevel, 1 for 1 s, 2 for 5 s, 3 for 10 s, ..."
        )
    return level


@dataclass(slots=True)
class Message:
    """A message to send.

    Attributes:
        topic: where to send it.
        body: the payload; at most 4 MiB, unless the broker is configured otherwise.
        tags: the tag by which consumers filter; one in practice.
        keys: for looking the message up: several are separated by blanks, or a list, as received
            messages have them.
        properties: the user's own; names of system properties are refused.
        flag: a number for the user's own purposes, 32 bits.
        delay_level: 0 for none, else 1.. as configured in the broker (1 s, 5 s, 10 s, ...).
        delay_s: seconds until it is delivered; 0 for none. Brokers from RocketMQ 5.0 on.
        deliver_at: when it is delivered, with a time zone. Likewise; one of these three at most.
    """

    topic: str
    body: bytes
    tags: str | None = None
    keys: str | Sequence[str] | None = None
    properties: dict[str, str] = field(default_factory=dict)
    flag: int = 0
    delay_level: int = 0
    delay_s: float = 0.0
    deliver_at: datetime | None = None

    @property
    def has_timer(self) -> bool:
        """Is it to be delivered at a time of its own?"""
        return bool(self.delay_s) or self.deliver_at is not None

    def encode_properties(
        self, unique_key: str | None = None, system: Mapping[str, str] | None = None
    ) -> bytes:
        """Return all properties, encoded.

        Args:
            unique_key: the client's message id.
            system: further system properties, such as ``TRAN_MSG``.

        Raises:
            LocalProtocolError: a property is a system property or cannot be encoded.
        """
        found: dict[str, str] = {}
        if self.properties:
            self._check_user_properties()
            found.update(self.properties)
        if self.tags:
            found[TAGS] = check_tag(self.tags)
        if self.keys:
            found[KEYS] = self.keys if isinstance(self.keys, str) else join_keys(self.keys)
        if self.delay_level:
            found[DELAY] = str(check_delay_level(self.delay_level))
        if self.delay_s or self.deliver_at is not None:
            found.update(self._timer())
        if unique_key is not None:
            found[UNIQUE_KEY] = unique_key
        if system:
            found.update(system)
        return encode_properties(found)

    def _check_user_properties(self) -> None:
        for name, value in self.properties.items():
            if not (isinstance(name, str) and isinstance(value, str)):
                raise LocalProtocolError(
                    f"property {name!r:.80} is {value!r:.80}, expected two strings; convert them, "
                    "for instance with str()"
                )
            if name in SYSTEM_PROPERTIES:
                raise LocalProtocolError(
                    f"property {name!r} belongs to the system; use the argument of Message "
                    "that sets it, or another name"
                )
            if not name.strip() or not value.strip():
                raise LocalProtocolError(
                    f"property {name!r:.80} is {value!r:.80}, expected a name and a value "
                    "that are not blank"
                )

    def _timer(self) -> dict[str, str]:
        if bool(self.delay_level) + bool(self.delay_s) + (self.deliver_at is not None) > 1:
            raise LocalProtocolError(
                f"message with delay_level={self.delay_level}, delay_s={self.delay_s} and "
                f"deliver_at={self.deliver_at}, expected one of them at most"
            )
        if self.deliver_at is not None:
            if not isinstance(self.deliver_at, datetime) or self.deliver_at.tzinfo is None:
                raise LocalProtocolError(
                    f"deliver_at={self.deliver_at!r:.80}, expected a datetime with a time zone, "
                    "such as datetime.now(UTC) + timedelta(hours=1)"
                )
            return {TIMER_DELIVERY_MS: str(round(self.deliver_at.timestamp() * 1000))}
        if not isinstance(self.delay_s, int | float) or not 0 < self.delay_s < math.inf:
            raise LocalProtocolError(f"delay_s={self.delay_s!r:.80}, expected seconds, above 0")
        return {TIMER_DELAY_MS: str(max(round(self.delay_s * 1000), 1))}


@dataclass(slots=True)
class ReceivedMessage(Settled):
    """A message as a consumer gets it; ``ack``, ``retry`` and ``reject`` say what became of it.

    ``topic`` is the one subscribed to, also for a message that is delivered again as a retry;
    ``body`` is decompressed; times are ms since 1970. The hosts are kept packed, because most
    consumers never use them.
    """

    topic: str
    body: bytes
    properties: dict[str, str]
    broker_name: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    born_timestamp_ms: int
    store_timestamp_ms: int
    born_host_packed: bytes
    store_host_packed: bytes
    reconsume_times: int = 0
    flag: int = 0
    sys_flag: int = 0
    prepared_transaction_offset: int = 0

    @classmethod
    def from_record(
        cls,
        record: Record,
        broker_name: str,
        *,
        topic: str | None = None,
        body_bytes_max: int = DECOMPRESSED_BYTES_MAX,
    ) -> Self:
        """Return the message in a stored record.

        Args:
            record: sent by the broker.
            broker_name: the broker.
            topic: replaces the record's own.
            body_bytes_max: largest decompressed body.

        Raises:
            RemoteProtocolError: the body cannot be decompressed.
            ConfigurationError: the package that its compression needs is not installed.
        """
        body, sys_flag = record.body, record.sys_flag
        if sys_flag & _COMPRESSED:
            body = decompress(body, sys_flag, bytes_max=body_bytes_max)
            sys_flag &= ~_COMPRESSION_BITS
        return cls(
            record.topic if topic is None else topic,
            body,
            decode_properties(record.properties),
            broker_name,
            record.queue_id,
            record.queue_offset,
            record.physical_offset,
            record.born_timestamp,
            record.store_timestamp,
            record.born_host,
            record.store_host,
            record.reconsume_times,
            record.flag,
            sys_flag,
            record.prepared_transaction_offset,
        )

    @property
    def tags(self) -> str | None:
        """The tag, as sent."""
        return self.properties.get(TAGS)

    @property
    def keys(self) -> list[str]:
        """The keys for looking it up."""
        return split_keys(self.properties.get(KEYS, ""))

    @property
    def message_id(self) -> str:
        """The id given by its producer, or ``offset_message_id`` if there is none."""
        return self.properties.get(UNIQUE_KEY) or self.offset_message_id

    @property
    def offset_message_id(self) -> str:
        """The id given by its broker, made of the broker's address and the physical offset."""
        return offset_message_id(self.store_host_packed, self.physical_offset)

    @property
    def transaction_id(self) -> str | None:
        """The transaction it was sent in."""
        if self.properties.get(TRANSACTION_PREPARED) != "true":
            return None
        return self.properties.get(TRANSACTION_ID) or self.properties.get(UNIQUE_KEY)

    @property
    def born_host(self) -> str:
        """Address of the sender, ``address:port``; an IPv6 address is in brackets."""
        return join_address(*unpack_host(self.born_host_packed))

    @property
    def store_host(self) -> str:
        """Address of the broker, ``address:port``; an IPv6 address is in brackets."""
        return join_address(*unpack_host(self.store_host_packed))
